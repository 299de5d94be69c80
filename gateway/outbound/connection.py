"""The HTTP client for models and MCP servers: kept connections, deadlines, no redirects, no cookies, no
proxies.

httptools collects headers and pieces of the body in C; Python runs once for a network read. One
timer watches over silence: it compares times when it fires, and is not armed anew for each read.
"""

import asyncio
import re
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import lru_cache, partial
from os import strerror
from socket import AF_INET, AF_INET6, IPPROTO_TCP, SOCK_STREAM, gaierror
from typing import NamedTuple, cast
from urllib.parse import quote, urlsplit

import anyio
from aiohappyeyeballs import start_connection
from anyio import to_thread
from anyio.lowlevel import checkpoint
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.domain.ports import MOST_READ, HttpCall, HttpFailed
from gateway.outbound.guard import Lookup, is_address, look_up

MAX_KEPT = 512  # connections to one endpoint that wait for another call
MAX_NAMES = 256  # whose addresses are kept
# Of a head, and of all else that comes between two bytes of a body: trailers, parts of chunks.
HEAD_CAP = 64 * 1024
IDLE_CONNECTION_S = 60.0
MOST_UNREAD = 256 * 1024  # bytes that wait for a reader before the server has to wait
_NEXT_ADDRESS_S = 0.25  # a name's next address is tried beside one that does not answer
_DNS_S = 60.0
# What may be asked twice, where a kept connection turns out to be closed before any answer.
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding"})  # ours to say
_PORTS = {"http": 80, "https": 443}
_KEPT = "%/?:@!$&'()*+,;=-._~"
_HOST = re.compile(r"[0-9A-Za-z._~:%-]+")

# Most special first.
WHAT_FAILED: tuple[tuple[type[Exception], str], ...] = (
    (ssl.CertificateError, "has no certificate that this machine trusts"),
    (ssl.SSLError, "does not speak TLS as this machine does"),
    (gaierror, "is not a name that can be resolved"),
)


def what_failed(
    error: Exception, kinds: Sequence[tuple[type[Exception], str]] = WHAT_FAILED
) -> str:
    """The rest of a sentence that begins with the host; never the URL, headers or a body."""
    for kind, what in kinds:
        if isinstance(error, kind):
            return what
    known = isinstance(error, OSError) and error.errno
    return f"cannot be reached ({strerror(known) if known else type(error).__name__})"


class Endpoint(NamedTuple):
    """Where a connection leads; one is kept for calls to the same endpoint."""

    is_tls: bool
    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"


@asynccontextmanager
async def open_outbound(lookup: Lookup = look_up) -> AsyncIterator["HttpClient"]:
    """The client; all its connections are closed on the way out. `lookup` resolves names."""
    client = HttpClient(lookup)
    try:
        yield client
    finally:
        client.close()
        with anyio.CancelScope(shield=True):
            await checkpoint()  # the loop closes the sockets


class HttpClient:
    """Implements the Http port. A connection is kept for the next call once its answer is whole."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._open: set[HttpConnection] = set()
        # The last one is used next.
        self.kept: defaultdict[Endpoint, dict[HttpConnection, None]] = defaultdict(dict)
        self._names: dict[str, tuple[float, Sequence[str]]] = {}  # until when, and the addresses
        self._tls: ssl.SSLContext | None = None

    async def send(self, call: HttpCall) -> "HttpConnection":
        try:
            endpoint, head = _head(call.method, call.url, tuple(call.headers.items()))
        except ValueError as error:
            raise HttpFailed("network", str(error), sent=False) from error
        has_body = call.body or call.method in _WITH_BODY
        length = b"content-length: %d\r\n" % len(call.body) if has_body else b""
        request = b"%b%b\r\n%b" % (head, length, call.body)
        kept, is_head = self.kept[endpoint], call.method == "HEAD"
        while True:
            is_kept = len(kept) > 0
            connection = (
                kept.popitem()[0]
                if is_kept
                else await self._connect(endpoint, call.connect_timeout_s)
            )
            if await connection.ask(request, call.idle_timeout_s, is_head=is_head):
                return connection
            may_repeat = connection.is_unsent or call.method in _REPEATABLE
            if not all((is_kept, may_repeat, connection.is_unheard)):
                raise connection.failed()

    async def _connect(self, endpoint: Endpoint, timeout_s: float) -> "HttpConnection":
        try:
            with anyio.fail_after(timeout_s):
                connection = await self._dial(endpoint)
        except TimeoutError as error:
            detail = f"{endpoint} could not be connected within {timeout_s:g} s"
            raise HttpFailed("timeout", detail, sent=False) from error
        except (OSError, ValueError) as error:
            raise HttpFailed("network", f"{endpoint} {what_failed(error)}", sent=False) from error
        return connection

    async def _dial(self, endpoint: Endpoint) -> "HttpConnection":
        is_tls, name, port = endpoint
        found = [
            (AF_INET6 if ":" in address else AF_INET, SOCK_STREAM, IPPROTO_TCP, "", (address, port))
            for address in await self._addresses(name, port)
        ]
        if is_tls and self._tls is None:
            self._tls = await to_thread.run_sync(_tls)  # it reads hundreds of certificates
        socket = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1)
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(HttpConnection, str(endpoint), self.kept[endpoint], self._open),
            sock=socket,
            ssl=self._tls if is_tls else None,
            server_hostname=name if is_tls else None,
        )
        return connection

    async def _addresses(self, name: str, port: int) -> Sequence[str]:
        if is_address(name):
            return (name,)
        now = asyncio.get_running_loop().time()
        until, addresses = self._names.get(name, (0.0, ()))
        if now > until:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            addresses = await self._lookup(name, port)
            self._names[name] = now + _DNS_S, addresses
        return addresses

    def close(self) -> None:
        for connection in self._open:
            connection.abort()


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _target_of(url: str) -> tuple[Endpoint, str, str]:
    """An address taken apart, with host and path as a request writes them. Raises ValueError for what
    is no address of http or https."""
    parts = urlsplit(url)
    usual, name = _PORTS.get(parts.scheme), (parts.hostname or "").encode("idna").decode()
    if usual is None or parts.username is not None or not _HOST.fullmatch(name):
        raise ValueError("it is no address that can be asked")
    endpoint = Endpoint(usual == 443, name, parts.port or usual)
    host = f"[{name}]" if ":" in name else name
    place = host if endpoint.port == usual else f"{host}:{endpoint.port}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return endpoint, place, quote(path, safe=_KEPT)


@lru_cache(maxsize=256)
def _head(method: str, url: str, headers: tuple[tuple[str, str], ...]) -> tuple[Endpoint, bytes]:
    """Where a request goes, and its head without the length of its body: calls of a model differ in
    that alone. Raises ValueError, also for a header that would smuggle another one."""
    endpoint, host, path = _target_of(url)
    lines = [f"{method} {path} HTTP/1.1"]
    for key, text in {"host": host, **dict(headers)}.items():
        if key.lower() not in _FRAMING:
            lines.append(f"{key}: {text}")
    lines.append("")
    head = "\r\n".join(lines)
    if "\0" in head or not len(lines) - 1 == head.count("\r") == head.count("\n"):
        raise ValueError(f"{host} is not asked: a header has a character that no header has")
    return endpoint, head.encode()


class HttpConnection(asyncio.Protocol):
    """Implements the HttpAnswer port, for one exchange at a time: `ask`, then `read_some`. It is
    in `opened` as long as it is open, and in `kept` while it waits for another call."""

    transport: asyncio.Transport
    _timer: asyncio.TimerHandle

    def __init__(
        self,
        place: str,
        kept: dict["HttpConnection", None],
        opened: set["HttpConnection"],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._place, self._kept, self._opened = place, kept, opened
        self.status = 0  # 0: its answer has not begun
        self.headers: dict[str, str] = {}
        self.failure: tuple[str, str] | None = None  # kind, and what the server did
        self.is_unsent = False  # it was closed before the request
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

    async def ask(self, request: bytes, idle_s: float, *, is_head: bool) -> bool:
        """Sends a request. `idle_s`: how long nothing may arrive. False: no answer begins, and the
        connection is closed."""
        self._raw.clear()
        self._pieces.clear()
        self.status, self.failure, self._unread = 0, None, 0
        self.is_unheard, self.is_reusable, self._has_ended = True, False, False
        self._is_head, self._until_close = is_head, False
        self._idle_s, self._since = idle_s, self._loop.time()
        self._timer.cancel()
        self._timer = self._loop.call_later(idle_s, self._check)
        self.is_unsent = self.transport.is_closing()
        if self.is_unsent:
            self.failure = "network", "closed the connection before it answered"
        self.transport.write(request)
        self._unsent = self.transport.get_write_buffer_size()
        try:
            while not self.status and self.failure is None:
                await self.arrival()
        finally:
            if not self.status:
                self.abort()
        return self.status > 0

    def close(self) -> None:
        """Whole answers leave it for the next call, and it is closed after a while."""
        if not self.is_reusable or len(self._kept) >= MAX_KEPT:
            self.abort()
            return
        self._kept[self] = None
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
        self.transport = cast(asyncio.Transport, transport)
        self._opened.add(self)
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
        if self._take is not None:
            if not self._is_due:  # once for all that comes in one pass of the loop
                self._is_due = True
                self._loop.call_soon(self._give, context=self._context)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

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
        self._opened.discard(self)
        self._kept.pop(self, None)

    # What the parser calls.

    def on_headers_complete(self) -> None:
        if self._has_ended:
            raise HttpParserError("an answer that nobody asked for")
        raw, status = self._raw, self._parser.get_status_code()
        if status == 101 or sum(map(len, raw)) + sum(map(len, raw.values())) > HEAD_CAP:
            raise HttpParserError("another protocol, or an oversized head")
        if status < 200:
            raw.clear()  # the answer itself follows
            return
        self.headers = headers = {}
        for name, value in raw.items():
            headers[name.decode("latin-1").lower()] = value.decode("utf-8", "surrogateescape")
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
            self.transport.pause_reading()

    def _resume(self) -> None:
        self._is_paused = False
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _fail(self, kind: str, what: str) -> None:
        self.is_reusable = False
        if not self._has_ended and self.failure is None:
            self.failure = kind, what
        self.transport.abort()

    def _wake(self, *, go_on: bool = True) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(go_on)

    def _check(self) -> None:
        """Has nothing arrived for too long? A reader that is busy does not count, and nor does a
        request that is still on its way out."""
        now, unsent = self._loop.time(), self.transport.get_write_buffer_size()
        if unsent < self._unsent or self._waiter is None or self._waiter.done():
            self._since = now
        self._unsent = unsent
        left_s = self._since + self._idle_s - now
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check)
        else:
            self._fail("timeout", f"sent nothing for {self._idle_s:g} s")
            self._wake()
