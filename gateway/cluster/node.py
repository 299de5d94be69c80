"""A node of the cluster: renews its leases, acquires and releases partitions, and knows its own
ones."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import anyio
from anyio import CancelScope
from anyio.abc import TaskGroup

from gateway.cluster.ownership import Acquire, Drain, Drop, Effect, Ownership, Release, Start
from gateway.domain.cluster import FREE, Hints, Lease, Leases, PartitionWork, Presence
from gateway.domain.errors import StoreRefused, StoreUnavailable
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    partitions: int | None = 64  # None: the number of the store, or the usual one
    lease_s: float = 15.0


USUAL_PARTITIONS = 64


@dataclass(eq=False, slots=True)
class ClusterNode:
    """`join` comes first; `run` is the node; `stop` ends it in order. Its calls of the store follow
    one another, on a connection without other calls."""

    presence: Callable[[], Presence]  # its node never changes
    settings: ClusterSettings
    leases: Leases
    hints: Hints
    work: PartitionWork
    clock: Clock
    _ownership: Ownership = field(init=False)
    _node: str = field(init=False)
    _wanted: deque[Acquire | Release] = field(init=False, default_factory=deque)
    _drains: dict[Lease, CancelScope] = field(init=False, default_factory=dict)
    _changed: anyio.Event = field(init=False, default_factory=anyio.Event)
    _is_stopping: bool = field(init=False, default=False)
    _is_answered: bool = field(init=False, default=True)
    members: Collection[str] = field(init=False, default=())  # at the last renewal

    async def join(self) -> None:
        """Raises StoreRefused if the store was made for another number of partitions, StoreInUse,
        StoreUnavailable."""
        presence, wanted = self.presence(), self.settings.partitions
        lease_s, node = self.settings.lease_s, presence.node
        # A leaving node gets no share of the work.
        silent = replace(presence, is_leaving=True)
        found = await self.leases.join(silent, wanted or USUAL_PARTITIONS, lease_s)
        if wanted not in {None, found}:
            await self.leases.leave(node)
            raise StoreRefused(
                f"[cluster] partitions is {wanted}, and the store was made for {found}: write "
                f"partitions = {found}"
            )
        self._node, self._ownership = node, Ownership(node, found, lease_s)

    @property
    def partitions(self) -> int:
        """The number of partitions of the store."""
        return self._ownership.partitions

    def epoch(self, partition: int, *, starting: bool = False) -> int | None:
        """Returns the epoch under which a turn may commit, publish or start; None if it may not."""
        return self._ownership.epoch(partition, self.clock.monotonic(), starting=starting)

    async def run(self) -> None:
        """Runs until everything is released after `stop`. If it is cancelled, the leases expire."""
        with self.hints.listen(FREE, lambda hint: self._look_soon()):
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_deadlines, group)
                while not self._ownership.is_done:
                    await self._step(group)
                group.cancel_scope.cancel()
        with suppress(StoreUnavailable):  # then the membership expires
            await self.leases.leave(self._node)

    def stop(self) -> None:
        """Starts no more turns, drains the running ones and releases every partition; then `run`
        ends."""
        self._is_stopping = True
        self._changed.set()

    async def _step(self, group: TaskGroup) -> None:
        """Makes one call of the store, or waits until one is needed."""
        if self._is_stopping and not self._ownership.is_stopping:
            self._carry_out(self._ownership.stop(self.clock.monotonic()), group)
        try:
            if self._wanted:
                await self._change(self._wanted.popleft(), group)
            elif self.clock.monotonic() >= self._ownership.renew_at:
                await self._renew(group)
            else:
                await self._pause()
        except StoreUnavailable as error:
            self._wanted.clear()  # the next renewal decides again
            self._ownership.retry_soon(self.clock.monotonic())
            if self._is_answered:
                log.warning("leases_not_answered", extra={"why": str(error)})
            self._is_answered = False

    async def _renew(self, group: TaskGroup) -> None:
        presence = replace(self.presence(), is_leaving=self._ownership.is_stopping)
        sent_at = self.clock.monotonic()
        renewal = await self.leases.renew(presence, self.settings.lease_s)
        self._is_answered, self.members = True, renewal.members
        self._carry_out(self._ownership.apply_renewal(renewal, sent_at), group)

    async def _change(self, wanted: Acquire | Release, group: TaskGroup) -> None:
        sent_at = self.clock.monotonic()
        match wanted:
            case Acquire():
                taken = await self.leases.acquire(
                    self._node, wanted.partitions, self.settings.lease_s
                )
                log.info("partitions_taken", extra={"partitions": len(taken)})
                self._carry_out(self._ownership.apply_acquired(taken, sent_at), group)
            case Release():
                await self.leases.release(self._node, wanted.leases)
                log.info("partitions_released", extra={"partitions": len(wanted.leases)})
                self._ownership.confirm_release(wanted.leases)
                self.hints.publish(FREE, {"node": self._node})

    def _carry_out(self, effects: Iterable[Effect], group: TaskGroup) -> None:
        for effect in effects:
            match effect:
                case Start(lease):
                    self.work.start(lease)
                case Drop(lease):
                    log.warning("partition_lost", extra={"partition": lease.partition})
                    if (drain := self._drains.pop(lease, None)) is not None:
                        drain.cancel()
                    self.work.drop(lease)
                case Drain(lease):
                    self._drains[lease] = CancelScope()
                    group.start_soon(self._drain, lease, self._drains[lease], group)
                case Acquire() | Release():
                    self._wanted.append(effect)
        self._changed.set()

    async def _drain(self, lease: Lease, scope: CancelScope, group: TaskGroup) -> None:
        with scope:
            await self.work.drain(lease)
            del self._drains[lease]
            self._carry_out(self._ownership.release_drained(lease), group)

    async def _pause(self) -> None:
        self._changed = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._wake_at, self._ownership.renew_at)
            await self._changed.wait()
            group.cancel_scope.cancel()

    async def _wake_at(self, at: float) -> None:
        await self.clock.sleep(max(0.0, at - self.clock.monotonic()))
        self._changed.set()

    async def _watch_deadlines(self, group: TaskGroup) -> None:
        """Drops leases in time that were not renewed, even while the store does not answer."""
        longest_s = self._ownership.renew_every_s
        while True:
            now, deadline = self.clock.monotonic(), self._ownership.next_deadline
            pause_s = longest_s if deadline is None else deadline - now
            await self.clock.sleep(max(0.0, min(pause_s, longest_s)))
            self._carry_out(self._ownership.drop_expired(self.clock.monotonic()), group)

    def _look_soon(self) -> None:
        self._ownership.renew_soon(self.clock.monotonic())
        self._changed.set()
