"""POST /mcp: the way of MCP's clients through the front door, to a server that knows nothing of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from gateway.api.http import MCP
from gateway.domain.mcp import CLIENT, Client, Door
from gateway.web.asgi import Described, require_scope
from gateway.web.wire.guards import parse_json

JSON_DEPTH = 64


@dataclass(frozen=True, slots=True)
class McpApi:
    """Without a server there is no such address."""

    server: Door | None

    def routes(self) -> Sequence[Described]:
        return () if self.server is None else (Described(MCP, McpDoor(self.server)),)


@dataclass(frozen=True, slots=True)
class McpDoor:
    """ASGI, and raises what is refused."""

    server: Door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        principal = require_scope(request, "MCP", "chat")
        body = await request.body()
        parse_json(body, JSON_DEPTH)
        scope["state"][CLIENT] = Client(principal.name, principal.agents)
        read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def once_more() -> Message:
            return read.pop() if read else await receive()

        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await self.server({**scope, "headers": headers}, once_more, send)
