"""What is served at /mcp, if the configuration enables it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

from anyio import to_thread
from pydantic_core import from_json, to_json

from gateway.app.agents import usual_agent
from gateway.config.values import GatewayConfig
from gateway.domain.mcp import Desk, Door, McpNotInstalled
from gateway.domain.ports import Ids
from gateway.schemas import SchemaChecks
from gateway.sessions.desk import ServedDesk
from gateway.sessions.front import Front
from gateway.tools.gate import ToolGate

Serving = Callable[[Desk], AbstractAsyncContextManager[Door]]


@asynccontextmanager
async def mcp_served(
    config: GatewayConfig, front: Front, gate: ToolGate, ids: Ids
) -> AsyncIterator[Door | None]:
    """Raises McpNotInstalled."""
    if not config.mcp_serving.is_enabled:
        yield None
        return
    serving = await to_thread.run_sync(_serving, config.gateway.max_body_bytes)
    agent = replace(usual_agent(config), tools=config.mcp_serving.tools)
    async with serving(ServedDesk(front, gate, agent, to_json, from_json, ids)) as door:
        yield door


def _serving(most_bytes: int) -> Serving:
    """To import it takes a third of a second, which a gateway without MCP does not wait."""
    try:
        from gateway.mcp.serving import serving  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise McpNotInstalled from error
    return partial(serving, schemas=SchemaChecks(), most_bytes=most_bytes)
