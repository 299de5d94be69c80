"""ping, status, agent.list, plugin.*, route.explain, run.inspect, context.explain: what the gateway tells of itself."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict

from gateway.domain.agents import OWN_CHANNELS, AgentDef, SubagentDef, address_in
from gateway.domain.channels import ChannelStatus
from gateway.domain.errors import NotFound
from gateway.domain.ids import AgentId
from gateway.domain.mcp import McpStatus
from gateway.domain.plugins import PluginAccount, PluginInfo
from gateway.domain.ports import Decode
from gateway.memory.context import told_in_full
from gateway.sessions.intake import Front
from gateway.sessions.runs import AT_REST, LiveRun
from gateway.tools.gate import ToolGate
from gateway.web.identity import READS, may, may_use
from gateway.web.methods.chat import Text, find_run
from gateway.web.published.about import (
    Agent,
    AgentList,
    AgentSoul,
    McpServer,
    MemoryBacklog,
    RouteExplained,
    Status,
    Subagent,
)
from gateway.web.published.money import BudgetRow
from gateway.web.published.plugins import Plugin, PluginInspected
from gateway.web.published.runs import ContextExplained, RunInspected
from gateway.web.rpc import Call, Method, NoParams
from gateway.web.shapes import account, plugin, stamp


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Explain(_Params):
    channel: Text
    account: Text | None = None
    peer: Text = "main"
    guild: Text | None = None
    team: Text | None = None


class Inspect(_Params):
    run_id: Text


class InspectPlugin(_Params):
    name: Text


@dataclass(frozen=True, slots=True)
class About:
    """What is known once, at start."""

    version: str
    started: float  # by the clock that never jumps
    store_url: str
    pid: int
    origin: str


@dataclass(frozen=True, slots=True)
class InsightMethods:
    front: Front
    about: About
    reasons: Callable[[], Sequence[str]]
    decode: Decode
    gate: ToolGate
    plugins: Callable[[], Sequence[PluginInfo]]
    account: Callable[[str], PluginAccount | None]
    budget: Callable[[], Awaitable[list[BudgetRow]]]
    backlog: Callable[[], MemoryBacklog]
    channels: Callable[[], Sequence[ChannelStatus]]
    subagents: Sequence[SubagentDef] = ()

    def all(self) -> Sequence[Method]:
        return (
            Method("ping", NoParams, READS, self.ping),
            Method("status", NoParams, READS, self.status),
            Method("agent.list", NoParams, READS, self.agents),
            Method("plugin.list", NoParams, ("read",), self.list_plugins),
            Method("plugin.inspect", InspectPlugin, ("read",), self.inspect_plugin),
            Method("route.explain", Explain, ("read",), self.explain),
            Method("run.inspect", Inspect, READS, self.inspect),
            Method("context.explain", Inspect, READS, self.explain_context),
        )

    def ping(self, call: Call, params: NoParams) -> Literal["pong"]:
        """Whether anybody is there."""
        return "pong"

    async def status(self, call: Call, params: NoParams) -> Status:
        """How the gateway fares.

        What others do is shown to those who may read everything."""
        front, about = self.front, self.about
        reasons = list(self.reasons())
        shown: Status = {
            "version": about.version,
            "uptime_s": round(front.clock.monotonic() - about.started, 3),
            "ready": not reasons,
            "reasons": reasons,
            "agents": [name for name in sorted(front.agents) if may_use(call.principal, name)],
            "plugins": [{"name": one.name, "state": one.state} for one in self.plugins()],
            "channels": [{"name": one.name, "state": one.state} for one in self.channels()],
            "store": {"url": about.store_url},
        }
        if may(call.principal, "read"):
            shown["budget"] = await self.budget()
            shown["sessions"] = await front.sessions.count_sessions()
            shown["pending"] = front.intake.pending
            shown["running"] = front.intake.lanes.working
            shown["memory"] = self.backlog()
            shown["mcp"] = [_mcp(one) for one in self.gate.foreign.statuses()]
            shown["pid"] = about.pid
            shown["config"] = about.origin
            shown["problems"] = [*front.souls.problems, *front.plans.problems, *self._problems()]
        return shown

    def _problems(self) -> list[str]:
        """What was asked for and is not there."""
        plugins = [f"plugin {one.name} is refused: {one.why}" for one in self.plugins() if one.why]
        tools = [f"tool {one.name[:64]!r} is refused: {one.why}" for one in self.gate.refused]
        channels = [
            f"channel {one.name} is {one.state}: {one.why}" for one in self.channels() if one.why
        ]
        return plugins + tools + channels

    def list_plugins(self, call: Call, params: NoParams) -> list[Plugin]:
        """All plugins and their tools."""
        return [self._plugin(info) for info in self.plugins()]

    def _plugin(self, info: PluginInfo) -> Plugin:
        why = {(one.family, one.name): one.why for one in self.gate.refused}
        return plugin(info, why, self.decode)

    def inspect_plugin(self, call: Call, params: InspectPlugin) -> PluginInspected:
        """A plugin, what it can touch, and what it did.

        With the imports, the capability that each needs, and what it did with those it has."""
        told = self.account(params.name)
        if told is None:
            raise NotFound(f"plugin {params.name[:64]!r}")
        return {**self._plugin(told.info), **account(told)}

    def agents(self, call: Call, params: NoParams) -> AgentList:
        """The agents that one can talk to."""
        agents = self.front.agents
        mine = [agents[name] for name in sorted(agents) if may_use(call.principal, name)]
        own = {tool for agent in mine for tool in agent.tools}
        first = [one for one in self.subagents if one.tool in own]
        reached = own.union(*(one.tools for one in first))  # no deeper than MOST_DEPTH
        subagents = [self._subagent(one) for one in self.subagents if one.tool in reached]
        return {"agents": [self._agent(agent) for agent in mine], "subagents": subagents}

    def _subagent(self, one: SubagentDef) -> Subagent:
        return {
            "name": one.name,
            "description": one.description,
            "provider": one.provider,
            "model": one.model,
            "max_turns": one.max_turns,
            "timeout_seconds": one.timeout_seconds,
            "tools": list(one.tools),
            "soul": self._soul(AgentId(one.name)),
        }

    def _agent(self, agent: AgentDef) -> Agent:
        return {
            "id": agent.id,
            "provider": agent.provider,
            "model": agent.model,
            "fallbacks": [one.model for one in _fallbacks(agent)],
            "tools": list(agent.tools),
            "offered": [spec.name for spec in self.gate.offered(agent)],
            "context_window": agent.context_window,
            "soul": self._soul(agent.id),
        }

    def _soul(self, agent: AgentId) -> AgentSoul | None:
        soul = self.front.souls.of(agent)
        if soul is None:
            return None
        return {
            "path": soul.loaded_from,
            "token_count": soul.token_count,
            "loaded_from": soul.loaded_from,
            "loaded_at": stamp(soul.loaded_at),
        }

    def explain(self, call: Call, params: Explain) -> RouteExplained:
        """Which agent answers an address, and why."""
        own = call.principal.name if params.channel in OWN_CHANNELS else "default"
        account = params.account or own  # as a message gets it that names none
        address = replace(
            address_in(params.channel, account, params.peer),
            guild=params.guild,
            team=params.team,
        )
        route = self.front.router.resolve(address)
        return {
            "agent_id": route.agent_id,
            "matched_by": route.matched_by,
            "binding_index": route.binding_index,
            "session_key": str(route.session_key),
            "rejected": [
                {"index": one.index, "why": one.why} for one in self.front.router.rejected(address)
            ],
        }

    async def inspect(self, call: Call, params: Inspect) -> RunInspected:
        """How far a run is, or how it ended."""
        shown = await self._summary(call, params)
        return cast(RunInspected, {name: shown[name] for name in shown if name != "context"})

    async def explain_context(self, call: Call, params: Inspect) -> ContextExplained:
        """What a run's model was shown, part by part."""
        kept = (await self._summary(call, params)).get("context")
        told = told_in_full(params.run_id, kept if isinstance(kept, dict) else None)
        return cast(ContextExplained, told)

    async def _summary(self, call: Call, params: Inspect) -> Mapping[str, object]:
        """Plain data, as a run tells it or has left it."""
        run = await find_run(self.front, call.principal, params.run_id)
        if isinstance(run, LiveRun):
            return run.summary(self.front.clock)
        if run.summary:
            kept = self.decode(run.summary)
            assert isinstance(kept, dict)
            return kept
        new = run.entry.new
        return {
            **AT_REST,
            "run_id": new.run_id,
            "session_key": str(new.session_key),
            "agent_id": new.session_key.agent,
            "state": run.entry.state,
            "elapsed_s": 0.0,
            "timings": {"accepted_at": stamp(new.accepted_at)},
            "termination_reason": run.outcome,
        }


def _mcp(one: McpStatus) -> McpServer:
    return {
        "name": one.name,
        "state": one.state,
        "version": one.version,
        "tools": one.tools,
        "why": one.why,
    }


def _fallbacks(agent: AgentDef) -> Sequence[AgentDef]:
    chain: list[AgentDef] = []
    while agent.fallback is not None:
        agent = agent.fallback
        chain.append(agent)
    return chain
