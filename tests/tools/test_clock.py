"""The clock tool tells the clock's time."""

import json

import pytest

from gateway.domain.errors import ToolFailed
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.ports import ToolScope
from gateway.tools.clock import SPEC, ClockTool
from tests.fakes.clock import FakeClock

SCOPE = ToolScope(SessionKey(AgentId("a"), "c", "p"), RunId("r"), "p")


async def test_it_tells_the_time_at_an_offset() -> None:
    tool = ClockTool(FakeClock())

    assert await tool.call({}, SCOPE) == "Thursday, 01 January 2026, 12:00:00 (UTC+0000)"
    assert (await tool.call({"utc_offset_hours": 5.5}, SCOPE)).endswith("17:30:00 (UTC+0530)")


async def test_an_offset_that_is_no_number_is_refused() -> None:
    with pytest.raises(ToolFailed):
        await ClockTool(FakeClock()).call({"utc_offset_hours": "east"}, SCOPE)


def test_its_schema_is_json() -> None:
    assert json.loads(SPEC.parameters)["type"] == "object"
