"""What is found again of what was said: hits, and the ports that find and weigh them."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Literal, Protocol

from gateway.domain.agents import AgentDef
from gateway.domain.facts import SUBJECT, Fact
from gateway.domain.ids import NodeId, SessionKey
from gateway.domain.messages import Node, Role

RecallKind = Literal["fact", "turn"]
_FEW, _COMMON = 8, 0.25  # turns, and a share of them
YOU = "you"  # how a model is told of its own words


@dataclass(frozen=True, slots=True)
class Recalled:
    """One thing that was found; `why` names the words and signals that found it."""

    kind: RecallKind | Literal["notes", "threads"]  # the latter: names, in one text
    id: str  # of the fact, or of the message
    text: str
    score: float
    why: str
    session_key: SessionKey
    at: datetime
    message_id: str | None = None
    fact: Fact | None = None
    said_by: str = SUBJECT  # of a turn: the user, or by name who else; `you` is the model


@dataclass(frozen=True, slots=True)
class Trail:
    """What may be seen of a session: spans of `seq`, oldest first, each (first, last, depth of the
    first). A depth counts along them: neighbours in the conversation are neighbours in depth."""

    spans: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> "Trail":
        """From (first, last), in any order; they do not overlap."""
        depth, counted = 0, []
        for first, last in sorted(spans):
            counted.append((first, last, depth))
            depth += last - first + 1
        return cls(tuple(counted))

    @property
    def length(self) -> int:
        if not self.spans:
            return 0
        first, last, depth = self.spans[-1]
        return depth + last - first + 1

    def depth_of(self, seq: int) -> int | None:
        """None for what must not be seen."""
        at = bisect_right(self.spans, seq, key=itemgetter(0)) - 1
        if at < 0 or seq > self.spans[at][1]:
            return None
        return self.spans[at][2] + seq - self.spans[at][0]

    def count_to(self, seq: int) -> int:
        """How many there are up to it."""
        return sum(min(last, seq) - first + 1 for first, last, _ in self.spans if first <= seq)

    def tells_apart(self, said: int) -> bool:
        """Whether a word that so many turns hold is worth looking for."""
        return said <= max(_FEW, _COMMON * self.length)

    def seq_at(self, depth: int) -> int:
        first, _, before = self.spans[bisect_right(self.spans, depth, key=itemgetter(2)) - 1]
        return first + depth - before


@dataclass(frozen=True, slots=True)
class Hits:
    """Where a word was said, as depths; `total`: about how often, if these are only the newest."""

    depths: frozenset[int]
    total: int


@dataclass(frozen=True, slots=True)
class Found:
    trail: Trail = Trail()
    words: Mapping[str, Hits] = field(default_factory=dict)
    messages: Mapping[str, int] = field(default_factory=dict)  # those asked for, and their depths


@dataclass(frozen=True, slots=True)
class Turn:
    """What somebody said; `text` may be cut."""

    depth: int
    id: NodeId
    role: Role
    text: str
    at: datetime
    sender: str | None = None


class Turns(Protocol):
    """What was said in a session, by its words. Nothing of another session, of a sibling branch
    or of a tool ever comes out. Raises StoreUnavailable."""

    async def find(
        self,
        key: SessionKey,
        words: Sequence[str],
        *,
        messages: Sequence[str] = (),
        upto: NodeId | None = None,
        limit: int,
    ) -> Found:
        """On the path to HEAD (or to `upto`) and in earlier conversations under the same key; the
        newest `limit` of a word, and of frequent words also where they meet rarer ones; words that most turns hold are left out. Costs the
        same in a session of any length. Raises NotFound for an `upto` of another session."""
        ...

    async def fetch(self, key: SessionKey, trail: Trail, depths: Sequence[int]) -> Sequence[Turn]:
        """In any order; what is gone is left out."""
        ...


class TurnIndex(Protocol):
    """Brings `Turns` up to date, off everybody's path. Raises StoreUnavailable."""

    async def behind(self, *, limit: int) -> Sequence[SessionKey]: ...

    async def advance(self, keys: Sequence[SessionKey], *, limit: int) -> Sequence[SessionKey]:
        """Takes in at most `limit` messages in one commit without an fsync; gives the sessions that
        are still behind."""
        ...

    async def forget(self, key: SessionKey, ids: Sequence[str]) -> None:
        """Takes messages out before their texts are erased; durable, and no word of them stays."""
        ...


class Remember(Protocol):
    async def of(
        self,
        question: str,
        key: SessionKey,
        sender: str | None,
        agent: AgentDef,
        window: Sequence[Node],
        *,
        is_all: bool = False,
    ) -> tuple[Recalled, ...]:
        """What fits a question, the best first, without what stands in the window; `is_all`: nothing
        else was ever said there."""
        ...


OPENING, CLOSING = "<memory>", "</memory>"  # around what a model is shown of it
# Of every block that only the gateway may open or close, however sloppily it is written.
_EDGES = re.compile(r"<(?=\s?/?\s?(?:memory|system-notice|summary)\b)", re.IGNORECASE)


def told_line(recalled: Recalled) -> str:
    """One line a model reads: `- user dog_name Luna (since 2026-03-01, told 2026-11-18)`, or
    `- you said 2026-11-18: …`; nothing that was said can end the block or begin a line of its own."""
    if fact := recalled.fact:
        dates = f"since {_day(fact.valid_from)}, told {_day(fact.learned_at)}"
        dates = f"{dates}, until {_day(fact.valid_to)}" if fact.valid_to else dates
        predicate = "_".join(fact.predicate.split())  # one word, so that a line can be read back
        return f"- {flat(f'{fact.subject} {predicate} {fact.object}')} ({dates})"
    return f"- {flat(recalled.said_by)} said {_day(recalled.at)}: {flat(recalled.text)}"


def _day(at: datetime) -> str:
    return at.date().isoformat()


def flat(text: str) -> str:
    """On one line, and with nothing in it that looks like the edge of a block of ours."""
    return _EDGES.sub("‹", " ".join(text.split()))
