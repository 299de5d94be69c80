"""Keeps the session of a socket: dials, and carries out what the machine of a connection decides."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from anyio.abc import TaskGroup
from pydantic_core import to_json

from gateway.channels.adapters import Socket
from gateway.channels.answers import read_json
from gateway.channels.live import LineLost, LineRenewed, LiveChannel
from gateway.channels.recipes import at, fill_url, plain
from gateway.channels.sockets import (
    Alive,
    Beat,
    Kept,
    Leave,
    Machine,
    Ready,
    Renew,
    Send,
    Take,
    Wish,
)
from gateway.channels.translating import Said
from gateway.domain.dialling import Dial, Line
from gateway.domain.errors import Denied, GatewayError
from gateway.domain.ports import HttpFailed

READY_S = 30.0  # within which a session has to stand
MOST_SENT, SENT_WITHIN_S = 120, 60.0  # frames, besides acknowledgements


class Conversation:
    """A session that lasts over its connections: they resume it with what is `kept`."""

    def __init__(self, live: LiveChannel, socket: Socket, kept: str = "") -> None:
        self._live, self._socket = live, socket
        memo = read_json(kept)
        self._kept: Kept = memo if isinstance(memo, dict) else {}

    async def run(self) -> None:
        """Until a connection is lost that none replaces. Raises LineLost, HttpFailed, Denied,
        RecipeUnfilled, and as WayIn.take."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._connect, group, None)
        except ExceptionGroup as errors:
            raise _first(errors) from errors

    async def _connect(self, group: TaskGroup, replaces: anyio.CancelScope | None) -> None:
        """One connection, to its end. Once it works, the one that it `replaces` is closed."""

        def renew() -> None:
            group.start_soon(self._connect, group, scope)

        with anyio.CancelScope() as scope:
            async with self._dialled() as line:
                machine = Machine(self._socket, self._kept, self._live.values())
                await _Connection(self._live, line, machine, renew, replaces).run()

    @asynccontextmanager
    async def _dialled(self) -> AsyncIterator[Line]:
        async with AsyncExitStack() as stack:
            line = await self._dial(stack)
            try:
                yield line
            finally:
                with anyio.CancelScope(shield=True):
                    await line.close(self._socket.close_code)

    async def _dial(self, stack: AsyncExitStack) -> Line:
        live = self._live
        try:
            again = self._resume_url()
            if again is not None:
                return await stack.enter_async_context(live.dialler.dial(Dial(again), live.leave))
        except Denied:
            pass  # it leads to where nothing was granted; the first address does as well
        dial = Dial(await self._first_url())
        return await stack.enter_async_context(live.dialler.dial(dial, live.leave))

    def _resume_url(self) -> str | None:
        """With the query of the first address, unless it has one. Raises Denied."""
        kept = self._kept.get(self._socket.resume_url or "")
        if not isinstance(kept, str):
            return None
        _, mark, query = (self._socket.url or "").partition("?")
        url = plain("resume_url", kept)
        return url if "?" in url else f"{url}{mark}{query}"

    async def _first_url(self) -> str:
        socket, values = self._socket, self._live.values()
        if socket.open is None:
            return fill_url(socket.url or "", values)
        answer = await self._live.ask(socket.open, values)
        url = at(read_json(answer.body), socket.url_at)
        if not isinstance(url, str):
            raise LineLost("the platform did not say where to connect to")
        return plain("url", url)


class _Connection:
    """One open line and the machine that decides on it."""

    def __init__(
        self,
        live: LiveChannel,
        line: Line,
        machine: Machine,
        renew: Callable[[], None],
        replaces: anyio.CancelScope | None,
    ) -> None:
        self._live, self._line, self._machine = live, line, machine
        self._renew, self._replaces = renew, replaces
        self._is_renewed = False
        self._is_ready = not machine.says_ready
        self._sent: deque[float] = deque(maxlen=MOST_SENT)

    async def run(self) -> None:
        """Ends by an error, in a group; quietly once another connection was asked for."""
        try:
            await self._talk()
        except ExceptionGroup as errors:
            if not self._is_renewed or not _is_expected(errors):
                raise

    async def _talk(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._wait_for_ready)
            await self._carry_out(self._machine.opened(), group)
            while (frame := await self._line.receive()) is not None:
                if self._replaces is not None:
                    self._replaces.cancel()
                    self._replaces = None
                await self._carry_out(self._machine.told(frame), group)
            await self._carry_out(self._machine.closed(self._line.close_code), group)

    async def _carry_out(self, wishes: Iterable[Wish], group: TaskGroup) -> None:
        for wish in wishes:
            match wish:
                case Send():
                    await self._send(wish.text)
                case Take():
                    await self._take(wish)
                case Ready():
                    await self._stand(wish)
                case Alive():
                    self._live.health.worked("in")
                case Beat():
                    group.start_soon(self._beat, wish.every_s, group)
                case Renew() if not self._is_renewed:
                    self._is_renewed = True
                    self._renew()
                case Leave():
                    raise _lost(wish)

    async def _take(self, event: Take) -> None:
        is_new = event.kept != self._machine.kept
        memo = self._live.kept(_text(event.kept)) if is_new else None
        with anyio.CancelScope(shield=True):  # what is committed is also begun
            await self._live.way_in.take(Said("socket", event.frame.encode()), memo)
        self._machine.kept.update(event.kept)
        self._live.health.worked("in")
        if event.acknowledge is not None:
            await self._line.send(event.acknowledge)

    async def _stand(self, ready: Ready) -> None:
        self._is_ready = True
        if ready.kept:
            await self._live.memos.write_memos(self._live.kept(_text(ready.kept)))
        self._live.health.worked("in")

    async def _send(self, text: str) -> None:
        now = self._live.clock.monotonic()
        if len(self._sent) == MOST_SENT and now - self._sent[0] < SENT_WITHIN_S:
            raise LineLost(f"the platform asked for more than {MOST_SENT} frames within a minute")
        self._sent.append(now)
        await self._line.send(text)

    async def _beat(self, every_s: float, group: TaskGroup) -> None:
        await self._live.clock.sleep(every_s * self._live.jitter())
        while True:
            await self._carry_out(self._machine.beat_due(), group)
            await self._live.clock.sleep(every_s)

    async def _wait_for_ready(self) -> None:
        if self._is_ready:
            return
        await self._live.clock.sleep(READY_S)
        if not self._is_ready:
            raise LineLost(f"the platform did not begin the session within {READY_S:g} s")


def _lost(leave: Leave) -> LineLost:
    if leave.is_asked:
        return LineRenewed(leave.why)
    return LineLost(leave.why, is_final=leave.is_final)


def _text(kept: Kept) -> str:
    return to_json(kept).decode()


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


def _is_expected(errors: ExceptionGroup[Exception]) -> bool:
    return errors.split((GatewayError, HttpFailed))[1] is None
