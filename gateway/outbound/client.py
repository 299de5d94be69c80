"""The guarded client: every request and WebSocket that a plugin, a tool or a model can steer.

It goes to granted origins over checked addresses, fills in secrets and scrubs them from what comes
back. Behind it is aiohttp, which sends nothing of its own here.
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
from gateway.outbound.connection import WHAT_FAILED, what_failed
from gateway.outbound.guard import (
    MAX_URL_BYTES,
    Headers,
    Lookup,
    check_granted,
    checked_addresses,
    look_up,
    read_headers,
    read_method,
    read_url,
)
from gateway.outbound.secrets import Filling, Scrubber

MAX_SECONDS = 60.0
# Shorter than the whole: of a host that drops everything it is certain that it heard nothing.
CONNECT_S = 10.0
MAX_REQUESTS = 100  # at once
MAX_REDIRECTS = 3
MAX_ASKED_BYTES = 1024 * 1024
MAX_BODY_BYTES = 10 * 1024 * 1024

_KEPT = "%/?:@!$&'()*+,;=-._~"  # stands as it is in a path or a query; `%` is part of an escape
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AS_GET = frozenset({301, 302, 303})
# What is the host's business, and what is not true any more once the body is unpacked.
_WITHHELD = frozenset({
    "authentication-info", "authorization", "connection", "content-encoding", "keep-alive",
    "set-cookie", "set-cookie2", "transfer-encoding", "www-authenticate",
})  # fmt: skip
_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_WHAT_FAILED = (
    (aiohttp.ClientConnectorDNSError, "is not a name that can be resolved"),
    (aiohttp.ConnectionTimeoutError, "cannot be connected in time"),
    (aiohttp.ServerDisconnectedError, "closed the connection before it answered"),
    (aiohttp.ClientPayloadError, "broke off in the middle of its answer"),
    (aiohttp.ClientResponseError, "answered something that is not HTTP"),
    (aiohttp.InvalidURL, "is no address that can be asked"),
    *WHAT_FAILED,
)


class CheckedResolver(AbstractResolver):
    """Gives a connector the addresses that it may connect to."""

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
            for address in await checked_addresses(self._lookup, host, port)
        ]

    async def close(self) -> None:
        """Nothing is held."""


def _session(
    lookup: Lookup, *, limit: int, traces: aiohttp.TraceConfig | None = None
) -> aiohttp.ClientSession:
    """`limit`: connections at once, 0 for any number. No connection is used twice: what one plugin
    left in it can never answer another one, and each request has its addresses checked."""
    connector = aiohttp.TCPConnector(
        limit=limit, resolver=CheckedResolver(lookup), use_dns_cache=False, force_close=True
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        # What we ask for ourselves stays; no compression, for it holds streamed bytes back.
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        auto_decompress=False,  # bytes come as they are: what was packed could swell to any size
        timeout=aiohttp.ClientTimeout(),
        trust_env=False,
        trace_configs=[traces] if traces else None,
    )


def to_url(origin: Origin, target: str) -> URL:
    """What is connected to: written anew from its checked parts, so that no reader is asked twice."""
    slash = "" if target.startswith("/") else "/"
    url = URL(f"{origin}{slash}{quote(target, safe=_KEPT)}", encoded=True)
    if (url.scheme, url.raw_host, url.port) != (origin.scheme, origin.host, origin.port):
        raise Denied(f"not allowed to reach {origin}: it can be read in two ways")
    if len(str(url)) > MAX_URL_BYTES:
        raise Denied(f"the URL is longer than {MAX_URL_BYTES} bytes")
    return url


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, checked. `kept` are the headers without a secret: all that a redirect keeps."""

    method: str
    origin: Origin
    url: URL
    headers: Headers
    kept: Headers
    body: bytes = b""


def _checked(
    url: str, headers: Headers, grant: FetchGrant, method: str = "GET", body: bytes = b""
) -> _Request:
    """Everything that can be refused is, before a name is looked up."""
    origin, target = read_url(url)
    check_granted(origin, grant)
    method, asked = read_method(method), read_headers(headers)
    if len(body) > MAX_ASKED_BYTES:
        raise Denied(f"the body is larger than {MAX_ASKED_BYTES} bytes")
    filling = Filling(grant.secrets, origin)
    filled_url = to_url(origin, filling.into_url(target))
    filled = tuple((name, filling.into_header(value)) for name, value in asked)
    if filling.used and any(name.lower() == "range" for name, _ in asked):
        # Half of a secret that is echoed could not be told from any other text.
        raise Denied("header 'range' is not allowed together with a secret")
    kept = tuple(pair for pair, sent in zip(asked, filled, strict=True) if pair == sent)
    return _Request(method, origin, filled_url, filled, kept, body)


@asynccontextmanager
async def open_guarded(
    lookup: Lookup = look_up, connect_s: float = CONNECT_S
) -> AsyncIterator["GuardedOutbound"]:
    """The guarded client, closed on the way out. `lookup` resolves names."""
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
            request = _checked(ask.url, ask.headers, grant, ask.method, ask.body)
            with anyio.move_on_after(limit_s):
                return await self._follow(request, grant, scrubber)
            detail = f"{request.origin} gave no whole answer within {limit_s:g} s"
            failure = scrubber.error(HttpFailed("timeout", detail))
        except (Denied, HttpFailed) as error:
            failure = scrubber.error(error)
        raise failure  # without the errors behind it: they know the URL as it was sent

    async def _follow(self, request: _Request, grant: FetchGrant, scrubber: Scrubber) -> Fetched:
        first = request.origin
        for redirects in range(MAX_REDIRECTS + 1):
            try:
                answer = await self._send(request, grant, scrubber)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                kind = "timeout" if isinstance(error, TimeoutError) else "network"
                detail = f"{request.origin} {what_failed(error, _WHAT_FAILED)}"
                # Who redirected it has had the request already.
                sent = redirects > 0 or not isinstance(error, _UNSENT)
                raise HttpFailed(kind, detail, sent=sent) from error
            if isinstance(answer, Fetched):
                return answer
            request = answer
        raise HttpFailed("network", f"{first} was redirected more than {MAX_REDIRECTS} times")

    async def _send(
        self, request: _Request, grant: FetchGrant, scrubber: Scrubber
    ) -> Fetched | _Request:
        """The answer, or the request that it redirects to."""
        headers = (*request.headers, ("accept-encoding", "gzip, deflate"))
        if not any(name.lower() == "user-agent" for name, _ in headers):
            headers += (("user-agent", "exogate"),)  # some refuse whoever has no name
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
                return _redirected(request, answer.status, location, grant, scrubber)
            body = await _read_body(answer, str(request.origin))
            return Fetched(
                answer.status,
                _shown_headers(answer, scrubber, has_body=body != b""),
                await scrubber.body(body),
            )


def _redirected(
    request: _Request, status: int, location: str, grant: FetchGrant, scrubber: Scrubber
) -> _Request:
    """Where a redirect leads, authorised as if it had been asked for.

    Secrets are never filled in again. Headers without one are kept on the same origin and dropped
    on the way to another.
    """
    try:
        target = urljoin(str(request.url), location)
        if scrubber.in_url(target):
            raise Denied("it would carry a secret on")
        origin, path = read_url(target)
        check_granted(origin, grant)
        url = to_url(origin, path)
    except (Denied, ValueError) as error:
        raise Denied(f"{request.origin} redirects, and that is not followed: {error}") from error
    headers = request.kept if origin == request.origin else ()
    if status not in _AS_GET:
        return _Request(request.method, origin, url, headers, headers, request.body)
    headers = tuple(pair for pair in headers if not pair[0].lower().startswith("content-"))
    method = "HEAD" if request.method == "HEAD" else "GET"
    return _Request(method, origin, url, headers, headers)


def _shown_headers(
    answer: aiohttp.ClientResponse, scrubber: Scrubber, *, has_body: bool
) -> Headers:
    """The headers that the asker gets to see. A length counts bytes that may have been packed."""
    withheld = _WITHHELD | {"content-length"} if has_body else _WITHHELD
    return tuple(
        (scrubber.text(name.lower()), scrubber.text(value))
        for name, value in answer.headers.items()
        if name.lower() not in withheld and not name.lower().startswith("proxy-")
    )


_UNPACKED_AT_ONCE = 256 * 1024  # bytes, before others may run


async def _read_body(answer: aiohttp.ClientResponse, place: str) -> bytes:
    """Unpacked and counted as it comes. Raises HttpFailed if it is too large, packed or unpacked, or
    packed otherwise than asked."""
    encoding = ", ".join(answer.headers.getall("content-encoding", ())).strip().lower()
    body, came, packed = bytearray(), 0, None
    while raw := await answer.content.readany():
        if not came:
            packed = _decompressor(encoding, raw, place)
        came += len(raw)
        for piece in (raw,) if packed is None else _unpacked(packed, raw, place):
            body += piece
            if max(came, len(body)) > MAX_BODY_BYTES:
                raise HttpFailed("network", f"{place} answered more than {MAX_BODY_BYTES} bytes")
            await checkpoint()
    if packed is not None and not packed.eof:
        raise _unreadable(place)
    return bytes(body)


def _decompressor(encoding: str, begin: bytes, place: str) -> "zlib._Decompress | None":
    match encoding:
        case "gzip" | "x-gzip":
            return zlib.decompressobj(zlib.MAX_WBITS | 16)
        case "deflate":  # some send it bare, without the two bytes that should come first
            is_bare = begin[0] & 0x0F != zlib.DEFLATED
            return zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS)
        case "" | "identity":
            return None
    raise HttpFailed("network", f"{place} packed its answer otherwise than it was asked to")


def _unpacked(packed: "zlib._Decompress", raw: bytes, place: str) -> Iterator[bytes]:
    is_full = False
    while raw or is_full:  # it may hold more back, with nothing left to feed
        try:
            piece = packed.decompress(raw, _UNPACKED_AT_ONCE)
        except zlib.error as error:
            raise _unreadable(place) from error
        if packed.unused_data:
            raise _unreadable(place)
        yield piece
        raw, is_full = packed.unconsumed_tail, len(piece) == _UNPACKED_AT_ONCE


def _unreadable(place: str) -> HttpFailed:
    return HttpFailed("network", f"{place} answered something that cannot be unpacked")


LARGEST_SENT = 4_096  # bytes of a frame
SEND_S = 10.0  # for a platform that reads nothing any more
_PING_S = 30.0  # a connection on which nothing comes is asked whether it still is one
_CLOSE_S = 2.0
_LEFT = 4_000  # our own close code: with 1000 and 1001 platforms forget the session
_SCHEME = re.compile(r"ws(s?://)", re.IGNORECASE)


@asynccontextmanager
async def open_socket_client(lookup: Lookup = look_up) -> AsyncIterator["GuardedSockets"]:
    """Closed on the way out. `lookup` resolves names."""
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
    raise Denied(f"{redirect.url.origin()} redirects, and a connection does not follow")


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
                await socket.close(_LEFT)

    async def _open(self, asked: SocketRequest, grant: FetchGrant) -> "_GuardedSocket":
        scrubber = Scrubber(grant.secrets)
        try:
            if not _SCHEME.match(asked.url):
                shown = repr(asked.url[:20])
                raise Denied(f"{shown} is not where a WebSocket is: write wss://HOST/PATH")
            request = _checked(_SCHEME.sub(r"http\1", asked.url, count=1), asked.headers, grant)
            socket = await self._connect(request, asked)
            return _GuardedSocket(socket, request.origin, grant, scrubber)
        except (Denied, HttpFailed) as error:
            failure = scrubber.error(error)
        raise failure  # without the errors behind it: they know the URL as it was sent

    async def _connect(
        self, request: _Request, asked: SocketRequest
    ) -> "aiohttp.ClientWebSocketResponse[bool]":
        try:
            with anyio.fail_after(asked.timeout_s):
                return await self._session.ws_connect(
                    request.url,
                    headers=(*request.headers, ("user-agent", "exogate")),
                    max_msg_size=asked.max_frame_bytes,
                    heartbeat=_PING_S,
                    autoclose=False,  # it would answer 1000, with which a session may end
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            kind, what = "network", what_failed(error, _WHAT_FAILED)
            if isinstance(error, TimeoutError):
                kind, what = "timeout", f"opened no connection within {asked.timeout_s:g} s"
            elif isinstance(error, aiohttp.WSServerHandshakeError):
                what = f"opens no WebSocket (status {error.status})"
            raise HttpFailed(kind, f"{request.origin} {what}") from error


class _GuardedSocket:
    """Implements the ClientSocket port."""

    def __init__(
        self,
        socket: "aiohttp.ClientWebSocketResponse[bool]",
        origin: Origin,
        grant: FetchGrant,
        scrubber: Scrubber,
    ) -> None:
        self._socket, self._origin = socket, origin
        self._grant, self._scrubber = grant, scrubber

    @property
    def close_code(self) -> int | None:
        return self._socket.close_code

    async def send(self, text: str) -> None:
        filled = Filling(self._grant.secrets, self._origin).into_frame(text)
        if len(filled.encode()) > LARGEST_SENT:
            raise Denied(f"a frame to {self._origin} is larger than {LARGEST_SENT} bytes")
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
                raise HttpFailed("network", f"{self._origin} sent a frame that is no text")
        if self.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
            raise HttpFailed("network", f"the connection to {self._origin} broke off")
        return None

    async def close(self, code: int) -> None:
        await self._socket.close(code=code)

    def _broken(self, error: Exception) -> HttpFailed:
        if isinstance(error, aiohttp.WebSocketError):
            detail = f"{self._origin} sent a frame that is too large or none (code {error.code})"
        else:
            detail = f"the connection to {self._origin} broke off ({type(error).__name__})"
        return HttpFailed("network", detail)
