"""What has to be there before a turn."""

from collections.abc import Sequence

import anyio

from gateway.agent.job import Gate
from gateway.agent.reins import Reins, Stop
from gateway.domain.agents import AgentDef
from gateway.domain.mcp import Lacking


async def prepared(gate: Gate, agent: AgentDef, reins: Reins) -> Sequence[Lacking]:
    """What the agent has and cannot have now. Whoever stops the run waits for no server."""
    with anyio.CancelScope() as scope:

        def wake() -> None:
            if any(isinstance(one, Stop) for one in reins.pulled):
                scope.cancel()

        reins.wake = wake
        wake()
        return await gate.prepare(agent)
    return ()
