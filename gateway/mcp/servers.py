"""The configured servers: connected when an agent wants them, watched, their tools kept in the gate."""

import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import mcp_types as types
from anyio.abc import TaskGroup

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
from gateway.domain.ports import Clock, SchemaCheck, Tool, ToolStore
from gateway.domain.supervision import backoff_s, supervise, survives
from gateway.mcp.connections import (
    LONGEST_WHY,
    ConnectionBroke,
    ConnectionPool,
    Connector,
    ServerConnection,
    ServerUnreachable,
    reason_of,
)
from gateway.mcp.tools import Listing, McpTool
from gateway.mcp.transports import current_user

# -------------------------------------------------------------------------------------- one server
log = logging.getLogger(__name__)

MOST_FAILURES = 5  # in a row; then nobody waits for it any more
WANTED_S = 600.0  # since somebody asked for it; then it is left alone
LISTED_S = 60.0  # after that its tools are looked at again
STEADY_S = 60.0  # a connection that holds so long is no quick loss

Publish = Callable[[str, Mapping[str, object]], None]
Offer = Callable[[str, Sequence[Tool]], None]


@dataclass(frozen=True, slots=True)
class ServerDeps:
    """All that servers need. `report_change` is told of a tool that is not what it was."""

    connector: Connector
    clock: Clock
    schemas: SchemaCheck
    store: ToolStore
    publish: Publish
    report_change: Callable[[Mapping[str, object]], Awaitable[None]]
    random: Callable[[], float]


@dataclass(slots=True)
class Server:
    """`outcomes` counts calls by how they ended; `gates` are offered its tools; `look`: at its tools again."""

    server: McpServerDef
    deps: ServerDeps
    group: TaskGroup
    outcomes: Counter[str] = field(default_factory=Counter)
    gates: list[Offer] = field(default_factory=list)
    relist: anyio.Event = field(default_factory=anyio.Event)
    _pool: ConnectionPool = field(init=False)
    _listing: Listing = field(init=False)
    _line: ServerConnection | None = None
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
        """Its tools are offered there too, from now on."""
        self.gates.append(gate)
        if self._line is not None:
            gate(f"{FAMILY}{self.server.name}", self._tools)

    def _offer(self, tools: Sequence[Tool]) -> None:
        for gate in self.gates:
            gate(f"{FAMILY}{self.server.name}", tools)

    @property
    def status(self) -> McpStatus:
        state: McpState = "connected" if self._line else "failing" if self._failures else "idle"
        count = len(self._tools) if self._line else 0
        return McpStatus(self.server.name, state, self._version, count, self._why)

    async def ready(self, within_s: float = math.inf) -> UnreachableServer | None:
        """Connects it, unless it failed too often; None: it is there."""
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
        # No word of the server's, and no address: it is shown to everybody, as the gateway's own.
        why = "it is away" if self._why else f"it was not there within {wait_s:g} s"
        told = f"The tools of {self.server.name!r} are not available: {why}."
        return UnreachableServer(self.server.name, told)

    @property
    def _up(self) -> ServerConnection | None:
        return self._line if self._line and not self._line.over.is_set() else None

    # -- calls

    async def call(
        self, tool: McpTool, arguments: Mapping[str, object], person: str
    ) -> types.CallToolResult:
        current_user.set(person)
        tries = 0
        while True:
            try:
                result = await self._answered(tool.its_name, arguments, person)
            except ServerUnreachable as error:
                self.outcomes["unreachable"] += 1
                raise ToolFailed(f"The server of {tool.spec.name} is away: {error}.") from error
            except ConnectionBroke as error:
                self.relist.set()  # whether it is there at all
                is_safe = tool.spec.may_repeat or error.is_done is False
                if not is_safe or tries >= self.server.retry_attempts:
                    self.outcomes["broken"] += 1
                    raise ToolFailed(_broken(tool.spec.name, is_safe=is_safe)) from error
                if tries:  # at once the first time: it may have forgotten a session, no more
                    await self.deps.clock.sleep(backoff_s(tries) * self.deps.random())
                tries += 1
            except BaseException:
                self.outcomes["failed"] += 1
                raise
            else:
                self.outcomes["error" if result.is_error else "done"] += 1
                return result

    async def _answered(
        self, tool: str, arguments: Mapping[str, object], person: str
    ) -> types.CallToolResult:
        """Raises Unreachable and what Line.call raises."""
        await self.ready()
        line = self._up
        if line is None:
            raise ServerUnreachable("it cannot be connected")
        if self.server.url is None or not line.is_stateful:
            line.used_at = self.deps.clock.monotonic()
            return await line.call(tool, arguments, person)
        async with self._pool.room:
            try:
                own = await self._pool.of(person)
            except ServerUnreachable as error:
                line.end(str(error))  # the same server: it is found out whether it is there at all
                raise ConnectionBroke(is_done=False) from error
            return await own.call(tool, arguments, person)

    # -- the connection

    async def run(self) -> None:
        """Until cancelled."""
        clock, losses = self.deps.clock, 0
        while True:
            await self._wanted.wait()
            began = clock.monotonic()
            try:
                await self._connect()
            except ServerUnreachable as error:
                self._failed(self.server.scrubbed(str(error))[:LONGEST_WHY])
            else:
                losses = 0 if clock.monotonic() - began >= STEADY_S else losses + 1
            if failures := max(self._failures, losses):
                await clock.sleep(backoff_s(failures) * self.deps.random())
            if clock.monotonic() - self._wanted_at >= WANTED_S:
                self._wanted = anyio.Event()

    async def _connect(self) -> None:
        """Until the connection is over. Raises Unreachable."""
        line = await self._pool.open()
        try:
            await self._list(line)
            await self._watch(line)
        except BaseException as error:
            line.end("it is left")
            if survives(error) and self._line is line:
                self._down(line)
            raise
        self._down(line)

    def _failed(self, why: str) -> None:
        self._failures += 1
        self._why = why
        log.warning("mcp_server_unreachable", extra={"server": self.server.name, "why": why})
        self._has_changed()

    def _has_changed(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _list(self, line: ServerConnection) -> None:
        """Takes its tools; then it is there. Raises Unreachable."""
        name = self.server.name
        try:
            with anyio.fail_after(self.server.timeout_s):
                listed = await line.tools()
        except Exception as error:  # whatever a server makes of a list
            why = line.why if line.over.is_set() else reason_of(error)
            line.end(why)
            raise ServerUnreachable(why) from error
        try:
            tools = await self._listing.taken(listed, self._tools)
        except StoreUnavailable as error:
            line.end("what its tools were cannot be read")
            raise ServerUnreachable(line.why) from error
        is_new = self._line is None
        self._listed_at = self.deps.clock.monotonic()
        if is_new or [one.digest for one in tools] != [one.digest for one in self._tools]:
            self._offer(tools)
        self._line, self._tools, self._why, self._failures = line, tools, None, 0
        self._version = line.version
        if is_new:
            log.info("mcp_server_connected", extra={"server": name, "tools": len(tools)})
            self.deps.publish("mcp.connected", {"server": name, "tools": len(tools)})
        self._has_changed()

    async def _watch(self, line: ServerConnection) -> None:
        """Until it breaks, or nobody has wanted it for long."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._tire, line)
            group.start_soon(self._look_again, line)
            await line.over.wait()
            group.cancel_scope.cancel()

    async def _tire(self, line: ServerConnection) -> None:
        clock = self.deps.clock
        while (left := self._wanted_at + WANTED_S - clock.monotonic()) > 0 or line.at_work:
            await clock.sleep(max(left, 1.0))
            self._pool.close(clock.monotonic() - WANTED_S)
        line.end("nobody uses it")

    async def _look_again(self, line: ServerConnection) -> None:
        while True:
            await self.relist.wait()
            self.relist = anyio.Event()
            try:
                await self._list(line)
            except ServerUnreachable:
                return  # the line is over

    def _down(self, line: ServerConnection) -> None:
        name = self.server.name
        self._line, why = None, self.server.scrubbed(line.why)[:LONGEST_WHY]
        self._offer(())
        log.info("mcp_server_disconnected", extra={"server": name, "why": why})
        self.deps.publish("mcp.disconnected", {"server": name, "why": why})
        self._has_changed()


def _broken(tool: str, *, is_safe: bool) -> str:
    told = f"The connection to the server of {tool} broke before its answer came."
    if is_safe:
        return f"{told} Go on without it, or try it later."
    return f"{told} It may have been carried out all the same: look before you call it again."


# ------------------------------------------------------------------------------------- all servers
@dataclass(frozen=True, slots=True)
class Servers:
    """Implements the McpServers port."""

    by_name: Mapping[str, Server]

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        """Side by side, each within its own time, and none for longer than a run may take."""
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
    """Supervises the server. It is not connected until a turn of an agent that has it begins."""
    async with anyio.create_task_group() as group:
        server, task = Server(definition, deps, group), f"mcp:{definition.name}"
        group.start_soon(supervise, task, server.run, deps.clock, name=task)
        try:
            yield server
        finally:
            group.cancel_scope.cancel()
