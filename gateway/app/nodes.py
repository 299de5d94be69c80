"""One node of several: what it shares with the others, and how it joins and leaves them."""

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
from gateway.sessions.far_events import FarEvents
from gateway.sessions.mirrors import Mirrors
from gateway.sessions.partitions import OwnGate, OwnInbox, OwnJournal, OwnModel, PartitionedWork
from gateway.sessions.runs import LiveRuns
from gateway.tools.gate import ToolGate

log = logging.getLogger(__name__)

LOOK_PAUSE_S = 0.1  # between two looks, whatever hints say
LEAVE_S = 5.0  # for the partitions to be given back at a stop

Look = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Membership:
    """`looks` are done every `poll_s`: each reads anew what another node may have changed."""

    node: ClusterNode
    settings: Clustering
    work: PartitionedWork
    inbox: OwnInbox
    journal: OwnJournal
    hints: Hints
    clock: Clock
    figures: SharedFigures
    looks: dict[str, Look] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)  # nodes that are configured otherwise
    left: anyio.Event = field(default_factory=anyio.Event)
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _told: anyio.Event = field(default_factory=anyio.Event)  # to look at our files

    def guarded(self, model: Model) -> Model:
        return OwnModel(model, self.work)

    def gate(self, *args: object, **more: object) -> ToolGate:
        gate = OwnGate(*args, **more)  # type: ignore[arg-type]  # those of ToolGate
        gate.work = self.work
        return gate

    async def run(self) -> None:
        """The node, until it has left."""
        try:
            await self.node.run()
        finally:
            self.left.set()

    async def keep_fresh(self) -> None:
        """Sooner than `poll_s` if a hint says so."""
        with self.hints.listen(CHANGED, lambda _: self._changed.set()):
            while True:
                await self.clock.sleep(LOOK_PAUSE_S)
                with anyio.move_on_after(self.settings.poll_s - LOOK_PAUSE_S):
                    await self._changed.wait()
                self._changed = anyio.Event()
                for name, look in tuple(self.looks.items()):
                    await contain(name, partial(_unless_away, look))

    async def reload_with_others(self, reload: Look) -> None:
        """Reloads here too whenever another node was told to. It may take long, and delays no look."""
        with self.hints.listen(RELOAD, lambda _: self._told.set()):
            while True:
                await self.clock.sleep(LOOK_PAUSE_S)
                await self._told.wait()
                self._told = anyio.Event()
                await _unless_away(reload)

    def events(self, bus: Bus, group: TaskGroup) -> FarEvents:
        name, key = self.node.presence().node, self.work.mirrors.key
        found = FarEvents(name, bus, self.hints, self.clock, key)
        group.start_soon(partial(supervise, "events", found.run, self.clock), name="events")
        return found

    def present(self, config: Callable[[], GatewayConfig], ready: Callable[[], bool]) -> None:
        """What the others are told of this node."""
        name = self.node.presence().node
        self.node.presence = lambda: Presence(name, is_ready=ready(), config=digest_of(config()))
        self.looks["members"] = self._compare

    async def _compare(self) -> None:
        """Warns once of nodes that are configured otherwise."""
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
        """Begins no turn any more; partitions are given back as their turns end."""
        self.node.stop()

    async def gone(self) -> None:
        """Cuts off what is at work still, and waits until everything is given back."""
        self.work.cut_off()
        with anyio.move_on_after(LEAVE_S):
            await self.left.wait()


async def _unless_away(look: Look) -> None:
    """That the store is away is said where the connection ends."""
    with suppress(StoreUnavailable):
        await look()


@dataclass(frozen=True, slots=True)
class SharedStore:
    """An open store, and the node as which this gateway claims it. In a cluster nothing runs it yet."""

    name: str  # of the node
    stores: Stores
    node: ClusterNode
    cluster: Clustering | None
    figures: SharedFigures

    async def join(
        self, live: LiveRuns, episodes: Episodes, clock: Clock, group: TaskGroup
    ) -> "Membership | None":
        """None: it shares the work with nobody. It works on nothing until its intake is open. Raises
        StoreUnavailable."""
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
        for name, task in (("partitions", work.run), ("looks", member.keep_fresh)):
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
    """Of what should be the same at all nodes; where files are may differ."""
    agents = [replace(one, soul_path=None) for one in config.agents]
    told = repr((agents, config.budgets, config.channels))
    return sha256(told.encode()).hexdigest()[:16]
