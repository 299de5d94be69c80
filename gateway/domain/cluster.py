"""Several gateways over one store: partitions of the work, leases on them, hints between the nodes."""

from base64 import b32hexencode
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from gateway.domain.errors import GatewayError
from gateway.domain.ids import RunId, SessionKey


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
    is_alone: bool = False  # it shares the store with no other gateway
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


class StoreInUse(GatewayError):
    """A gateway without `[cluster]` has the store for itself, or wants to."""

    code = "store_in_use"

    def __init__(self, owner: str) -> None:
        super().__init__(
            f"the store is in use by gateway {owner}: stop it, or write [cluster] in the configuration of "
            "all gateways that share the store"
        )
        self.owner = owner


class Leases(Protocol):
    """Leases in the store, which decides by its own clock. Raises StoreUnavailable: the outcome is unknown."""

    async def join(self, presence: Presence, partitions: int, lease_s: float) -> int:
        """Makes the leases if there are none; gives how many partitions there are, which the first node chose.
        Raises StoreInUse."""

    async def renew(self, presence: Presence, lease_s: float) -> Renewal:
        """Renews all leases of the node that have not expired. Raises StoreInUse if a node that is alone was
        late, and another one came."""

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

# Subjects of hints. Names of others are digests in them: a name may hold anything.
FREE = "free"  # a partition was released
RELOAD = "reload"  # the configuration of a node has changed


def work_subject(partition: int) -> str:
    """There is work for a partition."""
    return f"part.{partition}"


def run_subject(run_id: RunId) -> str:
    """Chunks of a run, on their way to clients at other nodes."""
    return f"run.{_token(run_id)}"


def node_subject(node: str) -> str:
    """What a node is asked to do for a run of its own: abort, steer, approve."""
    return f"ask.{_token(node)}"


def outbox_subject(channel: str) -> str:
    """There are deliveries for a channel."""
    return f"outbox.{_token(channel)}"


def _token(name: str) -> str:
    digest = sha256(name.encode(errors="surrogatepass")).digest()
    return b32hexencode(digest[:15]).decode().lower()


class Hints(Protocol):
    """Messages between nodes that may be lost, repeated or invented: whoever gets one looks into the store."""

    @property
    def degraded(self) -> Sequence[str]:
        """What does not work at the moment, by name."""

    def publish(self, subject: str, hint: Hint) -> bool:
        """Never waits. False: it is dropped, because nothing is connected, it is too large, or too many wait."""

    def listen(self, subject: str, listen: Listen) -> AbstractContextManager[None]:
        """Gets what other nodes publish there, until the context ends."""


class NoHints:
    """For nodes without NATS, which look into the store now and then: nothing is degraded."""

    degraded: Sequence[str] = ()

    def publish(self, subject: str, hint: Hint) -> bool:
        return False

    def listen(self, subject: str, listen: Listen) -> AbstractContextManager[None]:
        return nullcontext()
