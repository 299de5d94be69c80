"""Finds what it was given, and keeps what it was asked."""

from collections.abc import Sequence

from gateway.domain.facts import Recalled, RecallKind, Whose
from gateway.domain.ids import SessionKey


class FakeFind:
    def __init__(self, *found: Recalled) -> None:
        self.found = found
        self.asked: list[tuple[str, SessionKey, Whose]] = []

    async def of(
        self,
        question: str,
        key: SessionKey,
        whose: Whose,
        *,
        kinds: Sequence[RecallKind] = ("fact", "turn"),
        limit: int,
    ) -> Sequence[Recalled]:
        self.asked.append((question, key, whose))
        return [one for one in self.found if one.kind in kinds][:limit]
