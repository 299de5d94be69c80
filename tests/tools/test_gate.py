"""The gate: an agent's tools, valid arguments, in time; everything else is a result that helps."""

import json
from collections.abc import Mapping
from dataclasses import replace

import anyio
import pytest

from gateway.domain.agents import AgentDef, Limits
from gateway.domain.errors import ToolFailed
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.messages import ToolCall
from gateway.domain.ports import ToolScope
from gateway.tools.gate import ToolGate
from tests.fakes.clock import FakeClock
from tests.fakes.tools import FakeTool, NoSchemas

AGENT = AgentDef(AgentId("a"), "p", "m", tools=("echo", "absent"))
SCOPE = ToolScope(SessionKey(AGENT.id, "c", "p"), RunId("r"), "p")


def gate(*tools: FakeTool) -> ToolGate:
    return ToolGate(tools, schemas=NoSchemas(), decode=json.loads, clock=FakeClock())


@pytest.mark.requirement("S-003-AgentDef-10", "S-000-ToolCall-01")
async def test_a_listed_tool_is_called_in_the_hosts_scope() -> None:
    tool = FakeTool()

    result = await gate(tool).call(AGENT, ToolCall("1", "echo", '{"x":1}'), SCOPE)

    assert (result.call_id, result.content, result.is_error) == ("1", '{"x": 1}', False)
    assert tool.calls == [({"x": 1}, SCOPE)]


@pytest.mark.requirement("S-003-AgentDef-10", "S-000-ToolCall-02", "S-000-Tool-02", "S-000-Tool-06")
async def test_a_tool_that_is_not_listed_is_neither_offered_nor_called() -> None:
    hidden = FakeTool("hidden")
    tools = gate(FakeTool(), hidden)

    result = await tools.call(AGENT, ToolCall("1", "hidden"), SCOPE)

    assert [spec.name for spec in tools.offered(AGENT)] == ["echo"]
    assert result.is_error
    assert "Available tools: echo" in result.content
    assert hidden.calls == []


@pytest.mark.requirement("S-000-ToolCall-03", "S-002-Tools-02")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{", "not valid JSON"),
        ("[1]", "JSON object"),
        ("null", "JSON object"),
        ('{"bad":1}', "bad: is not allowed"),
    ],
)
async def test_bad_arguments_come_back_as_a_result(arguments: str, says: str) -> None:
    tool = FakeTool()

    result = await gate(tool).call(AGENT, ToolCall("1", "echo", arguments), SCOPE)

    assert result.is_error
    assert says in result.content
    assert tool.calls == []


async def test_no_arguments_are_an_empty_object() -> None:
    result = await gate(FakeTool()).call(AGENT, ToolCall("1", "echo", ""), SCOPE)

    assert result.content == "{}"


async def test_a_tool_that_fails_or_takes_too_long_says_so() -> None:
    async def fails(arguments: Mapping[str, object]) -> str:
        raise ToolFailed("the moon is down")

    async def stalls(arguments: Mapping[str, object]) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    quick = replace(AGENT, limits=Limits(tool_timeout_s=0.01))

    failed = await gate(FakeTool("echo", fails)).call(AGENT, ToolCall("1", "echo"), SCOPE)
    late = await gate(FakeTool("echo", stalls)).call(quick, ToolCall("2", "echo"), SCOPE)

    assert (failed.content, failed.is_error) == ("the moon is down", True)
    assert (late.content, late.is_error) == ("echo did not answer within 0.01 s.", True)
