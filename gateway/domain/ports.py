"""What the core needs from outside: small Protocols named after their role.

Each one has a fake in tests/fakes and a conformance suite that fake and real both pass.
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
    Ending,
    Entry,
    NewDelivery,
    NewEntry,
    ReceivedMessage,
    RunRecord,
)
from gateway.domain.messages import Node, Spent
from gateway.domain.model import ModelReply, ModelRequest, OnDelta, ToolSpec
from gateway.domain.outbox import Delivery, DeliveryState, RunHistory
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
        """Wall clock, aware, UTC."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def new(self) -> str:
        """26 characters, sortable by time, unique."""


class Model(Protocol):
    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Asks once (with the provider's own retries before the first delta).

        `on_delta` is called, without waiting, for each delta. Raises ModelFailed.
        """


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
    asked: SaidSource | None = None  # the message that the run answers
    question: str = ""  # what the run is to answer, as its model was told
    is_kept: bool = True  # False: nothing of the run is to be written down
    depth: int = 0  # of the run: 0 answers a message, 1 works for such a one
    agent: AgentDef | None = None  # whose model asked for it, as it is in this run
    part: str = ""  # of the run's journal, for a run that works on this call
    trace: TraceContext | None = field(default=None, compare=False, repr=False)
    allowance: Callable[[], Allowance] | None = field(default=None, compare=False, repr=False)
    spend: Callable[[Spent], None] = field(default=lambda spent: None, compare=False, repr=False)
    # False once another node may work on the run: nothing that has an effect begins any more.
    may_act: Callable[[], bool] = field(default=lambda: True, compare=False, repr=False)

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


class Texts(Protocol):
    """Texts that an operator writes: souls, templates, trees."""

    async def read(self, path: str) -> str:
        """Raises SoulUnreadable with a sentence (missing, empty, not UTF-8, too large)."""


@dataclass(frozen=True, slots=True)
class PluginSpace:
    """A namespace of one plugin, of one person or (None) shared by all: never another's."""

    plugin: str
    namespace: str
    person: str | None = None


MOST_READ = 64 * 1024  # bytes: others have their turn between two reads


class Inbox(Protocol):
    """Messages that were accepted, and the runs that answer them."""

    async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
        """ONE durable commit: dedupe, session (made if new), sequence, message.

        `begin` also counts the first attempt, for a lane that is idle. Raises Conflict if the key
        was used for another digest, AlreadyReceived if a channel's message was answered without a
        turn, StoreUnavailable if the commit is not certain.
        """

    async def begin(self, run_id: RunId) -> int:
        """Counts an attempt before it starts (not fsynced); gives the count."""

    async def finish(self, ending: Ending) -> bool:
        """ONE durable commit; True if HEAD moved. Finishing a finished run changes nothing. Raises
        NotFound or Conflict, and changes nothing, if a run that it merged is not open."""

    async def unfinished(self) -> Sequence[Entry]:
        """Queued and running entries in accept order: what a start has to take up again."""

    async def find_run(self, run_id: RunId) -> RunRecord | None: ...

    async def run_history(self, run_id: RunId) -> RunHistory:
        """Raises NotFound."""


class Journal(Protocol):
    """What a run writes and reads while it works: its journal, notices for it, and the state of
    rules."""

    async def append(self, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
        """Written without an fsync of its own, in place of that part if it is there already."""

    async def read(self, run_id: RunId) -> Sequence[bytes]:
        """The parts in order; none if there is nothing, or no more."""

    async def forgive(self, run_id: RunId) -> None:
        """Its last attempt was cut off by us and says nothing against the message."""

    async def claim_notices(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        """What ended runs of other sessions of this agent and person posted and no other run has
        claimed, oldest first; asked again, the run gets its own again. Expired ones never come, and
        the end of the run takes away what it claimed."""

    async def rule_state(self, key: SessionKey) -> str | None:
        """The JSON object that the session's last ended run left; None: none did."""


class SessionStore(Protocol):
    """Sessions, the tree of messages of each, and the settings of their users. Moves, labels,
    imports and erasures are durable when they return. Raises NotFound, StoreUnavailable."""

    async def find_session(self, key: SessionKey) -> SessionRecord | None: ...

    async def list_sessions(self, query: SessionQuery) -> SessionPage:
        """Newest first."""

    async def count_sessions(self) -> int: ...

    async def close_session(self, key: SessionKey) -> None:
        """Durable; a message opens it again. Raises NotFound."""

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

    async def node(self, key: SessionKey, node_id: str) -> Node | None:
        """By id or by label, within this session."""

    async def tree(self, key: SessionKey, *, limit: int, archived: bool = False) -> Sequence[Node]:
        """All nodes, oldest first, without their texts. None that is erased."""

    async def move_head(
        self, key: SessionKey, to: NodeId, *, expected: NodeId | None, label: str | None = None
    ) -> bool:
        """Compare-and-set; durable. `label` names the node. False if HEAD was not `expected`."""

    async def append_summary(self, key: SessionKey, node: Node, *, expected: NodeId | None) -> bool:
        """Compare-and-set: under HEAD, which moves to it; False, and nothing written, if HEAD was
        not `expected`. Not fsynced. Raises NotFound for a session that is not there."""

    async def start_over(self, key: SessionKey, *, now: datetime) -> None:
        """HEAD goes to no message: the next one is a root. Makes the session if there is none."""

    async def label_node(self, key: SessionKey, node: NodeId, label: str | None) -> None:
        """A label that another node of the session has moves here; None: it has none any more."""

    async def checkpoint(self, key: SessionKey, node: NodeId, *, is_kept: bool) -> None:
        """A checkpoint and the path to it are never archived."""

    async def import_nodes(
        self, key: SessionKey, nodes: Sequence[Node], *, now: datetime
    ) -> ImportResult:
        """Nodes that are not there yet, each under its `parent_id`: one of the session, or one
        before it. HEAD goes along where they grow from it. Raises ImportRefused."""

    async def erase(self, key: SessionKey, *, by: str, dry_run: bool, now: datetime) -> Erased:
        """All that was said in a session, whatever was made of it, and the facts that were learned
        there: gone for good in ONE durable commit; ids, counts, ledger and audit stay. Raises
        NotFound, StoreUnavailable, and Busy while a run of the session has not ended."""

    async def read_settings(self, user: str) -> str | None: ...

    async def write_settings(self, user: str, record: str, *, expected: str | None) -> bool:
        """Compare-and-set; durable. False if there was something else than `expected`."""


class FactStore(Protocol):
    """Facts; what has yet to be read for facts, by patterns and by a model; and messages by
    their words. A search by words never crosses sessions or sibling branches, and never
    returns a tool's result. Progress of readers and of the index has no fsync of its own:
    after a crash they do it again. Raises StoreUnavailable."""

    async def add_facts(
        self, scope: str, claims: Sequence[Claim], *, ids: Sequence[str], now: datetime
    ) -> Sequence[Fact]:
        """ONE commit without an fsync of its own: each claim is settled with what is known of its
        (scope, subject, predicate), so that of a functional predicate exactly one fact is current
        whoever writes meanwhile. Gives the fact that each claim became or confirmed; `ids` are for
        those that are new. What was said before it was forgotten is left out."""

    def knows(self, view: FactView) -> bool:
        """False only if nothing was ever learned there, so that no query is needed."""

    async def select_facts(self, query: FactQuery) -> Sequence[Fact]: ...

    async def facts_matching(
        self, view: FactView, words: Sequence[str], *, limit: int
    ) -> Sequence[Fact]:
        """Current facts that contain any of the words or other forms of them; facts with rarer
        words first. The cost does not depend on the facts of others."""

    async def facts_around(
        self, view: FactView, names: Sequence[str], *, limit: int
    ) -> Sequence[Fact]:
        """Current facts whose subject or object is one of the names, newest first."""

    async def origin_of(self, fact_id: str) -> Provenance | None: ...

    async def erase_facts(self, what: Erasure, *, dry_run: bool, now: datetime) -> int:
        """How many facts; with their words gone from every index, and a tombstone in their place.
        Durable."""

    async def unscanned(self) -> Sequence[SessionKey]:
        """Sessions in which patterns have not looked at everything."""

    async def next_unscanned(self, key: SessionKey, *, limit: int) -> SaidPage:
        """The `limit` nodes after those that patterns have looked at."""

    async def mark_scanned(self, upto: Mapping[SessionKey, NodeId]) -> None: ...

    async def queue_for_model(self, key: SessionKey, since: NodeId) -> None:
        """A model has to look at that node and all after it, as far as it has not, and at what was
        queued before."""

    async def queued_for_model(self) -> Sequence[SessionKey]: ...

    async def next_queued(self, key: SessionKey, *, limit: int) -> SaidPage: ...

    async def mark_extracted(self, key: SessionKey, upto: NodeId) -> bool:
        """A model has looked at it; whether more is queued."""

    def has_turns(self, key: SessionKey) -> bool:
        """False if no message of the session is indexed; True if one is, or may be."""

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
        """On the path to HEAD (or to `upto`) and in earlier conversations under the same key; the
        newest `limit` of a word, and of frequent words also where they meet rarer ones; words that
        most turns hold are left out. Reads the messages that `choose` names, in any order, without
        those that are gone; it is called in another thread. Costs the same in a session of any
        length. Raises NotFound for an `upto` of another session."""

    async def unindexed(self, *, limit: int) -> Sequence[SessionKey]: ...

    async def index_turns(self, keys: Sequence[SessionKey], *, limit: int) -> Sequence[SessionKey]:
        """Indexes at most `limit` messages in one commit without an fsync; returns the sessions
        that are still behind."""


class Ledger(Protocol):
    """Every model call: reserved before it, recorded after it. Counters and records change in
    one commit without an fsync of its own. The cost of a read does not grow with the ledger.
    Raises StoreUnavailable."""

    def begin(self, wanted: Reservation) -> Reservation:
        """Holds what is `wanted` for the first call of a run that was just accepted, if no limit holds
        for it: the accept has shown that the store can be written."""

    async def reserve(
        self, wanted: Reservation, decide: Decide, kinds: Collection[ScopeKind] = SCOPE_KINDS
    ) -> tuple[Reservation, Grant]:
        """Asks `decide` with the tallies of the scopes of these kinds, and holds what it grants once
        a slice that covers it is committed. The call's day is moved on to the latest one that was
        ever reserved in. Raises StoreUnavailable."""

    def settle_soon(
        self, ended: Ended, failed: Callable[[Exception], None], due: Due | None = None
    ) -> Sequence[Tally]:
        """Counts what a reserved call came to, or lets go of what was held for nothing; a second
        time nothing. Gives the scopes to warn about, each once a limit. The record is written with
        the next commit: whatever is asked of the store later finds it, or `failed` is told why it
        is not there, and the call is held again."""

    async def settle(self, ended: Ended) -> None:
        """The same, and waits for the commit. Raises StoreUnavailable."""

    async def resync(self, now: datetime) -> Resync:
        """Goes back to the day of the clock, where it was ahead before: nothing is counted in days and
        months to come any more, but what is held, and what was made today, is counted today."""

    async def unsettled(self) -> Sequence[Reservation]:
        """All that is held; at a start, by the process that died."""

    async def tallies(self, scopes: Sequence[Scope]) -> Sequence[Tally]:
        """A day or month is moved on as in `Ledger.reserve`."""

    async def models(self, limit: int) -> Sequence[ModelSum]:
        """Those that were asked most often first; the rest together, as `other`, comes on top."""

    async def records(self, query: RecordQuery) -> RecordPage: ...

    async def usage(
        self, by: Grouping, since: datetime | None, until: datetime | None
    ) -> Sequence[UsageSum]:
        """The sums of the calls that ended in that time (`until` is exclusive), by name. Reads the
        records of that time alone."""

    async def raise_today(self, scope: str, tokens: int, event: AuditEvent) -> Raise:
        """Raises the limit of a scope, as it is written (`daily`, `token:NAME`), until the end of the
        latest day there was. Raises of a day add up. The entry of the audit is in the same commit."""

    async def load_raises(self, now: datetime) -> None:
        """Reads what is raised today; at a start, and when another gateway has raised something."""


class Audit(Protocol):
    """Entries are added and never changed."""

    async def append(self, event: AuditEvent) -> None:
        """Raises StoreUnavailable. Committed without an fsync of its own."""

    def append_soon(self, event: AuditEvent) -> None:
        """The same without being waited for; what cannot be written is logged."""

    async def newest(
        self, *, kind: AuditKind | None = None, before: int | None = None, limit: int = 1
    ) -> Sequence[AuditEntry]:
        """Newest first; `before` is a `seq`."""

    async def after(self, seq: int, *, limit: int) -> Sequence[AuditEntry]:
        """Oldest first."""


class Outbox(Protocol):
    """Answers on their way to platforms. An answer that did not arrive, or may not have, is
    kept until an operator decides."""

    async def due(self, channel: str, *, now: datetime, limit: int) -> Sequence[Delivery]:
        """Pending ones whose time has come, oldest first; one a session at most, and none of one
        whose oldest open delivery is being sent or waits. Without a session each is for itself."""

    async def sending(
        self, delivery_id: str, arrived: int, *, is_safe: bool = False, receipt: str | None = None
    ) -> None:
        """Durable, before the network is touched; counts the attempt. Once more with more that has
        arrived: the next part; or without the receipt that it had: not as an edit, but anew. Raises
        Conflict, so that no two senders take the same one."""

    async def arrived(self, delivery_id: str, arrived: int, *, receipt: str | None) -> None:
        """The next part waits, and is `pending`. Not fsynced. Raises as `sending`."""

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
        """`pending` with `due_at` tries again later; what was sent or has failed stays so, and what
        was erased meanwhile is not tried again. Not fsynced: after a power loss it is found in
        `sending`, which is what `interrupted` is for."""

    async def interrupted(self) -> Sequence[Delivery]:
        """Left in `sending` by a process that died: nobody knows whether they arrived."""

    async def strand(self, accounts: Collection[tuple[str, str]], *, at: datetime) -> int:
        """Fails what waits for others than these, each a channel and its account: no other account
        may answer for it. Gives how many."""

    async def dead_letters(
        self, channel: str | None, *, before: int | None, limit: int
    ) -> Sequence[Delivery]:
        """Newest first; `before` a place."""

    async def resubmit(self, delivery_id: str, *, now: datetime) -> None:
        """Durable: from the part on that has not arrived; that of one that may have is told by `why`. Raises NotFound if it is no dead letter,
        Conflict if what it said is erased."""

    async def drop(self, delivery_id: str) -> None:
        """Durable, for good. Raises NotFound if it is no dead letter."""

    async def tally(self) -> Mapping[tuple[str, DeliveryState], int]:
        """How many there are by channel and state, of those that were not sent."""


class ChannelStore(Protocol):
    """What channels received without a turn, the state of their connections, and who is paired
    in direct chats. Durable; a memo that belongs to a message is in the commit of its
    accept. Raises StoreUnavailable."""

    async def knows(self, channel: str, account: str, platform_id: str) -> bool:
        """Whether that message was heard or accepted before; one that could not be read was not.
        Raises StoreUnavailable."""

    async def record(
        self,
        heard: ReceivedMessage,
        deliveries: Sequence[NewDelivery] = (),
        memos: Sequence[ChannelMemo] = (),
        asked: Pairing | None = None,
    ) -> bool:
        """ONE durable commit, which puts whoever has `asked` in the line, where expired ones are
        gone. False, and nothing but the memos is written, if that message was heard or accepted
        before, or its sender may not ask. A delivery whose id is there already is not made again. Raises
        StoreUnavailable."""

    async def unread(
        self, channel: str | None, *, platform_id: str | None = None, limit: int
    ) -> Sequence[ReceivedMessage]:
        """What no adapter could read, newest first; of all accounts, and of all channels and with
        any id where none is named."""

    async def drop_unread(self, one: ReceivedMessage) -> None:
        """Durable."""

    async def count_unread(self) -> Mapping[str, int]:
        """By channel."""

    async def forget_received(self, *, before: datetime, limit: int) -> int:
        """Those that no platform sends again; gives how many."""

    async def read_memos(self, channel: str, account: str) -> Sequence[ChannelMemo]: ...

    async def write_memos(self, *memos: ChannelMemo) -> None:
        """ONE durable commit. Raises StoreUnavailable."""

    async def find_pairing(self, channel: str, account: str, person: str) -> Pairing | None: ...

    async def may_ask(self, asked: Pairing) -> bool:
        """A look alone: who asks is written with what the person is told, by `record`.
        False if the line of that account is full, or the person waits already, is paired or denied."""

    async def decide_pairing(
        self, code_digest: str, state: PairingState, *, is_owner: bool, now: datetime
    ) -> Pairing | None:
        """Durable. None: no such code waits, or it has expired. Who is the first to be paired on an
        account is its owner in any case."""

    async def remove_pairing(
        self, channel: str, account: str, person: str, *, state: PairingState | None = None
    ) -> bool:
        """Durable. What was decided or asked for, if it is that: the person may ask again. False:
        nothing was."""

    async def block(self, channel: str, account: str, person: str, *, now: datetime) -> Pairing:
        """Durable. Denied, whatever was before."""

    async def list_pairings(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        """Those who wait first, then the newest."""


class TokenStore(Protocol):
    """Tokens that were created while a gateway ran. Raises StoreUnavailable."""

    async def create(self, token: CreatedToken, event: AuditEvent, *, inherits: bool) -> None:
        """In one commit with the entry of the audit. Raises Conflict if the name is in force, or was
        revoked and the new one does not inherit it."""

    async def revoke(self, name: str, event: AuditEvent) -> None:
        """Raises NotFound."""

    async def tokens(self) -> Sequence[CreatedToken]:
        """All of them, also revoked ones, by name."""

    async def version(self) -> int:
        """Grows with each change of tokens and raised limits."""

    def note_use(self, digest: bytes, at: datetime) -> None:
        """Without being waited for."""


class ToolStore(Protocol):
    """Values that plugins keep by key, counted against a quota; and whole results of which a
    model saw an excerpt. Raises StoreUnavailable."""

    async def get(self, space: PluginSpace, key: str) -> str | None: ...

    async def set(self, space: PluginSpace, key: str, value: str) -> None:
        """Raises Denied with a sentence when a key, a value or the space would be too large."""

    async def delete(self, space: PluginSpace, key: str) -> None: ...

    async def list(self, space: PluginSpace, prefix: str) -> Sequence[str]:
        """The keys that begin so, in order."""

    async def keep_original(self, original: Original) -> None:
        """The same reference again changes nothing. Gone with its session, or with the journals."""

    async def read_original(self, session_key: SessionKey, reference: str) -> Original | None:
        """None also for what another session kept."""

    async def forget_originals(self, session_key: SessionKey) -> None:
        """All of a session that is over."""


class StoreCare(Protocol):
    """Checks the store, forgets what is old, and closes it."""

    async def probe(self) -> None:
        """Proves that something can be committed; raises StoreUnavailable."""

    async def sweep(self, *, before: datetime, limit: int) -> int:
        """Forgets journals and chunk logs of runs that ended before; transcripts stay."""

    async def expire(self, agent: AgentId, *, before: datetime, limit: int) -> int:
        """Closes sessions that were not used since; gives how many."""

    async def snapshot(self, into: pathlib.Path, *, copies: int) -> None:
        """Writes the store of one moment to a new SQLite file, while others go on. `copies`: how many of it
        must fit beside. Raises StoreUnavailable, also if there is no room."""

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
    shared: SharedRuns | None = None  # of a store that several nodes can share


class HttpAnswer(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""

    @property
    def is_over(self) -> bool:
        """Whether all of it has been read, so that `read_some` would not wait."""

    async def read_some(self) -> bytes:
        """What has arrived, at most MOST_READ bytes; b"" at the end. Raises HttpFailed."""

    async def read_into(self, take: Callable[[bytes], bool]) -> bool:
        """Calls `take` with each read as it comes, until it returns False. True: the answer has
        ended. `take` never waits, and others have their turn between two calls. Raises HttpFailed,
        and what `take` raises."""

    def close(self) -> None:
        """It is read no further; closed before its end, the request is aborted."""


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
    async def send(self, call: HttpCall) -> HttpAnswer:
        """Never follows a redirect. Whoever gets the answer closes it. Raises HttpFailed."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A request that a plugin or a model steers; `${secret:NAME}` may stand in url and headers."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    timeout_s: float = 30.0  # for all of it, redirects included


@dataclass(frozen=True, slots=True)
class FetchGrant:
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

    async def fetch(self, ask: FetchRequest, leave: FetchGrant) -> Fetched:
        """Raises Denied for what is not allowed, HttpFailed for a network that does not answer."""


@dataclass(frozen=True, slots=True)
class SocketRequest:
    """A WebSocket that a recipe leads to: `wss://HOST` needs the grant of `https://HOST`."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 15.0  # to the open connection
    max_frame_bytes: int = 1024 * 1024


class ClientSocket(Protocol):
    """An open WebSocket of ours to a platform."""

    async def send(self, text: str) -> None:
        """`${secret:NAME}` is filled in here. Raises Denied, HttpFailed."""

    async def receive(self) -> str | None:
        """A text without anything secret in it; None once the platform has closed it. Raises
        HttpFailed for a connection that broke."""

    @property
    def close_code(self) -> int | None: ...

    async def close(self, code: int) -> None: ...


class SocketClient(Protocol):
    """The guarded way out, for connections that stay open."""

    def connect(
        self, request: SocketRequest, grant: FetchGrant
    ) -> AbstractAsyncContextManager[ClientSocket]:
        """Raises Denied for what is not allowed, HttpFailed for a network that does not answer."""
        ...


class HostFunction(Protocol):
    """What an operator lets plugins call by name: text in, text out."""

    async def __call__(self, text: str, plugin: PluginDef) -> str:
        """Raises Denied with a sentence for the plugin."""
