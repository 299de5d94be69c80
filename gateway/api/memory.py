"""Facts about people, and their settings: `memory.*`, `settings.*`."""

from datetime import UTC, datetime, time
from typing import Annotated, Any, Literal

from gateway.api.declarations import (
    ADMIN,
    CHAT,
    READS,
    Check,
    Flag,
    Key,
    Method,
    Params,
    Text,
    Value,
    Verb,
)
from gateway.domain.facts import LONGEST_OBJECT, SUBJECT, EntityType, RecallKind, SaidSource
from gateway.domain.ids import SessionKey

MOST_HOPS = 3
MOST_ADDED = 100


def _aware(at: datetime) -> datetime:
    """Converts a time to UTC; a time without an offset is UTC. Raises ValueError beyond the years 1 to 9999."""
    try:
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError("must be between the years 1 and 9999") from None


def _whole_day(at: object) -> object:
    """Replaces a day by its last moment."""
    try:
        # The line below adds the zone.
        day = datetime.strptime(at.strip(), "%Y-%m-%d") if isinstance(at, str) else None  # noqa: DTZ007
    except ValueError:
        return at
    return at if day is None else datetime.combine(day, time.max.replace(tzinfo=UTC))


When = Annotated[datetime, Check(after=_aware)]
Moment = Annotated[datetime, Check(before=_whole_day, after=_aware)] | Literal["today", "now"]
Limit = Annotated[int, Check(ge=1, le=1_000)]


class Person(Params):
    agent: Text
    channel: Text = "websocket"
    account: Text | None = None
    peer: Text = "main"


class OfSomebody(Params):
    session_key: Annotated[Key, "A session: the facts that it may use."] | None = None
    person: Annotated[Person, "AGENT:CHANNEL:ACCOUNT:PEER: all facts about them."] | None = None


class MemorySearch(OfSomebody):
    """Find facts and messages, the best match first."""

    query: Annotated[str, Check(min_length=1, max_length=10_000)]
    kinds: Annotated[tuple[RecallKind, ...], Check(min_length=1, max_length=2)] = ("fact", "turn")
    limit: Annotated[int, Check(ge=1, le=100)] = 10


class KnownFact(Value):
    """A fact. `session_key` is null, and `source_message_ids` omits messages, if the caller may not read that
    conversation."""

    id: str
    entity_type: EntityType
    subject: str
    predicate: str
    object: str
    functional: bool
    confidence: float
    scope: str
    session_key: SessionKey | None
    learned_at: datetime
    valid_from: datetime
    valid_to: datetime | None
    superseded_at: datetime | None
    superseded_by: str | None
    source_message_ids: tuple[str, ...]


class KnownFacts(Value):
    facts: list[KnownFact]


class Found(Value):
    """A fact, or a message with its author."""

    kind: RecallKind
    id: str
    text: str
    score: float
    why: str
    session_key: SessionKey | None
    message_id: str | None
    at: datetime
    fact: KnownFact | None = None
    said_by: str | None = None


class MemoryFound(Value):
    """Facts and messages alternately, the best match of each kind first."""

    results: list[Found]


class MemoryWhy(Params):
    """Show the sources of a fact: message, time and author."""

    fact_id: Text


class FactOrigin(Value):
    """The sources of a fact. `hidden` is the number of sources that the caller may not read."""

    fact: KnownFact
    sources: tuple[SaidSource, ...]
    hidden: int
    supersedes: tuple[str, ...]
    superseded_by: str | None


class MemoryHistory(OfSomebody):
    """Show all facts about SUBJECT, superseded ones too. `user` is the person."""

    subject: Text | None = None
    predicate: Text | None = None
    skip: Annotated[int, Check(ge=0, le=100_000)] = 0  # of the oldest facts
    limit: Limit = 500


class MemoryAsOf(OfSomebody):
    """Show the facts that were true at a time. AT is today, now, a day (its end counts) or a time."""

    at: Moment
    known_at: Annotated[Moment, "Use only the facts known at that time."] | None = None
    subject: Text | None = None
    limit: Limit = 500


class MemoryNeighbours(OfSomebody):
    """Show facts connected to SUBJECT, the nearest first."""

    subject: Text
    hops: Annotated[int, Check(ge=1, le=MOST_HOPS)] = 2
    limit: Limit = 100


class MemoryForget(OfSomebody):
    """Erase facts, or all messages of a session."""

    fact_id: Text | None = None
    dry_run: Flag = True


class Forgotten(Value):
    """The number of erased facts; with a session also of its messages."""

    count: int
    dry_run: bool
    tombstone: str | None
    messages: int | None = None


class NewFact(Params):
    predicate: Text
    object: Annotated[str, Check(min_length=1, max_length=LONGEST_OBJECT)]
    subject: Text = SUBJECT
    entity_type: EntityType = "fact"
    functional: Flag = False
    confidence: Annotated[float, Check(says={"minimum": 0, "maximum": 1})] = 1.0
    valid_from: When | None = None
    valid_to: When | None = None


class MemoryAdd(OfSomebody):
    """Add facts about a person."""

    facts: Annotated[list[NewFact], Check(min_length=1, max_length=MOST_ADDED)]


class SettingsGet(Params):
    """Show the settings of a user."""

    user: Text | None = None


class SettingsSet(Params):
    """Change the settings of a user."""

    user: Text | None = None
    patch: dict[str, Any]


class Settings(Value):
    """The settings of a user. Unknown keys are kept unchanged."""

    __pydantic_config__ = {"extra": "allow"}

    max_iterations: int
    soft_warning_percent: int
    token_budget: int
    token_warning_percent: int
    timeout_seconds: int
    max_tool_calls_per_turn: int
    max_parallel_tools: int
    oracle_model: str
    subagent_model: str | None
    thinking_enabled: bool
    librarian_timeout: int
    max_context_nodes: int


_FACTS = "id subject predicate object valid_from valid_to learned_at superseded_at"
_NONE = "no facts"

METHODS = (
    Method(
        "memory.search",
        MemorySearch,
        READS,
        MemoryFound,
        verb=Verb("query", "id score kind text said_by at why", "nothing found"),
    ),
    Method(
        "memory.why",
        MemoryWhy,
        READS,
        FactOrigin,
        verb=Verb("fact_id", "at said_by message_id quote"),
    ),
    Method(
        "memory.history",
        MemoryHistory,
        READS,
        KnownFacts,
        verb=Verb("subject predicate", _FACTS, _NONE),
    ),
    Method("memory.as_of", MemoryAsOf, READS, KnownFacts, verb=Verb("at", _FACTS, _NONE)),
    Method(
        "memory.neighbours",
        MemoryNeighbours,
        READS,
        KnownFacts,
        verb=Verb("subject", _FACTS, _NONE),
    ),
    Method("memory.forget", MemoryForget, CHAT, Forgotten),
    Method("memory.add", MemoryAdd, ADMIN, KnownFacts),
    Method("settings.get", SettingsGet, CHAT, Settings),
    Method("settings.set", SettingsSet, CHAT, Settings),
)
