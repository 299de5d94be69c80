"""What is opened once for every generation: the store, the lanes, live runs, counters and sockets."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from gateway.agent.journal import RunJournal
from gateway.budgets import BudgetQueue, Estimates, Meter
from gateway.channels.intake import Scrub
from gateway.channels.room import Traffic
from gateway.config.values import GatewayConfig
from gateway.control.notices import Bus
from gateway.domain.events import Event, kind_named
from gateway.domain.ids import RunId
from gateway.domain.plugins import PluginSecret
from gateway.domain.ports import Clock, Fetch, Http, Ids, Model, SocketClient, Stores
from gateway.host.clock import SystemClock, TimeIds
from gateway.memory.window import Episodes
from gateway.outbound.connection import open_outbound
from gateway.outbound.secrets import Scrubber
from gateway.providers.client import Models, ProviderClient
from gateway.providers.demo import DemoModel
from gateway.providers.prices import DEFAULT_MODELS, PriceTable
from gateway.sessions.lanes import Lanes
from gateway.sessions.runs import LiveRuns
from gateway.sessions.worker import SettingsBook
from gateway.store.opening import open_store
from gateway.web.status import ProviderTrial


def open_fetch() -> AbstractAsyncContextManager[Fetch]:
    """The client behind the guard. Its library takes as long to import as all the rest."""
    from gateway.outbound.client import open_guarded  # noqa: PLC0415  # see above

    return open_guarded()


def open_sockets() -> AbstractAsyncContextManager[SocketClient]:
    """The same for WebSockets."""
    from gateway.outbound.client import open_socket_client  # noqa: PLC0415  # see above

    return open_socket_client()


def scrubbing(secrets: Sequence[PluginSecret]) -> Scrub:
    return Scrubber(secrets).body


@dataclass(frozen=True, slots=True)
class Shared:
    """The lanes live in the group. `settings` and `episodes` are caches over the store. `estimates`, `queue`
    and `refusals` count for budgets, `traffic` for channels, since the start."""

    clock: Clock
    ids: Ids
    stores: Stores
    http: Http
    group: TaskGroup
    lanes: Lanes
    bus: Bus
    live: LiveRuns
    estimates: Estimates
    queue: BudgetQueue
    refusals: Counter[str]
    traffic: Traffic
    episodes: Episodes
    settings: SettingsBook

    def tell(self, type_: str, payload: Mapping[str, object]) -> None:
        """Publishes an event of the gateway that belongs to no run."""
        kind = kind_named(type_)
        severity = kind.severity if kind else "info"
        self.bus.publish(Event(type_, severity, "gateway", self.clock.now(), None, None, payload))

    def journal_of(self, run_id: RunId) -> RunJournal | None:
        """The journal of a live run."""
        run = self.live.get(run_id)
        return None if run is None else run.journal

    def meter(self, config: GatewayConfig, prices: PriceTable) -> Meter:
        """The budgets of a configuration over the one ledger."""
        counters = (self.estimates, self.queue, self.refusals)
        ports = (self.clock, self.ids, self.stores.audit)
        return Meter(self.stores.ledger, config.budgets, prices, *ports, *counters)

    def models(self, config: GatewayConfig, meter: Meter) -> Model:
        """The providers that the configuration defines, and the demo model: each attempt is metered."""
        found: dict[str, Model] = {}
        for name, one in config.providers.items():
            how = (self.http, self.clock, random.random, meter.around)
            found[name] = ProviderClient(one, *how)
        found.setdefault("demo", meter.around(DemoModel()))
        return Models(found)


@asynccontextmanager
async def opened(config: GatewayConfig, *, accept_loss: bool = False) -> AsyncIterator[Shared]:
    """Opens the store of the configuration. Raises DataDirInUse, StoreRefused, StoreUnavailable."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        url, data_dir = config.store.url, config.gateway.data_dir
        store = open_store(url, data_dir, clock=clock, accept_loss=accept_loss)
        stores = await stack.enter_async_context(store)
        await stores.care.probe()
        http = await stack.enter_async_context(open_outbound())
        group = await stack.enter_async_context(anyio.create_task_group())
        shared = Shared(
            clock=clock,
            ids=TimeIds(clock),
            stores=stores,
            http=http,
            group=group,
            lanes=Lanes(group, width=config.queue.max_running),
            bus=Bus(),
            live={},
            estimates=Estimates(),
            queue=BudgetQueue(),
            refusals=Counter(),
            traffic=Traffic(Counter(), Counter(), Counter()),
            episodes=Episodes(stores.sessions),
            settings=SettingsBook(stores.sessions),
        )
        prices = PriceTable(config.providers)
        if config.providers:  # before any call: to build it later would block the event loop
            await to_thread.run_sync(prices.warm)
        await shared.meter(config, prices).settle_lost()
        try:
            yield shared
        finally:
            group.cancel_scope.cancel()


@asynccontextmanager
async def provider_test(config: GatewayConfig) -> AsyncIterator[ProviderTrial]:
    """Tests a provider without a gateway. The store is locked meanwhile. Raises DataDirInUse."""
    once = {name: replace(one, max_retries=0) for name, one in config.providers.items()}
    async with opened(config) as shared:
        meter = shared.meter(config, PriceTable(config.providers))
        model = shared.models(replace(config, providers=once), meter)
        yield provider_trial(config, model, shared.ids)


def provider_trial(config: GatewayConfig, model: Model, ids: Ids) -> ProviderTrial:
    defaults = {name: DEFAULT_MODELS.get(name) for name in config.providers}
    return ProviderTrial(model, ids, config.agents, defaults)
