"""Several gateways over one store: partitions of the work, leases on them, hints between the nodes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from gateway.domain.ids import SessionKey


def partition_of(what: SessionKey | str, partitions: int) -> int:
    """Where a session is at home; or a channel, a schedule or another thing that runs once, by its name. It
    never changes: leases and open runs are stored under it."""
    digest = sha256(str(what).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % partitions


@dataclass(frozen=True, slots=True)
class Lease:
    """A partition that a node owns. The epoch grows whenever the partition is taken, and fences what an
    earlier owner still wants to commit."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Presence:
    """What a node says of itself with each renewal. `node` is a label and a random part of each start."""

    node: str
    is_ready: bool = True
    config: str = ""  # a digest of agents, budgets and channels: it is the same at all nodes
    is_leaving: bool = False  # it takes nothing any more


@dataclass(frozen=True, slots=True)
class Renewal:
    """What the store says at one moment: leases of the node, partitions that may be taken, and the nodes that
    share the work."""

    mine: Sequence[Lease]
    free: Sequence[int]
    members: Collection[str]


@dataclass(frozen=True, slots=True)
class Member:
    presence: Presence
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class LeaseState:
    """`node` is None for a partition that was released, or never taken."""

    lease: Lease
    node: str | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ClusterState:
    members: Sequence[Member]
    leases: Sequence[LeaseState]


class Leases(Protocol):
    """Leases in the store, which decides by its own clock. Raises StoreUnavailable: the outcome is unknown."""

    async def prepare(self, partitions: int) -> int:
        """Makes the leases if there are none; gives how many partitions there are, which the first node chose."""

    async def renew(self, presence: Presence, lease_s: float) -> Renewal:
        """Renews all leases of the node that have not expired."""

    async def take(self, node: str, partitions: Sequence[int], lease_s: float) -> Sequence[Lease]:
        """Those of the partitions that were free or expired; each has a new epoch."""

    async def release(self, node: str, leases: Sequence[Lease]) -> None:
        """Does nothing for a lease that another node has taken."""

    async def leave(self, node: str) -> None:
        """The node is no member any more."""

    async def state(self) -> ClusterState: ...


class PartitionWork(Protocol):
    """What a node does for its partitions."""

    def start(self, lease: Lease) -> None:
        """Opens the sessions that have open runs, and works on them; never waits."""

    async def drain(self, lease: Lease) -> None:
        """Starts nothing more there; returns when the turns that run have ended."""

    def drop(self, lease: Lease) -> None:
        """The partition belongs to another node, or may do so: its turns end without a word; never waits."""


Hint = Mapping[str, object]
Listen = Callable[[Hint], None]  # never waits


class Hints(Protocol):
    """Messages between nodes that may be lost, repeated or invented: whoever gets one looks into the store."""

    @property
    def degraded(self) -> Sequence[str]:
        """What does not work at the moment, by name."""

    def publish(self, subject: str, hint: Hint) -> bool:
        """Never waits. False: it is dropped, because nothing is connected or too much waits."""

    def listen(self, subject: str, listen: Listen) -> AbstractContextManager[None]:
        """Gets what the nodes publish there, this one included, until the context ends."""
