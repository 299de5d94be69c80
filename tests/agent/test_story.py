"""A story is told again exactly as it was noted."""

import json

from gateway.agent.effects import Json, Story
from gateway.domain.ids import RunId
from gateway.domain.messages import Extras, Spent, ToolCall, ToolResult, Usage
from gateway.domain.model import ModelReply
from tests.fakes.clock import FakeClock
from tests.fakes.journal import FakeJournal

JSON = Json(lambda value: json.dumps(value).encode(), json.loads)
REPLY = ModelReply(
    "p",
    "m",
    "text",
    "thought",
    (ToolCall("1", "echo", '{"a":1}'), ToolCall("2", "echo")),
    Usage(1, 2, 3, 4, 0.5, estimated=True),
    "tool_calls",
    Extras("p", "[1]"),
)

SPENT = (Spent(Usage(10, 5, cost_usd=0.25), "p", "small"), Spent(Usage(1, 1), "q", "other"))


async def test_replies_and_results_come_back_as_they_were() -> None:
    journal, run = FakeJournal(), RunId("r")
    first = Story(run, journal, FakeClock(), JSON)
    result = ToolResult("1", "echo", "done", is_error=True, duration_ms=1.5, spent=SPENT)
    await first.note_reply(0, REPLY)
    await first.note_result(0, result)

    again = Story(run, journal, FakeClock(), JSON)
    await again.recall()

    assert again.reply(0) == REPLY
    assert again.reply(1) is None
    assert again.result(0, REPLY.tool_calls[0]) == result
    assert again.result(0, REPLY.tool_calls[1]) is None


async def test_a_call_that_has_begun_is_known_in_its_own_part_of_the_story_alone() -> None:
    journal, run, call = FakeJournal(), RunId("r"), ToolCall("1", "pay")
    await Story(run, journal, FakeClock(), JSON, "@0-x:").note_begun(2, call)

    inside, outside = (Story(run, journal, FakeClock(), JSON, part) for part in ("@0-x:", ""))
    await inside.recall()
    await outside.recall()

    assert inside.has_begun(2, call)
    assert not inside.has_begun(1, call)
    assert not outside.has_begun(2, call)
    assert inside.result(2, call) is None
