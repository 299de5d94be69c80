"""The story of a run so far: granted wishes, journalled so that a crash repeats none of them."""

from collections.abc import Sequence
from dataclasses import asdict

from gateway.domain.ids import RunId
from gateway.domain.inbox import JournalNote
from gateway.domain.messages import Extras, ToolCall, ToolResult
from gateway.domain.model import ModelReply, Usage
from gateway.domain.ports import Decode, Encode, Journal


class Story:
    """Tells what was granted before; notes what is granted now.

    A reply is noted only when it asks for tools: one without them ends the run anyway.
    """

    def __init__(self, run_id: RunId, journal: Journal, *, encode: Encode, decode: Decode) -> None:
        self._run_id = run_id
        self._journal = journal
        self._encode, self._decode = encode, decode
        self._replies: dict[int, ModelReply] = {}
        self._results: dict[tuple[int, str], ToolResult] = {}

    async def recall(self) -> None:
        """Reads what an earlier attempt of this run left behind."""
        self._take(await self._journal.notes(self._run_id))

    def reply(self, step: int) -> ModelReply | None:
        return self._replies.get(step)

    def result(self, step: int, call: ToolCall) -> ToolResult | None:
        return self._results.get((step, call.id))

    async def note_reply(self, step: int, reply: ModelReply) -> None:
        payload = self._encode(asdict(reply)).decode()
        await self._journal.note(self._run_id, JournalNote(step, "reply", payload))

    async def note_result(self, step: int, result: ToolResult) -> None:
        payload = self._encode(asdict(result)).decode()
        note = JournalNote(step, f"result:{result.call_id}", payload)
        await self._journal.note(self._run_id, note)

    def _take(self, notes: Sequence[JournalNote]) -> None:
        for note in notes:
            value = self._decode(note.payload)
            assert isinstance(value, dict)
            if note.kind == "reply":
                self._replies[note.step] = _reply(value)
            else:
                result = ToolResult(**value)
                self._results[note.step, result.call_id] = result


def _reply(value: dict[str, object]) -> ModelReply:
    calls = value.pop("tool_calls")
    usage, extras = value.pop("usage"), value.pop("extras")
    assert isinstance(calls, list)
    assert isinstance(usage, dict)
    return ModelReply(
        **value,  # type: ignore[arg-type]  # written by note_reply, from the same fields
        tool_calls=tuple(ToolCall(**call) for call in calls),
        usage=Usage(**usage),
        extras=Extras(**extras) if isinstance(extras, dict) else None,
    )
