"""Leases in memory, hints within a process, and work that says what it is told."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import anyio

from gateway.domain.cluster import (
    ClusterState,
    Hint,
    Lease,
    LeaseState,
    Listen,
    Member,
    Presence,
    Renewal,
    StoreInUse,
)
from gateway.domain.errors import StoreUnavailable

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Row:
    node: str | None = None
    epoch: int = 0
    expires_at: float = 0.0


@dataclass
class LeaseTable:
    """What a store does at one moment."""

    now: Callable[[], float]  # seconds by the clock of the store
    rows: list[Row] = field(default_factory=list)
    members: dict[str, tuple[Presence, float, float]] = field(default_factory=dict)

    def prepare(self, partitions: int) -> None:
        if not self.rows:
            self.rows = [Row() for _ in range(partitions)]

    def join(self, presence: Presence, partitions: int, lease_s: float) -> int:
        self.prepare(partitions)
        for name, (one, _, expires_at) in self.members.items():
            is_here = name != presence.node and expires_at > self.now()
            if is_here and (one.is_alone or presence.is_alone):
                raise StoreInUse(name)
        self.members[presence.node] = (presence, self.now(), self.now() + lease_s)
        return len(self.rows)

    def renew(self, presence: Presence, lease_s: float) -> Renewal:
        _, _, expires_at = self.members.get(presence.node, (presence, 0.0, 0.0))
        if presence.is_alone and expires_at <= self.now():
            self.join(presence, len(self.rows), lease_s)
        now = self.now()
        self.members[presence.node] = (presence, now, now + lease_s)
        mine = []
        for partition, row in enumerate(self.rows):
            if row.node == presence.node and row.expires_at > now:
                row.expires_at = now + lease_s
                mine.append(Lease(partition, row.epoch))
        free = [number for number, row in enumerate(self.rows) if self._is_free(row)]
        members = [
            name
            for name, (one, _, expires_at) in self.members.items()
            if expires_at > now and not one.is_leaving
        ]
        return Renewal(mine, free, members)

    def acquire(self, node: str, partitions: Iterable[int], lease_s: float) -> list[Lease]:
        taken = []
        for partition in partitions:
            row = self.rows[partition]
            if self._is_free(row):
                row.node, row.epoch, row.expires_at = node, row.epoch + 1, self.now() + lease_s
                taken.append(Lease(partition, row.epoch))
        return taken

    def release(self, node: str, leases: Iterable[Lease]) -> None:
        for lease in leases:
            row = self.rows[lease.partition]
            if (row.node, row.epoch) == (node, lease.epoch):
                row.node = None

    def leave(self, node: str) -> None:
        self.members.pop(node, None)

    def _is_free(self, row: Row) -> bool:
        return row.node is None or row.expires_at <= self.now()


class FakeLeases:
    """The port Leases. While `is_silent`, calls wait; while `is_gone`, they fail."""

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self.is_gone = False
        self.silence: anyio.Event | None = None
        self.calls = 0

    async def _called(self) -> None:
        self.calls += 1
        await anyio.lowlevel.checkpoint()
        if self.silence is not None:
            await self.silence.wait()
        if self.is_gone:
            raise StoreUnavailable("the store is gone")

    async def join(self, presence: Presence, partitions: int, lease_s: float) -> int:
        await self._called()
        return self.table.join(presence, partitions, lease_s)

    async def renew(self, presence: Presence, lease_s: float) -> Renewal:
        await self._called()
        return self.table.renew(presence, lease_s)

    async def acquire(
        self, node: str, partitions: Sequence[int], lease_s: float
    ) -> Sequence[Lease]:
        await self._called()
        return self.table.acquire(node, partitions, lease_s)

    async def release(self, node: str, leases: Sequence[Lease]) -> None:
        await self._called()
        self.table.release(node, leases)

    async def leave(self, node: str) -> None:
        await self._called()
        self.table.leave(node)

    async def alive(self, late_s: float) -> set[str]:
        await self._called()
        return {*self.table.members}

    async def key(self) -> bytes:
        return b"key"

    async def state(self) -> ClusterState:
        await self._called()
        return ClusterState(
            [
                Member(one, EPOCH + timedelta(seconds=seen_at))
                for one, seen_at, expires_at in self.table.members.values()
                if expires_at > self.table.now()
            ],
            [
                LeaseState(
                    Lease(number, row.epoch),
                    row.node,
                    EPOCH + timedelta(seconds=row.expires_at) if row.epoch else None,
                )
                for number, row in enumerate(self.table.rows)
            ],
        )


class FakeHints:
    """The port Hints: those of the nodes of a process, which share `listeners`."""

    degraded: Sequence[str] = ()
    counts: Mapping[str, int] = {}

    def __init__(self) -> None:
        self.published: list[tuple[str, Hint]] = []
        self.listeners: defaultdict[str, list[Listen]] = defaultdict(list)

    def publish(self, subject: str, hint: Hint) -> bool:
        self.published.append((subject, hint))
        for listen in tuple(self.listeners[subject]):
            listen(hint)
        return True

    @contextmanager
    def listen(self, subject: str, listen: Listen) -> Iterator[None]:
        self.listeners[subject].append(listen)
        try:
            yield
        finally:
            self.listeners[subject].remove(listen)


class FakeWork:
    """The port PartitionWork. Drains end when `ends` is set; at once without it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Lease]] = []
        self.running: set[Lease] = set()
        self.ends: anyio.Event | None = None

    def start(self, lease: Lease) -> None:
        self.told.append(("start", lease))
        self.running.add(lease)

    async def drain(self, lease: Lease) -> None:
        self.told.append(("drain", lease))
        await anyio.lowlevel.checkpoint()
        if self.ends is not None:
            await self.ends.wait()
        self.told.append(("drained", lease))
        self.running.remove(lease)

    def drop(self, lease: Lease) -> None:
        self.told.append(("drop", lease))
        self.running.remove(lease)
