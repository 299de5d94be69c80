"""A message on its way in: handed in by a front door, accepted, and ended. And deliveries: answers on
their way to a platform."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from gateway.domain.agents import Address, MatchedBy, place_in
from gateway.domain.channels import ChannelMemo
from gateway.domain.events import Notice
from gateway.domain.ids import MessageId, NodeId, RunId, SessionKey
from gateway.domain.messages import Node


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message as a front door hands it in.

    `key` is the platform's message id or the client's idempotency key. Two messages under one key
    are the same if their `fingerprint` is equal. `whence` is the JSON of a Whence if a channel
    delivers the answer; `memos` are written in the commit of the accept.
    """

    address: Address
    content: str
    key: str | None = None
    fingerprint: str = ""
    requested_agent: str | None = None
    context_id: NodeId | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    whence: str | None = None
    memos: tuple[ChannelMemo, ...] = ()
    traceparent: str | None = None  # the sender's place in a trace; not stored


# After a crash a run numbers its chunks above all chunks that the previous attempt can have sent.
# The count of attempts is durable before an attempt starts, so no other state has to be written.
SEQ_A_ATTEMPT = 10_000_000

QueueMode = Literal["followup", "collect", "steer", "interrupt"]


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """The model and queue mode chosen for a session; None means as configured. Of choices by
    several nodes, the higher `change` is the later."""

    model: str | None = None
    mode: QueueMode | None = None
    change: int = field(default=0, compare=False)


NO_CHOICE = SessionChoice()


EntryState = Literal["queued", "running", "done", "dead"]
EndState = Literal["done", "dead"]


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A message that is about to be accepted.

    `platform_id` is the platform's message id or the client's idempotency key; a second entry with
    the same (channel, account, platform_id) is a duplicate. `digest` distinguishes a repeated
    message from another message under the same key.
    """

    message_id: MessageId
    run_id: RunId
    session_key: SessionKey
    content: str
    accepted_at: datetime
    matched_by: MatchedBy = "default"
    platform_id: str | None = None
    digest: str = ""
    context_id: NodeId | None = None  # the node to append to instead of HEAD
    sender: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)  # the request's, which only tighten
    whence: str | None = None  # JSON of a Whence, if a channel delivers the answer
    memos: tuple[ChannelMemo, ...] = ()  # written in the same commit, also for a duplicate
    partition: int = 0  # of the session, if several nodes share the store
    traceparent: str | None = field(default=None, compare=False)  # not stored

    @property
    def destination(self) -> tuple[str, str | None]:
        """The room and the thread that the answer is sent to."""
        if not self.whence:
            return place_in(self.session_key)
        whence = json.loads(self.whence)
        return whence.get("peer", self.session_key.peer), whence.get("thread")


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in the store. `seq` is its place in its session. `forgiven` attempts were
    interrupted by the gateway itself and do not count against the message."""

    new: NewEntry
    seq: int
    state: EntryState
    attempts: int
    forgiven: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of an accept. A duplicate carries the ids of the first message."""

    message_id: MessageId
    run_id: RunId
    session_key: SessionKey
    matched_by: MatchedBy
    seq: int
    duplicate: bool = False
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """An answer that a channel delivers to its platform."""

    id: str
    channel: str
    account: str
    peer: str
    thread: str | None
    text: str
    whence: str | None = None  # JSON of the answered message's Whence


@dataclass(frozen=True, slots=True)
class Merged:
    """A run whose question another run of its session answers; `journal` and `summary` as in
    Ending."""

    run_id: RunId
    journal: bytes
    summary: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run, written in ONE commit: nodes, HEAD, sums, outbox, inbox, and the runs that
    it `merged`.

    `nodes` are in order, each the parent of the next; the parent of the first is `grown_from`. HEAD
    moves to the last node only if it still is `grown_from`, or if `take_head` is set. `journal`
    packs the last part of the run's journal when it is written; `part` is the number of that part.
    """

    run_id: RunId
    session_key: SessionKey
    state: EndState
    outcome: str  # the reason of the terminal chunk: answered, cancelled, failed, …
    nodes: tuple[Node, ...]
    grown_from: NodeId | None
    take_head: bool
    journal: Callable[[], bytes]
    summary: str  # JSON object that `run.inspect` shows of a finished run
    finished_at: datetime
    deliveries: tuple[NewDelivery, ...] = ()
    person: str = ""  # the person whose message the run answers
    posts: tuple[Notice, ...] = ()  # notices for other sessions of this agent and person
    has_claimed: bool = True  # False: the run surely claimed no notices
    leaves_claimed: bool = False  # the claimed notices were not shown; the next run claims them
    rule_state: str | None = None  # JSON object of this session; None: unchanged
    merged: tuple[Merged, ...] = ()
    part: int = 0
    most_nodes: int = 0  # beyond it, branches off the path to HEAD are archived


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run in the store; `log` and `summary` are empty until it has ended. `log` holds the chunks
    as they were sent, one per line."""

    entry: Entry
    outcome: str | None
    log: bytes
    summary: str
    finished_at: datetime | None

    @property
    def first_seq(self) -> int:
        """The number of the log's first event."""
        return (max(1, self.entry.attempts) - 1) * SEQ_A_ATTEMPT + 1


ReceivedAs = Literal["command", "told", "expired", "unrouted", "unreadable"]


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message of a channel that was received without starting a turn."""

    channel: str
    account: str
    platform_id: str
    outcome: ReceivedAs
    at: datetime
    detail: str = ""  # an unreadable message as it arrived, for the operator
    why: str = ""  # the message is unreadable
    again: str = ""  # JSON input for a retry; empty: a retry is impossible


# --- outbox --------------------------------------------------------------------------------------
# pending -> sending (written before the network) -> sent | pending | unknown | failed
DeliveryState = Literal["pending", "sending", "sent", "unknown", "failed"]
# The end of `why` once a part was sent again that may have arrived.
TWICE = "it may have arrived twice"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery in the store. `attempts` counts attempts of the next part; the part that has
    `arrived` is never sent again.

    `receipt` is the platform's id of the first message. Before that message is sent, it is the id
    of the draft that the message replaces. `is_safe`: the last requests can be repeated without
    harm.
    """

    new: NewDelivery
    run_id: RunId | None  # None: not made by a turn
    session_key: SessionKey | None
    state: DeliveryState
    attempts: int
    due_at: datetime
    receipt: str | None = None
    why: str | None = None
    arrived: int = 0  # characters of the text that the platform has
    settled_at: datetime | None = None  # the end of the first attempt
    place: int = 0  # grows with each new delivery
    is_safe: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of an attempt: `sent`, `failed` permanently, `pending` (retry, at the earliest
    after `retry_after_s` if the platform named it), or `unknown` (it may have arrived)."""

    state: DeliveryState
    receipt: str | None = None
    why: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunHistory:
    """All data of one run in the store: message and end, journal parts, and the delivery of its
    answer."""

    record: RunRecord
    parts: Sequence[bytes]
    delivery: Delivery | None


class Sending(Protocol):
    """Marks the next part of a delivery as `sending`, as `Outbox.sending` does. With `waits` it
    records only the arrived part, because the next part is not sent yet."""

    async def __call__(
        self,
        arrived: int,
        *,
        is_safe: bool = False,
        receipt: str | None = None,
        waits: bool = False,
    ) -> None: ...


class Deliver(Protocol):
    """Delivers the answers of one channel to its platform."""

    async def deliver(self, delivery: Delivery, sending: Sending) -> Receipt: ...

    def unsure(self, delivery: Delivery) -> Receipt:
        """Returns the outcome of a delivery whose last part may or may not have arrived."""
