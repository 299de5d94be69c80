"""Recalls what it was given, and keeps what it was asked."""

from collections.abc import Collection

from gateway.domain.facts import FactView, Recalled, RecallKind
from gateway.domain.ids import SessionKey
from gateway.memory.recall import Recall


class FakeRecall(Recall):
    def __init__(self, *found: Recalled) -> None:
        self.found = found
        self.asked: list[tuple[str, SessionKey, FactView]] = []

    async def of(
        self,
        question: str,
        key: SessionKey,
        view: FactView,
        *,
        kinds: Collection[RecallKind] = ("fact", "turn"),
        limit: int = 10,
        episode: object = None,
    ) -> tuple[Recalled, ...]:
        self.asked.append((question, key, view))
        return tuple(one for one in self.found if one.kind in kinds)[:limit]
