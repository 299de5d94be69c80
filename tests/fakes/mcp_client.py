"""A client of MCP as others write one: the official SDK over HTTP."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import httpx2
import jsonschema  # type: ignore[import-untyped]  # noqa: F401  # the SDK does it in the loop
import mcp_types as types
from anyio import to_thread
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

ERAS = ("auto", "legacy")  # without and with the handshake


@asynccontextmanager
async def mcp_client(
    url: str,
    token: str | None = None,
    *,
    era: Any = "auto",
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Client]:
    """Of the gateway at an http address; each call has five seconds."""
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    made = partial(httpx2.AsyncClient, headers=sent, trust_env=False)
    async with await to_thread.run_sync(made) as http:  # it reads files
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        with anyio.fail_after(60):
            async with Client(transport, mode=era, read_timeout_seconds=5.0) as client:
                yield client


def text_of(result: types.CallToolResult) -> str:
    (part,) = result.content
    assert isinstance(part, types.TextContent)
    return part.text


async def names_of(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]
