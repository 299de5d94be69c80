"""The subagents of the configuration: over the same gate, model and rules as the agents."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from pydantic_core import from_json, to_json

from gateway.agent.effects import Gate
from gateway.agent.leaves import Plans
from gateway.agent.runner import Runner
from gateway.agent.subagents import Delegating, Subagents
from gateway.app.agents import (
    Rulebook,
    choosable,
    closed_agents,
    decision_trees,
    models,
    soul_paths,
    template_paths,
    tree_paths,
)
from gateway.app.authority import note_start
from gateway.app.channels import ChannelRoom, channel_room, chat_commands, delivering, pairing_book
from gateway.app.doors import Health, StoreWatch, tell_of_gateway
from gateway.app.mcp import mcp_served, mcp_servers
from gateway.app.memory import Around, Memory, memory_methods, memory_of, memory_tool, vaults_of
from gateway.app.plugins import PATIENCE_S, Parts, follow, loaded_plugins
from gateway.app.provider_test import ProviderTest
from gateway.budgets.metering import Meter
from gateway.channels.pairing import PairingBook
from gateway.config.keys import json_schema
from gateway.config.values import GatewayConfig, QueueSettings
from gateway.control.notices import Bus
from gateway.control.policy import DecisionTrees
from gateway.domain.agents import AgentDef
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import AgentId, Secret, SessionKey
from gateway.domain.inbox import ChannelEvents
from gateway.domain.mcp import Door
from gateway.domain.ports import Clock, Ids, Model, StoreCare, Stores
from gateway.domain.supervision import Work as Beside
from gateway.domain.supervision import supervise
from gateway.host.clock import SystemClock
from gateway.host.ids import TimeIds
from gateway.host.texts import FileTexts
from gateway.memory.episodes import Episodes
from gateway.memory.souls import Souls
from gateway.providers.client import Models, ProviderClient
from gateway.providers.prices import PriceTable
from gateway.routing import Router
from gateway.sandbox.plugins import Plugins
from gateway.schemas import SchemaChecks
from gateway.sessions.intake import Bounds, Front, Reception, Upkeep
from gateway.sessions.lanes import Lanes, Manner
from gateway.sessions.player import Reel
from gateway.sessions.replay import Replays, Wired
from gateway.sessions.runs import LiveRuns
from gateway.sessions.settings import SettingsBook
from gateway.sessions.stateless import Stateless
from gateway.sessions.worker import Means, Work
from gateway.store.opening import open_store
from gateway.tools.gate import ToolGate
from gateway.tools.originals import ResultTool
from gateway.web.asgi import WebApp, build
from gateway.web.asyncapi import asyncapi
from gateway.web.chat_api import ChatApi
from gateway.web.conversations_api import ConversationsApi
from gateway.web.documents_api import documented
from gateway.web.identity import Identities
from gateway.web.mcp import McpApi
from gateway.web.methods.audit import AuditMethods
from gateway.web.methods.budget import BudgetMethods
from gateway.web.methods.chat import ChatMethods
from gateway.web.methods.events import EventMethods
from gateway.web.methods.insight import About, InsightMethods
from gateway.web.methods.pairing import PairMethods
from gateway.web.methods.providers import ProviderMethods
from gateway.web.methods.replays import ReplayMethods
from gateway.web.methods.rules import RuleMethods
from gateway.web.methods.sessions import SessionMethods
from gateway.web.methods.settings import SettingsMethods
from gateway.web.methods.upkeep import UpkeepMethods
from gateway.web.metrics import Metrics
from gateway.web.openai_api import OpenAiApi
from gateway.web.settings import WebSettings


def with_subagents(config: GatewayConfig) -> tuple[AgentDef, ...]:
    """All that have a prompt and a tree. The subagents are nobody's answer: what they do not say
    they get from whoever asks them."""
    helpers = (
        AgentDef(AgentId(one.name), "", "", soul_path=one.prompt_path) for one in config.subagents
    )
    return (*config.agents, *helpers)


def subagents_of(
    config: GatewayConfig, parts: Parts, settings: SettingsBook, runs: LiveRuns
) -> Subagents:
    """From now on agents have them as tools."""
    known = {one.name: one for one in config.subagents}
    agents = {agent.id: agent for agent in config.agents}
    found = (settings.of, parts.clock, runs.journal_of)
    subagents = Subagents(known, parts.runner(), parts.souls, *found, agents)
    parts.gate.renew("", subagents.tools)
    return subagents


def gate_of(
    config: GatewayConfig, parts: Parts, subagents: Subagents
) -> tuple[Gate, Callable[[SessionKey], Awaitable[None]]]:
    """What agents have that people talk to, and how to forget what it keeps of a session."""
    if not config.delegation.is_enabled:
        return parts.gate, parts.gate.excerpts.forget
    kept = parts.stores.originals
    gate = Delegating(parts.gate, subagents, config.delegation, kept, to_json)
    return gate, kept.forget


log = logging.getLogger(__name__)

EVERY_S = 3600.0
AT_ONCE = 500
PAUSE_S = 0.1
SENT_AGAIN = timedelta(days=8)  # no platform brings a message again after a week


async def sweep(config: GatewayConfig, stores: Stores, clock: Clock) -> None:
    """A little at a time, until cancelled."""
    while True:
        try:
            await _forget(config, stores.care, clock)
            await _forget_heard(stores.channel_events, clock)
            await _expire(config, stores.care, clock)
        except StoreUnavailable as error:
            log.warning("what is old stays for now", extra={"why": str(error)})
        await clock.sleep(EVERY_S)


async def _forget(config: GatewayConfig, care: StoreCare, clock: Clock) -> None:
    before = clock.now() - timedelta(days=config.store.journal_days)
    while await care.sweep(before=before, limit=AT_ONCE):
        await clock.sleep(PAUSE_S)


async def _forget_heard(events: ChannelEvents, clock: Clock) -> None:
    while await events.forget(before=clock.now() - SENT_AGAIN, limit=AT_ONCE):
        await clock.sleep(PAUSE_S)


async def _expire(config: GatewayConfig, care: StoreCare, clock: Clock) -> None:
    for agent in config.agents:
        days = agent.context.expire_days
        if days is None:
            continue
        before = clock.now() - timedelta(days=days)
        while await care.expire(agent.id, before=before, limit=AT_ONCE):
            await clock.sleep(PAUSE_S)


def replays(config: GatewayConfig, means: Means, stores: Stores) -> Replays:
    providers = frozenset({*config.providers, "demo"})
    return Replays(means, stores.runs, stores.transcript, rewired(config), providers)


def rewired(config: GatewayConfig) -> Wired:
    """The same clients for replays: over what was recorded, without keys, addresses and waiting."""
    definitions = {
        name: replace(definition, api_key=Secret("replayed"))
        for name, definition in config.providers.items()
    }

    def wired(reel: Reel) -> Model:
        clients = {
            name: ProviderClient(definition, reel, reel, reel.random, encoder=reel)
            for name, definition in definitions.items()
        }
        return Models(clients)

    return wired


@dataclass(slots=True)
class Gateway:
    """The rooms of one running gateway."""

    config: GatewayConfig
    version: str
    clock: Clock
    ids: Ids
    stores: Stores
    souls: Souls
    lanes: Lanes
    front: Front
    settings: SettingsBook
    gate: ToolGate
    plugins: Plugins
    bus: Bus
    rules: Rulebook
    meter: Meter
    replays: Replays
    memory: Memory
    channels: ChannelRoom
    pairing: PairingBook
    stateless: Stateless
    trial: ProviderTest
    mcp: Door | None = None
    watch: StoreWatch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = StoreWatch(self.stores.care.probe, self.clock)

    @property
    def health(self) -> Health:
        return self.watch.health

    def web(self, settings: WebSettings) -> WebApp:
        spending = BudgetMethods(self.front, self.stores.spending, self.meter)
        methods = (
            *spending.all(),
            *AuditMethods(self.stores.audit).all(),
            *PairMethods(self.pairing).all(),
            *self.channels.methods(self.stores),
            *memory_methods(
                self.memory, self.stores, self.config.agents, self.ids, self.front.upkeep
            ).all(),
            *ChatMethods(self.front, to_json).all(),
            *SessionMethods(self.front).all(),
            *UpkeepMethods(self.front).all(),
            *EventMethods(self.bus).all(),
            *SettingsMethods(self.settings, choosable(self.config)).all(),
            *RuleMethods(lambda: self.rules.current).all(),
            *ReplayMethods(self.front, self.replays).all(),
            *ProviderMethods(self.trial).all(),
            *InsightMethods(
                self.front,
                self._about(),
                self.health.reasons,
                from_json,
                gate=self.gate,
                plugins=lambda: self.plugins.infos,
                account=self.plugins.account,
                budget=spending.periods,
                backlog=self.memory.backlog,
                channels=self.channels.statuses,
                subagents=self.config.subagents,
            ).all(),
        )
        spent = (self.stores.spending, self.meter.refusals, spending.everything)
        metrics = Metrics(
            self.front,
            *spent,
            self.health.reasons,
            self.version,
            self.channels.figures(self.stores.dead_letters),
            self.gate.foreign,
        ).routes()
        told = metrics if self.config.observability.metrics else ()
        read = (ConversationsApi(self.front), SessionMethods(self.front), spending)
        apis = (*self._chats(), *read, McpApi(self.mcp))
        routes = (*(route for api in apis for route in api.routes()), *told)
        documents = {
            "/config.schema.json": json_schema,
            "/asyncapi.json": lambda: asyncapi(methods, self.version),
        }
        app = build(
            settings,
            methods=methods,
            routes=documented(routes, self.version, documents),
            ready=self.watch.reasons,
            clock=self.clock,
            identities=Identities(settings, self.clock, self.stores.audit),
        )
        app.open_webhooks(self.channels.door)
        return app

    def _about(self) -> About:
        return About(
            version=self.version,
            started=self.clock.monotonic(),
            store_url=self.config.store.url,
            pid=os.getpid(),
            origin=str(self.config.origin or "none (built-in defaults)"),
        )

    def _chats(self) -> tuple[ChatApi, OpenAiApi]:
        started = int(self.clock.now().timestamp())
        chat = ChatApi(self.front, to_json, from_json, self.ids)
        return chat, OpenAiApi(self.front, self.stateless, to_json, from_json, started)

    async def drain(self) -> None:
        """Takes nothing more in, and waits for the runs that are at work."""
        self.health.draining = True
        self.channels.hang_up()
        self.front.reception.close()
        self.stateless.close()
        self.lanes.pause()
        log.info("draining", extra={"running": self.lanes.working})
        with anyio.move_on_after(self.config.gateway.drain_s) as scope:
            await self.lanes.rest()
            await self.stateless.rest()
        if scope.cancelled_caught:
            log.warning("runs are cut off and start again", extra={"running": self.lanes.working})
        await self.channels.drain()
        self.front.live.abandon_all()
        self.stateless.abandon_all()


@asynccontextmanager
async def assembled(
    config: GatewayConfig,
    *,
    version: str,
    accept_loss: bool = False,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Gateway]:
    """Everything but the front doors, at work until the context is left. Plugins that take longer
    than `patience_s` come later, with the channels that they are adapters of."""
    clock = SystemClock()
    ids = TimeIds(clock)
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(
            open_store(
                config.store.url, config.gateway.data_dir, clock=clock, accept_loss=accept_loss
            )
        )
        await stores.care.probe()
        prices = PriceTable(config.providers)
        if config.providers:  # before any call: whoever needs it meanwhile would stop everybody
            await to_thread.run_sync(prices.warm)
        meter = Meter(stores.ledger, config.budgets, prices, clock, ids, stores.audit)
        await meter.settle_lost()
        model = await stack.enter_async_context(models(config, clock, meter.around))
        paths = await to_thread.run_sync(soul_paths, with_subagents(config))
        souls = Souls(FileTexts(clock), paths, clock=clock, templates=template_paths(config.agents))
        await souls.load()
        bus = Bus()
        plans, decisions = await _judged_plans(config, clock, bus)
        group = await stack.enter_async_context(anyio.create_task_group())
        loading = loaded_plugins(config, stores.plugins, clock, patience_s)
        plugins = await stack.enter_async_context(loading)
        gate = ToolGate(
            (
                memory_tool(stores, config.agents, clock, ids),
                ResultTool(stores.originals, stores.transcript),
                *plugins.tools,
            ),
            schemas=SchemaChecks(),
            decode=strict_json,
            clock=clock,
            originals=stores.originals,
        )
        await stack.enter_async_context(mcp_servers(config, gate, stores, bus, clock))
        await follow(plugins, gate, stores.audit, clock)
        await note_start(stores.audit, config, plugins.infos, version, clock.now())
        rules = Rulebook(config, clock)
        opened = (version, clock, bus, ids, stores, souls, plans, decisions)
        book = pairing_book(stores, bus, clock, ids)
        parts = Parts(*opened, model, plugins, gate, rules, meter, book)
        rooms = _wired(config, parts, group)
        await rooms.channels.load(config.channels, plugins.adapters, plugins.infos)
        rooms.channels.refuse_alike()
        sent = delivering(rooms.channels, config.channels, stores.outbox, rooms.front, bus)
        await stack.enter_async_context(sent)
        rooms.mcp = await stack.enter_async_context(mcp_served(config, rooms.front, gate, ids))
        await rooms.memory.keeper.resume()
        _work_beside(rooms, plans, partial(sweep, config, stores, clock), group)
        try:
            yield rooms
        finally:
            group.cancel_scope.cancel()


def _work_beside(rooms: Gateway, plans: Plans, sweeping: Beside, group: TaskGroup) -> None:
    """What goes on for as long as the gateway runs."""
    beside: dict[str, Beside] = {
        "souls": rooms.souls.keep_fresh,
        "trees": plans.keep_fresh,
        "rules": rooms.rules.keep_fresh,
        "store": rooms.watch.run,
        "sweep": sweeping,
        "index": rooms.memory.indexer.run,
        "channels": partial(rooms.channels.open_late, rooms.plugins),
    }
    for name, task in beside.items():
        may_end = name in {"rules", "channels"}  # there may be none to follow, or to wait for
        work = partial(supervise, name, task, rooms.clock, may_end=may_end)
        group.start_soon(work, name=name)


async def _judged_plans(
    config: GatewayConfig, clock: Clock, bus: Bus
) -> tuple[Plans, DecisionTrees]:
    """The agents' trees, and the policies that they and their agents name."""
    policies = {agent.decision for agent in config.agents}
    decisions = await to_thread.run_sync(decision_trees, policies)
    tell, paths = partial(tell_of_gateway, bus, clock), tree_paths(with_subagents(config))
    plans = Plans(FileTexts(clock), paths, tell, decisions=decisions)
    await plans.load()
    return plans, decisions


def _wired(config: GatewayConfig, parts: Parts, group: TaskGroup) -> Gateway:
    agents = {agent.id: agent for agent in config.agents}
    episodes, runs = Episodes(parts.stores.transcript), LiveRuns(to_json)
    lanes = Lanes(group, width=config.queue.max_running)
    around = Around(agents, parts.model, episodes, lanes, parts.clock, parts.ids, group)
    memory = memory_of(parts.stores, around, vaults_of(config, parts.gate, parts.stores.plugins))
    settings = SettingsBook(parts.stores.settings, to_json, from_json)
    gate, forget = gate_of(config, parts, subagents_of(config, parts, settings, runs))
    runner = replace(parts.runner(), gate=gate)
    means = memory.told_by(_means(parts, agents, runner, episodes, settings, config))
    names, closed = tuple(agents), closed_agents(config)
    router = Router(names, config.bindings, config.default_agent, closed=closed)
    reception = Reception(
        router=router,
        inbox=parts.stores.inbox,
        lanes=lanes,
        runs=runs,
        work=Work(means, runs),
        clock=parts.clock,
        ids=parts.ids,
        bounds=bounds_of(config.queue),
        manner=Manner(config.queue.mode, config.queue.debounce_ms / 1000),
    )
    upheld = (parts.stores.conversations, parts.stores.erasures, parts.stores.sessions, episodes)
    front = Front(
        agents=agents,
        router=router,
        reception=reception,
        live=runs,
        runs=parts.stores.runs,
        transcript=parts.stores.transcript,
        sessions=parts.stores.sessions,
        episodes=episodes,
        souls=parts.souls,
        plans=parts.plans,
        clock=parts.clock,
        upkeep=Upkeep(*upheld, parts.clock, memory.indexer.note, memory.forget, reception.holding),
    )
    commands = chat_commands(config, parts.stores, front, memory, parts.pairing)
    return Gateway(
        config=config,
        version=parts.version,
        clock=parts.clock,
        ids=parts.ids,
        stores=parts.stores,
        souls=parts.souls,
        lanes=lanes,
        front=front,
        settings=settings,
        gate=parts.gate,
        plugins=parts.plugins,
        bus=parts.bus,
        rules=parts.rules,
        meter=parts.meter,
        replays=replays(config, means, parts.stores),
        memory=memory,
        channels=channel_room(parts.stores, front.reception, parts.bus, parts.pairing, commands),
        pairing=parts.pairing,
        trial=ProviderTest(config, parts.model, parts.ids),
        stateless=Stateless(means, parts.ids, group, width=config.queue.max_running, forget=forget),
    )


def bounds_of(queue: QueueSettings) -> Bounds:
    return Bounds(
        queue.max_pending,
        queue.max_pending_total,
        queue.max_pending_mb,
        queue.max_pending_total_mb,
        queue.max_pending_per_principal,
    )


def _means(
    parts: Parts,
    agents: Mapping[AgentId, AgentDef],
    runner: Runner,
    episodes: Episodes,
    settings: SettingsBook,
    config: GatewayConfig,
) -> Means:
    return Means(
        agents=agents,
        runner=runner,
        inbox=parts.stores.inbox,
        journal=parts.stores.journal,
        runs=parts.stores.runs,
        episodes=episodes,
        souls=parts.souls,
        settings=settings,
        clock=parts.clock,
        bus=parts.bus,
        encode=to_json,
        decode=from_json,
        rule_states=parts.stores.rule_states,
        notices=parts.stores.notices,
        channels=frozenset(one.name for one in config.channels),
    )


def strict_json(text: str | bytes) -> Any:
    """Without the numbers that are none: a guest's parser, or a provider's, refuses them."""
    return from_json(text, allow_inf_nan=False)
