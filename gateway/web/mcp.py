"""POST /mcp: the way of MCP's clients through the front door, to a server that knows nothing of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from gateway.api.errors import Forbidden
from gateway.domain.mcp import CLIENT, Client, Door
from gateway.web.asgi import principal_of
from gateway.web.identity import may
from gateway.web.published.answers import McpAnswer, McpFailure, McpMessage
from gateway.web.published.errors import ErrorAnswer
from gateway.web.published.operations import Answer, Described, Operation
from gateway.web.wire.guards import parse_json

JSON_DEPTH = 64
# Without GET, which would hold a stream open for nothing.
MCP = Operation(
    "POST",
    "/mcp",
    "A message of the Model Context Protocol (streamable HTTP); there are no sessions or streams.",
    (
        Answer(200, "The answer to a request.", McpAnswer),
        Answer(202, "A notification was taken.", media=""),
        *(
            Answer(status, says, McpFailure | ErrorAnswer)
            for status, says in (
                (400, "Not understood."),
                (404, "A session is named, and there are none."),
                (406, "Accept lacks application/json."),
                (415, "Content-Type is not application/json."),
            )
        ),
    ),
    body=McpMessage,
)


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
