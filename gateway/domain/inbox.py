"""A message on its way in: as a front door hands it in, as it is accepted, and how it ends."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from gateway.domain.agents import Address, MatchedBy, place_in
from gateway.domain.channels import ChannelMemo
from gateway.domain.events import Notice
from gateway.domain.ids import MessageId, NodeId, RunId, SessionKey
from gateway.domain.messages import Node


@dataclass(frozen=True, slots=True)
class Inbound:
    """`key` is the platform's message id or the client's idempotency key. `fingerprint` is what has
    to be equal for a second message under that key to be the same message. `whence` is the JSON of a
    Whence, where the answer leaves by a channel; `memos` are in the commit of the accept."""

    address: Address
    content: str
    key: str | None = None
    fingerprint: str = ""
    requested_agent: str | None = None
    context_id: NodeId | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    whence: str | None = None
    memos: tuple[ChannelMemo, ...] = ()
    traceparent: str | None = None  # the place in a trace of whoever sent it; nothing keeps it


# A run that starts again after a crash numbers its chunks above everything that the attempt before
# can have sent. The count of attempts is durable before an attempt starts, so nothing else needs
# to be written to know where to go on.
SEQ_A_ATTEMPT = 10_000_000

QueueMode = Literal["followup", "collect", "steer", "interrupt"]


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """What was chosen for a session. None: as it is configured. `change`: of several nodes' choices the
    one with the higher number is the later."""

    model: str | None = None
    mode: QueueMode | None = None
    change: int = field(default=0, compare=False)


NO_CHOICE = SessionChoice()


EntryState = Literal["queued", "running", "done", "dead"]
EndState = Literal["done", "dead"]


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A message that is about to be accepted.

    `platform_id` is the platform's message id or the client's idempotency key; with one, a second
    entry of the same (channel, account, platform_id) is a duplicate. `digest` tells a true repeat
    from another message under the same key.
    """

    message_id: MessageId
    run_id: RunId
    session_key: SessionKey
    content: str
    accepted_at: datetime
    matched_by: MatchedBy = "default"
    platform_id: str | None = None
    digest: str = ""
    context_id: NodeId | None = None  # grow from this node instead of HEAD
    sender: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)  # the request's own: they only tighten
    whence: str | None = None  # JSON of a Whence, where the answer leaves by a channel
    memos: tuple[ChannelMemo, ...] = ()  # written with it, also if it is a duplicate
    partition: int = 0  # of its session, among several nodes
    traceparent: str | None = field(default=None, compare=False)  # not kept

    @property
    def destination(self) -> tuple[str, str | None]:
        """The room and the thread that an answer goes to."""
        if not self.whence:
            return place_in(self.session_key)
        whence = json.loads(self.whence)
        return whence.get("peer", self.session_key.peer), whence.get("thread")


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as the store holds it. `seq` is its place in its session; of its attempts so many
    are `forgiven`: the gateway cut them off itself, in good order."""

    new: NewEntry
    seq: int
    state: EntryState
    attempts: int
    forgiven: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to an accept. A duplicate carries the ids of the first."""

    message_id: MessageId
    run_id: RunId
    session_key: SessionKey
    matched_by: MatchedBy
    seq: int
    duplicate: bool = False
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """An answer that a channel has to bring to its platform."""

    id: str
    channel: str
    account: str
    peer: str
    thread: str | None
    text: str
    whence: str | None = None  # JSON, of the message that it answers


@dataclass(frozen=True, slots=True)
class Merged:
    """A run whose question another run of its session answers; `journal` and `summary` as in
    Ending."""

    run_id: RunId
    journal: bytes
    summary: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends, written in ONE commit: nodes into the tree, HEAD, sums, outbox, inbox done;
    and with it the runs that it `merged`.

    `nodes` are in order, each the parent of the next; the first one's parent is `grown_from`.
    HEAD moves to the last node only if it still is `grown_from`, or if `take_head` is set.
    `journal` packs the last part of the run's journal, where it is written; `part` is its number.
    """

    run_id: RunId
    session_key: SessionKey
    state: EndState
    outcome: str  # answered, cancelled, failed, … : the reason of the terminal chunk
    nodes: tuple[Node, ...]
    grown_from: NodeId | None
    take_head: bool
    journal: Callable[[], bytes]
    summary: str  # JSON object: what `run.inspect` shows of a finished run
    finished_at: datetime
    deliveries: tuple[NewDelivery, ...] = ()
    person: str = ""  # whose run it was
    posts: tuple[Notice, ...] = ()  # for other sessions of this agent and person
    has_claimed: bool = True  # notices, or it may have
    leaves_claimed: bool = False  # what it had claimed was told to nobody: the next one has it
    rule_state: str | None = None  # JSON object, of this session; None: as it was
    merged: tuple[Merged, ...] = ()
    part: int = 0
    most_nodes: int = 0  # of a tree that has branches; those off the path to HEAD are archived


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as the store knows it; `log` and `summary` are empty until it has ended. `log` is every
    chunk as it was sent, one a line."""

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
    channel: str
    account: str
    platform_id: str
    outcome: ReceivedAs
    at: datetime
    detail: str = ""  # of what nobody could read: as it came, for the operator
    why: str = ""  # it could not be read
    again: str = ""  # JSON of what has to be taken in to try it again; empty: nothing helps
