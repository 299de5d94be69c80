"""The membership of this gateway in a cluster: joining, partitioned work, hints, and leaving."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

import anyio
from anyio.abc import TaskGroup

from gateway.cluster.node import ClusterNode
from gateway.config.values import Clustering, GatewayConfig
from gateway.control.notices import Bus
from gateway.domain.cluster import CHANGED, RELOAD, ClusterOverview, Hints, NoHints, Presence
from gateway.domain.errors import StoreUnavailable
from gateway.domain.figures import SharedFigures
from gateway.domain.ids import Secret
from gateway.domain.ports import Clock, Model, Stores
from gateway.domain.supervision import contain, supervise
from gateway.memory.context import Episodes
from gateway.sessions.mirrors import FarEvents, Mirrors
from gateway.sessions.partitions import OwnGate, OwnInbox, OwnJournal, OwnModel, PartitionedWork
from gateway.sessions.runs import LiveRuns
from gateway.tools import ToolGate

log = logging.getLogger(__name__)

REFRESH_PAUSE_S = 0.1  # the shortest pause, however many hints come
LEAVE_S = 5.0  # to release the partitions at a stop

Refresh = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Membership:
    """This gateway as a node of a cluster. Each of the `refreshers` reads values that another node may have changed; they
    run every `poll_s`."""

    node: ClusterNode
    settings: Clustering
    work: PartitionedWork
    inbox: OwnInbox
    journal: OwnJournal
    hints: Hints
    clock: Clock
    figures: SharedFigures
    refreshers: dict[str, Refresh] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)  # nodes with another configuration
    left: anyio.Event = field(default_factory=anyio.Event)
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _reload_hinted: anyio.Event = field(default_factory=anyio.Event)

    def guarded(self, model: Model) -> Model:
        return OwnModel(model, self.work)

    def gate(self, *args: object, **more: object) -> ToolGate:
        gate = OwnGate(*args, **more)  # type: ignore[arg-type]  # the arguments of ToolGate
        gate.work = self.work
        return gate

    async def run(self) -> None:
        """Runs the node until it has left."""
        try:
            await self.node.run()
        finally:
            self.left.set()

    async def keep_fresh(self) -> None:
        """Runs the refreshers every `poll_s`, or earlier after a hint."""
        with self.hints.listen(CHANGED, lambda _: self._changed.set()):
            while True:
                await self.clock.sleep(REFRESH_PAUSE_S)
                with anyio.move_on_after(self.settings.poll_s - REFRESH_PAUSE_S):
                    await self._changed.wait()
                self._changed = anyio.Event()
                for name, refresh in tuple(self.refreshers.items()):
                    await contain(name, partial(_ignore_outage, refresh))

    async def reload_with_others(self, reload: Refresh) -> None:
        """Reloads when another node reloads. A long reload delays no refresher."""
        with self.hints.listen(RELOAD, lambda _: self._reload_hinted.set()):
            while True:
                await self.clock.sleep(REFRESH_PAUSE_S)
                await self._reload_hinted.wait()
                self._reload_hinted = anyio.Event()
                await _ignore_outage(reload)

    def events(self, bus: Bus, group: TaskGroup) -> FarEvents:
        name, key = self.node.presence().node, self.work.mirrors.key
        found = FarEvents(name, bus, self.hints, self.clock, key)
        group.start_soon(partial(supervise, "events", found.run, self.clock), name="events")
        return found

    def announce(self, config: Callable[[], GatewayConfig], ready: Callable[[], bool]) -> None:
        """Sets the facts that other nodes read about this one."""
        name = self.node.presence().node
        self.node.presence = lambda: Presence(name, is_ready=ready(), config=digest_of(config()))
        self.refreshers["members"] = self._compare

    async def _compare(self) -> None:
        """Warns once about each node with another configuration."""
        ours, state = self.node.presence(), await self.node.leases.state()
        others = {one.presence.node for one in state.members if one.presence.config}
        others -= {one.presence.node for one in state.members if one.presence.config == ours.config}
        for node in others - self.differing:
            log.warning("node_configured_otherwise", extra={"node": node})
        self.differing = others

    async def overview(self) -> ClusterOverview:
        """Raises StoreUnavailable."""
        pending, since = await self.work.runs.backlog()
        return ClusterOverview(await self.node.leases.state(), pending, since, self.hints.degraded)

    async def measure(self) -> None:
        figures, numbers = self.figures, range(self.node.partitions)
        figures.leases.set((), sum(self.node.epoch(one) is not None for one in numbers))
        for outcome, count in self.hints.counts.items():
            figures.hints.set((outcome,), count)
        for one in (figures.nodes, figures.lag):
            one.values.clear()
        with suppress(StoreUnavailable):
            found = await self.overview()
            figures.nodes.set((), len(found.state.members))
            figures.lag.set((), found.lag_s(self.clock.now()))

    def leave(self) -> None:
        """Starts no more turns; releases each partition when its turns end."""
        self.node.stop()

    async def wait_left(self) -> None:
        """Cuts off the runs that remain, and waits until all partitions are released."""
        self.work.cut_off()
        with anyio.move_on_after(LEAVE_S):
            await self.left.wait()


async def _ignore_outage(refresh: Refresh) -> None:
    # The connection to the store reports an outage itself.
    with suppress(StoreUnavailable):
        await refresh()


@dataclass(frozen=True, slots=True)
class SharedStore:
    """An open shared store, and the node that claims it for this gateway. In a cluster `join` runs the node."""

    name: str  # of the node
    stores: Stores
    node: ClusterNode
    cluster: Clustering | None
    figures: SharedFigures

    async def join(
        self, live: LiveRuns, episodes: Episodes, clock: Clock, group: TaskGroup
    ) -> "Membership | None":
        """Joins the cluster; returns None if there is none. Work begins when the intake opens. Raises StoreUnavailable."""
        settings, runs, inbox, node = self.cluster, self.stores.shared, self.stores.inbox, self.node
        if settings is None or runs is None:
            return None
        key = await self.node.leases.key()
        node.hints = hints = _hints(settings, key, clock, group)
        pace = settings.poll_s
        around = (runs, live, hints, clock)
        node.work = work = PartitionedWork(
            *around, node.partitions, pace, node.epoch, episodes.forget, self.figures
        )
        work.members = lambda: node.members
        work.mirrors = Mirrors(self.name, *around, pace, work.partition, self.figures, key)
        await runs.place_runs(work.partition)
        own = (OwnInbox(inbox, work, episodes), OwnJournal(self.stores.journal, work))
        member = Membership(node, settings, work, *own, hints, clock, self.figures)
        group.start_soon(member.run)
        for name, task in (("partitions", work.run), ("refreshers", member.keep_fresh)):
            group.start_soon(partial(supervise, name, task, clock), name=name)
        return member


def _hints(settings: Clustering, key: bytes, clock: Clock, group: TaskGroup) -> Hints:
    if settings.url is None:
        return NoHints()
    from gateway.cluster.hints import NatsHints  # noqa: PLC0415  # an extra

    hints = NatsHints(settings.url, key.hex(), settings.credentials or Secret(""), clock)
    group.start_soon(partial(supervise, "hints", hints.run, clock))
    return hints


def digest_of(config: GatewayConfig) -> str:
    """Returns a digest of the values that should be the same at all nodes; paths of files may differ."""
    agents = [replace(one, soul_path=None) for one in config.agents]
    text = repr((agents, config.budgets, config.channels))
    return sha256(text.encode()).hexdigest()[:16]
