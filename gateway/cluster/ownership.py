"""Decides which partitions a node owns, from the store's answers and the times of the requests.
Pure.

A lease is valid until `lease_s` - 1 s after its successful renewal was *sent*, on the node's own
monotonic clock. The store lets another node acquire it `lease_s` after the renewal was *executed*,
which is later. So two nodes never own a partition at once, whatever is slow, lost or paused.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from gateway.domain.cluster import Lease, Renewal

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
