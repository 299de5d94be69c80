"""What is found again of what was said: hits, and the ports that find and weigh them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from gateway.domain.facts import Fact
from gateway.domain.ids import SessionKey

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


class Embedder(Protocol):
    """Texts as vectors of one length."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...
