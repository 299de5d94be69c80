"""The calls of one reply and what came of them: told as they end, remembered in the order of the reply."""

from collections.abc import Sequence

from gateway.agent.voice import Voice
from gateway.agent.wishes import ToolReturned
from gateway.agent.words import INTERRUPTED, NOT_EXECUTED
from gateway.domain.messages import ToolCall, ToolResult
from gateway.tools.sources import Source

# Characters in a chunk; the model, the tool and the history get all of it.
SHOWN_RESULT = 2_000
SHOWN_ARGUMENTS = 20_000
MOST_CITED = 500  # of a run


class Round:
    """Of one turn; opened anew by each reply."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._calls: tuple[ToolCall, ...] = ()
        self._results: dict[str, ToolResult] = {}
        self._executed: set[str] = set()
        self._done: set[str] = set()  # tools whose calls ended since somebody asked
        self._failures: dict[str, int] = {}  # in a row, by tool
        self._sources: dict[tuple[str, str | None], tuple[Source, str]] = {}
        self._told_sources = 0

    @property
    def is_open(self) -> bool:
        return bool(self._calls)

    @property
    def calls(self) -> Sequence[ToolCall]:
        return self._calls

    def open(self, calls: Sequence[ToolCall], most: int) -> None:
        """Tells every call as pending; those beyond the limit are answered at once."""
        self._calls, self._results, self._executed = tuple(calls), {}, set()
        for call in calls:
            arguments = call.arguments[:SHOWN_ARGUMENTS]
            shown = {"id": call.id, "name": call.name, "arguments": arguments}
            self._voice.chunk("tool_call", {"tool_call": {**shown, "status": "pending"}})
        why = f"Not executed: at most {most} tool calls a turn. Call it again in the next turn."
        for call in calls[most:]:
            self._results[call.id] = ToolResult(call.id, call.name, why, is_error=True)

    def as_data(self) -> list[dict[str, str]]:
        """The calls that are still to be executed, as a tree sees them."""
        return [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in self._calls
            if call.id not in self._results
        ]

    def named(self, call_id: object) -> ToolCall | None:
        return next((call for call in self._calls if call.id == call_id), None)

    def result(self, call_id: str) -> ToolResult | None:
        return self._results.get(call_id)

    def begin(self, call: ToolCall) -> None:
        self._executed.add(call.id)
        arguments = call.arguments[:SHOWN_ARGUMENTS]
        facts = {"tool": call.name, "call_id": call.id, "arguments": arguments}
        self._voice.event("tool.call.started", facts, source="tools")

    def refuse(self, call: ToolCall, why: str) -> ToolResult:
        """It is not executed; the result says so."""
        result = self._results[call.id] = ToolResult(call.id, call.name, why, is_error=True)
        return result

    def interrupt(self, call: ToolCall, known: ToolResult | None) -> None:
        """It was at work and nobody waits for it any more: what is known of it counts."""
        self._executed.discard(call.id)
        if known is None:
            self.refuse(call, INTERRUPTED)
        else:
            self._results[call.id] = known

    def take(self, call: ToolCall, told: ToolReturned) -> None:
        """A result that came."""
        result = self._results[call.id] = told.result
        self._done.add(call.name)
        self._show(result)
        for source in told.sources[: MOST_CITED - len(self._sources)]:
            self._sources.setdefault((source.id, source.url), (source, call.id))
        facts: dict[str, object] = {"tool": call.name, "call_id": call.id}
        if result.is_error:
            self._failures[call.name] = count = self._failures.get(call.name, 0) + 1
            facts |= {"error": result.content[:SHOWN_RESULT], "failures": count}
            self._voice.event("tool.call.failure", facts, source="tools")
            return
        self._failures.pop(call.name, None)
        size = len(result.content)
        facts |= {"duration_ms": result.duration_ms, "items": told.items, "size": size}
        self._voice.event("tool.call.success", facts, source="tools")

    def close(self) -> list[tuple[ToolCall, ToolResult, bool]]:
        """Each call with its result, and whether it was executed."""
        closed = []
        for call in self._calls:
            result = self._results.get(call.id) or self.refuse(call, NOT_EXECUTED)
            was_executed = call.id in self._executed
            if not was_executed:
                self._show(result)
            closed.append((call, result, was_executed))
        self._calls = ()
        return closed

    def take_done(self) -> frozenset[str]:
        """The tools whose calls ended since this was asked last."""
        done, self._done = frozenset(self._done), set()
        return done

    def tell_sources(self) -> None:
        """What the results so far drew on, each once a run, whichever tool names it."""
        sources = list(self._sources.values())[self._told_sources :]
        self._told_sources = len(self._sources)
        for source, call_id in sources:
            shown = {"id": source.id, "title": source.title, "url": source.url}
            self._voice.chunk("source", {"source": {**shown, "tool_call_id": call_id}})

    def _show(self, result: ToolResult) -> None:
        shown = {
            "id": result.call_id,
            "name": result.name,
            "status": "error" if result.is_error else "success",
            "result": result.content[:SHOWN_RESULT],
            "duration_ms": result.duration_ms,
        }
        self._voice.chunk("tool_result", {"tool_call": shown})
