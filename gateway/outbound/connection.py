"""One connection to a server: a request goes out, and its answer is parsed as its bytes arrive.

httptools collects headers and pieces of the body in C; Python runs once for a network read. One
timer watches over silence: it compares times when it fires, and is not armed anew for each read.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.domain.ports import MOST_READ, HttpFailed

# Of a head, and of all else that comes between two bytes of a body: trailers, parts of chunks.
HEAD_CAP = 64 * 1024
IDLE_CONNECTION_S = 60.0
MOST_UNREAD = 256 * 1024  # bytes that wait for a reader before the server has to wait


class HttpConnection(asyncio.Protocol):
    """Implements the HttpAnswer port, for one exchange at a time: `begin`, and once `status` is
    there, `read_some`. `lost` is called once it is closed."""

    _transport: asyncio.Transport
    _timer: asyncio.TimerHandle

    def __init__(self, place: str, lost: Callable[["HttpConnection"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._place, self._lost = place, lost
        self.status = 0  # 0: its answer has not begun
        self.headers: Mapping[str, str] = {}
        self.failure: tuple[str, str] | None = None  # kind, and what the server did
        self.is_unheard = False  # nothing at all came since the request
        self.is_reusable = False  # the last answer is whole, and the server keeps the line open
        self._has_ended = True
        self._is_head = self._until_close = self._is_paused = False
        self._raw: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._unread = self._unsent = 0
        self._idle_s = self._since = 0.0
        self._waiter: asyncio.Future[bool] | None = None
        self._take: Callable[[bytes], bool] | None = None
        self._context = copy_context()
        self._is_due = False  # `_give` will be called in this pass of the loop
        # What the parser calls; two of them without any Python.
        self.on_header, self.on_body = self._raw.__setitem__, self._pieces.append
        self._parser = HttpResponseParser(self)

    def begin(self, request: bytes, idle_s: float, *, is_head: bool) -> None:
        """Sends a request. `idle_s`: how long nothing may arrive."""
        self._raw.clear()
        self._pieces.clear()
        self.status, self.failure, self._unread = 0, None, 0
        self.is_unheard, self.is_reusable, self._has_ended = True, False, False
        self._is_head, self._until_close = is_head, False
        self._idle_s, self._since = idle_s, self._loop.time()
        self._timer.cancel()
        self._timer = self._loop.call_later(idle_s, self._check)
        if self._transport.is_closing():
            self.failure = "network", "closed the connection before it answered"
        self._transport.write(request)
        self._unsent = self._transport.get_write_buffer_size()

    def rest(self) -> None:
        """Nobody needs it for now: it is closed after a while."""
        self._timer.cancel()
        self._timer = self._loop.call_later(IDLE_CONNECTION_S, self.abort)
        if self._is_paused:
            self._resume()  # the end of an answer that was not read to its end

    def arrival(self) -> asyncio.Future[bool]:
        """Done as soon as anything arrives, or nothing can arrive any more."""
        self._since = self._loop.time()
        self._waiter = self._loop.create_future()
        return self._waiter

    async def read_some(self) -> bytes:
        while not self._pieces:
            if self._has_ended:
                return b""
            if self.failure is not None:
                raise self.failed()
            await self.arrival()
        return self._next()

    async def read_into(self, take: Callable[[bytes], bool]) -> bool:
        """`take` is called by the event loop, in the context of who waits here: that task, and all
        that wait for it, run again only at the end."""
        while True:
            while self._pieces:
                if not take(self._next()):
                    return False
            if self._has_ended:
                return True
            if self.failure is not None:
                raise self.failed()
            self._take, self._context = take, copy_context()
            try:
                if not await self.arrival():
                    return False
            finally:
                self._take = None

    def _next(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread = 0
        if len(data) > MOST_READ:
            pieces.append(data[MOST_READ:])
            self._unread, data = len(pieces[0]), data[:MOST_READ]
        if self._is_paused:
            self._resume()
        return data

    def _give(self) -> None:
        """Gives `take` what has arrived since it was called last."""
        self._is_due = False
        take, waiter = self._take, self._waiter
        if take is None or waiter is None:
            return
        try:
            while self._pieces and not waiter.done():
                if not take(self._next()):
                    self._wake(go_on=False)
        except Exception as error:  # noqa: BLE001  # it belongs to the task that waits
            if not waiter.done():
                waiter.set_exception(error)
        if self._has_ended or self.failure is not None:
            self._wake()

    @property
    def is_over(self) -> bool:
        return self._has_ended and not self._pieces

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def failed(self) -> HttpFailed:
        """The failure to raise, once there is one."""
        kind, what = self.failure or ("network", "closed the connection")
        return HttpFailed(kind, f"{self._place} {what}")

    def abort(self) -> None:
        """Closes it at once; what was not sent yet is not sent."""
        self._timer.cancel()
        self._fail("network", "was left before the end of its answer")

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_later(IDLE_CONNECTION_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._has_ended:  # nobody has asked for it
            self.abort()
            return
        self._since = self._loop.time()
        self._unread += len(data)
        self.is_unheard = False
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._fail("network", "answered something that is not HTTP")
        if self._unread > HEAD_CAP:
            self._hold_back()
        if self._take is None:
            self._wake()
        elif not self._is_due:  # once for all that comes in one pass of the loop
            self._is_due = True
            self._loop.call_soon(self._give, context=self._context)

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        if self._until_close and error is None and self.failure is None:
            self._has_ended = True
        elif self.is_unheard:
            self._fail("network", "closed the connection before it answered")
        else:
            self._fail("network", "broke off in the middle of its answer")
        self.is_reusable = False
        self._wake()
        self._lost(self)

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._has_ended:
            raise HttpParserError("an answer that nobody asked for")

    def on_headers_complete(self) -> None:
        raw, status = self._raw, self._parser.get_status_code()
        if status == 101 or sum(map(len, raw)) + sum(map(len, raw.values())) > HEAD_CAP:
            raise HttpParserError("another protocol, or an oversized head")
        if status < 200:
            raw.clear()  # the answer itself follows
            return
        self.headers = headers = {
            name.decode("latin-1").lower(): value.decode("utf-8", "surrogateescape")
            for name, value in raw.items()
        }
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            raise HttpParserError("a body that is packed on its way")
        self.status, self._has_ended = status, self._is_head
        has_body = status not in {204, 304}
        self._until_close = has_body and coding is None and "content-length" not in headers

    def on_message_complete(self) -> None:
        if self.status:
            self._has_ended = True
            self.is_reusable = not self._is_head and self._parser.should_keep_alive()

    def _hold_back(self) -> None:
        if not self._pieces:
            self._fail("network", f"answered with more than {HEAD_CAP} bytes beside its body")
        elif self._unread > MOST_UNREAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._is_paused = False
        if self.is_open:
            self._transport.resume_reading()

    def _fail(self, kind: str, what: str) -> None:
        self.is_reusable = False
        if not self._has_ended and self.failure is None:
            self.failure = kind, what
        self._transport.abort()

    def _wake(self, *, go_on: bool = True) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(go_on)

    def _check(self) -> None:
        """Has nothing arrived for too long? A reader that is busy does not count, and nor does a
        request that is still on its way out."""
        now, unsent = self._loop.time(), self._transport.get_write_buffer_size()
        if unsent < self._unsent or self._waiter is None or self._waiter.done():
            self._since = now
        self._unsent = unsent
        left_s = self._since + self._idle_s - now
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check)
        else:
            self._fail("timeout", f"sent nothing for {self._idle_s:g} s")
            self._wake()
