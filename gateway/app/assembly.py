"""The composition: the rooms of the process, and the generations that are swapped in."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
from anyio import to_thread

from gateway.agent.driver import Runner
from gateway.agent.subagents import Subagents, SummarizingGate
from gateway.api import operating as api
from gateway.api.methods import METHODS
from gateway.app.background import begin_series, sweep
from gateway.app.backups import BackupMaker
from gateway.app.generation import (
    Generation,
    Look,
    build,
    look_at,
    usual_agent,
    web_settings,
)
from gateway.app.proposals import Proposals
from gateway.app.reloading import ReadConfig, Reloader
from gateway.app.shared import (
    Shared,
    open_fetch,
    open_sockets,
    opened,
    provider_trial,
    scrubbing,
)
from gateway.app.upkeep import Upkeep
from gateway.app.working import Working, prepared
from gateway.channels.access import AccessControl
from gateway.channels.commands import ChatCommands
from gateway.channels.room import channel_room, delivering, keep_channels_connected
from gateway.config.access import note_start, token_budgets
from gateway.config.document import Document
from gateway.config.load import LoadedConfig
from gateway.config.schema import json_schema
from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.cluster import CHANGED, RELOAD
from gateway.domain.figures import watch_loop
from gateway.domain.ids import Secret, SessionKey
from gateway.domain.mcp import Door
from gateway.domain.ports import Model
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
from gateway.web.asgi import Routes, WebApp, method_routes
from gateway.web.chat import ChatApi, ChatMethods, McpApi
from gateway.web.documents import asyncapi, documented
from gateway.web.health import Health, StoreWatch
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
from gateway.web.spending import BudgetMethods
from gateway.web.status import (
    ConfigMethods,
    EventMethods,
    PluginCallMethods,
    ProcessInfo,
    StatusMethods,
)
from gateway.web.tokens import TokenMethods

log = logging.getLogger(__name__)

RETIRED_S = 0.5  # between looks whether the last turn of a generation has ended
MOST_BYTES = 1 << 28  # at /mcp; the front door holds what is configured


Reads = tuple[ReadConfig, Look]  # how the configuration is read, and its files as they were


class Gateway:
    """The rooms of the process, connected and at rest, and the generation that is in force. What has a state
    lives as long as the process; a swap points it to the next generation. `server` is where the front door
    listens, once it does."""

    def __init__(self, first: Working, version: str, shared: Shared, reads: Reads) -> None:
        self.now, self.version, self.shared = first, version, shared
        self.living = [first]  # the generation in force, and those with turns at work
        stores, clock, ids, made = shared.stores, shared.clock, shared.ids, first.made
        extractor = FactExtractor(made.agents, stores.facts, first.model, clock, ids, shared.group)
        self.memory = Memory(extractor, Indexer(stores.facts, clock), Recall(stores.facts))
        caches = (stores.sessions, shared.episodes, shared.lanes, clock, ids)
        self._compaction = Compaction(first.model, *caches, on_compacted=extractor.on_compacted)
        worker, forget = self._worker(first)
        self.intake = MessageIntake(
            router=made.router,
            worker=worker,
            lanes=shared.lanes,
            ids=ids,
            bounds=made.bounds,
            policy=made.queueing,
            sharing=shared.cluster.work if shared.cluster else None,
        )
        width = made.config.queue.max_running
        self.stateless = StatelessRuns(worker, ids, shared.group, width=width, forget=forget)
        self.access = AccessControl(stores.channels, stores.audit, clock, ids, shared.tell)
        self.front, self.replays = self._front(first), self._replayer(first, worker)
        self.channels = channel_room(
            stores,
            self._commands(first, self.front),
            publish=shared.tell,
            scrubbing=scrubbing,
            traffic=shared.traffic,
        )
        self.watch = StoreWatch(stores.care.probe, clock)
        self.reloads = Reloader(shared, *reads, self)
        self.changes = Proposals(made.config.origin, self.reloads.reload)
        self.server: WebServer | None = None
        self._app: WebApp | None = None
        self._key = ""  # with which our command line authenticates
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
            cluster.looks["look"] = self.look_anew
            follow = partial(cluster.reload_with_others, partial(self.reloads.reload, by="hint"))
            shared.group.start_soon(partial(supervise, "files", follow, clock), name="files")
            self.reloads.tell = partial(cluster.hints.publish, RELOAD, {})
            shared.keys.publish = shared.meter.tell = partial(cluster.hints.publish, CHANGED, {})
            self.channels.duties = cluster.work
            cluster.present(lambda: self.now.made.config, lambda: not self.health.reasons())
        self._begin(first)

    def swap(self, new: Working) -> None:
        """From now on the generation is in force: turns that begin have it, those at work keep theirs.
        Nothing waits in here, and all that could fail comes first."""
        made, shared, old = new.made, self.shared, self.now
        width = made.config.queue.max_running
        worker, forget = self._worker(new)
        front, replays = self._front(new), self._replayer(new, worker)
        door = self._app and self._app.identities
        doors = self._doors(new, front, replays, door) if door else None

        self.living.append(new)
        self._begin(new)
        self.now, self.front, self.replays = new, front, replays
        shared.limits.configure(made.config.budgets, token_budgets(made.config))
        shared.meter.renew(made.prices)
        shared.lanes.widen(width)
        new.sandbox.pool.idle_s = made.config.sandbox.idle_s
        self.memory.extractor.renew(made.agents, new.model)
        self._compaction.model = new.model
        self.intake.renew(made.router, worker, made.bounds, made.queueing)
        self.stateless.renew(worker, width, forget)
        self.channels.intake.run_command = self._commands(new, front).run
        if self._desk is not None:
            self._desk.renew(front, new.gate, served_agent(made.config))
        if self._app is not None and doors is not None:
            settings = web_settings(made.config, self._key)
            self._app.renew(settings, *doors)
            if self.server is not None:
                self.server.renew(settings)
        shared.group.start_soon(contain, "generation", partial(self._retire, old))

    def _begin(self, its: Working) -> None:
        """It is traced, and series that may be counted now begin at 0."""
        its.begin()
        self.shared.reports.trace = its.traces.value.record if its.traces else None
        config, figures = its.made.config, self.shared.reports.figures
        tools = (one.name for agent in config.agents for one in its.gate.offered(agent))
        begin_series(figures, config, tools)
        figures.generations.set((), len(self.living))

    async def _retire(self, old: Working) -> None:
        """Closes a generation once its last turn has ended."""
        while old.turns.at_work:
            await self.shared.clock.sleep(RETIRED_S)
        self.living.remove(old)
        self.shared.reports.figures.generations.set((), len(self.living))
        old.end(self.shared)

    # -- what is made anew for each generation

    def _front(self, its: Working) -> Front:
        shared, stores = self.shared, self.shared.stores
        return Front(
            agents=its.made.agents,
            router=its.made.router,
            intake=self.intake,
            live=shared.live,
            inbox=stores.inbox,
            sessions=stores.sessions,
            episodes=shared.episodes,
            souls=its.souls,
            plans=its.plans,
            clock=shared.clock,
            on_import=self.memory.indexer.note,
            on_erase=self.memory.forget,
        )

    def _commands(self, its: Working, front: Front) -> ChatCommands:
        return ChatCommands(
            front=front,
            spending=self.shared.stores.ledger,
            budgets=self.shared.limits,
            facts=self.shared.stores.facts,
            recall=self.memory.recall,
            settled=self.memory.settled,
            shared=its.made.sharing,
            access=self.access,
        )

    def _worker(self, its: Working) -> tuple[RunWorker, Callable[[SessionKey], Awaitable[None]]]:
        """The worker, and what forgets the tool results of a run that leaves nothing. Agents that people
        talk to have subagents as tools."""
        made, shared, memory, gate = its.made, self.shared, self.memory, its.gate
        config, stores, clock = made.config, shared.stores, shared.clock
        runner = Runner(
            its.model,
            gate,
            its.plans,
            made.decisions,
            made.rules,
            shared.bus.publish,
            shared.bus.has_listener,
            shared.meter.cost_usd,
        )
        known = {one.name: one for one in config.subagents}
        deps = (its.souls, shared.settings.of, clock, shared.journal_of, made.agents)
        subagents = Subagents(known, runner, *deps)
        gate.renew("", subagents.tools)
        forget: Callable[[SessionKey], Awaitable[None]] = gate.forget
        if config.delegation.is_enabled:
            summing = SummarizingGate(gate, subagents, config.delegation, stores.tools)
            runner, forget = replace(runner, gate=summing), stores.tools.forget_originals
        vaults = vaults_of(config.agents, gate.offered, config.plugins, stores.tools)
        worker = RunWorker(
            agents=made.agents,
            runner=runner,
            inbox=shared.inbox,
            journal=shared.journal,
            episodes=shared.episodes,
            souls=its.souls,
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
            turns=its.turns,
        )
        return worker, forget

    def _replayer(self, its: Working, worker: RunWorker) -> Replayer:
        """The same clients over what was recorded: without keys, addresses and waiting."""
        config, key = its.made.config, Secret("replayed")

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
        """The front door, with all methods and routes."""
        clock, audit, keys = self.shared.clock, self.shared.stores.audit, self.shared.keys
        self._key = settings.cli_secret or ""
        identities = Identities(settings, clock, audit, keys.note_use)
        keys.attach(identities)
        registry, routes = self._doors(self.now, self.front, self.replays, identities)
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
        self, its: Working, front: Front, replays: Replayer, identities: Identities
    ) -> tuple[Registry, Routes]:
        stores, meter, config = self.shared.stores, self.shared.meter, its.made.config
        spending = BudgetMethods(front, stores.ledger, meter)
        tokens = TokenMethods(self.shared.keys, identities, its.made.agents)
        registry = Registry(
            METHODS, {**self._handlers(its, front, replays, spending), **handlers_of(tokens)}
        )
        metrics = Metrics(
            front,
            meter.refusals,
            spending.agent_rows,
            self.health.reasons,
            self.version,
            ChannelFigures(self.channels.statuses, stores.outbox, *self.shared.traffic),
            its.gate.foreign,
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
        self, its: Working, front: Front, replays: Replayer, spending: BudgetMethods
    ) -> Mapping[str, Handler]:
        shared, config, memory = self.shared, its.made.config, self.memory
        stores, clock, plugins, ids = shared.stores, shared.clock, its.plugins, shared.ids
        about = ProcessInfo(
            version=self.version,
            started=self._started,
            store_url=config.store.url,
            pid=os.getpid(),
            generation=its.number,
            config=self.reloads.state,
        )
        status = StatusMethods(
            front,
            about,
            self.watch.reasons,
            gate=its.gate,
            plugins=lambda: plugins.infos,
            account=plugins.account,
            budget=spending.period_rows,
            backlog=lambda: {
                "backlog": memory.extractor.backlog,
                "unindexed": memory.indexer.backlog,
            },
            channels=self.channels.statuses,
            rules=its.made.rules,
            trial=provider_trial(config, its.model, ids),
            subagents=config.subagents,
        )
        room, letters, facts = self.channels, stores.outbox, (stores.facts, memory.recall)
        families = (
            spending,
            AuditMethods(stores.audit),
            BackupMethods(partial(self.backups.create, config, generation=its.number)),
            LogMethods(
                partial(read_log, config.gateway.data_dir / FOLDER), stores.inbox, shared.clock
            ),
            PairMethods(self.access),
            ChannelMethods(
                room.statuses, letters, stores.channels, room.nudge, clock, room.retry_message
            ),
            MemoryMethods(*facts, clock, ids, memory.settled, its.made.sharing, front),
            ChatMethods(front, replays),
            SessionMethods(front),
            self._events,
            SettingsMethods(shared.settings, its.made.choosable),
            ConfigMethods(self.reloads.reload, self.changes, partial(self._examine, spending)),
            PluginCallMethods(its.gate, lambda: plugins.infos, ids),
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
            config=self.now.made.config,
            now=now,
            began=first[0].at if first else now,
            backed_up=last[0].at if last else None,
            tokens=shared.keys.tokens,
            budgets=await spending.all_rows(),
            restart_needed=self.reloads.restart_needed,
            restart=self.reloads.notify.restart,
        )
        return await self.changes.examine(upkeep, is_live=is_live)

    # -- channels, and what is served over MCP

    async def load_channels(self) -> None:
        """Opens the channels of the generation in force, as far as they are not open. Raises StoreUnavailable."""
        config, shared, room = self.now.made.config, self.shared, self.channels
        await room.renew(config.channels, self.now.plugins)
        accounts = frozenset((one.name, one.account) for one in config.channels)
        if config.channels and room.deliveries is None:
            fetch = (await shared.parts.use("fetch", open_fetch)).value
            known = (accounts, shared.stores.outbox, self.front, shared.bus)
            opening = partial(delivering, room, *known, fetch=fetch)
            await shared.parts.use("deliveries", opening)
        elif not config.channels:
            await shared.stores.outbox.strand((), at=shared.clock.now())
        if self._may_connect:
            self.connect()

    def connect(self) -> None:
        """Keeps the connections to platforms from now on, until the drain."""
        self._may_connect = True
        if self.channels.names and not self._is_connecting:
            self._is_connecting = True
            work = partial(supervise, "connections", self._connected, self.shared.clock)
            self.shared.group.start_soon(partial(work, may_end=True), name="connections")

    async def _connected(self) -> None:
        async with open_fetch() as fetch, open_sockets() as sockets:
            await keep_channels_connected(self.channels, fetch, sockets)

    async def serve_mcp(self, config: GatewayConfig) -> None:
        """Makes the application at /mcp, if it is wanted and not there."""
        if config.mcp.serve.is_enabled and self._mcp is None:
            serving = await to_thread.run_sync(_mcp_door)  # takes a third of a second
            self._desk = ServedDesk(
                self.front, self.now.gate, served_agent(config), self.shared.ids
            )
            opening = partial(serving, self._desk, schemas=SchemaChecks(), most_bytes=MOST_BYTES)
            self._mcp = (await self.shared.parts.use("served", opening)).value

    # -- the end

    async def look_anew(self) -> None:
        """Reads again what another node may have changed. Raises StoreUnavailable."""
        shared = self.shared
        shared.settings.known.clear()
        if shared.cluster is not None:
            await shared.cluster.work.read_choices()
        self.access.forget_all()
        await shared.keys.refresh()
        await shared.meter.write_what_waits()
        await shared.meter.settle_lost()
        shared.meter.try_again()

    async def drain(self) -> None:
        """Refuses new work, and waits for the runs that are at work."""
        lanes = self.shared.lanes
        self.health.draining = True
        self.channels.disconnect()
        self.intake.close()
        self.stateless.close()
        if self.shared.cluster is not None:
            self.shared.cluster.leave()
        lanes.pause()
        log.info("draining", extra={"running": lanes.working})
        with anyio.move_on_after(self.now.made.config.gateway.drain_s) as scope:
            await lanes.wait_idle()
            await self.stateless.wait_idle()
        if scope.cancelled_caught:
            log.warning("runs_interrupted", extra={"running": lanes.working})
        await self.channels.drain()
        if self.shared.cluster is not None:
            await self.shared.cluster.gone()
        for run in tuple(self.shared.live.values()):
            run.publish(is_over=False)
        self.stateless.abandon_all()


def _mcp_door() -> Callable[..., AbstractAsyncContextManager[Door]]:
    from gateway.mcp.endpoint import serving  # noqa: PLC0415  # slow to import

    return serving


def served_agent(config: GatewayConfig) -> AgentDef:
    """Whose tools are served at /mcp."""
    return replace(usual_agent(config), tools=config.mcp.serve.tools)


@asynccontextmanager
async def assembled(
    config: GatewayConfig,
    *,
    version: str,
    opening: AbstractAsyncContextManager[Shared] | None = None,
    patience_s: float = LOAD_WAIT_S,
    read: ReadConfig | None = None,
) -> AsyncIterator[Gateway]:
    """Everything but the front doors, at work until the context is left. Plugins that take longer
    than `patience_s` come later, with the channels that they are adapters of. `read` reads the configuration
    again: without it only what its files hold is reloaded."""
    async with opening or opened(config) as shared:
        made = await to_thread.run_sync(build, config)
        read = read or (lambda path: LoadedConfig(config, Document(), {}))
        try:
            gateway = await start(made, shared, read, version=version, patience_s=patience_s)
            yield gateway
        finally:
            shared.group.cancel_scope.cancel()


async def start(
    made: Generation,
    shared: Shared,
    read: ReadConfig,
    *,
    version: str,
    patience_s: float = LOAD_WAIT_S,
) -> Gateway:
    """Sets the first generation to work. Raises SoulUnreadable, TreeInvalid, StoreUnavailable."""
    config, stores, clock = made.config, shared.stores, shared.clock
    look = await to_thread.run_sync(look_at, config)
    first = await prepared(made, shared, look=look, patience_s=patience_s)
    await offer_late_plugins(first.plugins, first.gate, stores.audit, clock)
    await note_start(stores.audit, config, first.plugins.infos, version, clock.now())
    for one in made.rules.refused:
        log.warning("rule_file_refused", extra={"file": one.file, "why": one.why})
    gateway = Gateway(first, version, shared, (read, look))
    await gateway.load_channels()
    await gateway.serve_mcp(config)
    await gateway.backups.recall()
    await gateway.memory.extractor.resume()
    for name, task in (
        ("files", gateway.reloads.watch),
        ("store", gateway.watch.run),
        ("sweep", partial(sweep, lambda: gateway.now.made.config, stores, clock)),
        ("index", gateway.memory.indexer.run),
        ("loop", partial(watch_loop, shared.reports.figures, clock)),
        ("channels", partial(gateway.channels.open_late, first.plugins)),
    ):
        may_end = name == "channels"  # there may be none to wait for
        shared.group.start_soon(partial(supervise, name, task, clock, may_end=may_end), name=name)
    return gateway
