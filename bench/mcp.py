"""The benchmark of MCP tools: the cost of a call through the gate and by the bare SDK.

    python -m bench.mcp [--quick] [--json FILE]

Both call the same server, a separate process, in alternating rounds. The gate checks the
arguments, finds the person's connection, adds the principal, and bounds and checks the result.
"""

import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import httpx2
import jsonschema  # type: ignore[import-untyped]  # noqa: F401  # the SDK imports it inside the event loop
from anyio import to_thread
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from bench import targets
from bench.command import run
from bench.load import ask_once
from bench.marks import Figure, marked
from bench.process import rss_kb, started, tree
from bench.targets import ModelPlan
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.mcp import McpServerDef
from gateway.domain.messages import ToolCall
from gateway.domain.ports import ToolScope
from gateway.host.clock import SystemClock
from gateway.mcp.servers import Connector, Server, ServerDeps, Servers
from gateway.outbound.connection import open_outbound
from gateway.schemas import SchemaChecks
from gateway.tools import ToolGate
from tests.fakes.store import open_memory

WAYS = ("stdio", "http", "sessions")  # `sessions` is HTTP in the previous protocol version
BASE = "bare SDK"
COMMAND = [sys.executable, "-m", "bench.mcp_servers"]
ARGUMENTS = '{"text":"hello"}'
LISTED = """
[mcp.servers.bench]
command = {command}
args = ["-m", "bench.mcp_servers", "stdio"]
env = {{{{ PYTHONPATH = {path} }}}}
"""

Both = tuple[list[float], list[float]]
Call = Callable[[], Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int = 5
    calls: int = 500
    starts: int = 5


QUICK = Sizes(rounds=3, calls=200, starts=3)
MICRO = Sizes(rounds=1, calls=5, starts=1)


@asynccontextmanager
async def gated(definition: McpServerDef, folder: Path) -> AsyncIterator[Call]:
    """Connects, and yields a call through the gate."""
    clock = SystemClock()
    gate = ToolGate([], schemas=SchemaChecks(), clock=clock)
    agent = AgentDef(AgentId("main"), "none", "m", tools=("mcp:bench",))
    key = SessionKey(agent.id, "api", "default", "ann")

    def unheard(type_: str, payload: Mapping[str, object]) -> None: ...

    async def unseen(facts: Mapping[str, object]) -> None: ...

    async def call() -> None:
        scope = ToolScope(key, RunId("r"), "ann")
        result = await gate.call(agent, ToolCall("c", "bench__echo", ARGUMENTS), scope)
        if result.content != "hello":
            raise RuntimeError(result.content)

    async with open_memory() as stores, open_outbound() as http, anyio.create_task_group() as group:
        means = ServerDeps(
            connector=Connector(http, folder, clock),
            clock=clock,
            schemas=SchemaChecks(),
            store=stores.tools,
            publish=unheard,
            report_change=unseen,
            random=lambda: 0.5,
        )
        server = Server(definition, means, group)
        server.offer_to(gate.renew)
        gate.foreign = Servers({definition.name: server})
        group.start_soon(server.run)
        if lacking := await gate.prepare(agent):
            raise RuntimeError(lacking[0].why)
        yield call
        group.cancel_scope.cancel()


@asynccontextmanager
async def bare(definition: McpServerDef) -> AsyncIterator[Call]:
    """Connects and lists the tools, and yields a call of the SDK."""
    transport: Any
    async with AsyncExitStack() as stack:
        if definition.url is None:
            parameters = StdioServerParameters(command=COMMAND[0], args=list(definition.args))
            transport = stdio_client(parameters)
        else:
            made = await to_thread.run_sync(httpx2.AsyncClient)  # reads files
            http = await stack.enter_async_context(made)
            transport = streamable_http_client(definition.url, http_client=http)
        client = await stack.enter_async_context(Client(transport, mode="auto", cache=None))
        await client.list_tools()

        async def call() -> None:
            result = await client.call_tool("echo", {"text": "hello"})
            if result.is_error:
                raise RuntimeError(str(result.content))

        yield call


@contextmanager
def served(way: str) -> Iterator[McpServerDef]:
    if way == "stdio":
        yield McpServerDef("bench", command=COMMAND[0], args=(*COMMAND[1:], "stdio"))
        return
    with started([*COMMAND, way], find_port=lambda line: int(json.loads(line)["port"])) as process:
        yield McpServerDef("bench", url=f"http://127.0.0.1:{process.port}/mcp")


async def p50_ms(call: Call, times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        took.append((time.perf_counter() - began) * 1_000)
    return median(took)


def figure(name: str, floor: list[float], gateway: list[float]) -> Figure:
    spread = (max(gateway) - min(gateway)) / median(gateway)
    return Figure(name, "ms", median(gateway), median(floor), base=BASE, spread=spread)


async def calls(definition: McpServerDef, sizes: Sizes, folder: Path) -> Both:
    """Returns milliseconds of a call by the bare SDK and through the gate."""
    took: Both = ([], [])
    async with bare(definition) as theirs, gated(definition, folder) as ours:
        for call in (theirs, ours):
            await p50_ms(call, sizes.calls // 5)  # warm
        for _ in range(sizes.rounds):
            took[0].append(await p50_ms(theirs, sizes.calls))
            took[1].append(await p50_ms(ours, sizes.calls))
    return took


async def connects(definition: McpServerDef, sizes: Sizes, folder: Path) -> Both:
    """Returns milliseconds until a server is connected and its tools are listed."""
    took: Both = ([], [])
    for _ in range(sizes.starts):
        for side, opened in zip(took, (bare(definition), gated(definition, folder)), strict=True):
            began = time.perf_counter()
            async with opened:
                side.append((time.perf_counter() - began) * 1_000)
    return took


def memory(home: Path) -> Figure:
    """Measures memory after one turn, without the process of the server."""
    server = LISTED.format(command=json.dumps(COMMAND[0]), path=json.dumps(str(Path.cwd())))
    none, one = (rss_mb(home / name, text) for name, text in (("none", ""), ("one", server)))
    return Figure("RSS of the gateway with one server", "MB", one, none, base="none")


def rss_mb(home: Path, server: str) -> float:
    config = targets.CONFIG
    if server:
        config = (
            config.replace('model = "mock-1"', 'model = "mock-1"\ntools = ["mcp:bench"]') + server
        )
    with (
        targets.model(ModelPlan()) as model,
        targets.gateway(model.port, home, config=config) as gateway,
    ):
        ask_once(gateway.port, targets.TOKEN)
        children = tree(gateway.pid)[1:]
        if bool(server) != bool(children):
            raise RuntimeError("the server was not started")
        return (rss_kb(gateway.pid) - sum(map(_own, children))) / 1024


def _own(pid: int) -> float:
    return rss_kb(pid) - sum(rss_kb(child) for child in tree(pid)[1:])


def measure(sizes: Sizes, home: Path) -> Iterator[Figure]:
    for way in WAYS:
        with served(way) as definition:
            both = anyio.run(calls, definition, sizes, home / way)
            yield marked(figure(f"a call p50, {way}", *both), 2, ratio=True)
            both = anyio.run(connects, definition, sizes, home / way)
            yield figure(f"connected and listed, {way}", *both)
    yield memory(home)


if __name__ == "__main__":
    run(__doc__, BASE, lambda quick, home: measure(QUICK if quick else Sizes(), home))
