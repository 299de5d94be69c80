"""An MCP server of the official SDK with one echo tool.

    python -m bench.mcp_servers stdio | http | sessions

Over HTTP it prints its port as a line of JSON; `sessions` uses the previous protocol version, which has sessions.
"""

import json
import logging
import socket
import sys
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

SHAPE = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 1_000}},
    "required": ["text"],
}


def server() -> Server[Any]:
    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        tool = types.Tool(name="echo", description="Gives it back.", input_schema=SHAPE)
        return types.ListToolsResult(tools=[tool])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = str((params.arguments or {})["text"])
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    return Server("bench", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def over_stdio() -> None:
    async with stdio_server() as (read, write):
        one = server()
        await one.run(read, write, one.create_initialization_options())


async def over_http(*, is_legacy: bool) -> None:
    manager = StreamableHTTPSessionManager(
        server(), stateless=not is_legacy, json_response=True, security_settings=None
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if is_legacy and b"server/discover" in message.get("body", b""):
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        first = [message]

        async def again() -> Message:
            return first.pop() if first else await receive()

        await manager.handle_request(scope, again, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio checks proto
        sys.stdout.write(json.dumps({"port": listener.getsockname()[1]}) + "\n")
        sys.stdout.flush()
        settings = uvicorn.Config(app, lifespan="off", log_config=None)
        async with manager.run():
            await uvicorn.Server(settings).serve([listener])


def main() -> None:
    logging.disable(logging.CRITICAL)
    way = sys.argv[1]
    if way == "stdio":
        anyio.run(over_stdio)
    else:
        anyio.run(lambda: over_http(is_legacy=way == "sessions"))


if __name__ == "__main__":
    main()
