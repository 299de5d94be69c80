"""A round tells every call before any result, and answers each one, also those that are refused."""

import json

from gateway.agent.job import Job
from gateway.agent.rounds import SHOWN_RESULT, Rounds
from gateway.agent.story import Json, Story
from gateway.domain.chunks import Chunk
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.memory.context import pack
from gateway.tools.gate import ToolGate
from tests.agent.test_driver import AGENT, SCOPE, encode
from tests.fakes.clock import FakeClock
from tests.fakes.journal import FakeJournal
from tests.fakes.tools import FakeTool, NoSchemas


def rounds(*tools: FakeTool) -> tuple[Rounds, list[Chunk]]:
    clock, chunks = FakeClock(), list[Chunk]()
    gate = ToolGate(tools, schemas=NoSchemas(), decode=json.loads, clock=clock)
    context = pack(AGENT, None, (), Message("user", "hi"), ())
    story = Story(SCOPE.run_id, FakeJournal(), clock, Json(encode, json.loads))
    return Rounds(Job(AGENT, context, (), SCOPE), gate, story, chunks.append), chunks


async def test_every_call_is_told_with_its_arguments_before_any_result() -> None:
    round_, chunks = rounds(FakeTool())
    asked = [ToolCall("1", "echo", '{"n":1}'), ToolCall("2", "echo", '{"n":2}')]
    refused = [ToolResult("2", "echo", "too many", is_error=True)]

    results = await round_.run(0, asked, refused)

    assert [result.call_id for result in results] == ["1", "2"]
    told = [chunk.data["tool_call"] for chunk in chunks if chunk.type == "tool_call"]
    assert [one["arguments"] for one in told] == ['{"n":1}', '{"n":2}']  # type: ignore[index]  # JSON
    assert [chunk.type for chunk in chunks] == ["tool_call"] * 2 + ["tool_result"] * 2


async def test_a_long_result_is_shown_in_part_and_given_whole() -> None:
    async def talks(_arguments: object) -> str:
        return "x" * (2 * SHOWN_RESULT)

    round_, chunks = rounds(FakeTool("echo", talks))

    (result,) = await round_.run(0, [ToolCall("1", "echo")], [])

    assert len(result.content) == 2 * SHOWN_RESULT
    shown = chunks[-1].data["tool_call"]
    assert len(shown["result"]) == SHOWN_RESULT  # type: ignore[index]  # JSON
