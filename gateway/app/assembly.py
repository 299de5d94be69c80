"""The composition root: connects the rooms of the process, swaps generations of the configuration, and does background
work: known metric series start at 0, and old data is deleted."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product

import anyio
from anyio import to_thread

from gateway.agent.driver import Runner
from gateway.agent.subagents import Subagents, SummarizingGate
from gateway.api import operating as api
from gateway.api.methods import METHODS
from gateway.app.backups import BackupMaker
from gateway.app.doctor import Upkeep
from gateway.app.generation import (
    FileSnapshot,
    Generation,
    build,
    default_agent,
    snapshot_files,
    web_settings,
)
from gateway.app.proposals import Proposals
from gateway.app.reloading import ReadConfig, ReadyGeneration, Reloader, prepare
from gateway.app.shared import (
    Shared,
    open_fetch,
    open_shared,
    open_sockets,
    provider_trial,
    scrubbing,
)
from gateway.channels.access import AccessControl
from gateway.channels.commands import ChatCommands
from gateway.channels.room import channel_room, delivering, keep_channels_connected
from gateway.config.access import note_start, token_budgets
from gateway.config.document import Document
from gateway.config.load import LoadedConfig
from gateway.config.schema import json_schema
from gateway.config.values import GatewayConfig
from gateway.domain.agents import OWN_CHANNELS, AgentDef
from gateway.domain.cluster import CHANGED, RELOAD
from gateway.domain.errors import StoreUnavailable
from gateway.domain.figures import Figures, watch_loop
from gateway.domain.ids import Secret, SessionKey
from gateway.domain.mcp import Door
from gateway.domain.ports import Clock, Model, Stores
from gateway.domain.sessions import chain_of
from gateway.domain.supervision import contain, supervise
from gateway.host.logs import FOLDER, read_log
from gateway.memory.extraction import FactExtractor, Memory
from gateway.memory.recall import Indexer, Recall, vaults_of
from gateway.providers.client import Models, ProviderClient
from gateway.sandbox.plugins import LOAD_WAIT_S, offer_late_plugins
from gateway.schemas import SchemaChecks
from gateway.sessions.compacting import Compaction
from gateway.sessions.intake import Front, MessageIntake, ServedDesk
from gateway.sessions.replay import Reel, Replayer
from gateway.sessions.stateless import StatelessRuns
from gateway.sessions.worker import RunWorker
from gateway.web.asgi import Health, Routes, StoreWatch, WebApp, method_routes
from gateway.web.chat import ChatApi, ChatMethods, McpApi
from gateway.web.documents import asyncapi, documented
from gateway.web.identity import Identities
from gateway.web.memory import MemoryMethods, SettingsMethods
from gateway.web.metrics import ChannelFigures, Metrics
from gateway.web.openai import OpenAiApi
from gateway.web.operating import (
    AuditMethods,
    BackupMethods,
    ChannelMethods,
    ClusterMethods,
    LogMethods,
    PairMethods,
)
from gateway.web.rpc import Handler, Registry, handlers_of
from gateway.web.server import WebServer
from gateway.web.sessions import SessionMethods
from gateway.web.settings import WebSettings
from gateway.web.spending import BudgetMethods, TokenMethods
from gateway.web.status import (
    ConfigMethods,
    EventMethods,
    PluginCallMethods,
    ProcessInfo,
    StatusMethods,
)

log = logging.getLogger(__name__)


RETIRE_POLL_S = 0.5  # between checks whether the last turn of a generation has ended
MCP_MAX_BYTES = 1 << 28  # of a request at /mcp; the front door enforces `max_body_bytes`

Reads = tuple[ReadConfig, FileSnapshot]  # reads the configuration; its files at the start


class Gateway:
    """The connected rooms of the process, and the generation in force. Objects with state live as long as the process;
    `swap` points them to the next generation. `server` is None until the front door listens."""

    def __init__(self, first: ReadyGeneration, version: str, shared: Shared, reads: Reads) -> None:
        self.current, self.version, self.shared = first, version, shared
        self.generations = [first]  # the generation in force, and those with running turns
        stores, clock, ids, generation = shared.stores, shared.clock, shared.ids, first.generation
        extractor = FactExtractor(
            generation.agents, stores.facts, first.model, clock, ids, shared.group
        )
        self.memory = Memory(extractor, Indexer(stores.facts, clock), Recall(stores.facts))
        caches = (stores.sessions, shared.episodes, shared.lanes, clock, ids)
        self._compaction = Compaction(first.model, *caches, on_compacted=extractor.on_compacted)
        worker, forget = self._worker(first)
        self.intake = MessageIntake(
            router=generation.router,
            worker=worker,
            lanes=shared.lanes,
            ids=ids,
            bounds=generation.bounds,
            policy=generation.queueing,
            sharing=shared.cluster.work if shared.cluster else None,
        )
        width = generation.config.queue.max_running
        self.stateless = StatelessRuns(worker, ids, shared.group, width=width, forget=forget)
        self.access = AccessControl(stores.channels, stores.audit, clock, ids, shared.publish)
        self.front, self.replays = self._front(first), self._replayer(first, worker)
        self.channels = channel_room(
            stores,
            self._commands(first, self.front),
            publish=shared.publish,
            scrubbing=scrubbing,
            traffic=shared.traffic,
        )
        self.watch = StoreWatch(stores.care.probe, clock)
        self.reloads = Reloader(shared, *reads, self)
        self.changes = Proposals(generation.config.origin, self.reloads.reload)
        self.server: WebServer | None = None
        self._app: WebApp | None = None
        self._key = ""  # the command line authenticates with it
        self._desk: ServedDesk | None = None
        self._mcp: Door | None = None
        cluster = shared.cluster
        self._events = EventMethods(
            cluster.events(shared.bus, shared.group) if cluster else shared.bus
        )
        made_at = shared.reports.figures.backup_timestamp
        self.backups = BackupMaker(
            stores, clock, anyio.Lock(), lambda at: made_at.set((), at.timestamp())
        )
        self._started, self._at = clock.monotonic(), int(clock.now().timestamp())
        self._may_connect = self._is_connecting = False
        if cluster is not None:
            cluster.refreshers["store"] = self.refresh
            follow = partial(cluster.reload_with_others, partial(self.reloads.reload, by="hint"))
            shared.group.start_soon(partial(supervise, "files", follow, clock), name="files")
            self.reloads.notify_others = partial(cluster.hints.publish, RELOAD, {})
            shared.keys.publish = shared.meter.publish = partial(cluster.hints.publish, CHANGED, {})
            self.channels.duties = cluster.work
            cluster.announce(
                lambda: self.current.generation.config, lambda: not self.health.reasons()
            )
        self._begin(first)

    def swap(self, new: ReadyGeneration) -> None:
        """Puts a generation into force. New turns use it; running turns keep theirs. The swap awaits nothing, and the
        steps that can fail come before the first assignment."""
        generation, shared, old = new.generation, self.shared, self.current
        width = generation.config.queue.max_running
        worker, forget = self._worker(new)
        front, replays = self._front(new), self._replayer(new, worker)
        door = self._app and self._app.identities
        doors = self._doors(new, front, replays, door) if door else None

        self.generations.append(new)
        self._begin(new)
        self.current, self.front, self.replays = new, front, replays
        shared.limits.configure(generation.config.budgets, token_budgets(generation.config))
        shared.meter.renew(generation.prices)
        shared.lanes.widen(width)
        new.sandbox.pool.idle_s = generation.config.sandbox.idle_s
        self.memory.extractor.renew(generation.agents, new.model)
        self._compaction.model = new.model
        self.intake.renew(generation.router, worker, generation.bounds, generation.queueing)
        self.stateless.renew(worker, width, forget)
        self.channels.intake.run_command = self._commands(new, front).run
        if self._desk is not None:
            self._desk.renew(front, new.gate, served_agent(generation.config))
        if self._app is not None and doors is not None:
            settings = web_settings(generation.config, self._key)
            self._app.renew(settings, *doors)
            if self.server is not None:
                self.server.renew(settings)
        shared.group.start_soon(contain, "generation", partial(self._retire, old))

    def _begin(self, ready: ReadyGeneration) -> None:
        """Begins tracing and tool servers of a generation, and starts its known metric series at 0."""
        ready.begin()
        self.shared.reports.trace = ready.traces.value.record if ready.traces else None
        config, figures = ready.generation.config, self.shared.reports.figures
        tools = (one.name for agent in config.agents for one in ready.gate.offered(agent))
        begin_series(figures, config, tools)
        figures.generations.set((), len(self.generations))

    async def _retire(self, old: ReadyGeneration) -> None:
        """Closes a generation after its last turn."""
        while old.turns.at_work:
            await self.shared.clock.sleep(RETIRE_POLL_S)
        self.generations.remove(old)
        self.shared.reports.figures.generations.set((), len(self.generations))
        old.end(self.shared)

    # -- built for each generation

    def _front(self, ready: ReadyGeneration) -> Front:
        shared, stores = self.shared, self.shared.stores
        return Front(
            agents=ready.generation.agents,
            router=ready.generation.router,
            intake=self.intake,
            live=shared.live,
            inbox=stores.inbox,
            sessions=stores.sessions,
            episodes=shared.episodes,
            souls=ready.souls,
            plans=ready.plans,
            clock=shared.clock,
            on_import=self.memory.indexer.note,
            on_erase=self.memory.forget,
        )

    def _commands(self, ready: ReadyGeneration, front: Front) -> ChatCommands:
        return ChatCommands(
            front=front,
            spending=self.shared.stores.ledger,
            budgets=self.shared.limits,
            facts=self.shared.stores.facts,
            recall=self.memory.recall,
            settled=self.memory.settled,
            shared=ready.generation.sharing,
            access=self.access,
        )

    def _worker(
        self, ready: ReadyGeneration
    ) -> tuple[RunWorker, Callable[[SessionKey], Awaitable[None]]]:
        """Returns the worker, and the function that deletes the tool results of a stateless run. Offers subagents as tools
        to the agents that people talk to."""
        generation, shared, memory, gate = ready.generation, self.shared, self.memory, ready.gate
        config, stores, clock = generation.config, shared.stores, shared.clock
        runner = Runner(
            ready.model,
            gate,
            ready.plans,
            generation.decisions,
            generation.rules,
            shared.bus.publish,
            shared.bus.has_listener,
            shared.meter.cost_usd,
        )
        known = {one.name: one for one in config.subagents}
        deps = (ready.souls, shared.settings.of, clock, shared.journal_of, generation.agents)
        subagents = Subagents(known, runner, *deps)
        gate.renew("", subagents.tools)
        forget: Callable[[SessionKey], Awaitable[None]] = gate.forget
        if config.delegation.is_enabled:
            summing = SummarizingGate(gate, subagents, config.delegation, stores.tools)
            runner, forget = replace(runner, gate=summing), stores.tools.forget_originals
        vaults = vaults_of(config.agents, gate.offered, config.plugins, stores.tools)
        worker = RunWorker(
            agents=generation.agents,
            runner=runner,
            inbox=shared.inbox,
            journal=shared.journal,
            episodes=shared.episodes,
            souls=ready.souls,
            settings=shared.settings,
            clock=clock,
            bus=shared.bus,
            channels=frozenset(one.name for one in config.channels),
            runs=shared.live,
            extractor=memory.extractor,
            on_finished=memory.indexer.note,
            report=shared.reports.report,
            trace=shared.reports.begin,
            memory=memory.recall,
            vaults=vaults,
            compact=self._compaction.consider,
            turns=ready.turns,
        )
        return worker, forget

    def _replayer(self, ready: ReadyGeneration, worker: RunWorker) -> Replayer:
        """Returns a replayer whose provider clients read the journal: they need no keys, addresses or waits."""
        config, key = ready.generation.config, Secret("replayed")

        def replayed(reel: Reel) -> Model:
            how = (reel, reel, reel.random)
            return Models(
                {
                    name: ProviderClient(replace(one, api_key=key), *how, encoder=reel)
                    for name, one in config.providers.items()
                }
            )

        providers = frozenset({*config.providers, "demo"})
        return Replayer(worker, self.shared.stores.sessions, replayed, providers)

    # -- the front door

    @property
    def health(self) -> Health:
        return self.watch.health

    def web(self, settings: WebSettings) -> WebApp:
        """Builds the front door with all methods and routes."""
        clock, audit, keys = self.shared.clock, self.shared.stores.audit, self.shared.keys
        self._key = settings.cli_secret or ""
        identities = Identities(settings, clock, audit, keys.note_use)
        keys.attach(identities)
        registry, routes = self._doors(self.current, self.front, self.replays, identities)
        cluster = self.shared.cluster
        app = self._app = WebApp(
            settings,
            registry,
            identities,
            ready=self.watch.reasons,
            routes=routes,
            degraded=lambda: cluster.hints.degraded if cluster else (),
        )
        app.open_webhooks(self.channels.webhooks)
        return app

    def _doors(
        self, ready: ReadyGeneration, front: Front, replays: Replayer, identities: Identities
    ) -> tuple[Registry, Routes]:
        stores, meter, config = self.shared.stores, self.shared.meter, ready.generation.config
        spending = BudgetMethods(front, stores.ledger, meter)
        tokens = TokenMethods(self.shared.keys, identities, ready.generation.agents)
        registry = Registry(
            METHODS, {**self._handlers(ready, front, replays, spending), **handlers_of(tokens)}
        )
        metrics = Metrics(
            front,
            meter.refusals,
            spending.agent_rows,
            self.health.reasons,
            self.version,
            ChannelFigures(self.channels.statuses, stores.outbox, *self.shared.traffic),
            ready.gate.foreign,
            self.shared.reports.figures,
            lambda: len(self._app.sockets.connections) if self._app else 0,
            self.shared.dropped,
            self.shared.measure,
        )
        apis = (
            ChatApi(front, self.shared.ids),
            OpenAiApi(front, self.stateless, self._at),
            spending,
            McpApi(self._mcp if config.mcp.serve.is_enabled else None),
            *((metrics,) if config.observability.metrics else ()),
        )
        documents = {
            "/config.schema.json": json_schema,
            "/asyncapi.json": lambda: asyncapi(METHODS, self.version),
        }
        routes = [*method_routes(registry), *(route for api in apis for route in api.routes())]
        return registry, documented(routes, self.version, documents)

    def _handlers(
        self, ready: ReadyGeneration, front: Front, replays: Replayer, spending: BudgetMethods
    ) -> Mapping[str, Handler]:
        shared, config, memory = self.shared, ready.generation.config, self.memory
        stores, clock, plugins, ids = shared.stores, shared.clock, ready.plugins, shared.ids
        about = ProcessInfo(
            version=self.version,
            started=self._started,
            store_url=config.store.url,
            pid=os.getpid(),
            generation=ready.number,
            config=self.reloads.state,
        )
        status = StatusMethods(
            front,
            about,
            self.watch.reasons,
            gate=ready.gate,
            plugins=lambda: plugins.infos,
            account=plugins.account,
            budget=spending.period_rows,
            backlog=lambda: {
                "backlog": memory.extractor.backlog,
                "unindexed": memory.indexer.backlog,
            },
            channels=self.channels.statuses,
            rules=ready.generation.rules,
            trial=provider_trial(config, ready.model, ids),
            subagents=config.subagents,
        )
        room, letters, facts = self.channels, stores.outbox, (stores.facts, memory.recall)
        families = (
            spending,
            AuditMethods(stores.audit),
            BackupMethods(partial(self.backups.create, config, generation=ready.number)),
            LogMethods(
                partial(read_log, config.gateway.data_dir / FOLDER), stores.inbox, shared.clock
            ),
            PairMethods(self.access),
            ChannelMethods(
                room.statuses, letters, stores.channels, room.nudge, clock, room.retry_message
            ),
            MemoryMethods(*facts, clock, ids, memory.settled, ready.generation.sharing, front),
            ChatMethods(front, replays),
            SessionMethods(front),
            self._events,
            SettingsMethods(shared.settings, ready.generation.choosable),
            ConfigMethods(self.reloads.reload, self.changes, partial(self._examine, spending)),
            PluginCallMethods(ready.gate, lambda: plugins.infos, ids),
            ClusterMethods(shared.cluster.overview if shared.cluster else None, clock),
            status,
        )
        return handlers_of(*families)

    async def _examine(self, spending: BudgetMethods, *, is_live: bool) -> api.DoctorReport:
        """Raises StoreUnavailable, Conflict."""
        shared, audit = self.shared, self.shared.stores.audit
        await shared.keys.load()
        first, last = await audit.after(0, limit=1), await audit.newest(kind="backup.created")
        now = shared.clock.now()
        upkeep = Upkeep(
            config=self.current.generation.config,
            now=now,
            began=first[0].at if first else now,
            backed_up=last[0].at if last else None,
            tokens=shared.keys.tokens,
            budgets=await spending.all_rows(),
            restart_needed=self.reloads.restart_needed,
            restart=self.reloads.notify.restart,
        )
        return await self.changes.examine(upkeep, is_live=is_live)

    # -- channels, and the MCP server

    async def load_channels(self) -> None:
        """Opens those channels of the generation in force that are not open yet. Raises StoreUnavailable."""
        config, shared, room = self.current.generation.config, self.shared, self.channels
        await room.renew(config.channels, self.current.plugins)
        accounts = frozenset((one.name, one.account) for one in config.channels)
        if config.channels and room.deliveries is None:
            fetch = (await shared.resources.acquire("fetch", open_fetch)).value
            known = (accounts, shared.stores.outbox, self.front, shared.bus)
            opening = partial(delivering, room, *known, fetch=fetch)
            await shared.resources.acquire("deliveries", opening)
        elif not config.channels:
            await shared.stores.outbox.strand((), at=shared.clock.now())
        if self._may_connect:
            self.connect()

    def connect(self) -> None:
        """Connects to platforms, now and after each reload, until the drain."""
        self._may_connect = True
        if self.channels.names and not self._is_connecting:
            self._is_connecting = True
            work = partial(supervise, "connections", self._connected, self.shared.clock)
            self.shared.group.start_soon(partial(work, may_end=True), name="connections")

    async def _connected(self) -> None:
        async with open_fetch() as fetch, open_sockets() as sockets:
            await keep_channels_connected(self.channels, fetch, sockets)

    async def serve_mcp(self, config: GatewayConfig) -> None:
        """Opens the MCP server at /mcp if the configuration enables it and it is not open yet."""
        if config.mcp.serve.is_enabled and self._mcp is None:
            serving = await to_thread.run_sync(_import_mcp)  # takes a third of a second
            self._desk = ServedDesk(
                self.front, self.current.gate, served_agent(config), self.shared.ids
            )
            opening = partial(serving, self._desk, schemas=SchemaChecks(), most_bytes=MCP_MAX_BYTES)
            self._mcp = (await self.shared.resources.acquire("served", opening)).value

    # -- the end

    async def refresh(self) -> None:
        """Reads again the values that another node may have changed. Raises StoreUnavailable."""
        shared = self.shared
        shared.settings.known.clear()
        if shared.cluster is not None:
            await shared.cluster.work.read_choices()
        self.access.forget_all()
        await shared.keys.refresh()
        await shared.meter.write_unwritten()
        await shared.meter.settle_lost()
        shared.meter.try_again()

    async def drain(self) -> None:
        """Refuses new work, and waits for the running runs for at most `gateway.drain_s`."""
        lanes = self.shared.lanes
        self.health.draining = True
        self.channels.disconnect()
        self.intake.close()
        self.stateless.close()
        if self.shared.cluster is not None:
            self.shared.cluster.leave()
        lanes.pause()
        log.info("draining", extra={"running": lanes.working})
        with anyio.move_on_after(self.current.generation.config.gateway.drain_s) as scope:
            await lanes.wait_idle()
            await self.stateless.wait_idle()
        if scope.cancelled_caught:
            log.warning("runs_interrupted", extra={"running": lanes.working})
        await self.channels.drain()
        if self.shared.cluster is not None:
            await self.shared.cluster.wait_left()
        for run in tuple(self.shared.live.values()):
            run.publish(is_over=False)
        self.stateless.abandon_all()


def _import_mcp() -> Callable[..., AbstractAsyncContextManager[Door]]:
    from gateway.mcp.endpoint import serving  # noqa: PLC0415  # slow to import

    return serving


def served_agent(config: GatewayConfig) -> AgentDef:
    """Returns the agent whose tools are served at /mcp."""
    return replace(default_agent(config), tools=config.mcp.serve.tools)


@asynccontextmanager
async def open_gateway(
    config: GatewayConfig,
    *,
    version: str,
    opening: AbstractAsyncContextManager[Shared] | None = None,
    patience_s: float = LOAD_WAIT_S,
    read: ReadConfig | None = None,
) -> AsyncIterator[Gateway]:
    """Runs everything but the front door until the context is left. Plugins that load longer than `patience_s`, and their
    channels, come later. `read` reads the configuration again; without it a reload reads only the files that the
    configuration names."""
    async with opening or open_shared(config) as shared:
        generation = await to_thread.run_sync(build, config)
        read = read or (lambda path: LoadedConfig(config, Document(), {}))
        try:
            gateway = await start(generation, shared, read, version=version, patience_s=patience_s)
            yield gateway
        finally:
            shared.group.cancel_scope.cancel()


async def start(
    generation: Generation,
    shared: Shared,
    read: ReadConfig,
    *,
    version: str,
    patience_s: float = LOAD_WAIT_S,
) -> Gateway:
    """Starts the first generation and the background tasks. Raises SoulUnreadable, TreeInvalid, StoreUnavailable."""
    config, stores, clock = generation.config, shared.stores, shared.clock
    snapshot = await to_thread.run_sync(snapshot_files, config)
    first = await prepare(generation, shared, snapshot=snapshot, patience_s=patience_s)
    await offer_late_plugins(first.plugins, first.gate, stores.audit, clock)
    await note_start(stores.audit, config, first.plugins.infos, version, clock.now())
    for one in generation.rules.refused:
        log.warning("rule_file_refused", extra={"file": one.file, "why": one.why})
    gateway = Gateway(first, version, shared, (read, snapshot))
    await gateway.load_channels()
    await gateway.serve_mcp(config)
    await gateway.backups.recall()
    await gateway.memory.extractor.resume()
    for name, task in (
        ("files", gateway.reloads.watch),
        ("store", gateway.watch.run),
        ("sweep", partial(sweep, lambda: gateway.current.generation.config, stores, clock)),
        ("index", gateway.memory.indexer.run),
        ("loop", partial(watch_loop, shared.reports.figures, clock)),
        ("channels", partial(gateway.channels.open_late, first.plugins)),
    ):
        may_end = name == "channels"  # it ends when all late plugins are loaded
        shared.group.start_soon(partial(supervise, name, task, clock, may_end=may_end), name=name)
    return gateway


# --- background work -----------------------------------------------------------------------------
SWEEP_EVERY_S = 3600.0
SWEEP_ROWS = 500
SWEEP_PAUSE_S = 0.1
MOST_BEGUN = 20  # agents, and channels, whose series start at 0
REASONS = ("answered", "provider_error", "internal_error")
OUTCOMES = ("answered", "failed", "broken")
SENT_AGAIN = timedelta(days=8)  # no platform repeats a message after a week


def begin_series(figures: Figures, config: GatewayConfig, tools: Iterable[str]) -> None:
    """Starts known series at 0. Without a 0 the first event of a series is not an increase."""
    channels = (*sorted(OWN_CHANNELS), *(one.name for one in config.channels))[:MOST_BEGUN]
    figures.channels.known.update(channels)
    figures.tools.known.update(tools)
    for agent in config.agents[:MOST_BEGUN]:
        figures.runs.begin((agent.id, *pair) for pair in product(channels, REASONS))
        for one in chain_of(agent):
            label = (one.provider, figures.models.of(one.model))
            figures.model_calls.begin((*label, outcome) for outcome in OUTCOMES)
    figures.tool_calls.begin(product(sorted(figures.tools.known), ("ok", "error")))


async def sweep(current: Callable[[], GatewayConfig], stores: Stores, clock: Clock) -> None:
    """Deletes expired data in small steps, until cancelled."""
    care = stores.care

    async def repeat(delete: Callable[..., Awaitable[object]], age: timedelta) -> None:
        before = clock.now() - age
        while await delete(before=before, limit=SWEEP_ROWS):
            await clock.sleep(SWEEP_PAUSE_S)

    while True:
        config = current()
        try:
            await repeat(care.sweep, timedelta(days=config.store.journal_days))
            await repeat(stores.channels.forget_received, SENT_AGAIN)
            for agent in (one for one in config.agents if one.context.expire_days is not None):
                age = timedelta(days=agent.context.expire_days or 0)
                await repeat(partial(care.expire, agent.id), age)
        except StoreUnavailable as error:
            log.warning("sweep_failed", extra={"why": str(error)})
        await clock.sleep(SWEEP_EVERY_S)
