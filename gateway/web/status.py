"""ping, status, agent.list, config.*, doctor.run, plugin.*, rule.list, route.explain, provider.test,
events.subscribe: the state of the gateway and its events."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Literal, Protocol

import anyio

from gateway.api import operating as api
from gateway.api.declarations import Params, build
from gateway.api.errors import wrong
from gateway.api.spending import BudgetRow
from gateway.codec import decode
from gateway.control.notices import Bus
from gateway.control.rules import RuleSet
from gateway.domain.agents import OWN_CHANNELS, AgentDef, SubagentDef, address_in
from gateway.domain.budgets import BudgetExceeded, Payer
from gateway.domain.channels import ChannelStatus
from gateway.domain.errors import GatewayError, ModelFailed, NotFound, StoreUnavailable
from gateway.domain.events import Event, kind_named
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.messages import Message, ToolCall
from gateway.domain.model import ModelReply, ModelRequest, ToolSpec
from gateway.domain.plugins import PluginAccount, PluginInfo
from gateway.domain.ports import Ids, Model, ToolScope
from gateway.domain.text import meant
from gateway.sessions.intake import Front
from gateway.sessions.mirrors import FarEvents
from gateway.tools import ToolGate
from gateway.web.identity import Principal, can_see_session, can_use, has_scope, visible_key
from gateway.web.responses import encode
from gateway.web.rpc import Call, Peer

QUESTION = "Answer with the single word: ready"
MOST_TOKENS = 32
WITHIN_S = 60.0
COUNT_WITHIN_S = 3.0  # the store may not answer
NOT_IN_USE = "; the version before stays in use"


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The facts of a process that do not change, and its configuration."""

    version: str
    started: float  # by the monotonic clock
    store_url: str
    pid: int
    generation: int
    config: Callable[[], api.ConfigState]


@dataclass(frozen=True, slots=True)
class StatusMethods:
    front: Front
    about: ProcessInfo
    reasons: Callable[[], Awaitable[Sequence[str]]]
    gate: ToolGate
    plugins: Callable[[], Sequence[PluginInfo]]
    account: Callable[[str], PluginAccount | None]
    budget: Callable[[], Awaitable[list[BudgetRow]]]
    backlog: Callable[[], Mapping[str, int]]
    channels: Callable[[], Sequence[ChannelStatus]]
    rules: RuleSet
    trial: "ProviderTrial"
    subagents: Sequence[SubagentDef] = ()

    def ping(self, call: Call, params: Params) -> Literal["pong"]:
        return "pong"

    async def status(self, call: Call, params: Params) -> api.Status:
        """Shows the state of the gateway. Parts that concern other users need the scope 'read'."""
        front, about = self.front, self.about
        budget, sessions = await self._counted(call.principal)
        reasons = list(await self.reasons())
        shown = api.Status(
            version=about.version,
            uptime_s=round(front.clock.monotonic() - about.started, 3),
            ready=not reasons,
            reasons=reasons,
            agents=[name for name in sorted(front.agents) if can_use(call.principal, name)],
            plugins=[build(api.PluginBrief, one) for one in self.plugins()],
            channels=[build(api.ChannelBrief, one) for one in self.channels()],
            store=api.StoreBrief(url=about.store_url),
        )
        if not has_scope(call.principal, "read"):
            return shown
        config, mcp, problems = about.config(), list(self.gate.foreign.statuses()), self._problems()
        errors = [f"{one.message}{NOT_IN_USE}" for one in config.errors]
        is_mcp_failing = any(one.state == "failing" for one in mcp)
        faults = any((reasons, errors, problems, config.restart_needed, is_mcp_failing))
        return build(
            api.Status,
            shown,
            healthy=not faults,
            budget=budget,
            sessions=sessions,
            pending=front.intake.pending,
            running=front.intake.lanes.working,
            memory=build(api.MemoryBacklog, self.backlog()),
            mcp=mcp,
            pid=about.pid,
            generation=about.generation,
            config=config,
            problems=[*errors, *problems],
        )

    async def _counted(self, who: Principal) -> tuple[list[BudgetRow] | None, int | None]:
        """Returns the budgets and the number of sessions; None while the store does not answer, which the reasons
        of readiness show."""
        if not has_scope(who, "read"):
            return None, None
        with suppress(StoreUnavailable, TimeoutError):
            with anyio.fail_after(COUNT_WITHIN_S):
                return await self.budget(), await self.front.sessions.count_sessions()
        return None, None

    def _problems(self) -> list[str]:
        """Lists the plugins, tools and channels that are configured and do not work."""
        plugins = [f"plugin {one.name} is refused: {one.why}" for one in self.plugins() if one.why]
        tools = [f"tool {one.name[:64]!r} is refused: {one.why}" for one in self.gate.refused]
        channels = [
            f"channel {one.name} is {one.state}: {one.why}" for one in self.channels() if one.why
        ]
        return plugins + tools + channels

    def plugin_list(self, call: Call, params: Params) -> Sequence[api.Plugin]:
        refused = self._refused_tools()
        return [describe_plugin(one, refused) for one in self.plugins()]

    def plugin_inspect(self, call: Call, params: api.InspectPlugin) -> api.PluginInspected:
        account = self.account(params.name)
        if account is None:
            raise NotFound(f"plugin {params.name[:64]!r}")
        return describe_account(account, self._refused_tools())

    def _refused_tools(self) -> Mapping[tuple[str, str], str]:
        return {(one.family, one.name): one.why for one in self.gate.refused}

    def rule_list(self, call: Call, params: Params) -> api.RuleList:
        return describe_rules(self.rules)

    def agent_list(self, call: Call, params: Params) -> api.AgentList:
        agents = self.front.agents
        mine = [agents[name] for name in sorted(agents) if can_use(call.principal, name)]
        own = {tool for agent in mine for tool in agent.tools}
        first = [one for one in self.subagents if one.tool in own]
        reached = own.union(*(one.tools for one in first))  # no deeper than MOST_DEPTH
        subagents = [
            build(api.Subagent, one, soul=self._soul(one.name))
            for one in self.subagents
            if one.tool in reached
        ]
        return api.AgentList(agents=[self._agent(agent) for agent in mine], subagents=subagents)

    def _agent(self, agent: AgentDef) -> api.Agent:
        fallbacks = [link.model for link in agent.chain[1:]]
        offered = [spec.name for spec in self.gate.offered(agent)]
        soul = self._soul(agent.id)
        return build(api.Agent, agent, fallbacks=fallbacks, offered=offered, soul=soul)

    def _soul(self, agent: str) -> api.AgentSoul | None:
        soul = self.front.souls.by_agent.get(AgentId(agent))
        return None if soul is None else build(api.AgentSoul, soul, path=soul.loaded_from)

    def route_explain(self, call: Call, params: api.RouteExplain) -> api.RouteExplained:
        own = call.principal.name if params.channel in OWN_CHANNELS else "default"
        account = params.account or own  # the default of a message without an account
        address = replace(
            address_in(params.channel, account, params.peer),
            guild=params.guild,
            team=params.team,
        )
        router = self.front.router
        rejected = [build(api.BindingRejected, one) for one in router.rejected(address)]
        return build(api.RouteExplained, router.resolve(address), rejected=rejected)

    async def provider_test(self, call: Call, params: api.ProviderTest) -> api.ProviderTested:
        return await self.trial.test(params.provider, params.model)


def describe_plugin(info: PluginInfo, refused: Mapping[tuple[str, str], str]) -> api.Plugin:
    """`refused` holds the reason for each refused tool, by (family, name)."""
    specs = info.tools if info.state == "loaded" else ()
    tools = [_tool(one, refused.get((one.family, one.name))) for one in specs]
    return build(api.Plugin, info, tools=tools, reason=info.why)


def describe_account(
    account: PluginAccount, refused: Mapping[tuple[str, str], str]
) -> api.PluginInspected:
    imports = [
        api.PluginImport(name=name, needs=need, denied=name in account.lacking)
        for name, need in account.needs.items()
    ]
    plugin = describe_plugin(account.info, refused)
    return build(api.PluginInspected, plugin, account, imports=imports)


def _tool(spec: ToolSpec, why: str | None) -> api.Tool:
    """Describes a tool. The parameters of a refused tool are left out, as they may be invalid."""
    parameters = decode(spec.parameters) if why is None else None
    return build(api.Tool, spec, parameters=parameters, reason=why)


def describe_rules(found: RuleSet) -> api.RuleList:
    """Lists the rules in the order in which they fire."""
    rules = []
    for one in found.rules:
        definition, faults = one.definition, found.faults[one.definition.id]
        rules.append(
            build(
                api.Rule,
                definition,
                core=definition.is_core,
                enabled=definition.is_enabled,
                errors=faults.count,
                last_error=faults.last or None,
                quarantined=faults.is_quarantined,
            )
        )
    refused = [build(api.RuleFileRefused, one) for one in found.refused]
    return api.RuleList(rules=rules, refused=refused)


class NothingToTest(GatewayError):
    code = "nothing_to_test"


@dataclass(frozen=True, slots=True)
class ProviderTrial:
    """Asks a provider for one reply. The model is metered, so the call is reserved and recorded. `defaults` holds
    every provider with its usual model, which is asked if no agent uses the provider."""

    model: Model
    ids: Ids
    agents: Sequence[AgentDef]
    defaults: Mapping[str, str | None]

    async def test(self, name: str | None, model: str | None) -> api.ProviderTested:
        try:
            reply = await self._ask(self._agent(name, model))
        except (BudgetExceeded, NothingToTest) as refusal:
            return api.ProviderTested(ok=False, kind=refusal.code, message=str(refusal))
        except ModelFailed as failed:
            return api.ProviderTested(ok=False, kind=failed.kind, message=str(failed))
        usage = reply.usage
        return build(api.ProviderTested, reply, usage, ok=True, tokens=usage.total)

    async def _ask(self, agent: AgentDef) -> ModelReply:
        run_id = RunId(f"r_{self.ids.new()}")
        payer = Payer(SessionKey(agent.id, "cli", "provider-test", run_id), run_id)
        request = ModelRequest(
            provider=agent.provider,
            model=agent.model,
            system="",
            messages=(Message("user", QUESTION),),
            max_tokens=MOST_TOKENS,
            stream=agent.stream,
            deadline_s=WITHIN_S,
            payer=payer,
        )
        with anyio.move_on_after(WITHIN_S):
            return await self.model.reply(request, lambda _delta: None)
        raise ModelFailed(agent.provider, "timeout", f"no complete reply within {WITHIN_S:g} s")

    def _agent(self, name: str | None, model: str | None) -> AgentDef:
        """Returns the first agent that uses the provider, or else one with the provider's usual model."""
        for link in chain.from_iterable(agent.chain for agent in self.agents):
            if name is None or link.provider == name:
                return replace(link, model=model or link.model)
        if name is None or name not in self.defaults:
            raise NothingToTest(
                f"no provider {name!r}; `exogate provider list` shows all providers"
            )
        model = model or self.defaults[name]
        if model is None:
            raise NothingToTest(f"no agent uses the provider {name!r}; name a model with --model")
        return AgentDef(AgentId(name), name, model)


@dataclass(frozen=True, slots=True)
class EventMethods:
    bus: Bus | FarEvents
    _stops: dict[int, Callable[[], None]] = field(default_factory=dict)  # by connection

    def events_subscribe(self, call: Call, params: api.EventsSubscribe) -> api.Subscribed:
        types = None if params.types is None else frozenset(map(_type_named, params.types))
        text = params.session_key
        key = None if text is None else visible_key(call.principal, text)
        listener = partial(_notify, call.peer, call.principal, key)
        call.after_answer.append(lambda: self._begin(call.peer, listener, types))
        shown = None if types is None else sorted(types)
        return api.Subscribed(types=shown, session_key=text)

    def _begin(
        self, peer: Peer, listener: Callable[[Event], None], types: frozenset[str] | None
    ) -> None:
        """Subscribes a connection. A second subscription replaces its first."""
        if not peer.is_open:
            return
        if stop := self._stops.get(id(peer)):
            stop()
        else:
            peer.on_close(lambda: self._stops.pop(id(peer))())
        self._stops[id(peer)] = self.bus.subscribe(listener, types=types)


def _type_named(name: str) -> str:
    """Raises InvalidParams."""
    kind = kind_named(name)
    if kind is None:
        raise wrong("types", f"no event {name[:64]!r}{meant(name, api.EVENT_NAMES)}")
    return kind.type


def _notify(peer: Peer, principal: Principal, only: SessionKey | None, event: Event) -> None:
    if (only is None or event.session_key == only) and _can_see(principal, event.session_key):
        peer.notify("event", encode(event))


def _can_see(principal: Principal, key: SessionKey | None) -> bool:
    """True if the principal can see events of the session. Events without a session need 'read' for all agents."""
    if key is None:
        return has_scope(principal, "read") and principal.agents is None
    return can_see_session(principal, key)


class Reload(Protocol):
    """Raises InvalidParams."""

    async def __call__(self, *, dry_run: bool, path: str | None) -> api.Reloaded: ...


class ProposedChanges(Protocol):
    """Raises InvalidParams, Conflict."""

    async def propose(
        self, patch: Mapping[str, object], secrets: Mapping[str, str]
    ) -> api.Proposed: ...

    async def apply(self, hash_: str) -> api.Applied: ...


@dataclass(frozen=True, slots=True)
class ConfigMethods:
    reload: Reload
    changes: ProposedChanges
    examine: Callable[..., Awaitable[api.DoctorReport]]

    async def config_reload(self, call: Call, params: api.ReloadConfig) -> api.Reloaded:
        return await self.reload(dry_run=params.dry_run, path=params.path)

    async def config_propose(self, call: Call, params: api.ProposeConfig) -> api.Proposed:
        return await self.changes.propose(params.patch, params.secrets or {})

    async def config_apply(self, call: Call, params: api.ApplyConfig) -> api.Applied:
        return await self.changes.apply(params.hash)

    async def doctor_run(self, call: Call, params: api.RunDoctor) -> api.DoctorReport:
        return await self.examine(is_live=params.live)


@dataclass(frozen=True, slots=True)
class PluginCallMethods:
    """Calls a tool of a plugin, as for an agent that has only this plugin."""

    gate: ToolGate
    plugins: Callable[[], Sequence[PluginInfo]]
    ids: Ids

    async def plugin_call(self, call: Call, params: api.CallPlugin) -> api.PluginCalled:
        if params.name not in {one.name for one in self.plugins()}:
            raise NotFound(f"plugin {params.name[:64]!r}")
        agent = AgentDef(AgentId("operator"), "", "", tools=(params.name,))
        offered = {spec.name for spec in self.gate.offered(agent)}
        tool = params.tool if params.tool in offered else f"{params.name}__{params.tool}"
        run_id, principal = RunId(f"r_{self.ids.new()}"), call.principal.name
        key = SessionKey(agent.id, "cli", "plugin-call", principal)
        tool_call = ToolCall(run_id, tool, encode(params.arguments or {}).decode())
        result = await self.gate.call_whole(
            agent, tool_call, ToolScope(key, run_id, principal, run_id)
        )
        return api.PluginCalled(ok=not result.is_error, output=result.content)
