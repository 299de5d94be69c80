"""Several gateways over one store: partitions of the work, leases on them, hints between the nodes."""

from base64 import b32hexencode
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Protocol

from gateway.domain.errors import GatewayError
from gateway.domain.ids import NodeId, RunId, SessionKey
from gateway.domain.inbox import NO_CHOICE, Ending, Entry, RunRecord, SessionChoice


@lru_cache(maxsize=8192)
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


@dataclass(frozen=True, slots=True)
class Tenure:
    """Under which a node works on a session: the epoch of the partition. What it commits is refused
    once a later owner has opened the session."""

    session_key: SessionKey
    epoch: int


class Fenced(GatewayError):
    """A later owner has opened the session: nothing was written, and the turn is no longer ours."""

    code = "fenced"

    def __init__(self, key: SessionKey) -> None:
        super().__init__(f"session {key} is worked on by another node")


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """How the nodes stand at one moment, as each of them sees it in the store; `degraded` is this node's."""

    state: ClusterState
    pending: Mapping[int, int]
    waits_since: datetime | None
    degraded: Sequence[str]

    def lag_s(self, now: datetime) -> float:
        """How long the message has waited that waits longest."""
        return max(0.0, (now - (self.waits_since or now)).total_seconds())


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

    async def acquire(
        self, node: str, partitions: Sequence[int], lease_s: float
    ) -> Sequence[Lease]:
        """Those of the partitions that were free or expired; each has a new epoch."""

    async def release(self, node: str, leases: Sequence[Lease]) -> None:
        """Does nothing for a lease that another node has taken."""

    async def leave(self, node: str) -> None:
        """The node is no member any more."""

    async def alive(self, late_s: float) -> Set[str]:
        """The nodes whose time was not over so long ago: they may only be slow."""

    async def key(self) -> bytes:
        """Which only those have who may read the store."""

    async def state(self) -> ClusterState:
        """Of the nodes whose time is not over."""


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """What is open in some partitions: sessions with runs that the asker does not know, how others want
    runs to be stopped, and all that is open."""

    sessions: Set[SessionKey]
    stops: Mapping[RunId, str]
    runs: Set[RunId]


AT_ONCE = "immediate"  # how a run is stopped


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt: the count, how many of them are forgiven, and where the session's HEAD is; and what was
    chosen for it, wherever that was."""

    attempts: int
    forgiven: int
    head: NodeId | None
    choice: SessionChoice = NO_CHOICE


@dataclass(frozen=True, slots=True)
class RunProgress:
    attempts: int
    is_over: bool


class SharedRuns(Protocol):
    """Runs that several nodes know of. What a turn writes is refused with Fenced once a later owner has
    opened its session. Raises StoreUnavailable."""

    async def open_runs(self, partitions: Sequence[int], known: Set[RunId]) -> OpenRuns: ...

    async def open_session(self, tenure: Tenure) -> Sequence[Entry]:
        """Its open runs, in order. From then on no earlier owner commits anything there."""

    async def begin(
        self,
        run_id: RunId,
        tenure: Tenure,
        node: str = "",
        alive: Collection[str] = (),
        *,
        sender: str | None = None,
    ) -> Begun:
        """Counts an attempt of this node. The one before is forgiven if its node is alive: it has lost the
        session, and did not die of the message. `sender`: whoever speaks, whom the turn asks about first."""

    async def append(
        self, run_id: RunId, part: int, pack: Callable[[], bytes], tenure: Tenure
    ) -> None:
        """As Journal.append."""

    async def forgive(self, run_id: RunId, tenure: Tenure) -> None:
        """As Journal.forgive."""

    async def finish(self, ending: Ending, tenure: Tenure) -> bool:
        """As Inbox.finish."""

    async def ask_to_stop(self, run_id: RunId, how: str) -> None:
        """For the node that works on it; nothing if it has ended."""

    async def ask_session_to_stop(self, key: SessionKey) -> int:
        """Every run of it at once; gives how many."""

    async def load(self, key: SessionKey) -> tuple[int, int]:
        """How many runs of a session are at work, and how many wait."""

    async def choose(self, key: SessionKey, named: Mapping[str, Any]) -> SessionChoice:
        """Changes what is named of a session's choice, and leaves the rest; gives what is chosen then."""

    async def choices(self, after: int) -> tuple[int, Mapping[SessionKey, SessionChoice]]:
        """What was chosen after the change of that number, the newest of very many; and the number of the
        last one."""

    async def states(self, run_ids: Sequence[RunId]) -> Mapping[RunId, RunProgress]:
        """Of those that there are."""

    async def records(self, run_ids: Sequence[RunId]) -> Sequence[RunRecord]:
        """Of those that there are."""

    async def backlog(self) -> tuple[Mapping[int, int], datetime | None]:
        """How many runs are open in each partition, and when the oldest was accepted that nobody has begun."""

    async def place_runs(self, place: Callable[[SessionKey], int]) -> int:
        """Puts open runs into the partitions of their sessions, where they are not; gives how many."""


class PartitionWork(Protocol):
    """What a node does for its partitions."""

    def start(self, lease: Lease) -> None:
        """Opens the sessions that have open runs, and works on them; never waits."""

    async def drain(self, lease: Lease) -> None:
        """Starts nothing more there; returns when the turns that run have ended."""

    def drop(self, lease: Lease) -> None:
        """The partition belongs to another node, or may do so: its turns end without a word; never waits."""


class Duties(Protocol):
    """What one node does at a time, by its name: a channel's connection, its deliveries."""

    def holds(self, name: str) -> bool:
        """Whether this node may begin something for it."""

    def may(self, name: str) -> bool:
        """Whether it may go on with what it has begun."""

    def busy(self, name: str) -> AbstractContextManager[None]:
        """No other node has the duty before the context has ended, as long as this one lives."""

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Does the work whenever the duty is this node's, and cancels it when it is not any more."""


Hint = Mapping[str, object]
Listen = Callable[[Hint], None]  # never waits

# Subjects of hints. Names of others are digests in them: a name may hold anything.
FREE = "free"  # a partition was released
RELOAD = "reload"  # a node was told to look whether its configuration has changed
CHANGED = "changed"  # something in the store that every node keeps a copy of
EVENTS = "events"  # a node wants to hear the events of the others


def work_subject(partition: int) -> str:
    """There is work for a partition."""
    return f"part.{partition}"


def node_subject(node: str) -> str:
    """What a node is asked to do for a run of its own: abort, steer, approve."""
    return f"ask.{_token(node)}"


def events_subject(node: str) -> str:
    """Events of other nodes that a node wants to hear."""
    return f"events.{_token(node)}"


def _token(name: str) -> str:
    digest = sha256(name.encode(errors="surrogatepass")).digest()
    return b32hexencode(digest[:15]).decode().lower()


class Hints(Protocol):
    """Messages between nodes that may be lost, repeated or invented: whoever gets one looks into the store."""

    @property
    def degraded(self) -> Sequence[str]:
        """What does not work at the moment, by name."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many were sent, received, dropped or malformed, since the start."""

    def publish(self, subject: str, hint: Hint) -> bool:
        """Never waits. False: it is dropped, because nothing is connected, it is too large, or too many wait."""

    def listen(self, subject: str, listen: Listen) -> AbstractContextManager[None]:
        """Gets what other nodes publish there, until the context ends."""


class NoHints:
    """For nodes without NATS, which look into the store now and then: nothing is degraded."""

    degraded: Sequence[str] = ()
    counts: Mapping[str, int] = MappingProxyType({})

    def publish(self, subject: str, hint: Hint) -> bool:
        return False

    def listen(self, subject: str, listen: Listen) -> AbstractContextManager[None]:
        return nullcontext()
