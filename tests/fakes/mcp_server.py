"""MCP servers for tests: the SDK's own, over a loopback listener, that do what a test tells them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from anyio.abc import TaskStatus
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

Instead = Callable[[bytes, Send], Awaitable[bool]]
Act = Callable[[Mapping[str, Any]], Awaitable[types.CallToolResult]]
JSON = ("content-type", "application/json")
ANYTHING = {"type": "object", "properties": {}}


def text_result(text: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], **more)


async def echo(arguments: Mapping[str, Any]) -> types.CallToolResult:
    return text_result(f"echo {arguments.get('text', '')}")


@dataclass(frozen=True)
class Called:
    """A call as it came."""

    tool: str
    arguments: Mapping[str, Any]
    headers: Mapping[str, str]
    meta: Mapping[str, Any]


@dataclass
class FakeMcp:
    """`tools` may change at any time. `is_legacy`: it knows nothing of the newest protocol, and
    keeps sessions."""

    tools: list[types.Tool] = field(
        default_factory=lambda: [types.Tool(name="echo", input_schema=ANYTHING)]
    )
    acts: dict[str, Act] = field(default_factory=dict)
    is_legacy: bool = False
    url: str = ""
    calls: list[Called] = field(default_factory=list)
    requests: list[Mapping[str, str]] = field(default_factory=list)  # their headers
    redirect_to: str | None = None
    get_status: int = 405
    gets: list[int] = field(default_factory=list)
    instead: Instead | None = None  # answers a request itself, or gives False
    came: anyio.Event = field(default_factory=anyio.Event)
    stop: Callable[[], Awaitable[None]] = anyio.sleep_forever  # as if it were killed
    restart: Callable[[], Awaitable[None]] = anyio.sleep_forever

    def server(self) -> Server[Any]:
        async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
            return types.ListToolsResult(tools=list(self.tools))

        async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> Any:
            arguments = params.arguments or {}
            headers = dict(ctx.request.headers) if ctx.request else {}
            meta = dict(params.meta or {})
            self.calls.append(Called(params.name, arguments, headers, meta))
            self.came.set()
            return await self.acts.get(params.name, echo)(arguments)

        return Server("fake", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


@asynccontextmanager
async def serving(fake: FakeMcp, port: int = 0) -> AsyncIterator[FakeMcp]:
    """Until the context is left; then its port is free for another."""
    async with anyio.create_task_group() as group:
        await group.start(_life, fake, port)

        async def restart() -> None:
            await fake.stop()
            await group.start(_life, fake, int(fake.url.split(":")[2].split("/")[0]))

        fake.restart = restart
        try:
            yield fake
        finally:
            with anyio.CancelScope(shield=True):
                await fake.stop()


async def _life(fake: FakeMcp, port: int, *, task_status: TaskStatus[None]) -> None:
    manager = StreamableHTTPSessionManager(
        fake.server(), stateless=not fake.is_legacy, json_response=True, security_settings=None
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        fake.requests.append({k.decode(): v.decode() for k, v in scope["headers"]})
        if fake.redirect_to is not None:
            await answer(send, 307, b"", ("location", fake.redirect_to))
            return
        if scope["method"] == "GET":  # there is nothing to listen to
            fake.gets.append(fake.get_status)
            await answer(send, fake.get_status, b"", ("allow", "POST, DELETE"))
            return
        body, receive = await _peeked(receive)
        if fake.instead is not None and await fake.instead(body, send):
            return
        if fake.is_legacy and b"server/discover" in body:
            await answer(send, 400, refusal(-32601, "unknown"))
            return
        await manager.handle_request(scope, receive, send)

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    settings = uvicorn.Config(app, lifespan="off", log_config=None)
    settings.load()
    server = uvicorn.Server(settings)
    server.lifespan = settings.lifespan_class(settings)
    over, ended = anyio.Event(), anyio.Event()

    async def stop() -> None:
        over.set()
        await ended.wait()

    fake.stop = stop
    async with manager.run():
        try:
            await server.startup([listener])
            task_status.started()
            await over.wait()
            await _killed(server)
        finally:
            ended.set()  # the port is free; the manager may try for a second yet to tell its calls


async def _killed(server: uvicorn.Server) -> None:
    """As if its process were: whoever is connected hears of it at once."""
    server.force_exit = True
    tasks = list(server.server_state.tasks)
    for connection in list(server.server_state.connections):
        if connection.transport is not None:
            connection.transport.abort()
    for task in tasks:
        task.cancel()
    with anyio.CancelScope(shield=True):
        if tasks:
            await asyncio.wait(tasks)
        await server.shutdown()


def refusal(code: int, said: str, id_: object = 1) -> bytes:
    error = {"code": code, "message": said}
    return json.dumps({"jsonrpc": "2.0", "id": id_, "error": error}).encode()


async def answer(send: Send, status: int, body: bytes, header: tuple[str, str] = JSON) -> None:
    headers = [(header[0].encode(), header[1].encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _peeked(receive: Receive) -> tuple[bytes, Receive]:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    body = b"".join(one.get("body", b"") for one in messages)

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return body, again
