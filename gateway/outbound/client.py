"""The one HTTP client: pooled connections, deadlines, no redirects, no cookies."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType

import aiohttp
from yarl import URL

from gateway.domain.ports import HttpAnswer, HttpCall, HttpFailed
from gateway.outbound.failures import what_failed

_IDLE_CONNECTION_S = 60.0
_DNS_S = 60


@asynccontextmanager
async def open_outbound(*, max_connections: int = 0) -> AsyncIterator["Outbound"]:
    """The client, closed on the way out. `max_connections` 0: no bound of its own."""
    connector = aiohttp.TCPConnector(
        limit=max_connections, ttl_dns_cache=_DNS_S, keepalive_timeout=_IDLE_CONNECTION_S
    )
    async with quiet_session(connector) as session:
        yield Outbound(session)


def quiet_session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    """Sends what it is given and nothing of its own; sets no time for anything."""
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        # What we ask for ourselves stays; no compression, for it holds streamed bytes back.
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        auto_decompress=False,  # bytes come as they are: what was packed could swell to any size
        timeout=aiohttp.ClientTimeout(),
        trust_env=False,
    )


class Outbound:
    """Implements the Http port."""

    __slots__ = ("_session", "_timeouts")

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._timeouts: dict[tuple[float, float], aiohttp.ClientTimeout] = {}

    def send(self, call: HttpCall) -> AbstractAsyncContextManager[HttpAnswer]:
        return _Exchange(self._session, call, self._timeout(call))

    def _timeout(self, call: HttpCall) -> aiohttp.ClientTimeout:
        key = (call.connect_timeout_s, call.idle_timeout_s)
        timeout = self._timeouts.get(key)
        if timeout is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=key[0], sock_read=key[1])
            self._timeouts[key] = timeout
        return timeout


class _Exchange:
    """One request and its answer; leaving early closes the connection."""

    __slots__ = ("_answer", "_call", "_session", "_timeout")

    def __init__(
        self, session: aiohttp.ClientSession, call: HttpCall, timeout: aiohttp.ClientTimeout
    ) -> None:
        self._session, self._call, self._timeout = session, call, timeout
        self._answer: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> "_Answer":
        call = self._call
        try:
            self._answer = await self._session.request(
                call.method,
                call.url,
                headers=call.headers,
                data=call.body or None,
                allow_redirects=False,
                timeout=self._timeout,
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _failed(error, call) from error
        return _Answer(self._answer, call)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._answer is not None:
            # Back into the pool if the whole answer was read, else closed.
            self._answer.release()


class _Answer:
    """Implements the HttpAnswer port."""

    __slots__ = ("_answer", "_call", "_headers")

    def __init__(self, answer: aiohttp.ClientResponse, call: HttpCall) -> None:
        self._answer, self._call = answer, call
        self._headers = {name.lower(): value for name, value in answer.headers.items()}

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    @property
    def is_over(self) -> bool:
        return self._answer.content.at_eof()

    async def read_some(self) -> bytes:
        try:
            return await self._answer.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _failed(error, self._call) from error


def _failed(error: Exception, call: HttpCall) -> HttpFailed:
    """Says where and what, without the address's query, without headers, without the body."""
    host = _place(call.url)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        told = f"{host} could not be connected within {call.connect_timeout_s:g} s"
        return HttpFailed("timeout", told, sent=False)
    if isinstance(error, TimeoutError):
        return HttpFailed("timeout", f"{host} sent nothing for {call.idle_timeout_s:g} s")
    sent = not isinstance(error, (aiohttp.ClientConnectorError, aiohttp.InvalidURL))
    return HttpFailed("network", f"{host} {what_failed(error)}", sent=sent)


def _place(url: str) -> str:
    try:
        parts = URL(url)
        return f"{parts.host or 'no host'}:{parts.port or 0}"
    except ValueError:
        return "an address that is none"
