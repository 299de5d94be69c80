"""The guarded way out: for every request that a plugin, a tool or a model can steer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urljoin

import aiohttp
import anyio
from yarl import URL

from gateway.domain.errors import Denied
from gateway.domain.plugins import Origin
from gateway.domain.ports import Fetched, FetchGrant, FetchRequest, HttpFailed
from gateway.outbound.addresses import Lookup, look_up
from gateway.outbound.asking import (
    Headers,
    check_granted,
    read_headers,
    read_method,
    read_url,
    to_url,
)
from gateway.outbound.secrets import Filling, Scrubber
from gateway.outbound.sessions import guarded_session, what_failed
from gateway.outbound.unpacking import ACCEPTED, read_body

MAX_SECONDS = 60.0
# Shorter than the whole: of a host that drops everything it is certain that it heard nothing.
CONNECT_S = 10.0
MOST_AT_ONCE = 100  # requests
MAX_REDIRECTS = 3
MAX_ASKED_BYTES = 1024 * 1024

_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AS_GET = frozenset({301, 302, 303})
# What is the host's business, and what is not true any more once the body is unpacked.
_WITHHELD = frozenset({
    "authentication-info", "authorization", "connection", "content-encoding", "keep-alive",
    "set-cookie", "set-cookie2", "transfer-encoding", "www-authenticate",
})  # fmt: skip


@asynccontextmanager
async def open_guarded(
    lookup: Lookup = look_up, connect_s: float = CONNECT_S
) -> AsyncIterator["GuardedOutbound"]:
    """The guarded client, closed on the way out. `lookup` resolves names."""
    async with guarded_session(lookup, limit=MOST_AT_ONCE) as session:
        yield GuardedOutbound(session, connect_s)


@dataclass(frozen=True, slots=True)
class _Hop:
    """One request, checked. `kept` are the headers without a secret: all that a redirect keeps."""

    method: str
    origin: Origin
    url: URL
    headers: Headers
    kept: Headers
    body: bytes


class GuardedOutbound:
    """Implements the Fetch port."""

    __slots__ = ("_session", "_timeout")

    def __init__(self, session: aiohttp.ClientSession, connect_s: float) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_s)

    async def fetch(self, ask: FetchRequest, leave: FetchGrant) -> Fetched:
        scrubber = Scrubber(leave.secrets)
        failure: Denied | HttpFailed
        try:
            return await self._in_time(_first(ask, leave), ask.timeout_s, leave, scrubber)
        except Denied as error:
            failure = Denied(scrubber.text(str(error)))
        except HttpFailed as error:
            failure = HttpFailed(error.kind, scrubber.text(str(error)), sent=error.sent)
        raise failure  # without the errors behind it: they know the URL as it was sent

    async def _in_time(
        self, first: _Hop, timeout_s: float, leave: FetchGrant, scrubber: Scrubber
    ) -> Fetched:
        limit_s = min(MAX_SECONDS, timeout_s)
        try:
            with anyio.fail_after(limit_s):
                return await self._follow(first, leave, scrubber)
        except TimeoutError as error:
            detail = f"{first.origin} gave no whole answer within {limit_s:g} s"
            raise HttpFailed("timeout", detail) from error

    async def _follow(self, hop: _Hop, leave: FetchGrant, scrubber: Scrubber) -> Fetched:
        first = hop.origin
        for redirects in range(MAX_REDIRECTS + 1):
            done = await self._send(hop, leave, scrubber, was_sent=redirects > 0)
            if isinstance(done, Fetched):
                return done
            hop = done
        raise HttpFailed("network", f"{first} was redirected more than {MAX_REDIRECTS} times")

    async def _send(
        self, hop: _Hop, leave: FetchGrant, scrubber: Scrubber, *, was_sent: bool
    ) -> Fetched | _Hop:
        """`was_sent`: somebody has had the request already, and redirected it."""
        try:
            async with self._session.request(
                hop.method,
                hop.url,
                headers=_sent(hop.headers),
                data=hop.body or None,
                allow_redirects=False,
                timeout=self._timeout,
            ) as answer:
                location = answer.headers.get("location")
                if answer.status in _REDIRECTS and location is not None:
                    return _next(hop, answer.status, location, leave, scrubber)
                body = await scrubber.body(await read_body(answer, str(hop.origin)))
                return Fetched(answer.status, _told(answer, scrubber, has_body=body != b""), body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            kind = "timeout" if isinstance(error, TimeoutError) else "network"
            sent = was_sent or not isinstance(error, _UNSENT)
            raise HttpFailed(kind, f"{hop.origin} {what_failed(error)}", sent=sent) from error


def _first(ask: FetchRequest, leave: FetchGrant) -> _Hop:
    """Everything that can be refused is, before a name is looked up."""
    address = read_url(ask.url)
    check_granted(address.origin, leave)
    method, asked = read_method(ask.method), read_headers(ask.headers)
    if len(ask.body) > MAX_ASKED_BYTES:
        raise Denied(f"the body is larger than {MAX_ASKED_BYTES} bytes")
    filling = Filling(leave.secrets, address.origin)
    url = to_url(address.origin, filling.into_url(address.target))
    headers = tuple((name, filling.into_header(value)) for name, value in asked)
    if filling.used and any(name.lower() == "range" for name, _ in headers):
        # Half of a secret that is echoed could not be told from any other text.
        raise Denied("header 'range' is not allowed together with a secret")
    kept = tuple(pair for pair, sent in zip(asked, headers, strict=True) if pair == sent)
    return _Hop(method, address.origin, url, headers, kept, ask.body)


def _next(hop: _Hop, status: int, location: str, leave: FetchGrant, scrubber: Scrubber) -> _Hop:
    """Where a redirect leads, authorised as if it had been asked for.

    Secrets are never filled in again. Headers without one are kept on the same origin and dropped
    on the way to another.
    """
    try:
        target = urljoin(str(hop.url), location)
        if scrubber.in_url(target):
            raise Denied("it would carry a secret on")
        address = read_url(target)
        check_granted(address.origin, leave)
        url = to_url(address.origin, address.target)
    except (Denied, ValueError) as error:
        raise Denied(f"{hop.origin} redirects, and that is not followed: {error}") from error
    headers = hop.kept if address.origin == hop.origin else ()
    if status not in _AS_GET:
        return _Hop(hop.method, address.origin, url, headers, headers, hop.body)
    bodiless = tuple(pair for pair in headers if not pair[0].lower().startswith("content-"))
    method = "HEAD" if hop.method == "HEAD" else "GET"
    return _Hop(method, address.origin, url, bodiless, bodiless, b"")


def _sent(headers: Headers) -> Headers:
    has_agent = any(name.lower() == "user-agent" for name, _ in headers)
    ours = () if has_agent else (("user-agent", "exogate"),)  # some refuse whoever has no name
    return (*headers, *ours, ("accept-encoding", ACCEPTED))


def _told(answer: aiohttp.ClientResponse, scrubber: Scrubber, *, has_body: bool) -> Headers:
    """The headers that the asker gets to see."""
    pairs = ((name.lower(), value) for name, value in answer.headers.items())
    return tuple(
        (scrubber.text(name), scrubber.text(value))
        for name, value in pairs
        if name not in _WITHHELD
        and not name.startswith("proxy-")
        and not (has_body and name == "content-length")  # it counts bytes that were packed
    )
