"""What is known about people: claims that were made, facts that came of them, and when each held."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal, Protocol

from gateway.domain.bindings import key_peer, of_person, peer_of, person_in, speaker
from gateway.domain.ids import SessionKey

EntityType = Literal["fact", "relationship", "attribute"]
SUBJECT = "user"  # who speaks, in what they say of themselves
SAID_BY_MODEL = "assistant"  # it drew the conclusion; the quote is what it drew it from


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact was said."""

    message_id: str
    session_key: SessionKey
    at: datetime
    quote: str  # occurs in the message, letter for letter
    said_by: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Something said, before it is settled with what is known. `functional`: one object at a time,
    so that another one supersedes it."""

    subject: str
    predicate: str
    object: str
    functional: bool
    valid_from: datetime  # since when it is true, as far as anybody said; else when it was said
    session_key: SessionKey
    entity_type: EntityType = "fact"
    confidence: float = 1.0
    valid_to: datetime | None = None  # it is known to have ended
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """`learned_at` and `superseded_at` say when we believed it, `valid_from` and `valid_to` when it
    was true. Current: not superseded. Nothing is deleted except by an explicit erasure."""

    id: str
    scope: str
    entity_type: EntityType
    subject: str
    predicate: str
    object: str
    functional: bool
    confidence: float
    session_key: SessionKey  # where it was learned
    learned_at: datetime
    valid_from: datetime
    valid_to: datetime | None = None
    superseded_at: datetime | None = None
    superseded_by: str | None = None
    source_message_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose facts may be looked at: all of a scope, or only what was said in one room."""

    scope: str | None = None
    room: SessionKey | None = None


@dataclass(frozen=True, slots=True)
class FactQuery:
    """`at` and `known_at`: true then, as believed then. Without them: what is believed now, or with
    `with_history` all that ever was. Oldest `valid_from` first."""

    whose: Whose
    subject: str | None = None
    predicate: str | None = None
    at: datetime | None = None
    known_at: datetime | None = None
    with_history: bool = False
    limit: int = 500


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks where a fact was said: a principal by name, or whoever speaks in a conversation."""

    person: str  # as `speaker` names them
    key: SessionKey | None = None  # the conversation in which it would be told
    scope: str | None = None  # of what is theirs alone
    in_room: bool = False  # others read along
    reads_all: bool = False

    @classmethod
    def of(cls, key: SessionKey, sender: str | None) -> "Reader":
        person = speaker(key.channel, key.account, person_in(key, sender))
        return cls(person, key, scope_of(key, sender), is_room(key, sender))

    def may_read(self, source: Source, scope: str) -> bool:
        """Whether a source of a fact of that scope may be shown: one of this conversation, and
        outside of rooms one of the reader's own. Nothing else leaves the conversation it is of."""
        there = source.session_key
        if self.reads_all or there == self.key:
            return True
        if self.in_room:
            return False
        by_model = source.said_by == SAID_BY_MODEL
        said_by = there.peer if by_model else person_in(there, source.said_by)
        own = (speaker(there.channel, there.account, one) for one in (there.peer, said_by))
        return scope == self.scope or self.person in own


@dataclass(frozen=True, slots=True)
class Origin:
    """Why a fact is believed."""

    fact: Fact
    sources: tuple[Source, ...]
    supersedes: tuple[str, ...]

    def sources_for(self, reader: Reader) -> tuple[Source, ...]:
        return tuple(one for one in self.sources if reader.may_read(one, self.fact.scope))


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is to be erased for good: one fact, all of a scope, or all that was learned in a session."""

    fact_id: str | None = None
    scope: str | None = None
    session_key: SessionKey | None = None
    by: str = "local"  # who wants it, for the audit

    @property
    def kind(self) -> Literal["fact", "scope", "session"]:
        if self.fact_id is not None:
            return "fact"
        return "session" if self.scope is None else "scope"


def tombstone_of(what: Erasure, now: datetime) -> str:
    """What is left of an erasure: it tells nobody what was erased."""
    target = what.fact_id or what.scope or str(what.session_key)
    return sha256(f"{what.kind} {target} {now.isoformat()}".encode()).hexdigest()[:32]


class Facts(Protocol):
    """Raises StoreUnavailable."""

    async def add(
        self, scope: str, claims: Sequence[Claim], *, ids: Sequence[str], now: datetime
    ) -> Sequence[Fact]:
        """ONE commit without an fsync of its own: each claim is settled with what is known of its
        (scope, subject, predicate), so that of a functional predicate exactly one fact is current
        whoever writes meanwhile. Gives the fact that each claim became or confirmed; `ids` are for
        those that are new. What was said before it was forgotten is left out."""
        ...

    async def select(self, query: FactQuery) -> Sequence[Fact]: ...

    async def matching(self, whose: Whose, words: Sequence[str], *, limit: int) -> Sequence[Fact]:
        """Current facts in which any of the words (or another form of it) occurs; those in which
        the rarer words occur first. Costs the same whatever others have in the store."""
        ...

    async def around(self, whose: Whose, names: Sequence[str], *, limit: int) -> Sequence[Fact]:
        """Current facts one hop away: whose subject or object is one of the names. Newest first."""
        ...

    async def origin(self, fact_id: str) -> Origin | None: ...

    async def erase(self, what: Erasure, *, dry_run: bool, now: datetime) -> int:
        """How many facts; with their words gone from every index, and a tombstone in their place.
        Durable."""
        ...


def scope_of(key: SessionKey, sender: str | None, *, is_shared: bool = False) -> str:
    """Facts belong to an agent and a person; `is_shared`: to all who talk to the agent."""
    return str(key.agent) if is_shared else of_person(key, sender)


def whose(key: SessionKey, sender: str | None, *, is_shared: bool = False) -> Whose:
    """In a direct chat all that the person ever said; in a room only what was said in that room."""
    if is_shared or not is_room(key, sender):
        return Whose(scope=scope_of(key, sender, is_shared=is_shared))
    return Whose(room=key)


def is_room(key: SessionKey, sender: str | None) -> bool:
    """Whether others read along: in a direct chat the peer is whoever speaks."""
    if not sender or key.peer == sender:
        return False
    escaped = key_peer(peer_of(sender, is_foreign=True), is_room=False)
    return key.peer not in {person_in(key, sender), escaped}
