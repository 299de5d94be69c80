"""One round of tool calls: told as pending, run side by side, journalled, results in call order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from gateway.agent.job import Emit, Job
from gateway.agent.story import Story
from gateway.domain.chunks import Chunk
from gateway.domain.messages import ToolCall, ToolResult
from gateway.tools.gate import ToolGate
from gateway.tools.sources import Source

# Characters in a chunk; the model, the tool and the history get all of it.
SHOWN_RESULT = 2_000
SHOWN_ARGUMENTS = 20_000
MOST_CITED = 500  # of a run


@dataclass(frozen=True, slots=True)
class Rounds:
    """The tool rounds of one run."""

    job: Job
    gate: ToolGate
    story: Story
    emit: Emit
    _shown: set[str] = field(default_factory=set)
    _sources: set[tuple[str, str | None]] = field(default_factory=set)

    async def run(
        self, step: int, asked: Sequence[ToolCall], refused: Sequence[ToolResult]
    ) -> tuple[ToolResult, ...]:
        """A result for each call that was asked for, in order; the last ones may be refused."""
        for call in asked:
            self._tell(call)
        results = await self._all(step, asked[: len(asked) - len(refused)])
        for result in refused:
            self._show(result)
        return (*results, *refused)

    def settle(self, step: int, call: ToolCall) -> ToolResult:
        """The result of a call whose round was stopped: what it did counts, told or not."""
        result = self.story.result(step, call)
        if result is None:
            result = ToolResult(call.id, call.name, "Interrupted.", is_error=True)
        if call.id not in self._shown:
            self._show(result)
        return result

    def _show(self, result: ToolResult) -> None:
        self._shown.add(result.call_id)
        shown = {
            "id": result.call_id,
            "name": result.name,
            "status": "error" if result.is_error else "success",
            "result": result.content[:SHOWN_RESULT],
            "duration_ms": result.duration_ms,
        }
        self.emit(Chunk("tool_result", {"tool_call": shown}))
        for source in self.gate.sources(result):
            self._cite(source, result.call_id)

    def _cite(self, source: Source, call_id: str) -> None:
        """Once a run, whichever tool names it."""
        if (source.id, source.url) in self._sources or len(self._sources) >= MOST_CITED:
            return
        self._sources.add((source.id, source.url))
        shown = {"id": source.id, "title": source.title, "url": source.url}
        self.emit(Chunk("source", {"source": {**shown, "tool_call_id": call_id}}))

    def _tell(self, call: ToolCall) -> None:
        arguments = call.arguments[:SHOWN_ARGUMENTS]
        shown = {"id": call.id, "name": call.name, "arguments": arguments}
        self.emit(Chunk("tool_call", {"tool_call": {**shown, "status": "pending"}}))

    async def _all(self, step: int, calls: Sequence[ToolCall]) -> list[ToolResult]:
        if len(calls) == 1:
            return [await self._one(step, calls[0])]
        results: dict[int, ToolResult] = {}
        slots = anyio.CapacityLimiter(self.job.agent.limits.max_parallel_tools)

        async def run(index: int, call: ToolCall) -> None:
            async with slots:
                results[index] = await self._one(step, call)

        async with anyio.create_task_group() as group:
            for index, call in enumerate(calls):
                group.start_soon(run, index, call)
        return [results[index] for index in range(len(calls))]

    async def _one(self, step: int, call: ToolCall) -> ToolResult:
        result = self.story.result(step, call)
        if result is None:
            result = await self.gate.call(self.job.agent, call, self.job.scope)
            await self.story.note_result(step, result)
        self._show(result)
        return result
