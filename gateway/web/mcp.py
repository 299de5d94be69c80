"""POST /mcp: the way of MCP's clients through the front door, to a server that knows nothing of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from gateway.domain.mcp import CLIENT, Client, Door
from gateway.web.asgi import principal_of
from gateway.web.guards import parse_json
from gateway.web.identity import may
from gateway.web.refusals import Forbidden, MethodNotAllowed

JSON_DEPTH = 64


@dataclass(frozen=True, slots=True)
class McpApi:
    """Without a server there is no such address."""

    server: Door | None

    def routes(self) -> Sequence[BaseRoute]:
        return () if self.server is None else (Route("/mcp", McpDoor(self.server)),)


@dataclass(frozen=True, slots=True)
class McpDoor:
    """ASGI, and raises what is refused."""

    server: Door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method != "POST":  # a GET would hold a stream open for nothing
            raise MethodNotAllowed("MCP is spoken by POST here; there are no sessions or streams")
        principal = principal_of(request)
        if not may(principal, "chat"):
            raise Forbidden("MCP needs the scope 'chat'")
        body = await request.body()
        parse_json(body, JSON_DEPTH)
        scope["state"][CLIENT] = Client(principal.name, principal.agents)
        read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def once_more() -> Message:
            return read.pop() if read else await receive()

        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await self.server({**scope, "headers": headers}, once_more, send)
