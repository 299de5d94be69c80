"""Checks that come before authentication: Host, Origin, sizes, depth of JSON."""

from collections.abc import Iterable, Sequence
from itertools import chain
from math import isfinite
from urllib.parse import urlsplit

from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.errors import (
    BodyTooLarge,
    HostRefused,
    InvalidJson,
    InvalidRequest,
    OriginRefused,
)
from gateway.web.settings import WebSettings
from gateway.web.wire.visitors import Visitor, parse_address

MOST_VALUES = 32_768  # what a JSON text may hold besides long strings: each costs time and memory
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
SECURITY_HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Doorway:
    """Host and Origin: against rebound names and against pages of other sites.

    A Host that is an address cannot be rebound, so a gateway that listens on every address takes
    any address for its own. A name has to be listed.
    """

    def __init__(self, settings: WebSettings) -> None:
        self._any_address = settings.bind in _ANY_ADDRESS
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins)
        hosts = {urlsplit(origin).hostname or "" for origin in self._origins}
        self._hosts = frozenset({"localhost", settings.bind.lower(), *hosts} - {""})

    def check(self, visitor: Visitor) -> None:
        """Raises HostRefused, OriginRefused."""
        if visitor.host is None or "host" in visitor.repeated or not self._is_ours(visitor):
            raise HostRefused
        if visitor.origin is not None and not self._is_friendly(visitor):
            raise OriginRefused

    def _is_ours(self, visitor: Visitor) -> bool:
        host = _host_name(visitor.host or "")
        if host in self._hosts:
            return True
        address = parse_address(host)
        if address is None:
            return False
        return self._any_address or address.is_loopback or address == parse_address(visitor.server)

    def _is_friendly(self, visitor: Visitor) -> bool:
        if "origin" in visitor.repeated:
            return False
        origin = (visitor.origin or "").lower()
        host = (visitor.host or "").lower()
        return origin in {f"http://{host}", f"https://{host}"} or origin in self._origins


def _host_name(host: str) -> str:
    """Without the port; "" for what is no host at all."""
    if any(char in host for char in "/@?#\\ \t,"):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def parse_json(data: bytes | str, max_depth: int = 64) -> object:
    """JSON as RFC 8259 has it, no deeper than `max_depth`; the last of equal keys counts.

    Raises InvalidJson, also for NaN, numbers beyond a double, lone surrogates and too many values.
    """
    if len(data) > MOST_VALUES and _is_crowded(data):
        raise InvalidJson(f"not valid JSON: more than {MOST_VALUES} values")
    try:
        value: object = from_json(data, allow_inf_nan=False)
    except (ValueError, TypeError) as error:  # TypeError: a str that cannot be UTF-8
        raise InvalidJson(f"not valid JSON: {str(error)[:200]}") from None
    _check_inside(value, max_depth)
    return value


def _is_crowded(data: bytes | str) -> bool:
    """Counts before anything is parsed: the parser cannot be interrupted, and blocks every other
    thread."""
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if _values(text) <= MOST_VALUES:
        return False
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * MOST_VALUES:  # two for a string, which is a value or its key
        return True
    return _values(b"".join(bare.split(b'"')[::2])) > MOST_VALUES


def _values(text: bytes) -> int:
    """All of them are members, items or nested, if no string is among them."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _check_inside(value: object, max_depth: int) -> None:
    """Raises InvalidJson for what is nested too deep, and for a number that no double can hold."""
    level: list[Iterable[object]] = [(value,)]
    for _ in range(max_depth + 1):
        below: list[Iterable[object]] = []
        for child in chain.from_iterable(level):
            if type(child) is dict:
                below.append(child.values())
            elif type(child) is list:
                below.append(child)
            elif type(child) is float and not isfinite(child):
                raise InvalidJson("not valid JSON: a number is out of range")
        if not below:
            return
        level = below
    raise InvalidJson(f"not valid JSON: nested deeper than {max_depth} levels")


class BodyLimit:
    """ASGI: refuses a body whose Content-Length is too large, and one that turns out to be."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises BodyTooLarge, InvalidRequest, if possible before a byte of it is read."""
        check_length(scope["headers"], self._limit)
        seen = 0

        async def receive_some() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise BodyTooLarge(self._limit)
            return message

        await self._app(scope, receive_some, send)


def check_length(headers: Iterable[tuple[bytes, bytes]], limit: int) -> None:
    """Raises BodyTooLarge, InvalidRequest before a byte of the body is read."""
    for name, value in headers:
        if name == b"content-length" and _length(value) > limit:
            raise BodyTooLarge(limit)


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise InvalidRequest("the Content-Length is not a number")
    return int(value)


class SecurityHeaders:
    """ASGI: adds the headers that protect browsers, unless the answer has them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                given = {name for name, _ in headers}
                message["headers"] = headers + [h for h in SECURITY_HEADERS if h[0] not in given]
            await send(message)

        await self._app(scope, receive, send_with_headers)
