"""Before a turn: what is waited for, and for how long."""

from collections.abc import Sequence

import anyio
import pytest

from gateway.agent.effects import Reins
from gateway.agent.leaves import prepared
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId
from gateway.domain.mcp import Lacking
from gateway.domain.messages import ToolCall, ToolResult
from gateway.domain.model import ToolSpec
from gateway.domain.ports import ToolScope
from gateway.tools.sources import NOTHING, Listed

AGENT = AgentDef(AgentId("main"), "fake", "m", tools=("mcp:slow",))


class SlowGate:
    """Its servers are never there."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    async def prepare(self, agent: AgentDef) -> Sequence[Lacking]:
        self.asked.set()
        await anyio.sleep_forever()
        return ()

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]:
        return ()

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        return ToolResult(call.id, call.name, "")

    def listed(self, result: ToolResult) -> Listed:
        return NOTHING


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_stop_ends_the_waiting_and_stays_for_the_turn(is_early: bool) -> None:
    gate, reins = SlowGate(), Reins()

    async def stop() -> None:
        if not is_early:
            await gate.asked.wait()
        reins.stop("cancelled", at_once=True)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            if is_early:
                await stop()
            else:
                group.start_soon(stop)
            lacking = await prepared(gate, AGENT, reins)

    assert lacking == ()
    assert len(reins.pulled) == 1
