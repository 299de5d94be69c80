"""Recalls what it was given, and keeps what it was asked."""

from collections.abc import Collection, Sequence

from gateway.domain.facts import Recalled, RecallKind, Whose
from gateway.domain.ids import NodeId, SessionKey
from gateway.memory.recall import Recall


class FakeRecall(Recall):
    def __init__(self, *found: Recalled) -> None:
        self.found = found
        self.asked: list[tuple[str, SessionKey, Whose]] = []

    async def of(
        self,
        question: str,
        key: SessionKey,
        whose: Whose,
        *,
        kinds: Collection[RecallKind] = ("fact", "turn"),
        limit: int = 10,
        shown: Sequence[NodeId] = (),
    ) -> tuple[Recalled, ...]:
        self.asked.append((question, key, whose))
        return tuple(one for one in self.found if one.kind in kinds)[:limit]
