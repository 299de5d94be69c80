"""The guarded client for every request and WebSocket that a plugin, a tool or a model can steer.

It connects to granted origins over checked addresses, fills in secrets and scrubs them from answers.
It uses aiohttp, which adds no header of its own here.
"""

import re
import socket
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from urllib.parse import quote, urljoin

import aiohttp
import anyio
from aiohttp.abc import AbstractResolver, ResolveResult
from anyio.lowlevel import checkpoint
from yarl import URL

from gateway.domain.errors import Denied
from gateway.domain.plugins import Origin
from gateway.domain.ports import (
    ClientSocket,
    Fetched,
    FetchGrant,
    FetchRequest,
    HttpFailed,
    SocketRequest,
)
from gateway.outbound.connection import FAILURES, describe_failure
from gateway.outbound.guard import (
    MAX_URL_BYTES,
    URL_SAFE,
    Headers,
    Lookup,
    Scrubber,
    SecretFiller,
    check_granted,
    read_headers,
    read_method,
    read_url,
    resolve_checked,
    resolve_host,
)

MAX_SECONDS = 60.0
# Shorter than MAX_SECONDS: a connection that times out proves that the host received nothing.
CONNECT_S = 10.0
MAX_REQUESTS = 100  # running at a time
MAX_REDIRECTS = 3
MAX_REQUEST_BYTES = 1024 * 1024
MAX_BODY_BYTES = 10 * 1024 * 1024

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AS_GET = frozenset({301, 302, 303})
# Headers that a plugin must not see, or that are false after the body is unpacked.
_WITHHELD = frozenset({
    "authentication-info", "authorization", "connection", "content-encoding", "keep-alive",
    "set-cookie", "set-cookie2", "transfer-encoding", "www-authenticate",
})  # fmt: skip
_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_FAILURES = (
    (aiohttp.ClientConnectorDNSError, "cannot be resolved by DNS"),
    (aiohttp.ConnectionTimeoutError, "did not accept a connection in time"),
    (aiohttp.ServerDisconnectedError, "closed the connection before it answered"),
    (aiohttp.ClientPayloadError, "broke off in the middle of its answer"),
    (aiohttp.ClientResponseError, "sent an answer that is not valid HTTP"),
    (aiohttp.InvalidURL, "has an invalid URL"),
    *FAILURES,
)


class CheckedResolver(AbstractResolver):
    """Resolves names for an aiohttp connector to allowed addresses only."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises Denied, OSError."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await resolve_checked(self._lookup, host, port)
        ]

    async def close(self) -> None:
        """Does nothing: the resolver holds no resource."""


def _session(
    lookup: Lookup, *, limit: int, traces: aiohttp.TraceConfig | None = None
) -> aiohttp.ClientSession:
    """Opens a session. `limit`: connections at a time, 0 for any number.

    No connection is used twice, so a stale answer for one plugin never reaches another, and every
    request has its addresses checked.
    """
    connector = aiohttp.TCPConnector(
        limit=limit, resolver=CheckedResolver(lookup), use_dns_cache=False, force_close=True
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        auto_decompress=False,  # `_read_body` unpacks, because a packed body can swell to any size
        timeout=aiohttp.ClientTimeout(),
        trust_env=False,
        trace_configs=[traces] if traces else None,
    )


def build_url(origin: Origin, target: str) -> URL:
    """Builds the URL to connect to from its checked parts. Raises Denied if yarl parses another origin
    out of it."""
    slash = "" if target.startswith("/") else "/"
    url = URL(f"{origin}{slash}{quote(target, safe=URL_SAFE)}", encoded=True)
    if (url.scheme, url.raw_host, url.port) != (origin.scheme, origin.host, origin.port):
        raise Denied(f"not allowed to reach {origin}: its URL is ambiguous")
    if len(str(url)) > MAX_URL_BYTES:
        raise Denied(f"the URL is longer than {MAX_URL_BYTES} bytes")
    return url


@dataclass(frozen=True, slots=True)
class _Request:
    """A checked request. `kept` are the headers without a secret; a redirect keeps only these."""

    method: str
    origin: Origin
    url: URL
    headers: Headers
    kept: Headers
    body: bytes = b""


def _check_request(
    url: str, headers: Headers, grant: FetchGrant, method: str = "GET", body: bytes = b""
) -> _Request:
    """Checks a request before its name is resolved. Raises Denied."""
    origin, target = read_url(url)
    check_granted(origin, grant)
    method, headers = read_method(method), read_headers(headers)
    if len(body) > MAX_REQUEST_BYTES:
        raise Denied(f"the body is larger than {MAX_REQUEST_BYTES} bytes")
    filler = SecretFiller(grant.secrets, origin)
    filled_url = build_url(origin, filler.fill(target, "URL"))
    filled = tuple((name, filler.fill(value, "header")) for name, value in headers)
    if filler.used and any(name.lower() == "range" for name, _ in headers):
        # The scrubber cannot recognise a part of an echoed secret.
        raise Denied("header 'range' is not allowed together with a secret")
    kept = tuple(pair for pair, sent in zip(headers, filled, strict=True) if pair == sent)
    return _Request(method, origin, filled_url, filled, kept, body)


@asynccontextmanager
async def open_guarded(
    lookup: Lookup = resolve_host, connect_s: float = CONNECT_S
) -> AsyncIterator["GuardedOutbound"]:
    """Opens the guarded client and closes it on exit. `lookup` resolves names."""
    async with _session(lookup, limit=MAX_REQUESTS) as session:
        yield GuardedOutbound(session, connect_s)


class GuardedOutbound:
    """Implements the Fetch port."""

    def __init__(self, session: aiohttp.ClientSession, connect_s: float) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_s)

    async def fetch(self, ask: FetchRequest, grant: FetchGrant) -> Fetched:
        scrubber, limit_s = Scrubber(grant.secrets), min(MAX_SECONDS, ask.timeout_s)
        try:
            request = _check_request(ask.url, ask.headers, grant, ask.method, ask.body)
            with anyio.move_on_after(limit_s):
                return await self._fetch(request, grant, scrubber)
            detail = f"{request.origin} did not finish its answer within {limit_s:g} s"
            raise HttpFailed("timeout", detail)
        except (Denied, HttpFailed) as error:
            failure = scrubber.error(error)
        raise failure  # without its causes, which hold the URL with its secrets

    async def _fetch(self, request: _Request, grant: FetchGrant, scrubber: Scrubber) -> Fetched:
        first = request.origin
        for redirects in range(MAX_REDIRECTS + 1):
            try:
                answer = await self._send(request, grant, scrubber)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                kind = "timeout" if isinstance(error, TimeoutError) else "network"
                detail = f"{request.origin} {describe_failure(error, _FAILURES)}"
                # The host that redirected the request has received it.
                sent = redirects > 0 or not isinstance(error, _UNSENT)
                raise HttpFailed(kind, detail, sent=sent) from error
            if isinstance(answer, Fetched):
                return answer
            request = answer
        raise HttpFailed("network", f"{first} redirected more than {MAX_REDIRECTS} times")

    async def _send(
        self, request: _Request, grant: FetchGrant, scrubber: Scrubber
    ) -> Fetched | _Request:
        """Returns the answer, or the request that the answer redirects to."""
        headers = (*request.headers, ("accept-encoding", "gzip, deflate"))
        if not any(name.lower() == "user-agent" for name, _ in headers):
            headers += (("user-agent", "exogate"),)  # some servers refuse a request without one
        async with self._session.request(
            request.method,
            request.url,
            headers=headers,
            data=request.body or None,
            allow_redirects=False,
            timeout=self._timeout,
        ) as answer:
            location = answer.headers.get("location")
            if answer.status in _REDIRECTS and location is not None:
                return _redirect(request, answer.status, location, grant, scrubber)
            body = await _read_body(answer, str(request.origin))
            return Fetched(
                answer.status,
                _visible_headers(answer, scrubber, has_body=body != b""),
                await scrubber.body(body),
            )


def _redirect(
    request: _Request, status: int, location: str, grant: FetchGrant, scrubber: Scrubber
) -> _Request:
    """Builds the request to the target of a redirect, checked like a first request. Raises Denied.

    Secrets are not filled in again. Headers without a secret are kept on the same origin and dropped
    on any other.
    """
    try:
        target = urljoin(str(request.url), location)
        if scrubber.finds_in_url(target):
            raise Denied("the target has a secret")
        origin, path = read_url(target)
        check_granted(origin, grant)
        url = build_url(origin, path)
    except (Denied, ValueError) as error:
        raise Denied(f"the redirect of {request.origin} is not followed: {error}") from error
    headers = request.kept if origin == request.origin else ()
    if status not in _AS_GET:
        return _Request(request.method, origin, url, headers, headers, request.body)
    headers = tuple(pair for pair in headers if not pair[0].lower().startswith("content-"))
    method = "HEAD" if request.method == "HEAD" else "GET"
    return _Request(method, origin, url, headers, headers)


def _visible_headers(
    answer: aiohttp.ClientResponse, scrubber: Scrubber, *, has_body: bool
) -> Headers:
    """Returns the headers for the plugin. A content-length may count packed bytes, so it stays only
    without a body."""
    withheld = _WITHHELD | {"content-length"} if has_body else _WITHHELD
    return tuple(
        (scrubber.text(name.lower()), scrubber.text(value))
        for name, value in answer.headers.items()
        if name.lower() not in withheld and not name.lower().startswith("proxy-")
    )


_UNPACK_BYTES = 256 * 1024  # between two checkpoints


async def _read_body(answer: aiohttp.ClientResponse, place: str) -> bytes:
    """Reads, unpacks and counts a body. Raises HttpFailed if it is too large, packed or unpacked, or
    has an encoding that was not offered."""
    encoding = ", ".join(answer.headers.getall("content-encoding", ())).strip().lower()
    body, received, packed = bytearray(), 0, None
    while raw := await answer.content.readany():
        if not received:
            packed = _decompressor(encoding, raw, place)
        received += len(raw)
        for piece in (raw,) if packed is None else _unpack(packed, raw, place):
            body += piece
            if max(received, len(body)) > MAX_BODY_BYTES:
                raise HttpFailed("network", f"{place} answered more than {MAX_BODY_BYTES} bytes")
            await checkpoint()
    if packed is not None and not packed.eof:
        raise _not_unpackable(place)
    return bytes(body)


def _decompressor(encoding: str, begin: bytes, place: str) -> "zlib._Decompress | None":
    match encoding:
        case "gzip" | "x-gzip":
            return zlib.decompressobj(zlib.MAX_WBITS | 16)
        case "deflate":  # some servers omit the two bytes of the zlib header
            is_bare = begin[0] & 0x0F != zlib.DEFLATED
            return zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS)
        case "" | "identity":
            return None
    raise HttpFailed("network", f"{place} used a content encoding other than gzip or deflate")


def _unpack(packed: "zlib._Decompress", raw: bytes, place: str) -> Iterator[bytes]:
    is_full = False
    while raw or is_full:  # a full piece may leave output inside the decompressor
        try:
            piece = packed.decompress(raw, _UNPACK_BYTES)
        except zlib.error as error:
            raise _not_unpackable(place) from error
        if packed.unused_data:
            raise _not_unpackable(place)
        yield piece
        raw, is_full = packed.unconsumed_tail, len(piece) == _UNPACK_BYTES


def _not_unpackable(place: str) -> HttpFailed:
    return HttpFailed("network", f"{place} sent a body that cannot be unpacked")


MAX_FRAME_BYTES = 4_096  # bytes of a frame
SEND_S = 10.0  # limit for a platform that has stopped reading
_PING_S = 30.0  # heartbeat of a silent connection
_CLOSE_S = 2.0
_CLOSE_CODE = 4_000  # a private code: on 1000 and 1001 platforms end the session
_SCHEME = re.compile(r"ws(s?://)", re.IGNORECASE)


@asynccontextmanager
async def open_socket_client(lookup: Lookup = resolve_host) -> AsyncIterator["GuardedSockets"]:
    """Opens the WebSocket client and closes it on exit. `lookup` resolves names."""
    traces = aiohttp.TraceConfig()
    traces.on_request_redirect.append(_refuse_redirect)
    async with _session(lookup, limit=0, traces=traces) as session:
        yield GuardedSockets(session)


async def _refuse_redirect(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    redirect: aiohttp.TraceRequestRedirectParams,
) -> None:
    redirect.response.close()
    raise Denied(f"the redirect of {redirect.url.origin()} is not followed for a WebSocket")


class GuardedSockets:
    """Implements the SocketClient port."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @asynccontextmanager
    async def connect(
        self, request: SocketRequest, grant: FetchGrant
    ) -> AsyncIterator[ClientSocket]:
        socket = await self._open(request, grant)
        try:
            yield socket
        finally:
            with anyio.CancelScope(shield=True):
                await socket.close(_CLOSE_CODE)

    async def _open(self, request: SocketRequest, grant: FetchGrant) -> "_GuardedSocket":
        scrubber = Scrubber(grant.secrets)
        try:
            if not _SCHEME.match(request.url):
                shown = repr(request.url[:20])
                raise Denied(f"{shown} is not a WebSocket URL: write wss://HOST/PATH")
            url = _SCHEME.sub(r"http\1", request.url, count=1)
            checked = _check_request(url, request.headers, grant)
            socket = await self._connect(checked, request)
            return _GuardedSocket(socket, checked.origin, grant, scrubber)
        except (Denied, HttpFailed) as error:
            failure = scrubber.error(error)
        raise failure  # without its causes, which hold the URL with its secrets

    async def _connect(
        self, checked: _Request, request: SocketRequest
    ) -> "aiohttp.ClientWebSocketResponse[bool]":
        try:
            with anyio.fail_after(request.timeout_s):
                return await self._session.ws_connect(
                    checked.url,
                    headers=(*checked.headers, ("user-agent", "exogate")),
                    max_msg_size=request.max_frame_bytes,
                    heartbeat=_PING_S,
                    autoclose=False,  # aiohttp would answer 1000, which may end a session
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            kind, what = "network", describe_failure(error, _FAILURES)
            if isinstance(error, TimeoutError):
                kind, what = "timeout", f"did not open a WebSocket within {request.timeout_s:g} s"
            elif isinstance(error, aiohttp.WSServerHandshakeError):
                what = f"refused the WebSocket (status {error.status})"
            raise HttpFailed(kind, f"{checked.origin} {what}") from error


@dataclass(frozen=True, slots=True, eq=False)
class _GuardedSocket:
    """Implements the ClientSocket port."""

    _socket: "aiohttp.ClientWebSocketResponse[bool]"
    _origin: Origin
    _grant: FetchGrant
    _scrubber: Scrubber

    @property
    def close_code(self) -> int | None:
        return self._socket.close_code

    async def send(self, text: str) -> None:
        filled = SecretFiller(self._grant.secrets, self._origin).fill(text, "frame")
        if len(filled.encode()) > MAX_FRAME_BYTES:
            raise Denied(f"a frame to {self._origin} is larger than {MAX_FRAME_BYTES} bytes")
        try:
            with anyio.fail_after(SEND_S):
                await self._socket.send_str(filled)
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from None

    async def receive(self) -> str | None:
        try:
            frame = await self._socket.receive()
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from None
        match frame.type:
            case aiohttp.WSMsgType.TEXT:
                scrubbed = await self._scrubber.body(str(frame.data).encode())
                return scrubbed.decode(errors="replace")
            case aiohttp.WSMsgType.ERROR:
                raise self._broken(frame.data)
            case aiohttp.WSMsgType.BINARY:
                raise HttpFailed("network", f"{self._origin} sent a binary frame")
        if self.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
            raise HttpFailed("network", f"the connection to {self._origin} broke off")
        return None

    async def close(self, code: int) -> None:
        await self._socket.close(code=code)

    def _broken(self, error: Exception) -> HttpFailed:
        if isinstance(error, aiohttp.WebSocketError):
            detail = f"{self._origin} sent an invalid or oversized frame (code {error.code})"
        else:
            detail = f"the connection to {self._origin} broke off ({type(error).__name__})"
        return HttpFailed("network", detail)
