"""What is known about people, and what is found again of what was said."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from gateway.domain.facts import EntityType
from gateway.web.published.values import Time


class KnownFact(TypedDict):
    """`session_key` and `source_message_ids` name only what whoever asks may read; the key is null
    if that is another's conversation."""

    id: str
    entity_type: EntityType
    subject: str
    predicate: str
    object: str
    functional: bool
    confidence: float
    scope: str
    session_key: str | None
    learned_at: Time
    valid_from: Time
    valid_to: Time | None
    superseded_at: Time | None
    superseded_by: str | None
    source_message_ids: list[str]


class KnownFacts(TypedDict):
    facts: list[KnownFact]


class FactSource(TypedDict):
    """Where a fact was said; `quote` occurs there letter for letter."""

    message_id: str
    session_key: str
    at: Time
    quote: str
    said_by: str


class FactOrigin(TypedDict):
    """`hidden`: so many more sources are in conversations that whoever asks may not read."""

    fact: KnownFact
    sources: list[FactSource]
    hidden: int
    supersedes: list[str]
    superseded_by: str | None


class Found(TypedDict):
    id: str
    text: str
    score: float
    why: str
    session_key: str | None
    message_id: str | None
    at: Time


class FoundFact(Found):
    kind: Literal["fact"]
    fact: KnownFact


class FoundTurn(Found):
    kind: Literal["turn"]
    said_by: str


class MemoryFound(TypedDict):
    """Facts and messages in turn, the best of each first."""

    results: list[FoundFact | FoundTurn]


class Forgotten(TypedDict):
    """`count` facts, and of a session all `messages` as well."""

    count: int
    dry_run: bool
    tombstone: str | None
    messages: NotRequired[int]
