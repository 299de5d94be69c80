"""MCP servers whose tools agents have, and what is served at /mcp."""

import importlib.util
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
from anyio import to_thread
from pydantic_core import from_json, to_json

from gateway.app.agents import usual_agent
from gateway.app.doors import tell_of_gateway
from gateway.config.values import GatewayConfig
from gateway.control.notices import Bus
from gateway.domain.events import Deed
from gateway.domain.mcp import Desk, Door, McpNotInstalled
from gateway.domain.ports import Clock, Ids, Stores
from gateway.domain.supervision import supervise
from gateway.schemas import SchemaChecks
from gateway.sessions.intake import Front, ServedDesk
from gateway.tools.gate import ToolGate


@asynccontextmanager
async def mcp_servers(
    config: GatewayConfig, gate: ToolGate, stores: Stores, bus: Bus, clock: Clock
) -> AsyncIterator[None]:
    """Raises McpNotInstalled. Nothing is connected until a turn of an agent that has it begins."""
    if not config.mcp_servers:
        yield
        return
    if importlib.util.find_spec("mcp") is None:
        raise McpNotInstalled
    # They are slow to import.
    from gateway.mcp.connecting import Dialling  # noqa: PLC0415
    from gateway.mcp.servers import Servers  # noqa: PLC0415
    from gateway.mcp.supervising import Means, Server  # noqa: PLC0415
    from gateway.outbound.client import open_outbound  # noqa: PLC0415

    tell = partial(tell_of_gateway, bus, clock)

    async def told_changed(facts: Mapping[str, object]) -> None:
        tell("mcp.tool.changed", facts)
        actor = f"mcp:{facts['server']}"
        await stores.audit.append(Deed(clock.now(), "mcp.tool.changed", actor, facts))

    async with open_outbound() as http, anyio.create_task_group() as group:
        means = Means(
            dial=Dialling(http, config.gateway.data_dir / "mcp", clock).line,
            clock=clock,
            schemas=SchemaChecks(),
            store=stores.plugins,
            renew=gate.renew,
            tell=tell,
            told_changed=told_changed,
            random=random.random,
        )
        servers = Servers({one.name: Server(one, means, group) for one in config.mcp_servers})
        for server in servers.by_name.values():
            group.start_soon(
                supervise,
                f"mcp:{server.server.name}",
                server.run,
                clock,
                name=f"mcp:{server.server.name}",
            )
        gate.foreign = servers
        try:
            yield
        finally:
            group.cancel_scope.cancel()


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
