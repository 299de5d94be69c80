"""The story of a run so far: granted wishes, journalled so that a crash repeats none of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from gateway.agent.patience import until_stored
from gateway.agent.reins import Said
from gateway.domain.ids import RunId
from gateway.domain.inbox import JournalNote
from gateway.domain.messages import Excerpt, Extras, ToolCall, ToolResult
from gateway.domain.model import BudgetWarning, ModelReply
from gateway.domain.ports import Clock, Decode, Encode, Journal
from gateway.domain.usage import Spent, Usage


@dataclass(frozen=True, slots=True)
class Json:
    """How values become text and back."""

    encode: Encode
    decode: Decode


class NoJournal:
    """Of a run that nobody takes up again."""

    async def note(self, run_id: RunId, note: JournalNote) -> None:
        pass

    async def notes(self, run_id: RunId) -> Sequence[JournalNote]:
        return ()

    async def forgive(self, run_id: RunId) -> None:
        pass


_PART = "@"  # no kind of note begins so


def part_of(within: str, call: ToolCall, step: int) -> str:
    """Of the story of whoever works on this call; `within` is the part of whoever asked for it."""
    name = blake2b(call.id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{within}{_PART}{step}-{name}:"


class Story:
    """Tells what was granted before, in this attempt or an earlier one; notes what is granted now.

    A reply is noted only when it asks for tools: one without them ends the run anyway. `part` is
    what `part_of` gives, for whoever works on one call of the run; the journal is the run's.
    """

    def __init__(
        self, run_id: RunId, journal: Journal, clock: Clock, json: Json, part: str = ""
    ) -> None:
        self._run_id, self._journal, self._clock, self._json = run_id, journal, clock, json
        self.part = part
        self._replies: dict[int, ModelReply] = {}
        self._results: dict[tuple[int, str], ToolResult] = {}
        self._said: dict[RunId, tuple[int, Said]] = {}
        self._begun: set[tuple[int, str]] = set()

    async def recall(self) -> None:
        """Reads what an earlier attempt of this run left behind."""
        notes = await until_stored(self._clock, lambda: self._journal.notes(self._run_id))
        self._take(notes)

    def reply(self, step: int) -> ModelReply | None:
        return self._replies.get(step)

    def result(self, step: int, call: ToolCall) -> ToolResult | None:
        return self._results.get((step, call.id))

    def has_begun(self, step: int, call: ToolCall) -> bool:
        """Whether it was noted that it begins; if it has no result, it was cut off."""
        return (step, call.id) in self._begun

    def said(self, step: int) -> Sequence[Said]:
        """What people had said when this step began, and it took."""
        return tuple(said for taken_at, said in self._said.values() if taken_at == step)

    async def note_said(self, step: int, said: Said) -> None:
        if said.run_id not in self._said:
            self._said[said.run_id] = (step, said)
            await self._note(step, f"said:{said.run_id}", said)

    async def note_reply(self, step: int, reply: ModelReply) -> None:
        self._replies[step] = reply
        await self._note(step, "reply", reply)

    async def note_begun(self, step: int, call: ToolCall) -> None:
        """Of a call that must not be made twice."""
        await self._write(JournalNote(step, f"{self.part}begun:{call.id}", "null"))

    async def note_result(self, step: int, result: ToolResult) -> None:
        self._results[step, result.call_id] = result
        await self._note(step, f"result:{result.call_id}", result)

    async def _note(self, step: int, kind: str, granted: ModelReply | ToolResult | Said) -> None:
        payload = self._json.encode(asdict(granted)).decode()
        await self._write(JournalNote(step, self.part + kind, payload))

    async def _write(self, note: JournalNote) -> None:
        await until_stored(self._clock, lambda: self._journal.note(self._run_id, note))

    def _take(self, notes: Sequence[JournalNote]) -> None:
        for note in notes:
            kind = note.kind.removeprefix(self.part)
            if kind[:1] == _PART or not note.kind.startswith(self.part):
                continue
            if kind.startswith("begun:"):
                self._begun.add((note.step, kind.removeprefix("begun:")))
                continue
            value = self._json.decode(note.payload)
            assert isinstance(value, dict)
            if kind == "reply":
                self._replies[note.step] = reply_from(value)
            elif kind.startswith("said:"):
                said = Said(**value)
                self._said[said.run_id] = (note.step, said)
            else:
                result = result_from(value)
                self._results[note.step, result.call_id] = result


def result_from(value: dict[str, object]) -> ToolResult:
    spent = value.pop("spent", ())
    assert isinstance(spent, list | tuple)
    told, cut = tuple(map(spent_from, spent)), value.pop("excerpt", None)
    excerpt = Excerpt(**cut) if isinstance(cut, dict) else None
    return ToolResult(**value, spent=told, excerpt=excerpt)  # type: ignore[arg-type]  # written by note_result


def spent_from(value: Mapping[str, Any]) -> Spent:
    return Spent(Usage(**value["usage"]), value["provider"], value["model"])


def reply_from(value: dict[str, object]) -> ModelReply:
    calls = value.pop("tool_calls")
    usage, extras = value.pop("usage"), value.pop("extras")
    warnings = value.pop("warnings", ())
    assert isinstance(calls, list)
    assert isinstance(usage, dict)
    assert isinstance(warnings, list | tuple)
    return ModelReply(
        **value,  # type: ignore[arg-type]  # written by note_reply, from the same fields
        tool_calls=tuple(ToolCall(**call) for call in calls),
        usage=Usage(**usage),
        extras=Extras(**extras) if isinstance(extras, dict) else None,
        warnings=tuple(BudgetWarning(**one) for one in warnings),
    )
