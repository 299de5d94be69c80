"""One connection to a server: opened and left in one task, used by others."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import anyio
import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from gateway.domain.mcp import McpServerDef
from gateway.domain.ports import Clock, Http
from gateway.domain.version import VERSION
from gateway.mcp.bounds import MOST_BYTES
from gateway.mcp.carrying import Carrier, Fate, fate
from gateway.mcp.children import child

MOST_TOOLS = 128
MOST_PAGES = 20
MOST_PARTS = 1_000  # of a result
LONGEST_WHY = 300
_MOST_WHY = 8_192  # it is cut once no secret can be cut in two

for _name in ("mcp.client", "httpx2"):  # they tell addresses with their queries, and traces
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Broke(Exception):
    """The connection broke under a call; `is_done` False: the server surely did not execute it."""

    def __init__(self, *, is_done: bool | None = None) -> None:
        super().__init__("the connection broke")
        self.is_done = is_done


class _Result(types.CallToolResult):
    """Each wrong part costs more to say than a right one to read: the first ends it."""

    content: Annotated[list[types.ContentBlock], Field(max_length=MOST_PARTS, fail_fast=True)]


class Ended(Exception):
    """The program ended before it was connected; the text says how."""


@dataclass(slots=True)
class ServerLine:
    """An open connection; `over` says that it has to be left, or is."""

    client: Client
    used_at: float
    over: anyio.Event = field(default_factory=anyio.Event)
    why: str = "the connection ended"
    at_work: int = 0
    given_up: int = 0  # calls whose answers may still be on their way

    @property
    def version(self) -> str:
        return self.client.protocol_version

    @property
    def is_stateful(self) -> bool:
        return self.version not in MODERN_PROTOCOL_VERSIONS

    def end(self, why: str) -> None:
        if not self.over.is_set():
            self.why = why
            self.over.set()

    async def tools(self) -> Sequence[types.Tool]:
        tools: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            tools += page.tools[: MOST_TOOLS - len(tools)]
            cursor = page.next_cursor
            if cursor is None or len(tools) >= MOST_TOOLS:
                break
        return tools

    async def call(
        self, tool: str, arguments: Mapping[str, object], person: str
    ) -> types.CallToolResult:
        """Raises Broke, or MCPError and ValueError with what the server answered instead."""
        meta: Any = {"exogate/user": person}
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments), _meta=meta)
        request = types.CallToolRequest(params=params)
        known = Fate()
        told = fate.set(known)
        self.at_work += 1
        try:
            # Client.call_tool checks results with patterns that may hold up everybody
            return await self.client.session.send_request(request, _Result)
        except MCPError as error:
            self._judge(error, known)
            raise
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            self.end("the connection broke")
            raise Broke from error
        except anyio.get_cancelled_exc_class():
            self.given_up += 1
            raise
        finally:
            self.at_work -= 1
            fate.reset(told)

    def _judge(self, error: MCPError, known: Fate) -> None:
        """Raises Broke unless it is the server's own word. The SDK has one code for its troubles,
        and many a server the same for others."""
        if known.too_much:
            told = f"It answered with {known.too_much}."
            raise MCPError(code=types.INTERNAL_ERROR, message=told) from error
        is_vague = error.code == types.CONNECTION_CLOSED
        if known.has_no_session(is_vague=is_vague):
            self.end("the server has forgotten the session")
        elif is_vague and error.message == "Connection closed":
            self.end("the connection broke")
        is_cut = known.is_lost or (is_vague and error.message.startswith("SSE stream "))
        if is_cut or self.over.is_set():
            raise Broke(is_done=known.is_done) from error


@dataclass(frozen=True, slots=True)
class Dialling:
    """Opens connections. `folder`: where the programs of servers have theirs."""

    http: Http
    folder: Path
    clock: Clock

    @asynccontextmanager
    async def line(self, server: McpServerDef) -> AsyncIterator[ServerLine]:
        """To be left by whoever entered it."""
        line: list[ServerLine] = []
        reasons: list[str] = []

        def ended(why: str) -> None:
            reasons.append(why)
            for one in line:
                one.end(why)

        async with AsyncExitStack() as stack:
            transport = await self._transport(server, stack, ended)
            about = types.Implementation(name="exogate", version=VERSION)
            client = Client(transport, mode="auto", cache=None, client_info=about)
            try:
                await stack.enter_async_context(client)
            except Exception as error:
                if reasons:
                    raise Ended(reasons[0]) from error
                raise
            line.append(ServerLine(client, self.clock.monotonic()))
            yield line[0]

    async def _transport(
        self,
        server: McpServerDef,
        stack: AsyncExitStack,
        ended: Callable[[str], None],
    ) -> Any:
        if server.url is None:
            own = self.folder / server.name
            await anyio.Path(own).mkdir(mode=0o700, parents=True, exist_ok=True)
            return child(server, own, self.clock, ended)
        headers = {name: value.reveal() for name, value in server.headers.items()}
        carrier = Carrier(self.http, server.url, headers, server.user_header)
        http = httpx2.AsyncClient(transport=carrier, trust_env=False, timeout=None)
        await stack.enter_async_context(http)
        return streamable_http_client(server.url, http_client=http, max_sse_event_size=MOST_BYTES)


def why_not(error: BaseException) -> str:
    """What went wrong, in one short sentence for the operator."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case FileNotFoundError():
            return f"there is no program {error.filename!r}"
        case OSError():
            return f"it cannot be started: {error.strerror or type(error).__name__}"
        case TimeoutError():
            return "it was not there in time"
        case httpx2.HTTPError() | MCPError() | Ended():
            return " ".join(str(error).split())[:_MOST_WHY] or type(error).__name__
    return f"it does not speak MCP as it should ({type(error).__name__})"
