"""One server with all that it needs but a gateway."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import anyio.lowlevel

from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.mcp import McpServerDef
from gateway.domain.messages import ToolCall, ToolResult
from gateway.domain.ports import ToolScope, ToolStore
from gateway.host.clock import SystemClock
from gateway.mcp.servers import Connector, Server, ServerDeps, Servers
from gateway.outbound.connection import open_outbound
from gateway.schemas import SchemaChecks
from gateway.tools import ToolGate
from tests.fakes.store import open_memory
from tests.fakes.tools import FakeTool


@dataclass
class Stage:
    """`told` are events, `changed` what was told of tools that changed."""

    server: Server
    gate: ToolGate
    agent: AgentDef
    told: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    changed: list[Mapping[str, object]] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)

    def tell(self, type_: str, payload: Mapping[str, object]) -> None:
        self.told.append((type_, payload))
        self.news.set()
        self.news = anyio.Event()

    async def until_told(self, type_: str) -> None:
        with anyio.fail_after(60):
            while type_ not in [name for name, _ in self.told]:
                await self.news.wait()

    async def until_listed_again(self) -> None:
        """What it offers is looked at now, although it was a moment ago."""
        self.server.relist.set()
        await self.until(lambda: bool(self.changed))

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not is_so():
                await anyio.lowlevel.checkpoint()

    async def call(self, tool: str, arguments: str = "{}", person: str = "ann") -> ToolResult:
        name = f"{self.server.server.name}__{tool}"
        key = SessionKey(AgentId("main"), "websocket", "default", person)
        scope = ToolScope(key, RunId("r"), person)
        return await self.gate.call(self.agent, ToolCall("c", name, arguments), scope)

    def limit(self, seconds: float) -> None:
        """From now on a call has so much time."""
        limits = replace(self.agent.limits, tool_timeout_s=seconds)
        self.agent = replace(self.agent, limits=limits)

    def names(self) -> Sequence[str]:
        return [one.name for one in self.gate.offered(self.agent)]


@asynccontextmanager
async def staged(
    definition: McpServerDef,
    folder: Path,
    *,
    store: ToolStore | None = None,
    listed: Sequence[str] = (),
    own: Sequence[FakeTool] = (),
) -> AsyncIterator[Stage]:
    clock = SystemClock()
    gate = ToolGate(own, schemas=SchemaChecks(), clock=clock)
    tools = (*(one.spec.name for one in own), *(listed or [f"mcp:{definition.name}"]))
    agent = AgentDef(AgentId("main"), "fake", "m", tools=tools)
    stages: list[Stage] = []

    async def report_change(facts: Mapping[str, object]) -> None:
        stages[0].changed.append(facts)

    async with open_memory() as stores, open_outbound() as http, anyio.create_task_group() as group:
        means = ServerDeps(
            connector=Connector(http, folder, clock),
            clock=clock,
            schemas=SchemaChecks(),
            store=store or stores.tools,
            publish=lambda type_, payload: stages[0].tell(type_, payload),
            report_change=report_change,
            random=lambda: 0.1,
        )
        server = Server(definition, means, group)
        server.offer_to(gate.renew)
        gate.foreign = Servers({definition.name: server})
        stages.append(Stage(server, gate, agent))
        group.start_soon(server.run)
        yield stages[0]
        group.cancel_scope.cancel()
