"""Objects that all generations share: the store, the lanes, live runs, counters and sockets."""

import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from gateway.agent.driver import RunJournal
from gateway.budgets import LiveBudgets, Meter
from gateway.channels.intake import Scrub
from gateway.channels.room import Traffic
from gateway.config.access import token_budgets
from gateway.config.values import GatewayConfig
from gateway.control.notices import Bus
from gateway.domain.errors import NotInstalled
from gateway.domain.events import Event, kind_named
from gateway.domain.figures import Figures, RunReports
from gateway.domain.ids import RunId
from gateway.domain.model import ProviderDef
from gateway.domain.plugins import PluginSecret
from gateway.domain.ports import (
    Clock,
    Fetch,
    Http,
    Ids,
    Inbox,
    Journal,
    Model,
    SocketClient,
    Stores,
)
from gateway.domain.supervision import contain
from gateway.host.clock import SystemClock, TimeIds
from gateway.host.logs import Log
from gateway.memory.context import Episodes
from gateway.outbound.connection import open_outbound
from gateway.outbound.guard import Scrubber
from gateway.providers.client import Models, ProviderClient
from gateway.providers.demo import DemoModel
from gateway.providers.prices import DEFAULT_MODELS, PriceTable
from gateway.sessions.lanes import Lanes
from gateway.sessions.runs import LiveRuns
from gateway.sessions.worker import SettingsBook
from gateway.store.opening import note_node, open_store, own_data_dir
from gateway.web.spending import TokenRegistry
from gateway.web.status import ProviderTrial

if TYPE_CHECKING:
    from gateway.app.shared_store import Membership, SharedStore


def open_fetch() -> AbstractAsyncContextManager[Fetch]:
    """Opens the guarded HTTP client. Its library takes as long to import as everything else."""
    from gateway.outbound.client import open_guarded  # noqa: PLC0415  # see above

    return open_guarded()


def open_sockets() -> AbstractAsyncContextManager[SocketClient]:
    """Opens the guarded WebSocket client."""
    from gateway.outbound.client import open_socket_client  # noqa: PLC0415  # see above

    return open_socket_client()


def scrubbing(secrets: Sequence[PluginSecret]) -> Scrub:
    return Scrubber(secrets).body


Opening = Callable[[], AbstractAsyncContextManager[Any]]


@dataclass(slots=True, eq=False)
class SharedResource:
    """A resource that generations share, closed when none uses it. `key` has all the values that it was opened with."""

    key: object
    value: Any
    users: int = 0
    is_over: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True)
class SharedResources:
    """The open resources. Each lives in its own task of the group, so that they may close in any order."""

    group: TaskGroup
    _open: list[SharedResource] = field(default_factory=list)

    async def acquire(self, key: object, opening: Opening) -> SharedResource:
        """Returns the resource with that key, or opens it. Raises what the opening raises."""
        found = next((one for one in self._open if one.key == key), None)
        if found is None:
            found = await self.group.start(partial(self._keep, key, opening), name="kept part")
        found.users += 1
        return found

    def release(self, resource: SharedResource) -> None:
        """Releases a resource; the last user closes it."""
        resource.users -= 1
        if not resource.users:
            self._open.remove(resource)
            resource.is_over.set()

    async def _keep(
        self, key: object, opening: Opening, *, task_status: TaskStatus[SharedResource]
    ) -> None:
        async with opening() as value:
            resource = SharedResource(key, value)
            self._open.append(resource)
            task_status.started(resource)
            while not resource.is_over.is_set():
                await contain("part", resource.is_over.wait)


Providers = Mapping[str, tuple[ProviderDef | None, Model]]  # with the definition of each
NO_PROVIDERS: Providers = MappingProxyType({})


def models(providers: Providers) -> Model:
    return Models({name: model for name, (_, model) in providers.items()})


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared objects. The lanes run in `group`. `settings` and `episodes` are caches over the store. `traffic` counts
    for channels since the start, `reports` for runs, and `meter` for budgets, with the limits of the moment."""

    clock: Clock
    ids: Ids
    stores: Stores
    http: Http
    group: TaskGroup
    lanes: Lanes
    bus: Bus
    live: LiveRuns
    limits: LiveBudgets
    keys: TokenRegistry
    meter: Meter
    traffic: Traffic
    episodes: Episodes
    settings: SettingsBook
    logs: Log
    reports: RunReports
    resources: SharedResources
    inbox: Inbox  # the partition fences it and the journal in a cluster
    journal: Journal
    cluster: "Membership | None" = None

    async def measure(self) -> None:
        """Updates the metrics of the cluster, which are read on demand."""
        if self.cluster is not None:
            await self.cluster.measure()

    def publish(self, type_: str, payload: Mapping[str, object]) -> None:
        """Publishes an event of the gateway that belongs to no run."""
        kind = kind_named(type_)
        severity = kind.severity if kind else "info"
        self.bus.publish(Event(type_, severity, "gateway", self.clock.now(), None, None, payload))

    def dropped(self) -> Mapping[str, int]:
        """Counts lost log records and trace spans, by metric."""
        return {
            "log_records_dropped_total": self.logs.dropped,
            "trace_spans_dropped_total": self.reports.spans_dropped,
        }

    def journal_of(self, run_id: RunId) -> RunJournal | None:
        """Returns the journal of a live run."""
        run = self.live.get(run_id)
        return None if run is None else run.journal

    def providers(self, config: GatewayConfig, before: Providers = NO_PROVIDERS) -> Providers:
        """Returns the metered providers of the configuration, and the demo model. Unchanged providers of `before` are
        reused with their state."""
        found: dict[str, tuple[ProviderDef | None, Model]] = {}
        for name, one in config.providers.items():
            known, how = before.get(name), (self.http, self.clock, random.random, self.around)
            found[name] = known if known and known[0] == one else (one, ProviderClient(one, *how))
        found.setdefault("demo", before.get("demo") or (None, self.around(DemoModel())))
        return found

    def around(self, model: Model) -> Model:
        """Meters a model; in a cluster only the node that owns a run may ask for it."""
        metered = self.meter.around(model)
        return metered if self.cluster is None else self.cluster.guarded(metered)


Waiting = Callable[[str], Awaitable[None]]  # called with the reason while the store does not answer


@asynccontextmanager
async def open_stores(
    config: GatewayConfig,
    clock: Clock,
    waiting: Waiting | None = None,
    *,
    accept_loss: bool = False,
    figures: Figures | None = None,
) -> AsyncIterator["tuple[Stores, SharedStore | None]"]:
    settings, data_dir = config.store, config.gateway.data_dir
    if not settings.is_shared:
        store = open_store(
            settings.url,
            data_dir,
            clock=clock,
            accept_loss=accept_loss,
            on_commit=figures.commit if figures else None,
        )
        async with store as stores:
            yield stores, None
        return
    try:  # an extra
        from gateway.app.shared_store import open_shared_store  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise NotInstalled("[store] url", "surrealdb") from error
    async with (
        own_data_dir(data_dir) as ended,
        open_shared_store(
            settings,
            clock,
            ended=ended,
            waiting=waiting,
            note=partial(note_node, data_dir),
            cluster=config.cluster,
            figures=figures,
        ) as shared,
    ):
        yield shared.stores, shared


@asynccontextmanager
async def open_shared(
    config: GatewayConfig,
    *,
    logs: Log | None = None,
    accept_loss: bool = False,
    waiting: Waiting | None = None,
) -> AsyncIterator[Shared]:
    """Opens the store and all shared objects. With `waiting` it waits for a server that does not answer. Raises
    DataDirInUse, StoreInUse, StoreRefused, StoreUnavailable."""
    clock, logs, figures = SystemClock(), logs or Log(sys.stderr), Figures()
    async with AsyncExitStack() as stack:
        store = open_stores(config, clock, waiting, accept_loss=accept_loss, figures=figures)
        stores, found = await stack.enter_async_context(store)
        await stores.care.probe()
        http = await stack.enter_async_context(open_outbound())
        group = await stack.enter_async_context(anyio.create_task_group())
        limits = LiveBudgets(config.budgets, token_budgets(config))
        prices, ids = PriceTable(config.providers), TimeIds(clock)
        if config.providers:  # a later build would block the event loop during a call
            await to_thread.run_sync(prices.warm)
        live, episodes = LiveRuns(), Episodes(stores.sessions)
        member = await found.join(live, episodes, clock, group) if found else None
        shared = Shared(
            clock=clock,
            ids=ids,
            stores=stores,
            http=http,
            group=group,
            lanes=Lanes(group, width=config.queue.max_running),
            bus=Bus(),
            live=live,
            limits=limits,
            keys=TokenRegistry(stores.tokens, stores.ledger, limits, clock),
            meter=Meter(stores.ledger, limits, prices, clock, ids, stores.audit, figures=figures),
            traffic=Traffic(Counter(), Counter(), Counter()),
            episodes=episodes,
            settings=SettingsBook(stores.sessions),
            logs=logs,
            reports=RunReports(figures, logs.event),
            resources=SharedResources(group),
            inbox=member.inbox if member else stores.inbox,
            journal=member.journal if member else stores.journal,
            cluster=member,
        )
        await shared.meter.settle_lost()
        await stores.ledger.load_raises(clock.now())
        await shared.keys.load()
        try:
            yield shared
        finally:
            group.cancel_scope.cancel()


@asynccontextmanager
async def provider_test(config: GatewayConfig) -> AsyncIterator[ProviderTrial]:
    """Opens a provider test without a gateway, and locks the store. Raises DataDirInUse."""
    once = {name: replace(one, max_retries=0) for name, one in config.providers.items()}
    async with open_shared(config) as shared:
        model = models(shared.providers(replace(config, providers=once)))
        yield provider_trial(config, model, shared.ids)


def provider_trial(config: GatewayConfig, model: Model, ids: Ids) -> ProviderTrial:
    defaults = {name: DEFAULT_MODELS.get(name) for name in config.providers}
    return ProviderTrial(model, ids, config.agents, defaults)
