"""Several gateways over one store: partitions of the work, leases on them, hints between the
nodes."""

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
    """Returns the partition of a session, or of a named duty such as a channel or a schedule. The
    result never changes, because leases and open runs are stored under it."""
    digest = sha256(str(what).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % partitions


@dataclass(frozen=True, slots=True)
class Lease:
    """A partition that a node owns. The epoch grows with each acquisition and fences writes of
    earlier owners."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Presence:
    """A node's report about itself with each renewal. `node` is a label and a part that is random
    at each start."""

    node: str
    is_alone: bool = False  # the node shares the store with no other gateway
    is_ready: bool = True
    config: str = ""  # a digest of agents, budgets and channels, equal on all nodes
    is_leaving: bool = False  # the node acquires no more leases


@dataclass(frozen=True, slots=True)
class Renewal:
    """The store's answer to a renewal: the leases of the node, the partitions that are free, and
    the nodes that share the work."""

    mine: Sequence[Lease]
    free: Sequence[int]
    members: Collection[str]


@dataclass(frozen=True, slots=True)
class Member:
    presence: Presence
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The state of a lease; `node` is None if it was released or never acquired."""

    lease: Lease
    node: str | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ClusterState:
    members: Sequence[Member]
    leases: Sequence[LeaseState]


@dataclass(frozen=True, slots=True)
class Tenure:
    """A node's right to work on a session under an epoch of its partition. The store refuses
    commits of a tenure once a later owner has opened the session."""

    session_key: SessionKey
    epoch: int


class Fenced(GatewayError):
    """A later owner has opened the session; nothing was written, and this node has lost the
    turn."""

    code = "fenced"

    def __init__(self, key: SessionKey) -> None:
        super().__init__(f"session {key} is worked on by another node")


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """The state of all nodes at one moment, as each of them reads it from the store. `degraded`
    describes this node only."""

    state: ClusterState
    pending: Mapping[int, int]
    waits_since: datetime | None
    degraded: Sequence[str]

    def lag_s(self, now: datetime) -> float:
        """Returns how long the oldest waiting message has waited."""
        return max(0.0, (now - (self.waits_since or now)).total_seconds())


class StoreInUse(GatewayError):
    """A gateway without `[cluster]` uses the store alone, or tries to."""

    code = "store_in_use"

    def __init__(self, owner: str) -> None:
        super().__init__(
            f"the store is in use by gateway {owner}: stop it, or write [cluster] in the configuration of "
            "all gateways that share the store"
        )
        self.owner = owner


class Leases(Protocol):
    """Leases in the store, which decides by its own clock. Raises StoreUnavailable if the outcome
    is unknown."""

    async def join(self, presence: Presence, partitions: int, lease_s: float) -> int:
        """Creates the leases if there are none. Returns the number of partitions, which the first
        node chose. Raises StoreInUse."""

    async def renew(self, presence: Presence, lease_s: float) -> Renewal:
        """Renews all leases of the node that have not expired. Raises StoreInUse if a node that is
        alone was late and another node joined."""

    async def acquire(
        self, node: str, partitions: Sequence[int], lease_s: float
    ) -> Sequence[Lease]:
        """Acquires the given partitions that are free or expired, each with a new epoch."""

    async def release(self, node: str, leases: Sequence[Lease]) -> None:
        """Releases leases; skips leases that another node has acquired."""

    async def leave(self, node: str) -> None:
        """Removes the node from the members."""

    async def alive(self, late_s: float) -> Set[str]:
        """Returns the nodes that have not expired, or expired at most `late_s` ago and may only be
        slow."""

    async def key(self) -> bytes:
        """Returns a key that only readers of the store know."""

    async def state(self) -> ClusterState:
        """Returns the members that have not expired, and all leases."""


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """The open work of some partitions: sessions with runs that the caller does not know, requests
    to stop runs, and all open runs."""

    sessions: Set[SessionKey]
    stops: Mapping[RunId, str]
    runs: Set[RunId]


AT_ONCE = "immediate"  # a way to stop a run


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt that was counted: the number of attempts, how many of them are forgiven, the
    session's HEAD, and the choice for the session."""

    attempts: int
    forgiven: int
    head: NodeId | None
    choice: SessionChoice = NO_CHOICE


@dataclass(frozen=True, slots=True)
class RunProgress:
    attempts: int
    is_over: bool


class SharedRuns(Protocol):
    """Runs that several nodes can read. The writes of a turn raise Fenced once a later owner has
    opened its session. Raises StoreUnavailable."""

    async def open_runs(self, partitions: Sequence[int], known: Set[RunId]) -> OpenRuns: ...

    async def open_session(self, tenure: Tenure) -> Sequence[Entry]:
        """Returns the open runs of the session in order, and fences the commits of all earlier
        owners."""

    async def begin(
        self,
        run_id: RunId,
        tenure: Tenure,
        node: str = "",
        alive: Collection[str] = (),
        *,
        sender: str | None = None,
    ) -> Begun:
        """Counts an attempt of this node. Forgives the previous attempt if its node is alive: that
        node lost the session and did not die of the message. `sender` is the speaker, for whom the
        store may read ahead."""

    async def append(
        self, run_id: RunId, part: int, pack: Callable[[], bytes], tenure: Tenure
    ) -> None:
        """Does the same as Journal.append."""

    async def forgive(self, run_id: RunId, tenure: Tenure) -> None:
        """Does the same as Journal.forgive."""

    async def finish(self, ending: Ending, tenure: Tenure) -> bool:
        """Does the same as Inbox.finish."""

    async def ask_to_stop(self, run_id: RunId, how: str) -> None:
        """Requests a stop from the node that runs it; does nothing for an ended run."""

    async def ask_session_to_stop(self, key: SessionKey) -> int:
        """Requests an immediate stop of every run of the session; returns their number."""

    async def load(self, key: SessionKey) -> tuple[int, int]:
        """Returns how many runs of a session are running, and how many are queued."""

    async def choose(self, key: SessionKey, named: Mapping[str, Any]) -> SessionChoice:
        """Changes the named parts of a session's choice; returns the whole choice."""

    async def choices(self, after: int) -> tuple[int, Mapping[SessionKey, SessionChoice]]:
        """Returns the number of the last change, and the newest choices that were made after the
        change `after`."""

    async def states(self, run_ids: Sequence[RunId]) -> Mapping[RunId, RunProgress]:
        """Returns the progress of the runs; skips unknown runs."""

    async def records(self, run_ids: Sequence[RunId]) -> Sequence[RunRecord]:
        """Returns the records of the runs; skips unknown runs."""

    async def backlog(self) -> tuple[Mapping[int, int], datetime | None]:
        """Returns the number of open runs by partition, and the accept time of the oldest run that
        has not begun."""

    async def place_runs(self, place: Callable[[SessionKey], int]) -> int:
        """Moves open runs into the partitions of their sessions where they differ; returns their
        number."""


class PartitionWork(Protocol):
    """The work of a node on its partitions."""

    def start(self, lease: Lease) -> None:
        """Opens the sessions that have open runs and works on them; never waits."""

    async def drain(self, lease: Lease) -> None:
        """Starts nothing more in the partition; returns when its running turns have ended."""

    def drop(self, lease: Lease) -> None:
        """Ends the turns of a partition silently, because another node owns it or may own it; never
        waits."""


class Duties(Protocol):
    """Named work that one node at a time does, such as a channel's connection or its deliveries."""

    def holds(self, name: str) -> bool:
        """True if this node may begin work for the duty."""

    def may(self, name: str) -> bool:
        """True if this node may continue work that it has begun."""

    def busy(self, name: str) -> AbstractContextManager[None]:
        """Keeps the duty on this node while the context is open and the node lives."""

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Runs the work while this node has the duty, and cancels it when the node loses the
        duty."""


Hint = Mapping[str, object]
Listen = Callable[[Hint], None]  # never waits

# Subjects of hints. A subject holds digests of names, because a name may hold any character.
FREE = "free"  # a partition was released
RELOAD = "reload"  # a node is asked to check its configuration for changes
CHANGED = "changed"  # data of the store changed of which every node has a copy
EVENTS = "events"  # a node subscribes to the events of the others


def work_subject(partition: int) -> str:
    """Returns the subject that hints at work for a partition."""
    return f"part.{partition}"


def node_subject(node: str) -> str:
    """Returns the subject for requests to a node about its own runs: abort, steer, approve."""
    return f"ask.{_token(node)}"


def events_subject(node: str) -> str:
    """Returns the subject for events of other nodes that a node subscribes to."""
    return f"events.{_token(node)}"


def _token(name: str) -> str:
    digest = sha256(name.encode(errors="surrogatepass")).digest()
    return b32hexencode(digest[:15]).decode().lower()


class Hints(Protocol):
    """Messages between nodes. They may be lost, repeated or forged, so a receiver always checks the
    store."""

    @property
    def degraded(self) -> Sequence[str]:
        """The names of functions that do not work at the moment."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of hints sent, received, dropped and malformed since the start."""

    def publish(self, subject: str, hint: Hint) -> bool:
        """Publishes without waiting. Returns False if the hint is dropped: not connected, too
        large, or too many waiting."""

    def listen(self, subject: str, listen: Listen) -> AbstractContextManager[None]:
        """Calls `listen` with the hints that other nodes publish, until the context ends."""


class NoHints:
    """Hints without NATS: nodes poll the store, and nothing is degraded."""

    degraded: Sequence[str] = ()
    counts: Mapping[str, int] = MappingProxyType({})

    def publish(self, subject: str, hint: Hint) -> bool:
        return False

    def listen(self, subject: str, listen: Listen) -> AbstractContextManager[None]:
        return nullcontext()
