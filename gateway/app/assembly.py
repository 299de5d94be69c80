"""The composition: a configuration is built into a generation, and started over what is shared."""

import logging
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from gateway.agent.driver import Runner
from gateway.agent.leaves import Plans
from gateway.agent.subagents import Subagents, SummarizingGate
from gateway.api.methods import METHODS
from gateway.app.background import keep_rules_fresh, sweep
from gateway.app.generation import Generation, build, usual_agent
from gateway.app.shared import (
    Shared,
    open_fetch,
    open_sockets,
    opened,
    provider_trial,
    scrubbing,
)
from gateway.budgets import Meter
from gateway.channels.access import AccessControl
from gateway.channels.adapter_json import read_description
from gateway.channels.commands import ChatCommands
from gateway.channels.room import channel_room, delivering, keep_channels_connected
from gateway.config.access import note_start
from gateway.config.schema import json_schema
from gateway.config.values import GatewayConfig
from gateway.control.rules import CurrentRules
from gateway.domain.events import Deed
from gateway.domain.ids import Secret, SessionKey
from gateway.domain.mcp import Door
from gateway.domain.ports import Model
from gateway.domain.supervision import supervise
from gateway.host.files import FileTexts
from gateway.host.folder import Folder
from gateway.memory.extraction import FactExtractor, Memory
from gateway.memory.recall import Indexer, Recall, vaults_of
from gateway.memory.souls import Souls
from gateway.memory.tool import MemoryTool
from gateway.providers.client import Models, ProviderClient
from gateway.sandbox.host_functions import HostDeps
from gateway.sandbox.plugins import (
    PATIENCE_S,
    NoFetch,
    Plugins,
    follow,
    host_functions,
    open_plugins,
    open_sandbox,
)
from gateway.schemas import SchemaChecks
from gateway.sessions.compacting import Compaction
from gateway.sessions.intake import Front, MessageIntake, ServedDesk
from gateway.sessions.replay import Reel, Replayer
from gateway.sessions.stateless import StatelessRuns
from gateway.sessions.worker import RunWorker
from gateway.tools.gate import ToolGate
from gateway.tools.results import ResultTool
from gateway.web.asgi import WebApp, twins
from gateway.web.asgi import build as build_web
from gateway.web.chat import ChatApi, ChatMethods, McpApi
from gateway.web.documents import asyncapi, documented
from gateway.web.health import Health, StoreWatch
from gateway.web.identity import Identities
from gateway.web.memory import MemoryMethods, SettingsMethods
from gateway.web.metrics import ChannelFigures, Metrics
from gateway.web.openai import OpenAiApi
from gateway.web.operating import AuditMethods, BudgetMethods, ChannelMethods, PairMethods
from gateway.web.rpc import Handler, Registry, handlers_of
from gateway.web.sessions import SessionMethods
from gateway.web.settings import WebSettings
from gateway.web.status import About, EventMethods, StatusMethods

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a generation has opened for itself. Its tasks end with the group."""

    group: TaskGroup
    meter: Meter
    model: Model
    souls: Souls
    plans: Plans
    plugins: Plugins
    gate: ToolGate
    rules: CurrentRules


class Gateway:
    """The rooms of one generation over what is shared, connected and at rest. `mcp` is what is served to
    MCP clients."""

    mcp: Door | None = None

    def __init__(self, made: Generation, version: str, shared: Shared, opened: Resources) -> None:
        self.made, self.version, self.shared, self.opened = made, version, shared, opened
        stores, clock, ids = shared.stores, shared.clock, shared.ids
        extractor = FactExtractor(made.agents, stores.facts, opened.model, clock, ids, opened.group)
        memory = Memory(extractor, Indexer(stores.facts, clock), Recall(stores.facts))
        self.memory = memory
        worker, forget = self._worker()
        self.front = Front(
            agents=made.agents,
            router=made.router,
            intake=MessageIntake(
                router=made.router,
                worker=worker,
                lanes=shared.lanes,
                ids=ids,
                bounds=made.bounds,
                policy=made.queueing,
            ),
            live=shared.live,
            inbox=stores.inbox,
            sessions=stores.sessions,
            episodes=shared.episodes,
            souls=opened.souls,
            plans=opened.plans,
            clock=clock,
            on_import=memory.indexer.note,
            on_erase=memory.forget,
        )
        width = made.config.queue.max_running
        self.stateless = StatelessRuns(worker, ids, opened.group, width=width, forget=forget)
        providers = frozenset({*made.config.providers, "demo"})
        self.replays = Replayer(worker, stores.sessions, self._replayed_models, providers)
        self.access = AccessControl(stores.channels, stores.audit, clock, ids, shared.tell)
        commands = ChatCommands(
            front=self.front,
            spending=stores.ledger,
            budgets=made.config.budgets,
            facts=stores.facts,
            recall=memory.recall,
            settled=memory.settled,
            shared=made.sharing,
            access=self.access,
        )
        self.channels = channel_room(
            stores, commands, publish=shared.tell, scrubbing=scrubbing, traffic=shared.traffic
        )
        self.watch = StoreWatch(stores.care.probe, clock)

    def _worker(self) -> tuple[RunWorker, Callable[[SessionKey], Awaitable[None]]]:
        """The worker, and what forgets the tool results of a run that leaves nothing. Agents that people
        talk to have subagents as tools."""
        made, shared, opened, memory = self.made, self.shared, self.opened, self.memory
        config, stores, gate, clock = made.config, shared.stores, opened.gate, shared.clock
        runner = Runner(
            opened.model,
            gate,
            opened.plans,
            made.decisions,
            opened.rules,
            shared.bus.publish,
            shared.bus.hears,
            opened.meter.cost_usd,
        )
        known = {one.name: one for one in config.subagents}
        deps = (opened.souls, shared.settings.of, clock, shared.journal_of, made.agents)
        subagents = Subagents(known, runner, *deps)
        gate.renew("", subagents.tools)
        forget: Callable[[SessionKey], Awaitable[None]] = gate.forget
        if config.delegation.is_enabled:
            summing = SummarizingGate(gate, subagents, config.delegation, stores.tools)
            runner, forget = replace(runner, gate=summing), stores.tools.forget_originals
        caches = (stores.sessions, shared.episodes, shared.lanes, clock, shared.ids)
        compaction = Compaction(opened.model, *caches, on_compacted=memory.extractor.on_compacted)
        vaults = vaults_of(config.agents, gate.offered, config.plugins, stores.tools)
        worker = RunWorker(
            agents=made.agents,
            runner=runner,
            inbox=stores.inbox,
            journal=stores.journal,
            episodes=shared.episodes,
            souls=opened.souls,
            settings=shared.settings,
            clock=clock,
            bus=shared.bus,
            channels=frozenset(one.name for one in config.channels),
            runs=shared.live,
            extractor=memory.extractor,
            on_finished=memory.indexer.note,
            memory=memory.recall,
            vaults=vaults,
            compact=compaction.consider,
        )
        return worker, forget

    def _replayed_models(self, reel: Reel) -> Model:
        """The same clients over what was recorded: without keys, addresses and waiting."""
        key = Secret("replayed")
        return Models(
            {
                name: ProviderClient(
                    replace(one, api_key=key), reel, reel, reel.random, encoder=reel
                )
                for name, one in self.made.config.providers.items()
            }
        )

    @property
    def health(self) -> Health:
        return self.watch.health

    def web(self, settings: WebSettings) -> WebApp:
        """The front door, with all methods and routes."""
        meter, gate, clock = self.opened.meter, self.opened.gate, self.shared.clock
        stores, front = self.shared.stores, self.front
        spending = BudgetMethods(front, stores.ledger, meter)
        registry = Registry(METHODS, self._handlers(spending))
        metrics = Metrics(
            front,
            stores.ledger,
            meter.refusals,
            spending.everything,
            self.health.reasons,
            self.version,
            ChannelFigures(self.channels.statuses, stores.outbox, *self.shared.traffic),
            gate.foreign,
        )
        started = int(clock.now().timestamp())
        apis = (
            ChatApi(front, self.shared.ids),
            OpenAiApi(front, self.stateless, started),
            spending,
            McpApi(self.mcp),
            *((metrics,) if self.made.config.observability.metrics else ()),
        )
        documents = {
            "/config.schema.json": json_schema,
            "/asyncapi.json": lambda: asyncapi(METHODS, self.version),
        }
        routes = [*twins(registry), *(route for api in apis for route in api.routes())]
        app = build_web(
            settings,
            registry,
            routes=documented(routes, self.version, documents),
            ready=self.watch.reasons,
            clock=clock,
            identities=Identities(settings, clock, stores.audit),
        )
        app.open_webhooks(self.channels.webhooks)
        return app

    def _handlers(self, spending: BudgetMethods) -> Mapping[str, Handler]:
        shared, config = self.shared, self.made.config
        stores, clock, plugins = shared.stores, shared.clock, self.opened.plugins
        front, memory = self.front, self.memory
        about = About(
            version=self.version,
            started=clock.monotonic(),
            store_url=config.store.url,
            pid=os.getpid(),
            origin=str(config.origin or "none (built-in defaults)"),
        )
        status = StatusMethods(
            front,
            about,
            self.health.reasons,
            gate=self.opened.gate,
            plugins=lambda: plugins.infos,
            account=plugins.account,
            budget=spending.periods,
            backlog=lambda: {
                "backlog": memory.extractor.backlog,
                "unindexed": memory.indexer.backlog,
            },
            channels=self.channels.statuses,
            rules=self.opened.rules,
            trial=provider_trial(config, self.opened.model, shared.ids),
            subagents=config.subagents,
        )
        room, letters, facts = self.channels, stores.outbox, (stores.facts, memory.recall)
        ids = shared.ids
        families = (
            spending,
            AuditMethods(stores.audit),
            PairMethods(self.access),
            ChannelMethods(
                room.statuses, letters, stores.channels, room.nudge, clock, room.take_again
            ),
            MemoryMethods(*facts, clock, ids, memory.settled, self.made.sharing, front),
            ChatMethods(front, self.replays),
            SessionMethods(front),
            EventMethods(shared.bus),
            SettingsMethods(shared.settings, self.made.choosable),
            status,
        )
        return handlers_of(*families)

    async def keep_connections(self) -> None:
        """Keeps the connections to platforms, until the drain."""
        if self.channels.names:
            async with open_fetch() as fetch, open_sockets() as sockets:
                await keep_channels_connected(self.channels, fetch, sockets)

    async def drain(self) -> None:
        """Refuses new work, and waits for the runs that are at work."""
        lanes = self.shared.lanes
        self.health.draining = True
        self.channels.disconnect()
        self.front.intake.close()
        self.stateless.close()
        lanes.pause()
        log.info("draining", extra={"running": lanes.working})
        with anyio.move_on_after(self.made.config.gateway.drain_s) as scope:
            await lanes.rest()
            await self.stateless.rest()
        if scope.cancelled_caught:
            log.warning("runs are cut off and start again", extra={"running": lanes.working})
        await self.channels.drain()
        for run in tuple(self.shared.live.values()):
            run.publish(is_over=False)
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
    async with opened(config, accept_loss=accept_loss) as shared:
        made = await to_thread.run_sync(build, config)
        async with start(made, shared, version=version, patience_s=patience_s) as gateway:
            try:
                yield gateway
            finally:
                shared.group.cancel_scope.cancel()


@asynccontextmanager
async def start(
    made: Generation, shared: Shared, *, version: str, patience_s: float = PATIENCE_S
) -> AsyncIterator[Gateway]:
    """Opens what the generation needs for itself, and sets it to work until the context is left."""
    config, stores, clock = made.config, shared.stores, shared.clock
    async with AsyncExitStack() as stack:
        found = await _open(made, shared, stack, patience_s)
        await follow(found.plugins, found.gate, stores.audit, clock)
        await note_start(stores.audit, config, found.plugins.infos, version, clock.now())
        gateway = Gateway(made, version, shared, found)
        room = gateway.channels
        await room.load(config.channels, found.plugins)
        room.refuse_alike()
        if config.channels:
            accounts = frozenset((one.name, one.account) for one in config.channels)
            fetch = await stack.enter_async_context(open_fetch())
            known = (accounts, stores.outbox, gateway.front, shared.bus)
            await stack.enter_async_context(delivering(room, *known, fetch=fetch))
        else:
            await stores.outbox.strand((), at=clock.now())
        if config.mcp.serve.is_enabled:
            gateway.mcp = await stack.enter_async_context(_mcp_door(gateway))
        await gateway.memory.extractor.resume()
        for name, task in (
            ("souls", found.souls.keep_fresh),
            ("trees", found.plans.keep_fresh),
            ("rules", partial(keep_rules_fresh, config, found.rules, clock)),
            ("store", gateway.watch.run),
            ("sweep", partial(sweep, config, stores, clock)),
            ("index", gateway.memory.indexer.run),
            ("channels", partial(room.open_late, found.plugins)),
        ):
            may_end = name in {"rules", "channels"}  # there may be none to follow, or to wait for
            found.group.start_soon(
                partial(supervise, name, task, clock, may_end=may_end), name=name
            )
        try:
            yield gateway
        finally:
            found.group.cancel_scope.cancel()


async def _open(
    made: Generation, shared: Shared, stack: AsyncExitStack, patience_s: float
) -> Resources:
    """Raises McpNotInstalled, SoulUnreadable, TreeInvalid."""
    config, stores, clock = made.config, shared.stores, shared.clock
    meter = shared.meter(config, made.prices)
    model = shared.models(config, meter)
    texts = FileTexts(clock)
    souls = Souls(texts, made.souls, clock=clock, templates=made.templates)
    await souls.load()
    plans = Plans(texts, made.trees, shared.tell, decisions=made.decisions)
    await plans.load()
    group = await stack.enter_async_context(anyio.create_task_group())
    plugins = await _open_plugins(config, shared, stack, patience_s)
    recall = Recall(stores.facts)
    own = (
        MemoryTool(stores.facts, recall, clock, shared.ids, made.sharing),
        ResultTool(stores.tools, stores.sessions),
    )
    gate = ToolGate(
        (*own, *plugins.tools),
        schemas=SchemaChecks(),
        clock=clock,
        originals=stores.tools,
    )
    await _open_mcp_servers(config, shared, gate, stack)
    return Resources(group, meter, model, souls, plans, plugins, gate, CurrentRules(made.rules))


async def _open_plugins(
    config: GatewayConfig, shared: Shared, stack: AsyncExitStack, patience_s: float
) -> Plugins:
    enabled = [one for one in config.plugins if one.is_enabled]
    fetches = any(plugin.origins for plugin in enabled)
    own = {"folder": Folder()}
    means = HostDeps(
        fetch=await stack.enter_async_context(open_fetch()) if fetches else NoFetch(),
        store=shared.stores.tools,
        clock=shared.clock,
        read_adapter=read_description,
        functions=await to_thread.run_sync(host_functions, enabled, own),
    )
    cache, limits = config.gateway.data_dir / "plugins", config.sandbox
    opening = open_sandbox(cache, means, workers=limits.workers, idle_s=limits.idle_s)
    sandbox = await stack.enter_async_context(opening)
    plugins = open_plugins(sandbox, config.plugins, patience_s=patience_s)
    return await stack.enter_async_context(plugins)


async def _open_mcp_servers(
    config: GatewayConfig, shared: Shared, gate: ToolGate, stack: AsyncExitStack
) -> None:
    """A server is connected when a turn of an agent that has it begins."""
    if not config.mcp.servers:
        return
    # An extra, and slow to import.
    from gateway.mcp.connections import Connector  # noqa: PLC0415
    from gateway.mcp.servers import ServerDeps, open_servers  # noqa: PLC0415

    async def on_changed(facts: Mapping[str, object]) -> None:
        shared.tell("mcp.tool.changed", facts)
        deed = Deed(shared.clock.now(), "mcp.tool.changed", f"mcp:{facts['server']}", facts)
        await shared.stores.audit.append(deed)

    means = ServerDeps(
        connector=Connector(shared.http, config.gateway.data_dir / "mcp", shared.clock),
        clock=shared.clock,
        schemas=SchemaChecks(),
        store=shared.stores.tools,
        renew=gate.renew,
        tell=shared.tell,
        told_changed=on_changed,
        random=random.random,
    )
    gate.foreign = await stack.enter_async_context(open_servers(config.mcp.servers, means))


def _mcp_door(gateway: Gateway) -> AbstractAsyncContextManager[Door]:
    """The application at /mcp."""
    from gateway.mcp.endpoint import serving  # noqa: PLC0415  # takes a third of a second

    config, ids = gateway.made.config, gateway.shared.ids
    agent = replace(usual_agent(config), tools=config.mcp.serve.tools)
    desk = ServedDesk(gateway.front, gateway.opened.gate, agent, ids)
    return serving(desk, schemas=SchemaChecks(), most_bytes=config.gateway.max_body_bytes)
