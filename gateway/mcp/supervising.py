"""One configured server: connected when an agent wants it, watched, and its tools kept in the gate."""

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
import mcp_types as types
from anyio.abc import TaskGroup

from gateway.domain.errors import StoreUnavailable, ToolFailed
from gateway.domain.mcp import FAMILY, Lacking, McpServerDef, McpState, McpStatus
from gateway.domain.ports import Clock, SchemaCheck, Tool, ToolStore
from gateway.domain.supervision import survives
from gateway.mcp.carrying import user
from gateway.mcp.connecting import LONGEST_WHY, Broke, ServerLine, why_not
from gateway.mcp.listing import Listing
from gateway.mcp.pool import Dial, NotThere, Pool
from gateway.mcp.tools import McpTool

log = logging.getLogger(__name__)

MOST_FAILURES = 5  # in a row; then nobody waits for it any more
LONGEST_PAUSE_S = 60.0
WANTED_S = 600.0  # since somebody asked for it; then it is left alone
LISTED_S = 60.0  # after that its tools are looked at again
STEADY_S = 60.0  # a connection that holds so long is no quick loss

Tell = Callable[[str, Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class Means:
    """All that servers need. `told_changed` is told of a tool that is not what it was."""

    dial: Dial
    clock: Clock
    schemas: SchemaCheck
    store: ToolStore
    renew: Callable[[str, Sequence[Tool]], None]
    tell: Tell
    told_changed: Callable[[Mapping[str, object]], Awaitable[None]]
    random: Callable[[], float]


@dataclass(slots=True)
class Server:
    """`outcomes` counts calls by how they ended; `look`: at its tools again."""

    server: McpServerDef
    means: Means
    group: TaskGroup
    outcomes: Counter[str] = field(default_factory=Counter)
    look: anyio.Event = field(default_factory=anyio.Event)
    _pool: Pool = field(init=False)
    _listing: Listing = field(init=False)
    _line: ServerLine | None = None
    _tools: tuple[McpTool, ...] = ()
    _failures: int = 0
    _why: str | None = None
    _version: str | None = None
    _wanted_at: float = 0.0
    _listed_at: float = 0.0
    _wanted: anyio.Event = field(default_factory=anyio.Event)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self._pool = Pool(self.server, self.means.dial, self.means.clock, self.group)
        means = self.means
        self._listing = Listing(self.server, self, means.schemas, means.store, means.told_changed)

    @property
    def status(self) -> McpStatus:
        state: McpState = "connected" if self._line else "failing" if self._failures else "idle"
        count = len(self._tools) if self._line else 0
        return McpStatus(self.server.name, state, self._version, count, self._why)

    async def ready(self, within_s: float = math.inf) -> Lacking | None:
        """Connects it, unless it failed too often; None: it is there."""
        self._wanted_at = self.means.clock.monotonic()
        self._wanted.set()
        wait_s = min(within_s, self.server.timeout_s)
        with anyio.move_on_after(wait_s):
            while self._up is None and self._failures < min(
                1 + self.server.retry_attempts, MOST_FAILURES
            ):
                await self._changed.wait()
        if self._up is not None:
            if self.means.clock.monotonic() - self._listed_at > LISTED_S:
                self.look.set()
            return None
        # No word of the server's, and no address: it is shown to everybody, as the gateway's own.
        why = "it is away" if self._why else f"it was not there within {wait_s:g} s"
        told = f"The tools of {self.server.name!r} are not available: {why}."
        return Lacking(self.server.name, told)

    @property
    def _up(self) -> ServerLine | None:
        return self._line if self._line and not self._line.over.is_set() else None

    # -- calls

    async def call(
        self, tool: McpTool, arguments: Mapping[str, object], person: str
    ) -> types.CallToolResult:
        user.set(person)
        tries = 0
        while True:
            try:
                result = await self._answered(tool.its_name, arguments, person)
            except NotThere as error:
                self.outcomes["unreachable"] += 1
                raise ToolFailed(f"The server of {tool.spec.name} is away: {error}.") from error
            except Broke as error:
                self.look.set()  # whether it is there at all
                is_safe = tool.spec.may_repeat or error.is_done is False
                if not is_safe or tries >= self.server.retry_attempts:
                    self.outcomes["broken"] += 1
                    raise ToolFailed(_broken(tool.spec.name, is_safe=is_safe)) from error
                if tries:  # at once the first time: it may have forgotten a session, no more
                    await self.means.clock.sleep(_pause(tries) * self.means.random())
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
        """Raises NotThere and what Line.call raises."""
        await self.ready()
        line = self._up
        if line is None:
            raise NotThere("it cannot be connected")
        if self.server.url is None or not line.is_stateful:
            line.used_at = self.means.clock.monotonic()
            return await line.call(tool, arguments, person)
        async with self._pool.room:
            try:
                own = await self._pool.of(person)
            except NotThere as error:
                line.end(str(error))  # the same server: it is found out whether it is there at all
                raise Broke(is_done=False) from error
            return await own.call(tool, arguments, person)

    # -- the connection

    async def run(self) -> None:
        """Until cancelled."""
        clock, losses = self.means.clock, 0
        while True:
            await self._wanted.wait()
            began = clock.monotonic()
            try:
                await self._connect()
            except NotThere as error:
                self._failed(self.server.hushed(str(error))[:LONGEST_WHY])
            else:
                losses = 0 if clock.monotonic() - began >= STEADY_S else losses + 1
            if failures := max(self._failures, losses):
                await clock.sleep(_pause(failures) * self.means.random())
            if clock.monotonic() - self._wanted_at >= WANTED_S:
                self._wanted = anyio.Event()

    async def _connect(self) -> None:
        """Until the connection is over. Raises NotThere."""
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
        log.warning("an MCP server is away", extra={"server": self.server.name, "why": why})
        self._has_changed()

    def _has_changed(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _list(self, line: ServerLine) -> None:
        """Takes its tools; then it is there. Raises NotThere."""
        name = self.server.name
        listed = await _tools_of(line, self.server.timeout_s)
        try:
            tools = await self._listing.taken(listed, self._tools)
        except StoreUnavailable as error:
            line.end("what its tools were cannot be read")
            raise NotThere(line.why) from error
        is_new = self._line is None
        self._listed_at = self.means.clock.monotonic()
        if is_new or [one.digest for one in tools] != [one.digest for one in self._tools]:
            self.means.renew(f"{FAMILY}{name}", tools)
        self._line, self._tools, self._why, self._failures = line, tools, None, 0
        self._version = line.version
        if is_new:
            log.info("an MCP server is there", extra={"server": name, "tools": len(tools)})
            self.means.tell("mcp.connected", {"server": name, "tools": len(tools)})
        self._has_changed()

    async def _watch(self, line: ServerLine) -> None:
        """Until it breaks, or nobody has wanted it for long."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._tire, line)
            group.start_soon(self._look_again, line)
            await line.over.wait()
            group.cancel_scope.cancel()

    async def _tire(self, line: ServerLine) -> None:
        clock = self.means.clock
        while (left := self._wanted_at + WANTED_S - clock.monotonic()) > 0 or line.at_work:
            await clock.sleep(max(left, 1.0))
            self._pool.close(clock.monotonic() - WANTED_S)
        line.end("nobody uses it")

    async def _look_again(self, line: ServerLine) -> None:
        while True:
            await self.look.wait()
            self.look = anyio.Event()
            try:
                await self._list(line)
            except NotThere:
                return  # the line is over

    def _down(self, line: ServerLine) -> None:
        name = self.server.name
        self._line, why = None, self.server.hushed(line.why)[:LONGEST_WHY]
        self.means.renew(f"{FAMILY}{name}", ())
        log.info("an MCP server is left", extra={"server": name, "why": why})
        self.means.tell("mcp.disconnected", {"server": name, "why": why})
        self._has_changed()


def _pause(failures: int) -> float:
    """The longest; everybody takes another part of it."""
    return min(LONGEST_PAUSE_S, 2.0 ** min(failures - 1, 10))


async def _tools_of(line: ServerLine, timeout_s: float) -> Sequence[types.Tool]:
    """Raises NotThere."""
    try:
        with anyio.fail_after(timeout_s):
            return await line.tools()
    except Exception as error:  # whatever a server makes of a list
        why = line.why if line.over.is_set() else why_not(error)
        line.end(why)
        raise NotThere(why) from error


def _broken(tool: str, *, is_safe: bool) -> str:
    told = f"The connection to the server of {tool} broke before its answer came."
    if is_safe:
        return f"{told} Go on without it, or try it later."
    return f"{told} It may have been carried out all the same: look before you call it again."
