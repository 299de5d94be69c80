"""A store that several gateways share: opens a SurrealDB server and claims it for this gateway, joins the cluster, and
copies a whole store to the other engine while no gateway uses either of them."""

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from gateway.cluster.node import ClusterNode, ClusterSettings
from gateway.config.values import Clustering, GatewayConfig, StoreSettings
from gateway.control.notices import Bus
from gateway.domain.backups import CopiedTable, CopyRefused
from gateway.domain.cluster import CHANGED, RELOAD, ClusterOverview, Hints, Lease, NoHints, Presence
from gateway.domain.errors import StoreUnavailable
from gateway.domain.figures import Figures, SharedFigures
from gateway.domain.ids import Secret
from gateway.domain.ports import Clock, Model, Stores
from gateway.domain.supervision import contain, supervise
from gateway.memory.context import Episodes
from gateway.sessions.mirrors import FarEvents, Mirrors
from gateway.sessions.partitions import OwnGate, OwnInbox, OwnJournal, OwnModel, PartitionedWork
from gateway.sessions.runs import LiveRuns
from gateway.store.copying import copy_rows, reading_sqlite, writing_sqlite
from gateway.store.opening import COPYING, make_private, note_node, own_data_dir
from gateway.store.sharing import SharedLedger, SurrealLeases
from gateway.store.sqlite import FILE, open_sqlite
from gateway.store.surreal import Waiting, open_surreal, retry_until_open
from gateway.store.surreal_connection import ConnectionSettings, Credentials, SurrealConnection
from gateway.store.surreal_schema import SurrealRows, upgrade_tables
from gateway.store.writer import MARK
from gateway.tools import ToolGate

log = logging.getLogger(__name__)


# --- membership ----------------------------------------------------------------------------------

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


# --- the store -----------------------------------------------------------------------------------
Note = Callable[[str], Awaitable[None]]

_USUAL = ConnectionSettings()
RELEASE_S = 3.0  # to release the claim at the end; otherwise it expires


class AllWork:
    """The partitioned work of a gateway that owns the whole store: leases change nothing."""

    def start(self, lease: Lease) -> None:
        """Does nothing: the gateway starts all work itself."""

    async def drain(self, lease: Lease) -> None:
        """Does nothing: the gateway has drained."""

    def drop(self, lease: Lease) -> None:
        """Does nothing: the next owner takes over."""


@asynccontextmanager
async def open_shared_store(  # noqa: PLR0913  # the options of a store
    settings: StoreSettings,
    clock: Clock,
    *,
    ended: str | None,
    waiting: Waiting | None,
    note: Note | None = None,
    cluster: Clustering | None = None,
    figures: Figures | None = None,
) -> AsyncIterator[SharedStore]:
    """Opens and claims a shared store. `ended`: the name of a dead node of ours. `note` is called with the name of the new
    node before it claims anything. In a `cluster` the caller runs the node. Raises StoreRefused, StoreInUse."""
    usual, claim = (
        await connection_to(settings),
        partial(claim_store, settings, clock, cluster=cluster),
    )
    figures = figures or Figures()
    usual.figures = figures.share(cluster=cluster is not None)
    opened = partial(open_surreal, usual, clock, waiting, on_commit=figures.commit)
    if cluster is None:
        async with (
            opened(is_alone=True) as stores,
            claim(ended=ended, waiting=waiting, note=note, bound=usual) as node,
        ):
            yield SharedStore(node.presence().node, stores, node, None, usual.figures)
        return
    async with claim(ended=ended, waiting=waiting, note=note, bound=usual) as node:
        alive = partial(node.leases.alive, 2 * cluster.lease_s)
        ledger = partial(SharedLedger, node=node.presence().node, alive=alive)
        async with (
            opened(ledger) as stores,
            anyio.create_task_group() as group,
        ):
            assert isinstance(stores.ledger, SharedLedger)
            group.start_soon(stores.ledger.run)
            yield SharedStore(node.presence().node, stores, node, cluster, usual.figures)
            await stores.ledger.drain()
            group.cancel_scope.cancel()


@asynccontextmanager
async def claim_store(  # noqa: PLR0913  # the options of a node
    settings: StoreSettings,
    clock: Clock,
    *,
    ended: str | None = None,
    waiting: Waiting | None = None,
    note: Note | None = None,
    bound: SurrealConnection | None = None,
    cluster: Clustering | None = None,
) -> AsyncIterator[ClusterNode]:
    """Keeps all other gateways out of the store until the end; a `cluster` keeps out gateways without one. Raises
    StoreRefused, StoreInUse."""
    # The node has its own connection, so that no queue delays a renewal.
    own = await connection_to(settings, ConnectionSettings(is_logged=False))
    how, label = ClusterSettings(partitions=None), os.uname().nodename
    if cluster is not None:
        how, label = ClusterSettings(cluster.partitions, cluster.lease_s), cluster.node or label
    leases, name = SurrealLeases(own, how.lease_s / 3), f"{label}-{secrets.token_hex(4)}"
    node = ClusterNode(
        presence=lambda: Presence(name, is_alone=cluster is None),
        settings=how,
        leases=leases,
        hints=NoHints(),
        work=AllWork(),
        clock=clock,
    )

    async def claim() -> None:
        if ended is not None:
            await leases.bury(ended)
        if note is not None:
            await note(name)
        await node.join()

    async with anyio.create_task_group() as group:
        if bound is not None:
            own.bound, own.figures = bound.bound, bound.figures
        group.start_soon(own.run)
        try:
            await retry_until_open(claim, own, waiting)
            if cluster is None:
                group.start_soon(node.run)
            yield node
        finally:
            scope = anyio.move_on_after(RELEASE_S, shield=True)
            with scope, suppress(StoreUnavailable):
                await leases.bury(name)
            group.cancel_scope.cancel()


async def connection_to(
    store: StoreSettings, how: ConnectionSettings = _USUAL
) -> SurrealConnection:
    user = Credentials(store.username or "", store.password or Secret(""))
    return await SurrealConnection(store.url, store.namespace, store.database, user, how).open()


# --- copying -------------------------------------------------------------------------------------
_EMBEDDED = "embedded"


async def copy_store(
    config: GatewayConfig, source: str, target: str, clock: Clock
) -> Sequence[CopiedTable]:
    """Copies all tables. Raises CopyRefused, DataDirInUse, StoreInUse, StoreRefused, StoreUnavailable."""
    if [source, target].count(_EMBEDDED) != 1:
        raise CopyRefused(
            "a store is copied from `embedded` to a SurrealDB server or back: give one ws:// address"
        )
    url = target if source == _EMBEDDED else source
    settings = replace(config.store, url=url)
    data_dir = config.gateway.data_dir
    async with (
        own_data_dir(data_dir) as ended,
        _connected(settings, clock, ended, partial(note_node, data_dir)) as connection,
    ):
        if source == _EMBEDDED:
            return await _out(data_dir, connection, clock)
        return await _back(data_dir, connection)


@contextlib.asynccontextmanager
async def _connected(
    settings: StoreSettings, clock: Clock, ended: str | None, note: Note
) -> AsyncIterator[SurrealConnection]:
    connection = await connection_to(settings)
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        async with claim_store(settings, clock, ended=ended, note=note):
            yield connection
        group.cancel_scope.cancel()


async def _out(
    data_dir: Path, connection: SurrealConnection, clock: Clock
) -> Sequence[CopiedTable]:
    if not await to_thread.run_sync((data_dir / FILE).exists):
        raise CopyRefused(f"nothing to copy: there is no store in {data_dir}")
    async with open_sqlite(data_dir, clock=clock):
        """Opening checks and upgrades the store."""
    target = SurrealRows(connection)
    await target.begin(_EMBEDDED)
    async with reading_sqlite(data_dir / FILE) as source:
        copied = await copy_rows(source, target)
    await target.end()
    return copied


async def _back(data_dir: Path, connection: SurrealConnection) -> Sequence[CopiedTable]:
    await upgrade_tables(connection)
    folder = data_dir / COPYING
    await to_thread.run_sync(_begin, data_dir, folder)
    async with connection.moment() as moment, writing_sqlite(folder / FILE) as target:
        copied = await copy_rows(SurrealRows(connection, moment), target)
    await to_thread.run_sync(_end, data_dir, folder)
    return copied


def _begin(data_dir: Path, folder: Path) -> None:
    """Creates the folder of the partial copy, beside which no gateway starts. Raises CopyRefused."""
    if (data_dir / FILE).exists():
        raise CopyRefused(
            f"there is a store in {data_dir}: move {FILE} away, or set another data_dir"
        )
    make_private(folder)


def _end(data_dir: Path, folder: Path) -> None:
    (data_dir / MARK).unlink(missing_ok=True)  # the mark of an earlier store reports lost messages
    (folder / FILE).rename(data_dir / FILE)
    shutil.rmtree(folder)
