"""A round tells every call before any result, and answers each one, also those that are refused."""

import json

import pytest

from gateway.agent.job import Job
from gateway.agent.rounds import MOST_CITED, SHOWN_RESULT, Rounds
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


def citing(*ids: str) -> FakeTool:
    async def cites(_arguments: object) -> str:
        return json.dumps({"sources": [{"id": id_} for id_ in ids]})

    return FakeTool("echo", cites)


def cited(chunks: list[Chunk]) -> list[object]:
    return [chunk.data["source"] for chunk in chunks if chunk.type == "source"]


async def test_every_call_is_told_with_its_arguments_before_any_result() -> None:
    round_, chunks = rounds(FakeTool())
    asked = [ToolCall("1", "echo", '{"n":1}'), ToolCall("2", "echo", '{"n":2}')]
    refused = [ToolResult("2", "echo", "too many", is_error=True)]

    results = await round_.run(0, asked, refused)

    assert [result.call_id for result in results] == ["1", "2"]
    told = [chunk.data["tool_call"] for chunk in chunks if chunk.type == "tool_call"]
    assert [one["arguments"] for one in told] == ['{"n":1}', '{"n":2}']  # type: ignore[index]  # JSON
    assert [chunk.type for chunk in chunks] == ["tool_call"] * 2 + ["tool_result"] * 2


@pytest.mark.requirement("S-002-Tools-12")
async def test_a_long_result_is_shown_in_part_and_given_whole() -> None:
    async def talks(_arguments: object) -> str:
        return "x" * (2 * SHOWN_RESULT)

    round_, chunks = rounds(FakeTool("echo", talks))

    (result,) = await round_.run(0, [ToolCall("1", "echo")], [])

    assert len(result.content) == 2 * SHOWN_RESULT
    shown = chunks[-1].data["tool_call"]
    assert len(shown["result"]) == SHOWN_RESULT  # type: ignore[index]  # JSON


@pytest.mark.requirement("S-002-Tools-09")
async def test_the_sources_of_a_result_follow_it_each_once_a_run() -> None:
    round_, chunks = rounds(citing("n1", "n2"))

    await round_.run(0, [ToolCall("1", "echo")], [])
    await round_.run(1, [ToolCall("2", "echo")], [])

    assert cited(chunks) == [
        {"id": "n1", "title": "n1", "url": None, "tool_call_id": "1"},
        {"id": "n2", "title": "n2", "url": None, "tool_call_id": "1"},
    ]
    assert [chunk.type for chunk in chunks] == [
        *("tool_call", "tool_result", "source", "source"),
        *("tool_call", "tool_result"),
    ]


async def test_a_run_names_no_more_sources_than_anybody_reads() -> None:
    numbers = iter(range(10**6))

    async def cites(_arguments: object) -> str:
        return json.dumps({"sources": [{"id": f"n{next(numbers)}"} for _ in range(50)]})

    round_, chunks = rounds(FakeTool("echo", cites))
    for step in range(MOST_CITED // 50 + 1):
        await round_.run(step, [ToolCall(str(step), "echo")], [])

    assert len(cited(chunks)) == MOST_CITED


async def test_a_result_of_an_earlier_attempt_names_its_sources_again() -> None:
    first, _ = rounds(citing("n1"))
    await first.run(0, [ToolCall("1", "echo")], [])
    tool = citing("n2")
    again, chunks = rounds(tool)

    await Rounds(again.job, again.gate, first.story, again.emit).run(0, [ToolCall("1", "echo")], [])

    assert tool.calls == []
    assert [one["id"] for one in cited(chunks)] == ["n1"]  # type: ignore[index]  # JSON
