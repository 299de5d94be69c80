"""An HTTP request while it arrives: uvicorn's parser callbacks, with limits on the head."""

from collections.abc import Sequence

from httptools import HttpParserError
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.domain.errors import GatewayError
from gateway.web.lobby import Lobby
from gateway.web.refusals import (
    BodyTooLarge,
    HeadTooLarge,
    InvalidRequest,
    TargetTooLong,
    VersionNotSupported,
)
from gateway.web.settings import WebSettings
from gateway.web.timers import Timer

_SLACK = 512  # what a head holds besides its target and headers: method, version, line ends
_WEBSOCKET = b"websocket"
_VERSIONS = frozenset({"1.0", "1.1"})
_ALIEN = b" RTSP/"  # which the parser reads as well
_UNREAD = "0.0"  # the parser has not come to the version


class LimitedHttp(HttpToolsProtocol):
    """Stops the parser at what is too much, too many or ambiguous; `refusal` says why.

    `patience` runs while a head or a body is half here.
    """

    patience: Timer

    def __init__(self, config: Config, settings: WebSettings, lobby: Lobby) -> None:
        super().__init__(config, lobby.state, {})
        self.settings = settings
        self.refusal: GatewayError | None = None
        self.in_head = self.in_body = False
        self._begun = self._head_bytes = self._header_bytes = self._ignored_bytes = 0
        self._trailers = self._unused_bytes = 0

    @property
    def is_head_endless(self) -> bool:
        """A header that does not end is seen by its bytes: the parser reports whole ones. So is a
        trailer, or what stands beside the size of a chunk."""
        limits = self.settings
        limit = limits.max_target_bytes + limits.max_header_bytes + _SLACK
        if self.in_body:
            return self._unused_bytes > limit
        return self.in_head and self._head_bytes > limit

    @property
    def wants_websocket(self) -> bool:
        return bool(self.parser.should_upgrade()) and self._get_upgrade() == _WEBSOCKET

    def feed(self, data: bytes) -> None:
        """Raises what the parser raises."""
        clean, self._begun = not self.in_body, 0
        if _ALIEN in data and clean and not self.in_head and _ALIEN in _first_line(data):
            self.refusal = VersionNotSupported()
            raise HttpParserError
        self._unused_bytes += len(data)
        self.parser.feed_data(data)
        if clean and self._begun <= 1:  # else part of it belonged to an earlier request
            self._head_bytes += len(data)

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
            self._trailers += 1  # of a chunked body: counted and dropped, it is no header
        else:
            super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + 4
        limits, number = self.settings, len(self.headers) + self._trailers
        if number > limits.max_headers or self._header_bytes > limits.max_header_bytes:
            self._stop(HeadTooLarge())

    def on_headers_complete(self) -> None:
        self.patience.stop()
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
            self.cycle.keep_alive = False  # an upgrade we do not know leaves the parser used up

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
        self.patience.stop()
        if not self.wants_websocket:
            super().on_message_complete()

    def reason(self, error: Exception) -> GatewayError:
        """Why the parser gave up."""
        if self.refusal is not None:
            return self.refusal
        is_other = self.parser.get_http_version() not in {_UNREAD, *_VERSIONS}
        if is_other or str(error) == "Invalid HTTP version":
            return VersionNotSupported()
        return InvalidRequest(f"not HTTP: {str(error)[:100]}")

    def _stop(self, error: GatewayError) -> None:
        self.refusal = error
        raise error


def _first_line(data: bytes) -> bytes:
    return data.lstrip(b"\r\n").partition(b"\n")[0]


def _ambiguity(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """What two servers could read in two ways is not read at all."""
    hosts = [value for name, value in headers if name == b"host"]
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(hosts) != 1 or not hosts[0].strip():
        return "a request has exactly one Host header"
    if len(lengths) + len(codings) > 1 or codings not in ([], [b"chunked"]):
        return "the length of the body is ambiguous"
    if not target.startswith(b"/"):
        return "the request target must be a path"
    return None
