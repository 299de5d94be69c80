"""Ports: small Protocols through which the core reaches the outside, each named after its role.

Each port has a fake in tests/fakes and a conformance suite that the fake and the real
implementation both pass.
"""

import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gateway.domain.agents import AgentDef, Original, person_key
from gateway.domain.budgets import (
    SCOPE_KINDS,
    Decide,
    Due,
    Ended,
    Grant,
    Grouping,
    ModelSum,
    Raise,
    RecordPage,
    RecordQuery,
    Reservation,
    Resync,
    Scope,
    ScopeKind,
    Tally,
    UsageSum,
)
from gateway.domain.channels import ChannelMemo, Pairing, PairingState
from gateway.domain.cluster import SharedRuns
from gateway.domain.events import AuditEntry, AuditEvent, AuditKind, Notice
from gateway.domain.facts import (
    Choose,
    Claim,
    Erasure,
    Fact,
    FactQuery,
    FactView,
    FoundTurns,
    Provenance,
    SaidPage,
    SaidSource,
)
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey, TraceContext
from gateway.domain.inbox import (
    Accepted,
    Delivery,
    DeliveryState,
    Ending,
    Entry,
    NewDelivery,
    NewEntry,
    ReceivedMessage,
    RunHistory,
    RunRecord,
)
from gateway.domain.messages import Node, Spent
from gateway.domain.model import ModelReply, ModelRequest, OnDelta, ToolSpec
from gateway.domain.plugins import Origin, PluginDef, PluginSecret
from gateway.domain.sessions import (
    Erased,
    ImportResult,
    Path,
    SessionPage,
    SessionQuery,
    SessionRecord,
)
from gateway.domain.tokens import CreatedToken


class Clock(Protocol):
    def now(self) -> datetime:
        """Returns the wall clock's time, aware, in UTC."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def new(self) -> str:
        """Returns a unique id of 26 characters; ids sort by time."""


class Model(Protocol):
    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Asks the provider, which may retry until it has sent the first delta.

        Calls `on_delta`, which never waits, for each delta. Raises ModelFailed.
        """


@dataclass(frozen=True, slots=True)
class Allowance:
    """The tokens and seconds that a run has left for the tools and subagents that it calls."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ToolScope:
    """The run on whose behalf a tool is called. The host fills it in, never the model. A tool that
    asks models itself calls `spend` with each usage."""

    session_key: SessionKey
    run_id: RunId
    principal: str
    call_id: str = ""
    asked: SaidSource | None = None  # the message that the run answers
    question: str = ""  # that the run answers, in the words that its model gets
    is_kept: bool = True  # False: nothing of the run is stored
    depth: int = 0  # 0: the run answers a message; 1: it is a subrun of such a run
    agent: AgentDef | None = None  # whose model called the tool, with this run's settings
    part: str = ""  # of the run's journal, for a subrun that serves this call
    trace: TraceContext | None = field(default=None, compare=False, repr=False)
    allowance: Callable[[], Allowance] | None = field(default=None, compare=False, repr=False)
    spend: Callable[[Spent], None] = field(default=lambda spent: None, compare=False, repr=False)
    # False once another node may own the run: no tool with an effect starts then.
    may_act: Callable[[], bool] = field(default=lambda: True, compare=False, repr=False)

    @property
    def person(self) -> str:
        """The owner of the facts, notes and stores that a tool works on. `principal` is the
        authenticated caller."""
        return person_key(self.session_key, self.asked.said_by if self.asked else None)


class Tool(Protocol):
    """One tool. A call raises ToolFailed with a sentence for the model."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str: ...


class SchemaCheck(Protocol):
    def compile(self, schema: str) -> Callable[[object], str | None]:
        """Returns a check that names what is wrong with a value and where, or returns None. Raises
        ValueError if the schema is not valid."""


class Texts(Protocol):
    """Reads the texts that an operator writes: souls, templates, trees."""

    async def read(self, path: str) -> str:
        """Raises SoulUnreadable if the file is missing, empty, too large or not UTF-8."""


@dataclass(frozen=True, slots=True)
class PluginSpace:
    """One namespace of a plugin, for one person or (None) for all persons."""

    plugin: str
    namespace: str
    person: str | None = None


MOST_READ = 64 * 1024  # bytes; other tasks run between two reads


class Inbox(Protocol):
    """Accepted messages and the runs that answer them."""

    async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
        """Deduplicates, creates the session if it is new, assigns the sequence and stores the
        message in ONE durable commit.

        `begin` also counts the first attempt, for a lane that is idle. Raises Conflict if the key
        was used with another digest, AlreadyReceived if a channel's message was answered without a
        turn, and StoreUnavailable if the commit is not certain.
        """

    async def begin(self, run_id: RunId) -> int:
        """Counts an attempt before it starts, without an fsync, and returns the count."""

    async def finish(self, ending: Ending) -> bool:
        """Writes the end of a run in ONE durable commit; returns True if HEAD moved. Changes
        nothing for a finished run. Raises NotFound or Conflict, and changes nothing, if a run that
        it merged is not open."""

    async def unfinished(self) -> Sequence[Entry]:
        """Returns queued and running entries in accept order, for a start to resume."""

    async def find_run(self, run_id: RunId) -> RunRecord | None: ...

    async def run_history(self, run_id: RunId) -> RunHistory:
        """Returns the stored data of a run. Raises NotFound."""


class Journal(Protocol):
    """The journal of a run, the notices for it, and the state of rules."""

    async def append(self, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
        """Writes or replaces a part of the journal, without an fsync of its own."""

    async def read(self, run_id: RunId) -> Sequence[bytes]:
        """Returns the parts in order; none if the journal is empty or was removed."""

    async def forgive(self, run_id: RunId) -> None:
        """Does not count the last attempt against the message, because the gateway itself
        interrupted it."""

    async def claim_notices(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        """Returns, oldest first, the notices that other sessions of this agent and person posted
        and that no other run has claimed. Asked again, returns the same notices to the same run.
        Skips expired notices. The end of the run removes the notices that it claimed."""

    async def rule_state(self, key: SessionKey) -> str | None:
        """Returns the JSON object that the session's last ended run left, or None."""


class SessionStore(Protocol):
    """Sessions, their message trees, and the settings of users. Moves, labels, imports and erasures
    are durable when they return. Raises NotFound, StoreUnavailable."""

    async def find_session(self, key: SessionKey) -> SessionRecord | None: ...

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        """Returns the newest sessions first."""

    async def count_sessions(self) -> int: ...

    async def close_session(self, key: SessionKey) -> None:
        """Closes a session durably; the next message opens it again. Raises NotFound."""

    async def path(
        self,
        key: SessionKey,
        *,
        upto: NodeId | None = None,
        before: NodeId | None = None,
        limit: int,
    ) -> Path:
        """Returns the last `limit` nodes on the path to HEAD (or to `upto`), or the nodes above
        `before`.

        The cost does not depend on the length of the session. The path of an unknown session is
        empty.
        """

    async def node(self, key: SessionKey, node_id: str) -> Node | None:
        """Finds a node of this session by id or by label."""

    async def tree(self, key: SessionKey, *, limit: int, archived: bool = False) -> Sequence[Node]:
        """Returns the nodes that are not erased, oldest first, without their texts."""

    async def move_head(
        self, key: SessionKey, to: NodeId, *, expected: NodeId | None, label: str | None = None
    ) -> bool:
        """Moves HEAD by compare-and-set, durably. `label` names the node. Returns False if HEAD was
        not `expected`."""

    async def append_summary(self, key: SessionKey, node: Node, *, expected: NodeId | None) -> bool:
        """Appends a summary under HEAD and moves HEAD to it, by compare-and-set and without an
        fsync. Returns False and writes nothing if HEAD was not `expected`. Raises NotFound for an
        unknown session."""

    async def start_over(self, key: SessionKey, *, now: datetime) -> None:
        """Clears HEAD, so that the next message becomes a root. Creates the session if it does not
        exist."""

    async def label_node(self, key: SessionKey, node: NodeId, label: str | None) -> None:
        """Sets or (None) removes the label of a node. A label that another node of the session has
        moves to this node."""

    async def checkpoint(self, key: SessionKey, node: NodeId, *, is_kept: bool) -> None:
        """Sets a checkpoint; a checkpoint and its path are never archived."""

    async def import_nodes(
        self, key: SessionKey, nodes: Sequence[Node], *, now: datetime
    ) -> ImportResult:
        """Adds the nodes that the session does not have. The `parent_id` of a node is a node of the
        session or an earlier node of the import. HEAD moves along nodes that extend it. Raises
        ImportRefused."""

    async def erase(self, key: SessionKey, *, by: str, dry_run: bool, now: datetime) -> Erased:
        """Erases the messages of a session, the texts derived from them and the facts learned
        there, in ONE durable commit. Ids, counts, ledger and audit stay. Raises NotFound,
        StoreUnavailable, and Busy while a run of the session has not ended."""

    async def read_settings(self, user: str) -> str | None: ...

    async def write_settings(self, user: str, record: str, *, expected: str | None) -> bool:
        """Writes durably by compare-and-set. Returns False if the stored record was not
        `expected`."""


class FactStore(Protocol):
    """Facts, the backlogs of fact extraction (by patterns and by a model), and the search of
    messages by words. A search never crosses sessions or sibling branches and never returns a
    tool's result. The progress of extraction and of the index has no fsync of its own: after a
    crash the work is repeated. Raises StoreUnavailable."""

    async def add_facts(
        self, scope: str, claims: Sequence[Claim], *, ids: Sequence[str], now: datetime
    ) -> Sequence[Fact]:
        """Settles each claim with the stored claims of its (scope, subject, predicate) in ONE
        commit without an fsync of its own, so that a functional predicate has exactly one current
        fact under concurrent writes. Returns the fact that each claim became or confirmed; `ids`
        are for new facts. Skips claims that were stated before they were forgotten."""

    def knows(self, view: FactView) -> bool:
        """Returns False if no fact was ever learned in this view, so that a caller can skip the
        query."""

    async def select_facts(self, query: FactQuery) -> Sequence[Fact]: ...

    async def facts_matching(
        self, view: FactView, words: Sequence[str], *, limit: int
    ) -> Sequence[Fact]:
        """Returns current facts that contain any of the words or other forms of them, facts with
        rarer words first. The cost does not depend on facts outside of the view."""

    async def facts_around(
        self, view: FactView, names: Sequence[str], *, limit: int
    ) -> Sequence[Fact]:
        """Returns current facts whose subject or object is one of the names, newest first."""

    async def origin_of(self, fact_id: str) -> Provenance | None: ...

    async def erase_facts(self, what: Erasure, *, dry_run: bool, now: datetime) -> int:
        """Erases facts durably, removes their words from every index and leaves a tombstone.
        Returns the number of facts."""

    async def unscanned(self) -> Sequence[SessionKey]:
        """Returns the sessions with messages that the patterns have not scanned."""

    async def next_unscanned(self, key: SessionKey, *, limit: int) -> SaidPage:
        """Returns the next `limit` nodes that the patterns have not scanned."""

    async def mark_scanned(self, upto: Mapping[SessionKey, NodeId]) -> None: ...

    async def queue_for_model(self, key: SessionKey, since: NodeId) -> None:
        """Queues the node and all later nodes for extraction by a model, beside nodes that are
        queued already. Nodes that the model has read stay out."""

    async def queued_for_model(self) -> Sequence[SessionKey]: ...

    async def next_queued(self, key: SessionKey, *, limit: int) -> SaidPage: ...

    async def mark_extracted(self, key: SessionKey, upto: NodeId) -> bool:
        """Records that a model has read up to a node; returns whether more is queued."""

    def may_find(self, key: SessionKey, words: Sequence[str], length: int) -> bool:
        """False if a search cannot find a turn: nothing of the session is indexed, or the last search,
        when the session was about as long, found that all the words are common in it."""

    async def find_turns(
        self,
        key: SessionKey,
        words: Sequence[str],
        choose: Choose | None = None,
        *,
        messages: Sequence[str] = (),
        upto: NodeId | None = None,
        limit: int,
    ) -> FoundTurns:
        """Finds messages on the path to HEAD (or to `upto`) and in earlier conversations under the
        same key. Each word yields its newest `limit` messages; a frequent word also yields messages
        that contain rarer words; words that most turns contain are left out. Reads the messages
        that `choose` selects, in any order, and skips erased ones; `choose` is called in another
        thread. The cost does not depend on the length of the session. Raises NotFound for an `upto`
        of another session."""

    async def unindexed(self, *, limit: int) -> Sequence[SessionKey]: ...

    async def index_turns(self, keys: Sequence[SessionKey], *, limit: int) -> Sequence[SessionKey]:
        """Indexes at most `limit` messages in one commit without an fsync. Returns the sessions
        that have more to index."""


class Ledger(Protocol):
    """The record of model calls: each is reserved before it starts and recorded after it ends.
    Counters and records change in one commit without an fsync of its own. The cost of a read does
    not grow with the ledger. Raises StoreUnavailable."""

    def begin(self, wanted: Reservation) -> Reservation:
        """Holds `wanted` for the first call of a run that was just accepted, if no limit applies.
        The accept has proved that the store can be written."""

    async def reserve(
        self, wanted: Reservation, decide: Decide, kinds: Collection[ScopeKind] = SCOPE_KINDS
    ) -> tuple[Reservation, Grant]:
        """Passes the tallies of the scopes of these kinds to `decide`, and holds what it grants
        once a slice that covers it is committed. Moves the call's day forward to the latest day of
        any reservation. Raises StoreUnavailable."""

    def settle_soon(
        self, ended: Ended, failed: Callable[[Exception], None], due: Due | None = None
    ) -> Sequence[Tally]:
        """Counts the usage of a reserved call, or releases the reservation of a call that was not
        sent; a second time it does nothing. Returns the scopes to warn about, each once per limit.
        The record is written with the next commit, and later requests to the store see it. If the
        write fails, `failed` gets the error and the call is held again."""

    async def settle(self, ended: Ended) -> None:
        """Does the same as `settle_soon` and waits for the commit. Raises StoreUnavailable."""

    async def resync(self, now: datetime) -> Resync:
        """Returns to the clock's day after the clock was ahead. Usage of later days and months is
        no longer counted; reservations and usage of today count today."""

    async def unsettled(self) -> Sequence[Reservation]:
        """Returns all reservations. At a start these belong to a process that died."""

    async def tallies(self, scopes: Sequence[Scope]) -> Sequence[Tally]:
        """Moves days and months forward as `reserve` does."""

    async def models(self, limit: int) -> Sequence[ModelSum]:
        """Returns the `limit` models with the most calls, and the sum of all other models as
        `other`."""

    async def records(self, query: RecordQuery) -> RecordPage: ...

    async def usage(
        self, by: Grouping, since: datetime | None, until: datetime | None
    ) -> Sequence[UsageSum]:
        """Returns sums by name over the calls that ended in that time (`until` is exclusive). Reads
        only the records of that time."""

    async def raise_today(self, scope: str, tokens: int, event: AuditEvent) -> Raise:
        """Raises a limit, named as in the configuration (`daily`, `token:NAME`), until the end of
        the latest day of the ledger. Several raises of a day add up. The audit event is written in
        the same commit."""

    async def load_raises(self, now: datetime) -> None:
        """Reads the raises of today, at a start and after another gateway has raised a limit."""


class Audit(Protocol):
    """The append-only audit trail."""

    async def append(self, event: AuditEvent) -> None:
        """Commits without an fsync of its own. Raises StoreUnavailable."""

    def append_soon(self, event: AuditEvent) -> None:
        """Appends without waiting; an event that cannot be written is logged."""

    async def newest(
        self, *, kind: AuditKind | None = None, before: int | None = None, limit: int = 1
    ) -> Sequence[AuditEntry]:
        """Returns the newest entries first; `before` is a `seq`."""

    async def after(self, seq: int, *, limit: int) -> Sequence[AuditEntry]:
        """Returns the oldest entries first."""


class Outbox(Protocol):
    """Deliveries to platforms. A delivery that failed, or that may not have arrived, is kept until
    an operator decides."""

    async def due(self, channel: str, *, now: datetime, limit: int) -> Sequence[Delivery]:
        """Returns pending deliveries that are due, oldest first: at most one per session, and none
        of a session whose oldest open delivery is being sent or waits. A delivery without a session
        waits for no other."""

    async def sending(
        self, delivery_id: str, arrived: int, *, is_safe: bool = False, receipt: str | None = None
    ) -> None:
        """Marks a delivery as `sending`, durably, before the network is used, and counts the
        attempt. A second call with a larger `arrived` begins the next part; a call without the
        earlier receipt sends a new message instead of an edit. Raises Conflict, so that two senders
        never send the same delivery."""

    async def arrived(self, delivery_id: str, arrived: int, *, receipt: str | None) -> None:
        """Records that a part has arrived; the delivery is `pending` again for the next part. Not
        fsynced. Raises as `sending`."""

    async def settle(
        self,
        delivery_id: str,
        state: DeliveryState,
        *,
        at: datetime,
        receipt: str | None = None,
        why: str | None = None,
        due_at: datetime | None = None,
    ) -> None:
        """Records the outcome of an attempt. `pending` with `due_at` schedules a retry. A sent or
        failed delivery keeps its state, and an erased one is not retried. Not fsynced: after a
        power loss the delivery is still `sending`, and `interrupted` finds it."""

    async def interrupted(self) -> Sequence[Delivery]:
        """Returns deliveries that a dead process left in `sending`; they may or may not have
        arrived."""

    async def strand(self, accounts: Collection[tuple[str, str]], *, at: datetime) -> int:
        """Fails the deliveries of all accounts but these, each a channel and its account, so that
        no other account sends them. Returns their number."""

    async def dead_letters(
        self, channel: str | None, *, before: int | None, limit: int
    ) -> Sequence[Delivery]:
        """Returns the newest dead letters first; `before` is a place."""

    async def resubmit(self, delivery_id: str, *, now: datetime) -> None:
        """Queues a dead letter again, durably, from its first part that has not arrived. If that
        part may have arrived, `why` says so. Raises NotFound if it is no dead letter, Conflict if
        its text is erased."""

    async def drop(self, delivery_id: str) -> None:
        """Removes a dead letter durably. Raises NotFound if it is no dead letter."""

    async def tally(self) -> Mapping[tuple[str, DeliveryState], int]:
        """Counts the deliveries that are not sent, by channel and state."""


class ChannelStore(Protocol):
    """Messages that a channel received without a turn, the state of its connections, and the
    pairings of direct chats. All writes are durable; memos of a message are written in the commit
    of its accept. Raises StoreUnavailable."""

    async def knows(self, channel: str, account: str, platform_id: str) -> bool:
        """True if that message was recorded or accepted before. A message that could not be read
        does not count."""

    async def record(
        self,
        heard: ReceivedMessage,
        deliveries: Sequence[NewDelivery] = (),
        memos: Sequence[ChannelMemo] = (),
        asked: Pairing | None = None,
    ) -> bool:
        """Records a message and its deliveries in ONE durable commit. Adds `asked` to the waiting
        list, from which expired requests are removed. Returns False, and writes only the memos, if
        the message was recorded or accepted before or its sender may not ask. Skips a delivery
        whose id exists."""

    async def unread(
        self, channel: str | None, *, platform_id: str | None = None, limit: int
    ) -> Sequence[ReceivedMessage]:
        """Returns messages that no adapter could read, newest first. Covers all accounts, and all
        channels and ids unless one is named."""

    async def drop_unread(self, one: ReceivedMessage) -> None:
        """Removes the message durably."""

    async def count_unread(self) -> Mapping[str, int]:
        """Counts them by channel."""

    async def forget_received(self, *, before: datetime, limit: int) -> int:
        """Removes records of messages so old that no platform sends them again; returns their
        number."""

    async def read_memos(self, channel: str, account: str) -> Sequence[ChannelMemo]: ...

    async def write_memos(self, *memos: ChannelMemo) -> None:
        """Writes in ONE durable commit."""

    async def find_pairing(self, channel: str, account: str, person: str) -> Pairing | None: ...

    async def may_ask(self, asked: Pairing) -> bool:
        """Reads only; `record` writes the request with the reply to the person. Returns False if
        the account's waiting list is full, or the person is waiting, paired or denied."""

    async def decide_pairing(
        self, code_digest: str, state: PairingState, *, is_owner: bool, now: datetime
    ) -> Pairing | None:
        """Decides durably. Returns None if no such code waits or it has expired. The first person
        who is paired on an account becomes its owner."""

    async def remove_pairing(
        self, channel: str, account: str, person: str, *, state: PairingState | None = None
    ) -> bool:
        """Removes a pairing or request durably, if it has that `state`; the person may ask again.
        Returns False if there was none."""

    async def block(self, channel: str, account: str, person: str, *, now: datetime) -> Pairing:
        """Denies the person durably, in any earlier state."""

    async def list_pairings(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        """Returns waiting persons first, then the newest pairings."""


class TokenStore(Protocol):
    """Tokens that were created while a gateway ran. Raises StoreUnavailable."""

    async def create(self, token: CreatedToken, event: AuditEvent, *, inherits: bool) -> None:
        """Writes the token and its audit event in one commit. Raises Conflict if the name is in
        force, or was revoked and the new token does not inherit it."""

    async def revoke(self, name: str, event: AuditEvent) -> None:
        """Raises NotFound."""

    async def tokens(self) -> Sequence[CreatedToken]:
        """Returns all tokens by name, revoked ones included."""

    async def version(self) -> int:
        """Returns a number that grows with each change of tokens or raised limits."""

    def note_use(self, digest: bytes, at: datetime) -> None:
        """Records the last use of a token without waiting."""


class ToolStore(Protocol):
    """Values that plugins store by key within a quota, and full tool results of which a model saw
    an excerpt. Raises StoreUnavailable."""

    async def get(self, space: PluginSpace, key: str) -> str | None: ...

    async def set(self, space: PluginSpace, key: str, value: str) -> None:
        """Raises Denied with a sentence if the key, the value or the space would be too large."""

    async def delete(self, space: PluginSpace, key: str) -> None: ...

    async def list(self, space: PluginSpace, prefix: str) -> Sequence[str]:
        """Returns the keys with that prefix, in order."""

    async def keep_original(self, original: Original) -> None:
        """Stores a full result; the same reference again changes nothing. It is removed with its
        session, or with the journals."""

    async def read_original(self, session_key: SessionKey, reference: str) -> Original | None:
        """Returns None for an unknown reference and for one of another session."""

    async def forget_originals(self, session_key: SessionKey) -> None:
        """Removes all results of a session that has ended."""


class StoreCare(Protocol):
    """Checks, prunes, copies and closes the store."""

    async def probe(self) -> None:
        """Proves that a commit works. Raises StoreUnavailable."""

    async def sweep(self, *, before: datetime, limit: int) -> int:
        """Removes journals and chunk logs of runs that ended before; transcripts stay."""

    async def expire(self, agent: AgentId, *, before: datetime, limit: int) -> int:
        """Closes sessions that were not used since `before`; returns their number."""

    async def snapshot(self, into: pathlib.Path, *, copies: int) -> None:
        """Writes a consistent copy of the store to a new SQLite file while other work continues.
        Raises StoreUnavailable, also if the disk has no room for `copies` copies."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stores:
    """The ports of one opened store."""

    inbox: Inbox
    journal: Journal
    sessions: SessionStore
    facts: FactStore
    ledger: Ledger
    audit: Audit
    outbox: Outbox
    channels: ChannelStore
    tools: ToolStore
    tokens: TokenStore
    care: StoreCare
    shared: SharedRuns | None = None  # None: only one node can use the store


class HttpAnswer(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Header values by lower-case name."""

    @property
    def is_over(self) -> bool:
        """True if the body has been read to its end, so that `read_some` does not wait."""

    async def read_some(self) -> bytes:
        """Returns at most MOST_READ bytes that have arrived; b"" at the end. Raises HttpFailed."""

    async def read_into(self, consume: Callable[[bytes], bool]) -> bool:
        """Calls `consume` with each read until it returns False; returns True if the answer has
        ended. `consume` never waits, and other tasks run between two calls. Raises HttpFailed, and
        whatever `consume` raises."""

    def close(self) -> None:
        """Stops reading; before the end of the answer this aborts the request."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0  # until the first byte, and between two bytes


class HttpFailed(Exception):
    """The network brought no answer, or interrupted it."""

    def __init__(self, kind: str, detail: str, *, sent: bool = True) -> None:
        super().__init__(detail)
        self.kind = kind  # "network" or "timeout"
        self.sent = sent  # False: no connection was made


class Http(Protocol):
    async def send(self, call: HttpCall) -> HttpAnswer:
        """Sends a request and follows no redirect. The caller closes the answer. Raises
        HttpFailed."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A request that a plugin or a model asks for; url and headers may hold `${secret:NAME}`."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    timeout_s: float = 30.0  # for the whole request, redirects included


@dataclass(frozen=True, slots=True)
class FetchGrant:
    """The origins that a caller may reach, and the secrets that are filled in there."""

    origins: frozenset[Origin]
    secrets: tuple[PluginSecret, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer from which secrets are removed. Header names are in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Fetch(Protocol):
    """The guarded HTTP client."""

    async def fetch(self, ask: FetchRequest, leave: FetchGrant) -> Fetched:
        """Raises Denied for a request that is not allowed, HttpFailed if the network fails."""


@dataclass(frozen=True, slots=True)
class SocketRequest:
    """A WebSocket that a recipe opens; `wss://HOST` needs the grant of `https://HOST`."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 15.0  # until the connection is open
    max_frame_bytes: int = 1024 * 1024


class ClientSocket(Protocol):
    """An open WebSocket from the gateway to a platform."""

    async def send(self, text: str) -> None:
        """Fills in `${secret:NAME}` and sends. Raises Denied, HttpFailed."""

    async def receive(self) -> str | None:
        """Returns a text from which secrets are removed, or None once the platform has closed the
        socket. Raises HttpFailed for a broken connection."""

    @property
    def close_code(self) -> int | None: ...

    async def close(self, code: int) -> None: ...


class SocketClient(Protocol):
    """The guarded client for WebSockets."""

    def connect(
        self, request: SocketRequest, grant: FetchGrant
    ) -> AbstractAsyncContextManager[ClientSocket]:
        """Raises Denied for a request that is not allowed, HttpFailed if the network fails."""
        ...


class HostFunction(Protocol):
    """A function that an operator lets plugins call by name: text in, text out."""

    async def __call__(self, text: str, plugin: PluginDef) -> str:
        """Raises Denied with a sentence for the plugin."""
