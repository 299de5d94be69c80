"""Which partitions a node owns: pure, told what the store answered and when it was asked.

A lease is good until `lease_s` - 1 s after the renewal that was answered was *sent*, on the node's own
monotonic clock. The store lets another node take it `lease_s` after it was *executed*, which is later.
So two nodes never own a partition at a time, whatever is slow, lost or paused.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from gateway.domain.cluster import Lease, Renewal

MARGIN_S = 1.0  # between the end of a lease for its owner and for the store
RENEWALS = 3  # within the time of a lease
_LOOK_PAUSE_S = 0.25  # between two renewals, whatever happens


@dataclass(frozen=True, slots=True)
class Take:
    """As many of these partitions as are free still."""

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


Effect = Take | Release | Start | Drain | Drop


@dataclass(slots=True)
class _Held:
    lease: Lease
    deadline: float
    is_draining: bool = False


class Ownership:
    """Every method takes what has happened, and gives what is to be done, in order. The calls of the store
    that it wants are made one after the other, so that their answers come in order too."""

    def __init__(self, node: str, partitions: int, lease_s: float) -> None:
        self._node, self.partitions, self._lease_s = node, partitions, lease_s
        self._held: dict[int, _Held] = {}  # the newest last
        # A release without an answer may be carried out at any time: these are owned no more.
        self._releasing: dict[int, Lease] = {}
        self._share = 0
        self._sent_at = 0.0  # when the last call was made that is known
        self.is_stopping = False
        self.renew_at = 0.0  # by the monotonic clock of the node

    @property
    def is_done(self) -> bool:
        return self.is_stopping and not self._held and not self._releasing

    @property
    def next_deadline(self) -> float | None:
        return min((held.deadline for held in self._held.values()), default=None)

    def epoch(self, partition: int, now: float, *, starting: bool = False) -> int | None:
        """The epoch under which the node may commit and publish, or start a turn (`starting`), for this
        partition; None if it may not."""
        held = self._held.get(partition)
        if held is None or held.deadline <= now or (starting and held.is_draining):
            return None
        return held.lease.epoch

    def renewed(self, renewal: Renewal, sent_at: float) -> list[Effect]:
        self._sent_at, self.renew_at = sent_at, sent_at + self._lease_s / RENEWALS
        mine = {lease.partition: lease for lease in renewal.mine}
        effects: list[Effect] = [
            self._dropped(lease)
            for lease in [held.lease for held in self._held.values()]
            if mine.get(lease.partition) != lease
        ]
        self._releasing = {
            partition: lease
            for partition, lease in self._releasing.items()
            if mine.get(partition) == lease
        }
        if self._releasing:
            effects.append(Release(tuple(self._releasing.values())))
        effects += self._acquired(
            [lease for lease in mine.values() if lease.partition not in self._releasing], sent_at
        )
        if not self.is_stopping:
            self._share = fair_share(self._node, renewal.members, self.partitions)
            effects += self._balance(renewal)
        return effects

    def call_failed(self, now: float) -> None:
        """No answer is no renewal; nor is it one of another call, after which the next renewal is to say what
        is owned."""
        self._sent_at, soon = now, now + self._lease_s / RENEWALS / 4
        self.renew_at = min(self.renew_at, soon) if self.renew_at > now else soon

    def taken(self, leases: Sequence[Lease], sent_at: float) -> list[Effect]:
        effects = list(self._acquired(leases, sent_at))
        if len(self._kept()) < self._share:  # another node was quicker
            self._look_again(sent_at)
        return effects

    def drained(self, lease: Lease) -> list[Effect]:
        held = self._held.get(lease.partition)
        if held is None or held.lease != lease or not held.is_draining:
            return []
        del self._held[lease.partition]
        return [self._given_back(lease)]

    def released(self, leases: Sequence[Lease]) -> None:
        """The store has answered."""
        for lease in leases:
            if self._releasing.get(lease.partition) == lease:
                del self._releasing[lease.partition]

    def hinted(self, now: float) -> None:
        """Somebody says that a partition is free."""
        self._look_again(now)

    def expired(self, now: float) -> list[Effect]:
        """A later renewal may say that a lease is still good: then it starts again."""
        late = [held.lease for held in self._held.values() if held.deadline <= now]
        return [self._dropped(lease) for lease in late]

    def stopped(self, now: float) -> list[Effect]:
        """Everything is drained and released; the other nodes are to know at once."""
        self.is_stopping, self.renew_at = True, now
        return [self._draining(held) for held in self._kept()]

    def _kept(self) -> list[_Held]:
        return [held for held in self._held.values() if not held.is_draining]

    def _acquired(self, leases: Sequence[Lease], sent_at: float) -> Iterator[Effect]:
        deadline = sent_at + self._lease_s - MARGIN_S
        for lease in leases:
            held = self._held.get(lease.partition)
            if held is not None and held.lease == lease:
                held.deadline = deadline
            elif self.is_stopping:
                yield self._given_back(lease)
            else:
                self._held[lease.partition] = _Held(lease, deadline)
                yield Start(lease)

    def _balance(self, renewal: Renewal) -> Iterator[Effect]:
        kept, free = self._kept(), list(renewal.free)
        surplus = len(kept) - self._share
        if surplus > 0:
            for held in kept[-surplus:]:
                yield self._draining(held)
        elif surplus < 0 and free:
            # Each member begins elsewhere, so that they do not want the same ones.
            place = sorted(renewal.members).index(self._node) * len(free) // len(renewal.members)
            yield Take(tuple((free[place:] + free[:place])[:-surplus]))

    def _look_again(self, now: float) -> None:
        self.renew_at = min(self.renew_at, max(now, self._sent_at + _LOOK_PAUSE_S))

    def _dropped(self, lease: Lease) -> Drop:
        del self._held[lease.partition]
        return Drop(lease)

    def _draining(self, held: _Held) -> Drain:
        held.is_draining = True
        return Drain(held.lease)

    def _given_back(self, lease: Lease) -> Release:
        self._releasing[lease.partition] = lease
        return Release((lease,))


def fair_share(node: str, members: Collection[str], partitions: int) -> int:
    """All shares together are all partitions, and no two differ by more than one."""
    if node not in members:
        return 0
    usual, rest = divmod(partitions, len(members))
    return usual + (sorted(members).index(node) < rest)
