"""The MCP server: what a desk serves, for clients whom the front door let in. It keeps no sessions."""

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
    "An agent may not ask the agents of its own gateway, or of another, over MCP: they could ask each "
    "other for ever. Do it without asking."
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
        """Whatever goes wrong on our side is told without its words."""
        try:
            served = await self._served(context, params.name, params.arguments or {})
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

    async def _served(self, context: Context, name: str, arguments: Mapping[str, Any]) -> Served:
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
        problem = self.schemas.compile(json.dumps(_question(agents)))(_briefly(arguments))
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
    """The server, at work until the context is left."""
    logging.getLogger("mcp").setLevel(logging.WARNING)  # it tells of each request, and what it held
    handlers = Handlers(desk, schemas)
    server: Server[Any] = Server(
        "exogate",
        version=VERSION,
        on_list_tools=handlers.tools,
        on_call_tool=handlers.call,
        get_tool_input_schema=lambda _name: None,  # no argument is wanted in a header as well
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


def _briefly(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message may be longer than what is checked against schemas: whether it is one shows in less."""
    message = arguments.get("message")
    if not isinstance(message, str) or len(message) > MOST_MESSAGE:
        return dict(arguments)
    return {**arguments, "message": message.strip()[:1]}


def _ask_agent(agents: Sequence[str]) -> types.Tool:
    return types.Tool(
        name=ASK,
        description=(
            "Ask one of this gateway's agents, and wait for its answer. It may use its own tools, and "
            "remembers what was said under the same conversation_id."
        ),
        input_schema=_question(agents),
        output_schema=_ANSWER,
        annotations=types.ToolAnnotations(read_only_hint=False),
    )


def _question(agents: Sequence[str]) -> dict[str, Any]:
    """The schema of what is asked."""
    told = {
        "message": "What to say to the agent.",
        "agent": "Which agent; without it the one that usually answers.",
        "conversation_id": "Goes on with a conversation; without it a new one begins.",
    }
    kinds: dict[str, dict[str, Any]] = {
        "message": {"type": "string", "pattern": r"\S", "maxLength": MOST_MESSAGE},
        "agent": {"type": "string", "enum": list(agents)},
        "conversation_id": _TEXT,
    }
    return {
        "type": "object",
        "properties": {name: {**kinds[name], "description": text} for name, text in told.items()},
        "required": ["message"],
        "additionalProperties": False,
    }
