"""All configured servers: what agents list of them is connected before their turns."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from gateway.domain.agents import AgentDef
from gateway.domain.mcp import Lacking, McpServerDef, McpStatus, servers_in
from gateway.domain.supervision import supervise
from gateway.mcp.supervising import Means, Server


@dataclass(frozen=True, slots=True)
class Servers:
    """Implements the Foreign port."""

    by_name: Mapping[str, Server]

    async def prepare(self, agent: AgentDef) -> Sequence[Lacking]:
        """Side by side, each within its own time, and none for longer than a run may take."""
        lacking: list[Lacking] = []

        async def ready(server: Server) -> None:
            if (away := await server.ready(agent.limits.timeout_seconds)) is not None:
                lacking.append(away)

        async with anyio.create_task_group() as group:
            for name in servers_in(agent.tools):
                if name in self.by_name:
                    group.start_soon(ready, self.by_name[name])
        return sorted(lacking, key=lambda one: one.server)

    def statuses(self) -> Sequence[McpStatus]:
        return tuple(one.status for one in self.by_name.values())

    def outcomes(self) -> Mapping[tuple[str, str], int]:
        return {
            (name, outcome): count
            for name, server in self.by_name.items()
            for outcome, count in server.outcomes.items()
        }


@asynccontextmanager
async def open_servers(definitions: Sequence[McpServerDef], means: Means) -> AsyncIterator[Servers]:
    """Supervises each server in a task of its own. Nothing is connected until a turn of an agent that
    has it begins."""
    async with anyio.create_task_group() as group:
        servers = Servers({one.name: Server(one, means, group) for one in definitions})
        for name, server in servers.by_name.items():
            task = f"mcp:{name}"
            group.start_soon(supervise, task, server.run, means.clock, name=task)
        try:
            yield servers
        finally:
            group.cancel_scope.cancel()
