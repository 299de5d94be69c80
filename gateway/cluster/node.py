"""A node of the cluster: renews its leases, takes and gives back partitions, and says which are its own."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import anyio
from anyio import CancelScope
from anyio.abc import TaskGroup

from gateway.cluster.ownership import RENEWALS, Drain, Drop, Effect, Ownership, Release, Start, Take
from gateway.domain.cluster import FREE, Hints, Lease, Leases, PartitionWork, Presence
from gateway.domain.errors import StoreRefused, StoreUnavailable
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    partitions: int | None = 64  # None: as many as the store has, or as are usual
    lease_s: float = 15.0


USUAL_PARTITIONS = 64


@dataclass(eq=False, slots=True)
class ClusterNode:
    """`join` comes first; `run` is the node; `stop` ends it in order. Calls of the store are made one
    after the other, on a connection on which nothing else waits."""

    presence: Callable[[], Presence]  # its node never changes
    settings: ClusterSettings
    leases: Leases
    hints: Hints
    work: PartitionWork
    clock: Clock
    _ownership: Ownership = field(init=False)
    _node: str = field(init=False)
    _wanted: deque[Take | Release] = field(init=False, default_factory=deque)
    _drains: dict[Lease, CancelScope] = field(init=False, default_factory=dict)
    _changed: anyio.Event = field(init=False, default_factory=anyio.Event)
    _is_stopping: bool = field(init=False, default=False)
    _is_answered: bool = field(init=False, default=True)
    members: Collection[str] = field(init=False, default=())  # when it last looked

    async def join(self) -> None:
        """Raises StoreRefused if the store was made for another number of partitions, StoreInUse,
        StoreUnavailable."""
        presence, wanted = self.presence(), self.settings.partitions
        lease_s, node = self.settings.lease_s, presence.node
        # It gets no share of the work until it runs.
        silent = replace(presence, is_leaving=True)
        found = await self.leases.join(silent, wanted or USUAL_PARTITIONS, lease_s)
        if wanted not in {None, found}:
            await self.leases.leave(node)
            raise StoreRefused(
                f"[cluster] partitions is {wanted}, and the store was made for {found}: all nodes need "
                f"the same number, so write partitions = {found}"
            )
        self._node, self._ownership = node, Ownership(node, found, lease_s)

    @property
    def partitions(self) -> int:
        """How many the store has."""
        return self._ownership.partitions

    def epoch(self, partition: int, *, starting: bool = False) -> int | None:
        """Under which a turn may commit and publish, or be started; None if it may not."""
        return self._ownership.epoch(partition, self.clock.monotonic(), starting=starting)

    async def run(self) -> None:
        """Until all is given back after `stop`. If it is cancelled, the leases expire."""
        with self.hints.listen(FREE, lambda hint: self._look_soon()):
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_deadlines, group)
                while not self._ownership.is_done:
                    await self._step(group)
                group.cancel_scope.cancel()
        with suppress(StoreUnavailable):  # then it is forgotten when its time is over
            await self.leases.leave(self._node)

    def stop(self) -> None:
        """Starts nothing more, drains what runs and gives every partition back; then `run` ends."""
        self._is_stopping = True
        self._changed.set()

    async def _step(self, group: TaskGroup) -> None:
        """One call of the store, or a pause until there is need of one."""
        if self._is_stopping and not self._ownership.is_stopping:
            self._carry_out(self._ownership.stopped(self.clock.monotonic()), group)
        try:
            if self._wanted:
                await self._change(self._wanted.popleft(), group)
            elif self.clock.monotonic() >= self._ownership.renew_at:
                await self._renew(group)
            else:
                await self._pause()
        except StoreUnavailable as error:
            self._wanted.clear()  # the next answer says what is to be done
            self._ownership.call_failed(self.clock.monotonic())
            if self._is_answered:
                log.warning("leases_not_answered", extra={"why": str(error)})
            self._is_answered = False

    async def _renew(self, group: TaskGroup) -> None:
        presence = replace(self.presence(), is_leaving=self._ownership.is_stopping)
        sent_at = self.clock.monotonic()
        renewal = await self.leases.renew(presence, self.settings.lease_s)
        self._is_answered, self.members = True, renewal.members
        self._carry_out(self._ownership.renewed(renewal, sent_at), group)

    async def _change(self, wanted: Take | Release, group: TaskGroup) -> None:
        sent_at = self.clock.monotonic()
        match wanted:
            case Take():
                taken = await self.leases.acquire(
                    self._node, wanted.partitions, self.settings.lease_s
                )
                log.info("partitions_taken", extra={"partitions": len(taken)})
                self._carry_out(self._ownership.taken(taken, sent_at), group)
            case Release():
                await self.leases.release(self._node, wanted.leases)
                log.info("partitions_released", extra={"partitions": len(wanted.leases)})
                self._ownership.released(wanted.leases)
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
                case Take() | Release():
                    self._wanted.append(effect)
        self._changed.set()

    async def _drain(self, lease: Lease, scope: CancelScope, group: TaskGroup) -> None:
        with scope:
            await self.work.drain(lease)
            del self._drains[lease]
            self._carry_out(self._ownership.drained(lease), group)

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
        """Drops in time what was not renewed, also while the store does not answer."""
        longest_s = self.settings.lease_s / RENEWALS
        while True:
            now, deadline = self.clock.monotonic(), self._ownership.next_deadline
            pause_s = longest_s if deadline is None else deadline - now
            await self.clock.sleep(max(0.0, min(pause_s, longest_s)))
            self._carry_out(self._ownership.expired(self.clock.monotonic()), group)

    def _look_soon(self) -> None:
        self._ownership.hinted(self.clock.monotonic())
        self._changed.set()
