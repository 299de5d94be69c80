"""The HTTP client for models and MCP servers: pooled connections and deadlines; no redirects, cookies
or proxies.

httptools collects headers and body pieces in C; Python runs once per network read. One timer per
connection detects silence: it compares times when it fires, so a read does not have to rearm it.
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
from typing import cast
from urllib.parse import quote, urlsplit

import anyio
from aiohappyeyeballs import start_connection
from anyio import to_thread
from anyio.lowlevel import checkpoint
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.domain.plugins import USUAL_PORT, Origin
from gateway.domain.ports import MOST_READ, HttpCall, HttpFailed
from gateway.outbound.guard import URL_SAFE, Lookup, is_address, resolve_host

MAX_KEPT = 512  # idle connections to one origin
MAX_NAMES = 256  # in the cache of resolved names
# Limits a head, and the framing between two pieces of a body: trailers, chunk headers.
MAX_HEAD_BYTES = 64 * 1024
IDLE_CONNECTION_S = 60.0
MAX_UNREAD_BYTES = 256 * 1024  # waiting for the reader; beyond it, the connection stops reading
_NEXT_ADDRESS_S = 0.25  # before the next address of a name is tried in parallel
_DNS_S = 60.0
# Methods that are repeated if the server closed a kept connection before any answer.
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding"})  # set by this client
_HOST = re.compile(r"[0-9A-Za-z._~:%-]+")

# The first match counts, so subclasses come first.
Failures = tuple[tuple[type[Exception], str], ...]
FAILURES: Failures = (
    (ssl.CertificateError, "has a TLS certificate that this machine does not trust"),
    (ssl.SSLError, "failed the TLS handshake"),
    (gaierror, "cannot be resolved by DNS"),
)


def describe_failure(error: Exception, kinds: Failures = FAILURES) -> str:
    """Returns the end of a sentence that begins with the host. It holds no URL, header or body."""
    for kind, what in kinds:
        if isinstance(error, kind):
            return what
    known = isinstance(error, OSError) and error.errno
    return f"cannot be reached ({strerror(known) if known else type(error).__name__})"


@asynccontextmanager
async def open_outbound(lookup: Lookup = resolve_host) -> AsyncIterator["HttpClient"]:
    """Opens the client and closes its connections on exit. `lookup` resolves names."""
    client = HttpClient(lookup)
    try:
        yield client
    finally:
        client.close()
        with anyio.CancelScope(shield=True):
            await checkpoint()  # the loop closes the sockets


class HttpClient:
    """Implements the Http port. Keeps a connection for the next call after a complete answer."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._open: set[HttpConnection] = set()
        # Idle connections; the most recent one is used next.
        self.kept: defaultdict[Origin, dict[HttpConnection, None]] = defaultdict(dict)
        self._names: dict[str, tuple[float, Sequence[str]]] = {}  # name -> expiry, addresses
        self._tls: ssl.SSLContext | None = None

    async def send(self, call: HttpCall) -> "HttpConnection":
        try:
            origin, head = _build_head(call.method, call.url, tuple(call.headers.items()))
        except ValueError as error:
            raise HttpFailed("network", str(error), sent=False) from error
        has_body = call.body or call.method in _WITH_BODY
        length = b"content-length: %d\r\n" % len(call.body) if has_body else b""
        request = b"%b%b\r\n%b" % (head, length, call.body)
        kept, is_head = self.kept[origin], call.method == "HEAD"
        while True:
            is_kept = len(kept) > 0
            connection = kept.popitem()[0] if is_kept else await self._connect(origin, call)
            if await connection.ask(request, call.idle_timeout_s, is_head=is_head):
                return connection
            may_repeat = connection.is_unsent or call.method in _REPEATABLE
            if not all((is_kept, may_repeat, connection.is_unanswered)):
                raise connection.error()

    async def _connect(self, origin: Origin, call: HttpCall) -> "HttpConnection":
        try:
            with anyio.fail_after(call.connect_timeout_s):
                return await self._dial(origin)
        except TimeoutError as error:
            detail = f"{origin} did not accept a connection within {call.connect_timeout_s:g} s"
            raise HttpFailed("timeout", detail, sent=False) from error
        except (OSError, ValueError) as error:
            detail = f"{origin} {describe_failure(error)}"
            raise HttpFailed("network", detail, sent=False) from error

    async def _dial(self, origin: Origin) -> "HttpConnection":
        is_tls, name, port = origin.scheme == "https", origin.host, origin.port
        found = [
            (AF_INET6 if ":" in address else AF_INET, SOCK_STREAM, IPPROTO_TCP, "", (address, port))
            for address in await self._addresses(name, port)
        ]
        if is_tls and self._tls is None:
            tls = await to_thread.run_sync(ssl.create_default_context)  # reads many certificates
            tls.set_alpn_protocols(["http/1.1"])
            self._tls = tls
        socket = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1)
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(HttpConnection, str(origin), self.kept[origin], self._open),
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


def _split_url(url: str) -> tuple[Origin, str]:
    """Returns the origin of a URL and the target of a request. Raises ValueError if the URL is invalid."""
    parts = urlsplit(url)
    usual, name = USUAL_PORT.get(parts.scheme), (parts.hostname or "").encode("idna").decode()
    if usual is None or parts.username is not None or not _HOST.fullmatch(name):
        raise ValueError("the URL is not a valid http or https URL")
    target = (parts.path or "/") + (parts.query and f"?{parts.query}")
    return Origin(parts.scheme, name, parts.port or usual), quote(target, safe=URL_SAFE)


@lru_cache(maxsize=256)
def _build_head(
    method: str, url: str, headers: tuple[tuple[str, str], ...]
) -> tuple[Origin, bytes]:
    """Returns the origin of a URL and the head of a request without its content-length, the only part in
    which calls of a model differ. Raises ValueError for an invalid URL, and for a header that would smuggle
    in another one."""
    origin, target = _split_url(url)
    fields = {"host": str(origin).partition("//")[2], **dict(headers)}.items()
    lines = [f"{key}: {text}" for key, text in fields if key.lower() not in _FRAMING]
    head = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, ""])
    if "\0" in head or not len(lines) + 1 == head.count("\r") == head.count("\n"):
        raise ValueError(f"the request to {origin} has an invalid character in a header")
    return origin, head.encode()


class HttpConnection(asyncio.Protocol):
    """Implements the HttpAnswer port for one exchange at a time: `ask`, then `read_some`. The
    connection is in `opened` while it is open, and in `kept` while it is idle."""

    transport: asyncio.Transport
    _timer: asyncio.TimerHandle

    def __init__(
        self, place: str, kept: dict["HttpConnection", None], opened: set["HttpConnection"]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._place, self._kept, self._opened = place, kept, opened
        self.status = 0  # 0: the answer has not begun
        self.headers: dict[str, str] = {}
        self.failure: tuple[str, str] | None = (
            None  # kind, and the end of a sentence about the host
        )
        self.is_unsent = False  # the connection was closed before the request
        self.is_unanswered = False  # no byte has arrived since the request
        self.is_reusable = False  # the last answer is complete and the server keeps the connection
        self._has_ended = True
        self._is_head = self._until_close = self._is_paused = False
        self._raw: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._unread = self._unsent = 0
        self._idle_s = self._since = 0.0
        self._waiter: asyncio.Future[bool] | None = None
        self._consume: Callable[[bytes], bool] | None = None
        self._context = copy_context()
        self._is_scheduled = False  # `_deliver` runs in this pass of the event loop
        # Callbacks of the parser; these two run no Python.
        self.on_header, self.on_body = self._raw.__setitem__, self._pieces.append
        self._parser = HttpResponseParser(self)

    async def ask(self, request: bytes, idle_s: float, *, is_head: bool) -> bool:
        """Sends a request and waits for the head of the answer. False: the connection failed and is
        closed. `idle_s`: the longest time without a byte."""
        self._raw.clear()
        self._pieces.clear()
        self.status, self.failure, self._unread = 0, None, 0
        self.is_unanswered, self.is_reusable, self._has_ended = True, False, False
        self._is_head, self._until_close = is_head, False
        self._idle_s, self._since = idle_s, self._loop.time()
        self._timer.cancel()
        self._timer = self._loop.call_later(idle_s, self._check_idle)
        self.is_unsent = self.transport.is_closing()
        if self.is_unsent:
            self.failure = "network", "closed the connection before it answered"
        self.transport.write(request)
        self._unsent = self.transport.get_write_buffer_size()
        try:
            while not self.status and self.failure is None:
                await self.next_arrival()
        finally:
            if not self.status:
                self.abort()
        return self.status > 0

    def close(self) -> None:
        """Keeps the connection for the next call if its answer is complete; else closes it."""
        if not self.is_reusable or len(self._kept) >= MAX_KEPT:
            self.abort()
            return
        self._kept[self] = None
        self._timer.cancel()
        self._timer = self._loop.call_later(IDLE_CONNECTION_S, self.abort)
        if self._is_paused:
            self._resume()  # the end of the answer has arrived, unread

    def next_arrival(self) -> asyncio.Future[bool]:
        """Returns a future that is done when data arrives or the connection ends."""
        self._since = self._loop.time()
        self._waiter = self._loop.create_future()
        return self._waiter

    async def read_some(self) -> bytes:
        while not self._pieces:
            if self._has_ended:
                return b""
            if self.failure is not None:
                raise self.error()
            await self.next_arrival()
        return self._next()

    async def read_into(self, consume: Callable[[bytes], bool]) -> bool:
        """Calls `consume` from the event loop, in the context of the waiting task: the task itself
        resumes only at the end."""
        while True:
            while self._pieces:
                if not consume(self._next()):
                    return False
            if self._has_ended:
                return True
            if self.failure is not None:
                raise self.error()
            self._consume, self._context = consume, copy_context()
            try:
                if not await self.next_arrival():
                    return False
            finally:
                self._consume = None

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

    def _deliver(self) -> None:
        """Passes the data that has arrived since the last call to `consume`."""
        self._is_scheduled = False
        consume, waiter = self._consume, self._waiter
        if consume is None or waiter is None:
            return
        try:
            while self._pieces and not waiter.done():
                if not consume(self._next()):
                    self._wake(go_on=False)
        except Exception as error:  # noqa: BLE001  # the waiting task raises it
            if not waiter.done():
                waiter.set_exception(error)
        if self._has_ended or self.failure is not None:
            self._wake()

    @property
    def is_over(self) -> bool:
        return self._has_ended and not self._pieces

    def error(self) -> HttpFailed:
        """Returns the exception for `failure`."""
        kind, what = self.failure or ("network", "closed the connection")
        return HttpFailed(kind, f"{self._place} {what}")

    def abort(self) -> None:
        """Closes the connection at once and drops unsent data."""
        self._timer.cancel()
        self._fail("network", "was closed by the gateway before the end of its answer")

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._opened.add(self)
        self._timer = self._loop.call_later(IDLE_CONNECTION_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._has_ended:  # data without a request
            self.abort()
            return
        self._since = self._loop.time()
        self._unread += len(data)
        self.is_unanswered = False
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._fail("network", "sent an answer that is not valid HTTP")
        if self._unread > MAX_HEAD_BYTES:
            self._bound_unread()
        if self._consume is not None:
            if not self._is_scheduled:  # one call for all reads of one pass of the loop
                self._is_scheduled = True
                self._loop.call_soon(self._deliver, context=self._context)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        if self._until_close and error is None and self.failure is None:
            self._has_ended = True
        elif self.is_unanswered:
            self._fail("network", "closed the connection before it answered")
        else:
            self._fail("network", "broke off in the middle of its answer")
        self.is_reusable = False
        self._wake()
        self._opened.discard(self)
        self._kept.pop(self, None)

    # Callbacks of the parser.

    def on_headers_complete(self) -> None:
        if self._has_ended:
            raise HttpParserError("an answer without a request")
        raw, status = self._raw, self._parser.get_status_code()
        if status == 101 or sum(map(len, raw)) + sum(map(len, raw.values())) > MAX_HEAD_BYTES:
            raise HttpParserError("another protocol, or an oversized head")
        if status < 200:
            raw.clear()  # an interim answer; the final one follows
            return
        self.headers = headers = {}
        for name, value in raw.items():
            headers[name.decode("latin-1").lower()] = value.decode("utf-8", "surrogateescape")
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            raise HttpParserError("an unsupported transfer encoding")
        self.status, self._has_ended = status, self._is_head
        has_body = status not in {204, 304}
        self._until_close = has_body and coding is None and "content-length" not in headers

    def on_message_complete(self) -> None:
        if self.status:
            self._has_ended = True
            self.is_reusable = not self._is_head and self._parser.should_keep_alive()

    def _bound_unread(self) -> None:
        if not self._pieces:
            self._fail("network", f"sent more than {MAX_HEAD_BYTES} bytes of headers or framing")
        elif self._unread > MAX_UNREAD_BYTES and not self._is_paused:
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

    def _check_idle(self) -> None:
        """Fails the connection if no byte arrived for `_idle_s`. Time in which the reader is busy or
        the request is still being sent does not count."""
        now, unsent = self._loop.time(), self.transport.get_write_buffer_size()
        if unsent < self._unsent or self._waiter is None or self._waiter.done():
            self._since = now
        self._unsent = unsent
        left_s = self._since + self._idle_s - now
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_idle)
        else:
            self._fail("timeout", f"sent nothing for {self._idle_s:g} s")
            self._wake()
