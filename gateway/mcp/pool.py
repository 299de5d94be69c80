"""The connections of one server: one for everybody, or one a person where the server keeps sessions."""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gateway.domain.mcp import McpServerDef
from gateway.domain.ports import Clock
from gateway.domain.supervision import survives
from gateway.mcp.connecting import LONGEST_WHY, ServerLine, why_not

log = logging.getLogger(__name__)

MOST_LINES = 64
MOST_GIVEN_UP = 8  # on one: a server may keep their answers open for as long as it lasts

Dial = Callable[[McpServerDef], AbstractAsyncContextManager[ServerLine]]


class NotThere(Exception):
    """It cannot be connected; the text is one sentence."""


@dataclass(slots=True)
class Pool:
    """`group` holds the task of each connection; whoever calls over one of a person holds `room`."""

    server: McpServerDef
    dial: Dial
    clock: Clock
    group: TaskGroup
    room: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(MOST_LINES))
    _lines: dict[str, ServerLine] = field(default_factory=dict)
    _opening: dict[str, anyio.Event] = field(default_factory=dict)

    async def of(self, person: str) -> ServerLine:
        """Raises NotThere."""
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

    async def open(self) -> ServerLine:
        """One more, for whoever asks. Raises NotThere."""
        try:
            with anyio.fail_after(self.server.timeout_s):
                line: ServerLine = await self.group.start(self._keep)
                return line
        except TimeoutError as error:
            told = f"it did not answer within {self.server.timeout_s:g} s"
            raise NotThere(told) from error

    async def _keep(self, *, task_status: TaskStatus[ServerLine]) -> None:
        """Whatever a server does, it ends nothing but its own connection."""
        line: ServerLine | None = None
        try:
            async with self.dial(self.server) as line:
                task_status.started(line)
                await line.over.wait()
        except BaseException as error:
            if not survives(error):
                raise
            why = self.server.hushed(why_not(error))[:LONGEST_WHY]
            if line is None:
                raise NotThere(why) from error
            line.end(why)
            line.why = why
            log.info("an MCP connection broke", extra={"server": self.server.name, "why": why})
        finally:
            if line is not None:
                line.end("the connection is closed")

    def _make_room(self) -> None:
        self._lines = {name: one for name, one in self._lines.items() if not one.over.is_set()}
        if len(self._lines) + len(self._opening) <= MOST_LINES:
            return
        idle = [name for name, one in self._lines.items() if not one.at_work]  # thanks to `room`
        oldest = min(idle, key=lambda name: self._lines[name].used_at)
        self._lines.pop(oldest).end("another person needs its place")

    def close(self, before: float) -> None:
        """Those that nobody has used since then."""
        for one in self._lines.values():
            if one.used_at <= before and not one.at_work:
                one.end("nobody uses it")
