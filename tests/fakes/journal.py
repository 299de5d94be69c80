"""Journals in lists: what a store keeps of runs, and what a driver writes of one."""

from collections.abc import Callable, Sequence

from pydantic_core import from_json, to_json

from gateway.agent.driver import RunJournal
from gateway.domain.ids import RunId
from gateway.domain.journal import JournalEntry
from gateway.domain.ports import Clock
from tests.fakes.ports import PartOfJournal


class FakeJournal(PartOfJournal):
    """Implements the Journal port."""

    def __init__(self) -> None:
        self.parts: dict[RunId, dict[int, bytes]] = {}

    async def append(self, run_id: RunId, part: int, pack: Callable[[], bytes]) -> None:
        self.parts.setdefault(run_id, {}).setdefault(part, pack())

    async def read(self, run_id: RunId) -> Sequence[bytes]:
        return [data for _, data in sorted(self.parts.get(run_id, {}).items())]

    async def forgive(self, run_id: RunId) -> None:
        raise AssertionError("a run forgives nothing")


class KeptJournal(RunJournal):
    """`kept` is what a crash would leave, as it comes back from a store; `written` names what each
    write kept."""

    def __init__(self, clock: Clock, earlier: Sequence[JournalEntry] = ()) -> None:
        super().__init__(clock, earlier)
        self.kept = list(earlier)
        self.written: list[str] = []

    async def grant(self, name: str, kind: str, *values: object) -> None:
        self.written.append(name)
        kind, *plain = from_json(to_json([kind, *values]))
        self.kept.append(JournalEntry(kind, tuple(plain)))
