"""A node of the cluster: renews its leases, acquires and releases partitions, and knows its own
ones.

`Ownership` decides which partitions the node owns, from the store's answers and the times of the
requests; it is pure. A lease is valid until `lease_s` - 1 s after its successful renewal was *sent*, on the
node's own monotonic clock. The store lets another node acquire it `lease_s` after the renewal was
*executed*, which is later. So two nodes never own a partition at once, whatever is slow, lost or paused.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import anyio
from anyio import CancelScope
from anyio.abc import TaskGroup

from gateway.domain.cluster import FREE, Hints, Lease, Leases, PartitionWork, Presence, Renewal
from gateway.domain.errors import StoreRefused, StoreUnavailable
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)


# --- ownership -----------------------------------------------------------------------------------
MARGIN_S = 1.0  # between the end of a lease for its owner and for the store
_RENEWALS = 3  # per duration of a lease
_LOOK_PAUSE_S = 0.25  # minimum between two renewals


@dataclass(frozen=True, slots=True)
class Acquire:
    """Acquires the partitions among these that are still free."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Release:
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Start:
    lease: Lease


@dataclass(frozen=True, slots=True)
class Drain:
    lease: Lease


@dataclass(frozen=True, slots=True)
class Drop:
    lease: Lease


Effect = Acquire | Release | Start | Drain | Drop


@dataclass(slots=True)
class _Held:
    lease: Lease
    deadline: float
    is_draining: bool = False


class Ownership:
    """The partitions of one node. Each method takes an event and returns the effects, in order. The
    resulting calls of the store follow one another, so that their answers come in order too."""

    def __init__(self, node: str, partitions: int, lease_s: float) -> None:
        self._node, self.partitions, self._lease_s = node, partitions, lease_s
        self.renew_every_s = lease_s / _RENEWALS
        self._held: dict[int, _Held] = {}  # the newest last
        # An unanswered release may be executed at any time: these leases are not owned any more.
        self._releasing: dict[int, Lease] = {}
        self._share = 0
        self._sent_at = 0.0  # when the last known call was sent
        self.is_stopping = False
        self.renew_at = 0.0  # by the monotonic clock of the node

    @property
    def is_done(self) -> bool:
        return self.is_stopping and not self._held and not self._releasing

    @property
    def next_deadline(self) -> float | None:
        return min((held.deadline for held in self._held.values()), default=None)

    def epoch(self, partition: int, now: float, *, starting: bool = False) -> int | None:
        """Returns the epoch under which the node may commit and publish, or start a turn
        (`starting`), for this partition; None if it may not."""
        held = self._held.get(partition)
        if held is None or held.deadline <= now or (starting and held.is_draining):
            return None
        return held.lease.epoch

    def apply_renewal(self, renewal: Renewal, sent_at: float) -> list[Effect]:
        self._sent_at, self.renew_at = sent_at, sent_at + self.renew_every_s
        mine = {lease.partition: lease for lease in renewal.mine}
        lost = [
            held.lease
            for held in self._held.values()
            if mine.get(held.lease.partition) != held.lease
        ]
        effects: list[Effect] = [self._drop(lease) for lease in lost]
        leases = self._releasing.items()
        self._releasing = {number: lease for number, lease in leases if mine.get(number) == lease}
        if self._releasing:
            effects.append(Release(tuple(self._releasing.values())))
        kept = [lease for lease in mine.values() if lease.partition not in self._releasing]
        effects += self._hold(kept, sent_at)
        if not self.is_stopping:
            self._share = fair_share(self._node, renewal.members, self.partitions)
            effects += self._balance(renewal)
        return effects

    def retry_soon(self, now: float) -> None:
        """Schedules the next renewal after a failed call. Only a renewal can tell what the node
        owns then."""
        self._sent_at, soon = now, now + self.renew_every_s / 4
        self.renew_at = min(self.renew_at, soon) if self.renew_at > now else soon

    def apply_acquired(self, leases: Sequence[Lease], sent_at: float) -> list[Effect]:
        effects = list(self._hold(leases, sent_at))
        if len(self._kept()) < self._share:  # another node was faster
            self.renew_soon(sent_at)
        return effects

    def release_drained(self, lease: Lease) -> list[Effect]:
        held = self._held.get(lease.partition)
        if held is None or held.lease != lease or not held.is_draining:
            return []
        del self._held[lease.partition]
        return [self._release(lease)]

    def confirm_release(self, leases: Sequence[Lease]) -> None:
        """Forgets confirm_release leases."""
        for lease in leases:
            if self._releasing.get(lease.partition) == lease:
                del self._releasing[lease.partition]

    def renew_soon(self, now: float) -> None:
        """Renews as soon as the pause between renewals permits; a hint says that a partition is free."""
        self.renew_at = min(self.renew_at, max(now, self._sent_at + _LOOK_PAUSE_S))

    def drop_expired(self, now: float) -> list[Effect]:
        """Drops drop_expired leases. A later renewal may find a lease still valid; it then starts again."""
        late = [held.lease for held in self._held.values() if held.deadline <= now]
        return [self._drop(lease) for lease in late]

    def stop(self, now: float) -> list[Effect]:
        """Drains and releases everything. Renews at once, so that the other nodes know."""
        self.is_stopping, self.renew_at = True, now
        return [self._drain(held) for held in self._kept()]

    def _kept(self) -> list[_Held]:
        return [held for held in self._held.values() if not held.is_draining]

    def _hold(self, leases: Sequence[Lease], sent_at: float) -> Iterator[Effect]:
        deadline = sent_at + self._lease_s - MARGIN_S
        for lease in leases:
            held = self._held.get(lease.partition)
            if held is not None and held.lease == lease:
                held.deadline = deadline
            elif self.is_stopping:
                yield self._release(lease)
            else:
                self._held[lease.partition] = _Held(lease, deadline)
                yield Start(lease)

    def _balance(self, renewal: Renewal) -> Iterator[Effect]:
        kept, free = self._kept(), list(renewal.free)
        surplus = len(kept) - self._share
        if surplus > 0:
            for held in kept[-surplus:]:
                yield self._drain(held)
        elif surplus < 0 and free:
            # Members begin at different places, so that they request different partitions.
            place = sorted(renewal.members).index(self._node) * len(free) // len(renewal.members)
            yield Acquire(tuple((free[place:] + free[:place])[:-surplus]))

    def _drop(self, lease: Lease) -> Drop:
        del self._held[lease.partition]
        return Drop(lease)

    def _drain(self, held: _Held) -> Drain:
        held.is_draining = True
        return Drain(held.lease)

    def _release(self, lease: Lease) -> Release:
        self._releasing[lease.partition] = lease
        return Release((lease,))


def fair_share(node: str, members: Collection[str], partitions: int) -> int:
    """Returns the share of a member. All shares add up to all partitions and differ by at most one."""
    if node not in members:
        return 0
    usual, rest = divmod(partitions, len(members))
    return usual + (sorted(members).index(node) < rest)


# --- the node ------------------------------------------------------------------------------------


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
