"""A journal in a list."""

from collections.abc import Sequence

from gateway.domain.ids import RunId
from gateway.domain.inbox import JournalNote


class FakeJournal:
    def __init__(self) -> None:
        self.kept: dict[RunId, list[JournalNote]] = {}

    async def note(self, run_id: RunId, note: JournalNote) -> None:
        notes = self.kept.setdefault(run_id, [])
        if all((kept.step, kept.kind) != (note.step, note.kind) for kept in notes):
            notes.append(note)

    async def forgive(self, run_id: RunId) -> None:
        raise AssertionError("a run forgives nothing")

    async def notes(self, run_id: RunId) -> Sequence[JournalNote]:
        return tuple(self.kept.get(run_id, ()))
