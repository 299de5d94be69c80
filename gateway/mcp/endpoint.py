"""The MCP server: serves a desk to authenticated clients, without sessions."""

import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from gateway.domain.mcp import CLIENT, DEPTH_HEADER, Desk, Door, McpClient, Served
from gateway.domain.ports import SchemaCheck
from gateway.domain.version import VERSION

log = logging.getLogger(__name__)

ASK = "ask_agent"
MOST_MESSAGE = 400_000  # characters
IN_A_CIRCLE = (
    "An agent may not ask the agents of a gateway over MCP, because they could ask each other in an "
    "endless loop. Continue without asking."
)
_TEXT = {"type": "string", "minLength": 1, "maxLength": 256}
_ANSWER = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("response", "conversation_id", "run_id")},
    "required": ["response", "conversation_id", "run_id"],
}

Context = ServerRequestContext[Any]


@dataclass(frozen=True, slots=True)
class Handlers:
    desk: Desk
    schemas: SchemaCheck

    async def tools(
        self, context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        client = _client(context)
        tools = [
            types.Tool(
                name=spec.name,
                description=spec.description,
                input_schema=json.loads(spec.parameters),
            )
            for spec in self.desk.offered(client)
            if spec.name != ASK
        ]
        if agents := self.desk.agents(client):
            tools.append(_ask_agent(agents))
        return types.ListToolsResult(tools=tools)

    async def call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Calls a tool. An internal error reaches the client without its text."""
        try:
            served = await self._serve(context, params.name, params.arguments or {})
        except MCPError:
            raise
        except Exception:
            log.exception("mcp_call_failed", extra={"tool": params.name[:64]})
            raise MCPError(types.INTERNAL_ERROR, "internal error") from None
        return types.CallToolResult(
            content=[types.TextContent(text=served.text)],
            structured_content=dict(served.facts) or None,
            is_error=served.is_error,
        )

    async def _serve(self, context: Context, name: str, arguments: Mapping[str, Any]) -> Served:
        client = _client(context)
        if name != ASK:
            if name not in {spec.name for spec in self.desk.offered(client)}:
                raise MCPError(types.INVALID_PARAMS, f"there is no tool {name[:64]!r}")
            return await self.desk.call(client, name, arguments)
        assert context.request is not None
        if DEPTH_HEADER in context.request.headers:
            return Served(IN_A_CIRCLE, is_error=True)
        agents = self.desk.agents(client)
        if not agents:
            return Served("There is no agent that you may ask.", is_error=True)
        problem = self.schemas.compile(json.dumps(_ask_schema(agents)))(_shorten(arguments))
        if problem is not None:
            return Served(f"The arguments of {ASK} are not valid: {problem}.", is_error=True)
        return await self.desk.ask(
            client,
            arguments["message"],
            agent=arguments.get("agent"),
            conversation=arguments.get("conversation_id"),
        )


@asynccontextmanager
async def serving(desk: Desk, *, schemas: SchemaCheck, most_bytes: int) -> AsyncIterator[Door]:
    """Runs the server until the context is left."""
    logging.getLogger("mcp").setLevel(logging.WARNING)  # it logs each request with its content
    handlers = Handlers(desk, schemas)
    server: Server[Any] = Server(
        "exogate",
        version=VERSION,
        on_list_tools=handlers.tools,
        on_call_tool=handlers.call,
        get_tool_input_schema=lambda _name: None,  # no argument has to be in a header
    )
    manager = StreamableHTTPSessionManager(
        server, stateless=True, json_response=True, max_request_body_size=most_bytes
    )
    async with manager.run():
        yield manager.handle_request


def _client(context: Context) -> McpClient:
    assert context.request is not None
    client = context.request.scope["state"][CLIENT]
    assert isinstance(client, McpClient)
    return client


def _shorten(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Shortens a valid message, because it may be longer than the bound of a schema check."""
    message = arguments.get("message")
    if not isinstance(message, str) or len(message) > MOST_MESSAGE:
        return dict(arguments)
    return {**arguments, "message": message.strip()[:1]}


def _ask_agent(agents: Sequence[str]) -> types.Tool:
    return types.Tool(
        name=ASK,
        description=(
            "Ask one of this gateway's agents and wait for its answer. The agent may use its own tools "
            "and remembers the conversation of a conversation_id."
        ),
        input_schema=_ask_schema(agents),
        output_schema=_ANSWER,
        annotations=types.ToolAnnotations(read_only_hint=False),
    )


def _ask_schema(agents: Sequence[str]) -> dict[str, Any]:
    about = "The conversation to continue; without it a new one starts."
    message = {"type": "string", "pattern": r"\S", "maxLength": MOST_MESSAGE}
    agent = {"type": "string", "enum": list(agents)}
    return {
        "type": "object",
        "properties": {
            "message": {**message, "description": "The message to the agent."},
            "agent": {**agent, "description": "The agent; without it the default one answers."},
            "conversation_id": {**_TEXT, "description": about},
        },
        "required": ["message"],
        "additionalProperties": False,
    }
