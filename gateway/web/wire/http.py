"""HTTP on its transport, around uvicorn's parser, with limits and their refusals, and the handshake of a WebSocket."""

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import NamedTuple, Protocol

import httptools
from httptools import HttpParserError
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from websockets.utils import accept_key

from gateway.api.errors import (
    BodyTooLarge,
    Full,
    HeadTooLarge,
    InvalidRequest,
    NotUpgradable,
    Stopping,
    TargetTooLong,
    TooManyOfAddress,
    TooSlow,
    VersionNotSupported,
    delay_of,
    error_headers,
    failure_of,
)
from gateway.domain.errors import GatewayError
from gateway.web.responses import error_body
from gateway.web.settings import WebSettings
from gateway.web.wire.connections import (
    SECURITY_HEADERS,
    Endpoint,
    Headers,
    OpenConnections,
    parse_address,
)
from gateway.web.wire.frames import StallTimer, Timer, Wire

_SLACK = 512  # bytes of a head besides its target and headers: method, version, line ends
_WEBSOCKET = b"websocket"
_VERSIONS = frozenset({"1.0", "1.1"})
_RTSP = b" RTSP/"  # the parser reads that protocol as well
_UNREAD = "0.0"  # the version before the parser has read it


def _ambiguity(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Returns why two servers could read the request in two ways; None if they could not."""
    hosts = [value for name, value in headers if name == b"host"]
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(hosts) != 1 or not hosts[0].strip():
        return "a request must have exactly one Host header"
    if len(lengths) + len(codings) > 1 or codings not in ([], [b"chunked"]):
        return "the length of the body is ambiguous: send one Content-Length, or Transfer-Encoding: chunked"
    if not target.startswith(b"/"):
        return "the request target must be a path"
    return None


def refusal(error: GatewayError) -> bytes:
    """Returns a whole HTTP answer that also ends the connection."""
    body = error_body(error)
    status = HTTPStatus(failure_of(error).status)
    headers = [f"{name}: {value}" for name, value in error_headers(error).items()]
    headers += [f"{name.decode()}: {value.decode()}" for name, value in SECURITY_HEADERS]
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class RequestApp:
    """The application for one request: answers HTTP/1.0, and ends the answer when the gateway stops."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app, self._cycle = app, cycle
        self._is_open_ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["http_version"] == "1.0":
            send = self._send_unchunked
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                raise  # the gateway does not stop: something that was awaited was cancelled
            self._cut_off()

    async def _send_unchunked(self, message: Message) -> None:
        """Sends an answer of HTTP/1.0, which has no chunks: one of unknown length ends with its connection."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._is_open_ended = b"content-length" not in names
            if self._is_open_ended:
                cycle.chunked_encoding = False
        elif self._is_open_ended:
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)  # type: ignore[arg-type]  # Starlette's type for the same thing

    def _cut_off(self) -> None:
        """Ends the answer without waiting: with a refusal if it has not begun, else with a last chunk."""
        cycle, transport = self._cycle, self._cycle.transport
        if not (cycle.disconnected or cycle.response_complete or transport.is_closing()):
            if not cycle.response_started:
                transport.write(refusal(Stopping()))
            elif cycle.chunked_encoding:
                transport.write(b"0\r\n\r\n")
            transport.close()
        cycle.disconnected = True


class Admission(NamedTuple):
    """The right to open one socket."""

    max_frame: int
    start: Callable[[Wire], None]


class Admitter(Protocol):
    def admit(self, path: str, headers: Headers, client: Endpoint, server: Endpoint) -> Admission:
        """Admits a valid handshake. Raises GatewayError, with which the handshake is refused."""
        ...


def accept(method: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Returns the answer to a valid handshake. Raises NotUpgradable."""
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name.startswith(b"sec-websocket-") and name in given:
            raise NotUpgradable(f"{name.decode('latin-1')} must not be repeated")
        given[name] = value
    if method != b"GET" or version != "1.1":
        raise NotUpgradable("a WebSocket handshake must be a GET of HTTP/1.1")
    if b"content-length" in given or b"transfer-encoding" in given:
        raise NotUpgradable("a WebSocket handshake must not have a body")
    if given.get(b"sec-websocket-version") != b"13":
        raise NotUpgradable("Sec-WebSocket-Version must be 13")
    key = given.get(b"sec-websocket-key", b"").strip()
    if not _is_key(key):
        raise NotUpgradable("Sec-WebSocket-Key must be 16 bytes in base64")
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: %b\r\n\r\n" % accept_key(key.decode()).encode()
    )


def _is_key(key: bytes) -> bool:
    try:
        return len(b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False


_LINGER_S = 1.0  # the time that a refused peer has to read the refusal


class GuardedHttp(HttpToolsProtocol):
    """An HTTP connection, until it ends or becomes a WebSocket. It stops the parser at a request that is too large,
    too slow or ambiguous; `refusal` says why. `read_timer` runs while a head or a body is incomplete."""

    def __init__(
        self,
        config: Config,
        settings: WebSettings,
        connections: OpenConnections,
        admitter: Admitter,
    ) -> None:
        super().__init__(config, connections.state, {})
        self.settings, self._connections, self._admitter = settings, connections, admitter
        self.refusal: GatewayError | None = None
        self.in_head = self.in_body = self._is_refused = False
        self._begun = self._head_bytes = self._header_bytes = self._ignored_bytes = 0
        self._trailers = self._unused_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own narrowing
        super().connection_made(transport)
        self.read_timer = Timer(self.loop, self._time_out)
        deadline_s = self.settings.write_deadline_s
        self._stall = StallTimer(self.loop, transport, deadline_s, transport.abort)
        self._linger = Timer(self.loop, transport.abort)
        peer = parse_address(str(self.client[0])) if self.client else None
        self._proxy = peer if self._connections.visitor_reader.is_trusted(peer) else None
        is_within_limit = self._connections.assign_address(self, None if self._proxy else peer)
        if self._connections.is_overrun or self._connections.is_group_overrun(self):
            transport.abort()
        elif self._connections.is_full or not is_within_limit:
            self._refuse(Full() if is_within_limit else TooManyOfAddress())
        else:
            self.read_timer.start(self.settings.header_timeout_s)
            self._connections.mark_unknown(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.read_timer, self._stall, self._linger):
            timer.stop()
        super().connection_lost(exc)
        self._connections.remove(self)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        try:
            self.feed(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.wants_websocket:
                self._upgrade(data[int(upgrade.args[0]) :])
                return
        except httptools.HttpParserError as error:
            self._refuse(self.reason(error))
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self.is_known:
            self._connections.mark_unknown(self)

    @property
    def is_known(self) -> bool:
        return self.scope is not None and "principal" in self.scope["state"]

    def evict(self) -> None:
        if self.cycle is None or self.in_head or self.in_body:
            self._refuse(Full())
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.stop()

    def abort(self) -> None:
        self.transport.abort()

    def _start_asgi_task(  # type: ignore[override]  # Starlette's type for the same thing
        self, cycle: RequestResponseCycle, app: ASGIApp
    ) -> None:
        super()._start_asgi_task(cycle, RequestApp(app, cycle))  # type: ignore[arg-type]  # uvicorn's scope types are its own

    def _watch(self) -> None:
        """Starts the timer for an incomplete head or body. An idle connection has the keep-alive time, also if it
        sends bytes that are no request."""
        if self._is_refused or self.transport.is_closing():
            return
        if self.is_head_endless:
            self._refuse(HeadTooLarge())
        elif self.in_body:
            self.read_timer.start(self.settings.body_timeout_s)
        elif self.in_head or self.cycle is None:
            self.read_timer.start(self.settings.header_timeout_s)
        elif self.cycle.response_complete and self.timeout_keep_alive_task is None:
            self.read_timer.start(self.settings.keep_alive_s)

    def _time_out(self) -> None:
        if self.in_head or self.in_body:
            self._refuse(TooSlow("head" if self.in_head else "body"))
        else:
            self.transport.close()

    def _refuse(self, error: GatewayError) -> None:
        """Sends the refusal, unless an answer is under way, and reads no more."""
        self._is_refused = True
        self.read_timer.stop()
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if self.in_body and (cycle.response_started or self.pipeline):
            self.transport.close()
        elif self.in_body or cycle is None or cycle.response_complete:
            self.transport.write(refusal(error))
            self.transport.write_eof()
            self._linger.start(_LINGER_S)  # a peer cut off while it sends never sees the answer
            if self.in_body:
                cycle.disconnected = True
                cycle.message_event.set()
        else:
            cycle.keep_alive = False  # a later request of a pipeline: the earlier one is answered

    def _upgrade(self, rest: bytes) -> None:
        if self.cycle is not None and (self.pipeline or not self.cycle.response_complete):
            self._refuse(InvalidRequest("a WebSocket handshake must follow all earlier answers"))
            return
        target = self.url.partition(b"?")[0].decode("latin-1")
        method, version = self.parser.get_method(), self.parser.get_http_version()
        try:
            answer = accept(method, version, self.headers)
            admission = self._admitter.admit(target, self.headers, self.client, self.server)
        except GatewayError as error:
            if delay_s := delay_of(error):
                self._is_refused = True
                self.loop.call_later(delay_s, self._refuse, error)
            else:
                self._refuse(error)
            return
        self.read_timer.stop()
        self._stall.stop()
        self.parser = None  # type: ignore[assignment]  # it holds us, and we are done
        wire = Wire(self.transport, self.settings, self._connections, admission.max_frame)
        self._connections.replace(self, wire)
        self.transport.write(answer)
        self.transport.set_protocol(wire)
        admission.start(wire)
        if rest:
            wire.data_received(rest)

    @property
    def is_head_endless(self) -> bool:
        """True if a header, a trailer or the extension of a chunk does not end. The parser reports only whole
        ones, so their bytes are counted here."""
        limits = self.settings
        limit = limits.max_target_bytes + limits.max_header_bytes + _SLACK
        if self.in_body:
            return self._unused_bytes > limit
        return self.in_head and self._head_bytes > limit

    @property
    def wants_websocket(self) -> bool:
        return bool(self.parser.should_upgrade()) and self._get_upgrade() == _WEBSOCKET

    def feed(self, data: bytes) -> None:
        """Raises HttpParserError and HttpParserUpgrade, as the parser does."""
        clean, self._begun = not self.in_body, 0
        first_line = data.lstrip(b"\r\n").partition(b"\n")[0] if _RTSP in data else b""
        if _RTSP in first_line and clean and not self.in_head:
            self.refusal = VersionNotSupported()
            raise HttpParserError
        self._unused_bytes += len(data)
        self.parser.feed_data(data)
        if clean and self._begun <= 1:  # else some bytes belonged to an earlier request
            self._head_bytes += len(data)

    # callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.in_head, self.in_body = True, False
        self._begun += 1
        self._head_bytes = self._header_bytes = self._ignored_bytes = 0
        self._trailers = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.settings.max_target_bytes:
            self._stop(TargetTooLong(self.settings.max_target_bytes))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_body:
            self._trailers += 1  # a trailer of a chunked body is counted and dropped
        else:
            super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + 4
        limits, number = self.settings, len(self.headers) + self._trailers
        if number > limits.max_headers or self._header_bytes > limits.max_header_bytes:
            self._stop(HeadTooLarge())

    def on_headers_complete(self) -> None:
        if self._proxy is not None:  # the connection counts for the client that the proxy names
            address = self._connections.visitor_reader.forwarded_client(self.headers, self._proxy)
            if not self._connections.assign_address(self, address):
                self._stop(TooManyOfAddress())
        self.read_timer.stop()
        self._unused_bytes = 0
        if self.parser.get_http_version() not in _VERSIONS:
            self._stop(VersionNotSupported())
        if problem := _ambiguity(self.url, self.headers):
            self._stop(InvalidRequest(problem))
        self.in_head = False
        if self.wants_websocket:
            return
        super().on_headers_complete()
        self.in_body = True
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the parser cannot go on after an unknown upgrade

    def on_body(self, body: bytes) -> None:
        if self.wants_websocket:
            return
        super().on_body(body)
        self._unused_bytes = 0
        if self.cycle.response_complete:
            self._ignored_bytes += len(body)
            if self._ignored_bytes > self.settings.max_body_bytes:
                self._stop(BodyTooLarge(self.settings.max_body_bytes))

    def on_message_complete(self) -> None:
        self.in_body = False
        self.read_timer.stop()
        if not self.wants_websocket:
            super().on_message_complete()
        self._connections.mark_known(self)  # until it is answered

    def reason(self, error: Exception) -> GatewayError:
        """Returns why the parser stopped."""
        if self.refusal is not None:
            return self.refusal
        is_other = self.parser.get_http_version() not in {_UNREAD, *_VERSIONS}
        if is_other or str(error) == "Invalid HTTP version":
            return VersionNotSupported()
        return InvalidRequest(f"the request is not HTTP: {str(error)[:100]}")

    def _stop(self, error: GatewayError) -> None:
        self.refusal = error
        raise error
