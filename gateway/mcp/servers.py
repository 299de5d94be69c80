"""The configured MCP servers: connected on demand and watched; their tools are in the gate. A connection
has one task, and serves all people or one person."""

import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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

from gateway.domain.agents import AgentDef
from gateway.domain.errors import StoreUnavailable, ToolFailed
from gateway.domain.mcp import (
    FAMILY,
    McpServerDef,
    McpState,
    McpStatus,
    UnreachableServer,
    servers_in,
)
from gateway.domain.ports import Clock, Http, SchemaCheck, Tool, ToolStore
from gateway.domain.supervision import backoff_s, supervise, survives
from gateway.domain.version import VERSION
from gateway.mcp.tools import Listing, McpTool
from gateway.mcp.transports import (
    MOST_BYTES,
    HttpTransport,
    RequestState,
    current_request,
    current_trace,
    current_user,
    run_program,
)

log = logging.getLogger(__name__)


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


# -------------------------------------------------------------------------------------- one server
MOST_FAILURES = 5  # in a row, after which turns no longer wait for the server
WANTED_S = 600.0  # since the last request, after which the connection closes
LISTED_S = 60.0  # age of a list of tools that is read again
STEADY_S = 60.0  # after a connection of this length the backoff starts at its shortest wait

Publish = Callable[[str, Mapping[str, object]], None]
Offer = Callable[[str, Sequence[Tool]], None]


@dataclass(frozen=True, slots=True)
class ServerDeps:
    """The dependencies of servers. `report_change` is called for a tool that differs from its pin."""

    connector: Connector
    clock: Clock
    schemas: SchemaCheck
    store: ToolStore
    publish: Publish
    report_change: Callable[[Mapping[str, object]], Awaitable[None]]
    random: Callable[[], float]


@dataclass(slots=True)
class Server:
    """One configured server. `outcomes` counts calls by outcome, `gates` receive its tools, and
    `relist` requests another list of tools."""

    server: McpServerDef
    deps: ServerDeps
    group: TaskGroup
    outcomes: Counter[str] = field(default_factory=Counter)
    gates: list[Offer] = field(default_factory=list)
    relist: anyio.Event = field(default_factory=anyio.Event)
    _pool: ConnectionPool = field(init=False)
    _listing: Listing = field(init=False)
    _connection: ServerConnection | None = None
    _tools: tuple[McpTool, ...] = ()
    _failures: int = 0
    _why: str | None = None
    _version: str | None = None
    _wanted_at: float = 0.0
    _listed_at: float = 0.0
    _wanted: anyio.Event = field(default_factory=anyio.Event)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self._pool = ConnectionPool(self.server, self.deps.connector, self.deps.clock, self.group)
        deps = self.deps
        self._listing = Listing(
            self.server, self.call, deps.schemas, deps.store, deps.report_change
        )

    def offer_to(self, gate: Offer) -> None:
        """Adds a gate that receives the tools of the server."""
        self.gates.append(gate)
        if self._connection is not None:
            gate(f"{FAMILY}{self.server.name}", self._tools)

    def _offer(self, tools: Sequence[Tool]) -> None:
        for gate in self.gates:
            gate(f"{FAMILY}{self.server.name}", tools)

    @property
    def status(self) -> McpStatus:
        is_up = self._connection is not None
        state: McpState = "connected" if is_up else "failing" if self._failures else "idle"
        count = len(self._tools) if is_up else 0
        return McpStatus(self.server.name, state, self._version, count, self._why)

    async def ready(self, within_s: float = math.inf) -> UnreachableServer | None:
        """Waits for the connection, unless it failed too often. None if the server is connected."""
        self._wanted_at = self.deps.clock.monotonic()
        self._wanted.set()
        wait_s = min(within_s, self.server.timeout_s)
        with anyio.move_on_after(wait_s):
            while self._up is None and self._failures < min(
                1 + self.server.retry_attempts, MOST_FAILURES
            ):
                await self._changed.wait()
        if self._up is not None:
            if self.deps.clock.monotonic() - self._listed_at > LISTED_S:
                self.relist.set()
            return None
        # Users see this text, so it quotes neither the server nor its address.
        why = "it is unreachable" if self._why else f"it did not answer within {wait_s:g} s"
        text = f"The tools of {self.server.name!r} are not available: {why}."
        return UnreachableServer(self.server.name, text)

    @property
    def _up(self) -> ServerConnection | None:
        found = self._connection
        return found if found and not found.over.is_set() else None

    # -- calls

    async def call(
        self, tool: McpTool, arguments: Mapping[str, object], person: str
    ) -> types.CallToolResult:
        current_user.set(person)
        tries = 0
        while True:
            try:
                result = await self._call_once(tool.remote_name, arguments, person)
            except ServerUnreachable as error:
                self.outcomes["unreachable"] += 1
                name = tool.spec.name
                raise ToolFailed(f"The server of {name} is unreachable: {error}.") from error
            except ConnectionBroke as error:
                self.relist.set()  # tests the shared connection
                is_safe = tool.spec.may_repeat or error.is_done is False
                if not is_safe or tries >= self.server.retry_attempts:
                    self.outcomes["broken"] += 1
                    raise ToolFailed(_broken(tool.spec.name, is_safe=is_safe)) from error
                if tries:  # the first retry is immediate: often only the session was lost
                    await self.deps.clock.sleep(backoff_s(tries) * self.deps.random())
                tries += 1
            except BaseException:
                self.outcomes["failed"] += 1
                raise
            else:
                self.outcomes["error" if result.is_error else "done"] += 1
                return result

    async def _call_once(
        self, tool: str, arguments: Mapping[str, object], person: str
    ) -> types.CallToolResult:
        """Raises ServerUnreachable, and as ServerConnection.call."""
        await self.ready()
        shared = self._up
        if shared is None:
            raise ServerUnreachable("it cannot be connected")
        if self.server.url is None or not shared.is_stateful:
            shared.used_at = self.deps.clock.monotonic()
            return await shared.call(tool, arguments, person)
        async with self._pool.room:
            try:
                own = await self._pool.connection_of(person)
            except ServerUnreachable as error:
                shared.end(str(error))  # the next connection tests whether the server is there
                raise ConnectionBroke(is_done=False) from error
            return await own.call(tool, arguments, person)

    # -- the connection

    async def run(self) -> None:
        """Keeps the server connected while it is wanted, until cancelled."""
        clock, losses = self.deps.clock, 0
        while True:
            await self._wanted.wait()
            began = clock.monotonic()
            try:
                await self._connect()
            except ServerUnreachable as error:
                self._failures, self._why = self._failures + 1, self._scrubbed(error)
                extra = {"server": self.server.name, "why": self._why}
                log.warning("mcp_server_unreachable", extra=extra)
                self._notify_changed()
            else:
                losses = 0 if clock.monotonic() - began >= STEADY_S else losses + 1
            if failures := max(self._failures, losses):
                await clock.sleep(backoff_s(failures) * self.deps.random())
            if clock.monotonic() - self._wanted_at >= WANTED_S:
                self._wanted = anyio.Event()

    async def _connect(self) -> None:
        """Connects and watches the server until the connection ends. Raises ServerUnreachable."""
        opened = await self._pool.open()
        try:
            await self._list(opened)
            await self._watch(opened)
        except BaseException as error:
            opened.end("the connection is abandoned")
            if survives(error) and self._connection is opened:
                self._withdraw(opened)
            raise
        self._withdraw(opened)

    def _scrubbed(self, why: object) -> str:
        return self.server.scrubbed(str(why))[:LONGEST_WHY]

    def _notify_changed(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _list(self, opened: ServerConnection) -> None:
        """Reads the tools and offers them, which marks the server as connected. Raises
        ServerUnreachable."""
        name = self.server.name
        try:
            with anyio.fail_after(self.server.timeout_s):
                listed = await opened.tools()
        except Exception as error:  # an invalid list can raise any error
            why = opened.why if opened.over.is_set() else reason_of(error)
            opened.end(why)
            raise ServerUnreachable(why) from error
        try:
            tools = await self._listing.accept(listed, self._tools)
        except StoreUnavailable as error:
            opened.end("the pins of its tools cannot be read")
            raise ServerUnreachable(opened.why) from error
        is_new = self._connection is None
        self._listed_at = self.deps.clock.monotonic()
        if is_new or [one.digest for one in tools] != [one.digest for one in self._tools]:
            self._offer(tools)
        self._connection, self._tools, self._why, self._failures = opened, tools, None, 0
        self._version = opened.version
        if is_new:
            log.info("mcp_server_connected", extra={"server": name, "tools": len(tools)})
            self.deps.publish("mcp.connected", {"server": name, "tools": len(tools)})
        self._notify_changed()

    async def _watch(self, opened: ServerConnection) -> None:
        """Waits until the connection breaks or is unused for WANTED_S."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._close_unused, opened)
            group.start_soon(self._keep_listing, opened)
            await opened.over.wait()
            group.cancel_scope.cancel()

    async def _close_unused(self, opened: ServerConnection) -> None:
        clock = self.deps.clock
        while (left := self._wanted_at + WANTED_S - clock.monotonic()) > 0 or opened.running:
            await clock.sleep(max(left, 1.0))
            self._pool.close_idle(clock.monotonic() - WANTED_S)
        opened.end("it is unused")

    async def _keep_listing(self, opened: ServerConnection) -> None:
        with suppress(ServerUnreachable):  # the connection is over then
            while True:
                await self.relist.wait()
                self.relist = anyio.Event()
                await self._list(opened)

    def _withdraw(self, opened: ServerConnection) -> None:
        name = self.server.name
        self._connection, why = None, self._scrubbed(opened.why)
        self._offer(())
        log.info("mcp_server_disconnected", extra={"server": name, "why": why})
        self.deps.publish("mcp.disconnected", {"server": name, "why": why})
        self._notify_changed()


def _broken(tool: str, *, is_safe: bool) -> str:
    advice = (
        "Continue without it, or try it later."
        if is_safe
        else "The tool may have been executed: check before you call it again."
    )
    return f"The connection to the server of {tool} broke before its answer arrived. {advice}"


# ------------------------------------------------------------------------------------- all servers
@dataclass(frozen=True, slots=True)
class Servers:
    """Implements the McpServers port."""

    by_name: Mapping[str, Server]

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        """Connects the servers of an agent in parallel, each within its own time and the agent's."""
        lacking: list[UnreachableServer] = []

        async def ready(server: Server) -> None:
            if (away := await server.ready(agent.limits.timeout_seconds)) is not None:
                lacking.append(away)

        async with anyio.create_task_group() as group:
            for name in servers_in(agent.tools):
                if name in self.by_name:
                    group.start_soon(ready, self.by_name[name])
        return sorted(lacking, key=lambda one: one.server)

    def statuses(self) -> Sequence[McpStatus]:
        return tuple(one.status for one in self.by_name.values())

    def outcomes(self) -> Mapping[tuple[str, str], int]:
        return {
            (name, outcome): count
            for name, server in self.by_name.items()
            for outcome, count in server.outcomes.items()
        }


@asynccontextmanager
async def open_server(definition: McpServerDef, deps: ServerDeps) -> AsyncIterator[Server]:
    """Supervises a server, which connects when a turn of one of its agents begins."""
    async with anyio.create_task_group() as group:
        server, task = Server(definition, deps, group), f"mcp:{definition.name}"
        group.start_soon(supervise, task, server.run, deps.clock, name=task)
        try:
            yield server
        finally:
            group.cancel_scope.cancel()
