"""What the core needs from outside: small Protocols named after their role.

Each one has a fake in tests/fakes and a conformance suite that fake and real both pass.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gateway.domain.agents import AgentDef, Originals, person_key
from gateway.domain.budgets import Audit, Ledger, Spending
from gateway.domain.channels import ChannelMemos, Pairings
from gateway.domain.events import NoticeBoard, RuleStates
from gateway.domain.facts import Facts, Hearing, Source, TurnIndex, Turns
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.inbox import (
    Accepted,
    ChannelEvents,
    Ending,
    Entry,
    NewEntry,
    RunRecord,
)
from gateway.domain.messages import Node, Spent
from gateway.domain.model import Hear, ModelReply, ModelRequest, ToolSpec
from gateway.domain.outbox import DeadLetters, Outbox
from gateway.domain.plugins import Origin, PluginDef, PluginSecret
from gateway.domain.sessions import (
    Conversations,
    Erasures,
    Path,
    SessionPage,
    SessionQuery,
    SessionRecord,
    Summaries,
)

Encode = Callable[[object], bytes]  # a plain value -> compact JSON
Decode = Callable[[bytes | str], object]  # the inverse; raises ValueError


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall clock, aware, UTC."""
        ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def new(self) -> str:
        """26 characters, sortable by time, unique."""
        ...


class Model(Protocol):
    async def reply(self, request: ModelRequest, hear: Hear) -> ModelReply:
        """Asks once (with the provider's own retries before the first delta).

        `hear` is called, without waiting, for each delta. Raises ModelFailed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a run for those who work for it."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ToolScope:
    """On whose behalf a tool runs; given by the host, never by the model. A tool that models work
    for says to `spend` what they used, as it goes."""

    session_key: SessionKey
    run_id: RunId
    principal: str
    call_id: str = ""
    asked: Source | None = None  # the message that the run answers
    question: str = ""  # what the run is to answer, as its model was told
    is_kept: bool = True  # False: nothing of the run is to be written down
    depth: int = 0  # of the run: 0 answers a message, 1 works for such a one
    agent: AgentDef | None = None  # whose model asked for it, as it is in this run
    part: str = ""  # of the run's journal, for a run that works on this call
    carve: Callable[[], Allowance] | None = field(default=None, compare=False, repr=False)
    spend: Callable[[Spent], None] = field(default=lambda spent: None, compare=False, repr=False)

    @property
    def person(self) -> str:
        """Whose facts, notes and other stores a tool works on; `principal` is who is let in."""
        return person_key(self.session_key, self.asked.said_by if self.asked else None)


class Tool(Protocol):
    """One tool: what it is, and a call. Raises ToolFailed with a sentence for the model."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str: ...


class SchemaCheck(Protocol):
    def compile(self, schema: str) -> Callable[[object], str | None]:
        """A checker that names what is wrong and where, or gives None. Raises ValueError."""
        ...


class Texts(Protocol):
    """Texts that an operator may edit while we run: souls now; templates, trees and rules later."""

    async def read(self, path: str) -> str:
        """Raises SoulUnreadable with a sentence (missing, empty, not UTF-8, too large)."""
        ...

    async def watch(self, paths: Sequence[str], changed: Callable[[str], Awaitable[None]]) -> None:
        """Calls `changed` with the path of each text that was written; runs until cancelled."""
        ...


class Inbox(Protocol):
    async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
        """ONE durable commit: dedupe, session (made if new), sequence, message.

        `begin` also counts the first attempt, for a lane that is idle. Raises Conflict if the key
        was used for another digest, AlreadyHeard if a channel's message was answered without a
        turn, StoreUnavailable if the commit is not certain.
        """
        ...

    async def begin(self, run_id: RunId) -> int:
        """Counts an attempt before it starts (not fsynced); gives the count."""
        ...

    async def finish(self, ending: Ending) -> bool:
        """ONE durable commit; True if HEAD moved. Finishing a finished run changes nothing. Raises
        NotFound or Conflict, and changes nothing, if a run that it merged is not open."""
        ...

    async def unfinished(self) -> Sequence[Entry]:
        """Queued and running entries in accept order: what a start has to take up again."""
        ...


class Journal(Protocol):
    async def append(self, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
        """Written without an fsync of its own, in place of that part if it is there already."""
        ...

    async def read(self, run_id: RunId) -> Sequence[bytes]:
        """The parts in order; none if there is nothing, or no more."""
        ...

    async def forgive(self, run_id: RunId) -> None:
        """Its last attempt was cut off by us and says nothing against the message."""
        ...


class Runs(Protocol):
    async def find(self, run_id: RunId) -> RunRecord | None: ...


class Transcript(Protocol):
    async def path(
        self,
        key: SessionKey,
        *,
        upto: NodeId | None = None,
        before: NodeId | None = None,
        limit: int,
    ) -> Path:
        """The last `limit` nodes on the path to HEAD (or to `upto`), or those above `before`.

        Costs the same in a session of any length. An unknown session is an empty path.
        """
        ...

    async def node(self, key: SessionKey, node_id: str) -> Node | None:
        """By id or by label, within this session."""
        ...

    async def tree(self, key: SessionKey, *, limit: int, archived: bool = False) -> Sequence[Node]:
        """All nodes, oldest first, without their texts. None that is erased."""

    async def move_head(
        self, key: SessionKey, to: NodeId, *, expected: NodeId | None, label: str | None = None
    ) -> bool:
        """Compare-and-set; durable. `label` names the node. False if HEAD was not `expected`."""
        ...


class Sessions(Protocol):
    async def find(self, key: SessionKey) -> SessionRecord | None: ...

    async def list(self, query: SessionQuery) -> SessionPage:
        """Newest first."""
        ...

    async def count(self) -> int: ...

    async def close(self, key: SessionKey) -> None:
        """Durable; a message opens it again. Raises NotFound."""


@dataclass(frozen=True, slots=True)
class PluginSpace:
    """A namespace of one plugin, of one person or (None) shared by all: never another's."""

    plugin: str
    namespace: str
    person: str | None = None


class PluginStore(Protocol):
    """What plugins keep: texts by key, counted against a quota. Committed before it returns."""

    async def get(self, space: PluginSpace, key: str) -> str | None: ...

    async def set(self, space: PluginSpace, key: str, value: str) -> None:
        """Raises Denied with a sentence when a key, a value or the space would be too large."""
        ...

    async def delete(self, space: PluginSpace, key: str) -> None: ...

    async def list(self, space: PluginSpace, prefix: str) -> Sequence[str]:
        """The keys that begin so, in order."""
        ...


class SettingsStore(Protocol):
    """What users have set: a JSON object each."""

    async def read(self, user: str) -> str | None: ...

    async def write(self, user: str, record: str, *, expected: str | None) -> bool:
        """Compare-and-set; durable. False if there was something else than `expected`."""
        ...


class StoreCare(Protocol):
    async def probe(self) -> None:
        """Proves that something can be committed; raises StoreUnavailable."""
        ...

    async def sweep(self, *, before: datetime, limit: int) -> int:
        """Forgets journals and chunk logs of runs that ended before; transcripts stay."""
        ...

    async def expire(self, agent: AgentId, *, before: datetime, limit: int) -> int:
        """Closes sessions that were not used since; gives how many."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stores:
    """The ports of one opened store."""

    inbox: Inbox
    journal: Journal
    runs: Runs
    transcript: Transcript
    sessions: Sessions
    outbox: Outbox
    plugins: PluginStore
    ledger: Ledger
    spending: Spending
    audit: Audit
    care: StoreCare
    settings: SettingsStore
    rule_states: RuleStates
    notices: NoticeBoard
    facts: Facts
    hearing: Hearing
    turns: Turns
    turn_index: TurnIndex
    summaries: Summaries
    conversations: Conversations
    erasures: Erasures
    channel_memos: ChannelMemos
    channel_events: ChannelEvents
    pairings: Pairings
    dead_letters: DeadLetters
    originals: Originals


class HttpAnswer(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether all of it has been read, so that `read_some` would not wait."""
        ...

    async def read_some(self) -> bytes:
        """What has arrived, at least one byte; b"" at the end. Raises HttpFailed."""
        ...


@dataclass(frozen=True, slots=True)
class HttpCall:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0  # to the first byte, and between two


class HttpFailed(Exception):
    """The network did not bring an answer, or broke it off."""

    def __init__(self, kind: str, detail: str, *, sent: bool = True) -> None:
        super().__init__(detail)
        self.kind = kind  # "network" or "timeout"
        self.sent = sent  # False: there was not even a connection


class Http(Protocol):
    def send(self, call: HttpCall) -> AbstractAsyncContextManager[HttpAnswer]:
        """Never follows a redirect. Leaving the context before the end aborts the request.
        Raises HttpFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that a plugin or a model steers; `${secret:NAME}` may stand in url and headers."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    timeout_s: float = 30.0  # for all of it, redirects included


@dataclass(frozen=True, slots=True)
class Leave:
    """Where an asker may go, and what is filled in for it there."""

    origins: frozenset[Origin]
    secrets: tuple[PluginSecret, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer without anything secret in it. Names of headers are in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Fetch(Protocol):
    """The guarded way out."""

    async def fetch(self, ask: Ask, leave: Leave) -> Fetched:
        """Raises Denied for what is not allowed, HttpFailed for a network that does not answer."""
        ...


class HostFunction(Protocol):
    """What an operator lets plugins call by name: text in, text out."""

    async def __call__(self, text: str, plugin: PluginDef) -> str:
        """Raises Denied with a sentence for the plugin."""
