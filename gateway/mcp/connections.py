"""Connections to a server: opened and left in one task each, one for all or one a person."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import anyio
import httpx2
import mcp_types as types
from anyio.abc import TaskGroup, TaskStatus
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from gateway.domain.mcp import McpServerDef
from gateway.domain.ports import Clock, Http
from gateway.domain.supervision import survives
from gateway.domain.version import VERSION
from gateway.mcp.transports import (
    MOST_BYTES,
    HttpTransport,
    RequestState,
    child,
    current_request,
    current_trace,
)

# ---------------------------------------------------------------------------------- one connection
MOST_TOOLS = 128
MOST_PAGES = 20
MOST_PARTS = 1_000  # of a result
LONGEST_WHY = 300
_MOST_WHY = 8_192  # it is cut once no secret can be cut in two

for _name in ("mcp.client", "httpx2"):  # they tell addresses with their queries, and traces
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class ConnectionBroke(Exception):
    """The connection broke under a call; `is_done` False: the server surely did not execute it."""

    def __init__(self, *, is_done: bool | None = None) -> None:
        super().__init__("the connection broke")
        self.is_done = is_done


class _Result(types.CallToolResult):
    """Each wrong part costs more to say than a right one to read: the first ends it."""

    content: Annotated[list[types.ContentBlock], Field(max_length=MOST_PARTS, fail_fast=True)]


class ProgramEnded(Exception):
    """The program ended before it was connected; the text says how."""


@dataclass(slots=True)
class ServerConnection:
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
        """Raises ConnectionBroke, or MCPError and ValueError with what the server answered instead."""
        meta: Any = {"exogate/user": person}
        if (trace := current_trace.get()) is not None:
            meta["traceparent"] = trace
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments), _meta=meta)
        request = types.CallToolRequest(params=params)
        known = RequestState()
        told = current_request.set(known)
        self.at_work += 1
        try:
            # Client.call_tool checks results with patterns that may hold up everybody
            return await self.client.session.send_request(request, _Result)
        except MCPError as error:
            self._judge(error, known)
            raise
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            self.end("the connection broke")
            raise ConnectionBroke from error
        except anyio.get_cancelled_exc_class():
            self.given_up += 1
            raise
        finally:
            self.at_work -= 1
            current_request.reset(told)

    def _judge(self, error: MCPError, known: RequestState) -> None:
        """Raises ConnectionBroke unless it is the server's own word. The SDK has one code for its troubles,
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
            raise ConnectionBroke(is_done=known.is_done) from error


@dataclass(frozen=True, slots=True)
class Connector:
    """Opens connections. `folder`: where the programs of servers have theirs."""

    http: Http
    folder: Path
    clock: Clock

    @asynccontextmanager
    async def connect(self, server: McpServerDef) -> AsyncIterator[ServerConnection]:
        """To be left by whoever entered it."""
        line: list[ServerConnection] = []
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
                    raise ProgramEnded(reasons[0]) from error
                raise
            line.append(ServerConnection(client, self.clock.monotonic()))
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
        carrier = HttpTransport(self.http, server.url, headers, server.user_header)
        http = httpx2.AsyncClient(transport=carrier, trust_env=False, timeout=None)
        await stack.enter_async_context(http)
        return streamable_http_client(server.url, http_client=http, max_sse_event_size=MOST_BYTES)


def reason_of(error: BaseException) -> str:
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
        case httpx2.HTTPError() | MCPError() | ProgramEnded():
            return " ".join(str(error).split())[:_MOST_WHY] or type(error).__name__
    return f"it does not speak MCP as it should ({type(error).__name__})"


# ---------------------------------------------------------------------------------------- the pool
log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
MOST_GIVEN_UP = 8  # on one: a server may keep their answers open for as long as it lasts


class ServerUnreachable(Exception):
    """It cannot be connected; the text is one sentence."""


@dataclass(slots=True)
class ConnectionPool:
    """`group` holds the task of each connection; whoever calls over one of a person holds `room`."""

    server: McpServerDef
    connector: Connector
    clock: Clock
    group: TaskGroup
    room: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(MOST_CONNECTIONS))
    _lines: dict[str, ServerConnection] = field(default_factory=dict)
    _opening: dict[str, anyio.Event] = field(default_factory=dict)

    async def of(self, person: str) -> ServerConnection:
        """Raises Unreachable."""
        while person in self._opening:
            await self._opening[person].wait()
        line = self._lines.get(person)
        if line is not None and line.given_up >= MOST_GIVEN_UP and not line.at_work:
            line.end("too many calls were given up")
        if line is None or line.over.is_set():
            done = self._opening[person] = anyio.Event()
            try:
                self._make_room()
                line = self._lines[person] = await self.open()
            finally:
                del self._opening[person]
                done.set()
        line.used_at = self.clock.monotonic()
        return line

    async def open(self) -> ServerConnection:
        """One more, for whoever asks. Raises Unreachable."""
        try:
            with anyio.fail_after(self.server.timeout_s):
                line: ServerConnection = await self.group.start(self._keep)
                return line
        except TimeoutError as error:
            told = f"it did not answer within {self.server.timeout_s:g} s"
            raise ServerUnreachable(told) from error

    async def _keep(self, *, task_status: TaskStatus[ServerConnection]) -> None:
        """Whatever a server does, it ends nothing but its own connection."""
        line: ServerConnection | None = None
        try:
            async with self.connector.connect(self.server) as line:
                task_status.started(line)
                await line.over.wait()
        except BaseException as error:
            if not survives(error):
                raise
            why = self.server.scrubbed(reason_of(error))[:LONGEST_WHY]
            if line is None:
                raise ServerUnreachable(why) from error
            line.end(why)
            line.why = why
            log.info("mcp_connection_broke", extra={"server": self.server.name, "why": why})
        finally:
            if line is not None:
                line.end("the connection is closed")

    def _make_room(self) -> None:
        self._lines = {name: one for name, one in self._lines.items() if not one.over.is_set()}
        if len(self._lines) + len(self._opening) <= MOST_CONNECTIONS:
            return
        idle = [name for name, one in self._lines.items() if not one.at_work]  # thanks to `room`
        oldest = min(idle, key=lambda name: self._lines[name].used_at)
        self._lines.pop(oldest).end("another person needs its place")

    def close(self, before: float) -> None:
        """Those that nobody has used since then."""
        for one in self._lines.values():
            if one.used_at <= before and not one.at_work:
                one.end("nobody uses it")
