"""What is found again of what was said: hits, and the ports that find and weigh them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from gateway.domain.agents import AgentDef
from gateway.domain.facts import Fact
from gateway.domain.ids import SessionKey
from gateway.domain.messages import Node

RecallKind = Literal["fact", "turn"]


@dataclass(frozen=True, slots=True)
class Recalled:
    """One thing that was found; `why` names the words and signals that found it."""

    kind: RecallKind
    id: str  # of the fact, or of the message
    text: str
    score: float
    why: str
    session_key: SessionKey
    at: datetime
    message_id: str | None = None
    fact: Fact | None = None


class Remember(Protocol):
    async def of(
        self,
        question: str,
        key: SessionKey,
        sender: str | None,
        agent: AgentDef,
        window: Sequence[Node],
    ) -> tuple[Recalled, ...]:
        """What fits a question, the best first, without what stands in the window."""
        ...


class Embedder(Protocol):
    """Texts as vectors of one length."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...


OPENING, CLOSING = "<memory>", "</memory>"  # around what a model is shown of it
_EDGES = re.compile(r"<(?=/?memory>)", re.IGNORECASE)


def told_line(recalled: Recalled) -> str:
    """One line a model reads: `- user dog_name Luna (since 2026-03-01, told 2026-11-18)`, or
    `- said 2026-11-18: …`; nothing that was said can end the block or begin a line of its own."""
    if fact := recalled.fact:
        dates = f"since {_day(fact.valid_from)}, told {_day(fact.learned_at)}"
        dates = f"{dates}, until {_day(fact.valid_to)}" if fact.valid_to else dates
        predicate = "_".join(fact.predicate.split())  # one word, so that a line can be read back
        return f"- {_flat(f'{fact.subject} {predicate} {fact.object}')} ({dates})"
    return f"- said {_day(recalled.at)}: {_flat(recalled.text)}"


def _day(at: datetime) -> str:
    return at.date().isoformat()


def _flat(text: str) -> str:
    return _EDGES.sub("‹", " ".join(text.split()))
