"""Connections to an MCP server: one task each; one for all people, or one a person."""

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
    current_request,
    current_trace,
    run_program,
)

# ---------------------------------------------------------------------------------- one connection
MOST_TOOLS = 128
MOST_PAGES = 20
MOST_PARTS = 1_000  # of a result
LONGEST_WHY = 300
_MOST_WHY = 8_192  # before scrubbing; a cut to LONGEST_WHY could split a secret

for _name in ("mcp.client", "httpx2"):  # they log full addresses and tracebacks
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class ConnectionBroke(Exception):
    """The connection broke during a call. `is_done` False means that the server did not execute it;
    None means that it may have."""

    def __init__(self, *, is_done: bool | None = None) -> None:
        super().__init__("the connection broke")
        self.is_done = is_done


class _Result(types.CallToolResult):
    """A result whose validation stops at the first wrong part, because error reports are costly."""

    content: Annotated[list[types.ContentBlock], Field(max_length=MOST_PARTS, fail_fast=True)]


class ProgramEnded(Exception):
    """The program ended before the connection was made; the text says how."""


@dataclass(slots=True)
class ServerConnection:
    """An open connection. `over` is set once it must close or is closed."""

    client: Client
    used_at: float
    over: anyio.Event = field(default_factory=anyio.Event)
    why: str = "the connection ended"
    running: int = 0  # calls
    abandoned: int = 0  # calls whose answers may still arrive

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
        """Calls a tool. Raises ConnectionBroke, or MCPError and ValueError for another answer of the
        server."""
        meta: Any = {"exogate/user": person}
        if (trace := current_trace.get()) is not None:
            meta["traceparent"] = trace
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments), _meta=meta)
        request = types.CallToolRequest(params=params)
        state = RequestState()
        token = current_request.set(state)
        self.running += 1
        try:
            # Client.call_tool checks results with patterns that may block the event loop
            return await self.client.session.send_request(request, _Result)
        except MCPError as error:
            self._raise_if_broken(error, state)
            raise
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            self.end("the connection broke")
            raise ConnectionBroke from error
        except anyio.get_cancelled_exc_class():
            self.abandoned += 1
            raise
        finally:
            self.running -= 1
            current_request.reset(token)

    def _raise_if_broken(self, error: MCPError, state: RequestState) -> None:
        """Raises ConnectionBroke unless the server itself sent the error. The SDK has one code for its
        own errors, and many servers use the same code for others."""
        if state.too_much:
            problem = f"the answer has {state.too_much}"
            raise MCPError(code=types.INTERNAL_ERROR, message=problem) from error
        is_vague = error.code == types.CONNECTION_CLOSED
        if state.has_no_session(is_vague=is_vague):
            self.end("the server has forgotten the session")
        elif is_vague and error.message == "Connection closed":
            self.end("the connection broke")
        is_cut = state.is_lost or (is_vague and error.message.startswith("SSE stream "))
        if is_cut or self.over.is_set():
            raise ConnectionBroke(is_done=state.is_done) from error


@dataclass(frozen=True, slots=True)
class Connector:
    """Opens connections. `folder` holds a working folder for each server program."""

    http: Http
    folder: Path
    clock: Clock

    @asynccontextmanager
    async def connect(self, server: McpServerDef) -> AsyncIterator[ServerConnection]:
        """Opens a connection; the task that enters the context must also leave it."""
        opened: list[ServerConnection] = []
        reasons: list[str] = []

        def on_end(why: str) -> None:
            reasons.append(why)
            for one in opened:
                one.end(why)

        async with AsyncExitStack() as stack:
            transport = await self._transport(server, stack, on_end)
            about = types.Implementation(name="exogate", version=VERSION)
            client = Client(transport, mode="auto", cache=None, client_info=about)
            try:
                await stack.enter_async_context(client)
            except Exception as error:
                if reasons:
                    raise ProgramEnded(reasons[0]) from error
                raise
            opened.append(ServerConnection(client, self.clock.monotonic()))
            yield opened[0]

    async def _transport(
        self, server: McpServerDef, stack: AsyncExitStack, on_end: Callable[[str], None]
    ) -> Any:
        if server.url is None:
            own = self.folder / server.name
            await anyio.Path(own).mkdir(mode=0o700, parents=True, exist_ok=True)
            return run_program(server, own, self.clock, on_end)
        headers = {name: value.reveal() for name, value in server.headers.items()}
        carrier = HttpTransport(self.http, server.url, headers, server.user_header)
        http = httpx2.AsyncClient(transport=carrier, trust_env=False, timeout=None)
        await stack.enter_async_context(http)
        return streamable_http_client(server.url, http_client=http, max_sse_event_size=MOST_BYTES)


def reason_of(error: BaseException) -> str:
    """Returns the problem in one short sentence for the operator."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case FileNotFoundError():
            return f"there is no program {error.filename!r}"
        case OSError():
            return f"it cannot be started: {error.strerror or type(error).__name__}"
        case TimeoutError():
            return "it did not answer in time"
        case httpx2.HTTPError() | MCPError() | ProgramEnded():
            return " ".join(str(error).split())[:_MOST_WHY] or type(error).__name__
    return f"it violates the MCP protocol ({type(error).__name__})"


# ---------------------------------------------------------------------------------------- the pool
log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
MOST_ABANDONED = 8  # calls of a connection; a server may keep their answers open for its lifetime


class ServerUnreachable(Exception):
    """The server cannot be connected; the text is one sentence."""


@dataclass(slots=True)
class ConnectionPool:
    """The connections to one server. `group` holds their tasks. A call over a person's own
    connection holds `room`."""

    server: McpServerDef
    connector: Connector
    clock: Clock
    group: TaskGroup
    room: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(MOST_CONNECTIONS))
    _own: dict[str, ServerConnection] = field(default_factory=dict)  # by person
    _opening: dict[str, anyio.Event] = field(default_factory=dict)

    async def connection_of(self, person: str) -> ServerConnection:
        """Returns a person's own connection. Raises ServerUnreachable."""
        while person in self._opening:
            await self._opening[person].wait()
        found = self._own.get(person)
        if found is not None and found.abandoned >= MOST_ABANDONED and not found.running:
            found.end("too many calls were abandoned")
        if found is None or found.over.is_set():
            done = self._opening[person] = anyio.Event()
            try:
                self._make_room()
                found = self._own[person] = await self.open()
            finally:
                del self._opening[person]
                done.set()
        found.used_at = self.clock.monotonic()
        return found

    async def open(self) -> ServerConnection:
        """Opens another connection. Raises ServerUnreachable."""
        try:
            with anyio.fail_after(self.server.timeout_s):
                opened: ServerConnection = await self.group.start(self._hold)
                return opened
        except TimeoutError as error:
            why = f"it did not answer within {self.server.timeout_s:g} s"
            raise ServerUnreachable(why) from error

    async def _hold(self, *, task_status: TaskStatus[ServerConnection]) -> None:
        """Holds one connection open. A failure of the server ends only this connection."""
        opened: ServerConnection | None = None
        try:
            async with self.connector.connect(self.server) as opened:
                task_status.started(opened)
                await opened.over.wait()
        except BaseException as error:
            if not survives(error):
                raise
            why = self.server.scrubbed(reason_of(error))[:LONGEST_WHY]
            if opened is None:
                raise ServerUnreachable(why) from error
            opened.end(why)
            opened.why = why
            log.info("mcp_connection_broke", extra={"server": self.server.name, "why": why})
        finally:
            if opened is not None:
                opened.end("the connection is closed")

    def _make_room(self) -> None:
        self._own = {name: one for name, one in self._own.items() if not one.over.is_set()}
        if len(self._own) + len(self._opening) <= MOST_CONNECTIONS:
            return
        # The caller holds a place of `room`, so at least one connection is idle.
        idle = [name for name, one in self._own.items() if not one.running]
        oldest = min(idle, key=lambda name: self._own[name].used_at)
        self._own.pop(oldest).end("another person needs its place")

    def close_idle(self, before: float) -> None:
        """Ends the connections without a call since `before`."""
        for one in self._own.values():
            if one.used_at <= before and not one.running:
                one.end("it is unused")
