"""The guarded way out for WebSockets: granted places, checked addresses, secrets filled in."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import anyio
from yarl import URL

from gateway.domain.dialling import Dial, Line
from gateway.domain.errors import Denied
from gateway.domain.plugins import Origin
from gateway.domain.ports import FetchGrant, HttpFailed
from gateway.outbound.addresses import Lookup, look_up
from gateway.outbound.asking import Headers, check_granted, read_headers, read_url, to_url
from gateway.outbound.secrets import Filling, Scrubber
from gateway.outbound.sessions import guarded_session, what_failed

LARGEST_SENT = 4_096  # bytes of a frame
SEND_S = 10.0  # for a platform that reads nothing any more
_PING_S = 30.0  # a line on which nothing comes is asked whether it still is one
_FAREWELL_S = 2.0
_LEFT = 4_000  # our own: with 1000 and 1001 platforms forget the session

_SCHEME = re.compile(r"ws(s?://)", re.IGNORECASE)


@asynccontextmanager
async def open_dialler(lookup: Lookup = look_up) -> AsyncIterator["GuardedDialler"]:
    """Closed on the way out. `lookup` resolves names."""
    traces = aiohttp.TraceConfig()
    traces.on_request_redirect.append(_refuse_redirect)
    async with guarded_session(lookup, limit=0) as session:
        session.trace_configs.append(traces)
        traces.freeze()
        yield GuardedDialler(session)


async def _refuse_redirect(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    redirect: aiohttp.TraceRequestRedirectParams,
) -> None:
    redirect.response.close()
    raise Denied(f"{redirect.url.origin()} redirects, and a connection does not follow")


class GuardedDialler:
    """Implements the Dialler port."""

    __slots__ = ("_session",)

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @asynccontextmanager
    async def dial(self, dial: Dial, leave: FetchGrant) -> AsyncIterator[Line]:
        line = await self._open(dial, leave)
        try:
            yield line
        finally:
            with anyio.CancelScope(shield=True):
                await line.close(_LEFT)

    async def _open(self, dial: Dial, leave: FetchGrant) -> "_Line":
        scrubber = Scrubber(leave.secrets)
        failure: Denied | HttpFailed
        try:
            origin, url, headers = _checked(dial, leave)
            socket = await self._connect(origin, url, headers, dial)
            return _Line(socket, origin, leave, scrubber)
        except Denied as error:
            failure = Denied(scrubber.text(str(error)))
        except HttpFailed as error:
            failure = HttpFailed(error.kind, scrubber.text(str(error)))
        raise failure  # without the errors behind it: they know the URL as it was sent

    async def _connect(
        self, origin: Origin, url: URL, headers: Headers, dial: Dial
    ) -> "aiohttp.ClientWebSocketResponse[bool]":
        try:
            with anyio.fail_after(dial.timeout_s):
                return await self._session.ws_connect(
                    url,
                    headers=(*headers, ("user-agent", "exogate")),
                    max_msg_size=dial.max_frame_bytes,
                    heartbeat=_PING_S,
                    autoclose=False,  # it would answer 1000, with which a session may end
                    timeout=aiohttp.ClientWSTimeout(ws_close=_FAREWELL_S),
                )
        except TimeoutError as error:
            told = f"{origin} opened no connection within {dial.timeout_s:g} s"
            raise HttpFailed("timeout", told) from error
        except aiohttp.WSServerHandshakeError as error:
            told = f"{origin} opens no WebSocket (status {error.status})"
            raise HttpFailed("network", told) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise HttpFailed("network", f"{origin} {what_failed(error)}") from error


def _checked(dial: Dial, leave: FetchGrant) -> tuple[Origin, URL, Headers]:
    """Everything that can be refused is, before a name is looked up."""
    if not _SCHEME.match(dial.url):
        raise Denied(f"{dial.url[:20]!r} is not where a WebSocket is: write wss://HOST/PATH")
    address = read_url(_SCHEME.sub(r"http\1", dial.url, count=1))
    check_granted(address.origin, leave)
    asked = read_headers(dial.headers)
    filling = Filling(leave.secrets, address.origin)
    url = to_url(address.origin, filling.into_url(address.target))
    headers = tuple((name, filling.into_header(value)) for name, value in asked)
    return address.origin, url, headers


class _Line:
    """Implements the Line port."""

    __slots__ = ("_leave", "_origin", "_scrubber", "_socket")

    def __init__(
        self,
        socket: "aiohttp.ClientWebSocketResponse[bool]",
        origin: Origin,
        leave: FetchGrant,
        scrubber: Scrubber,
    ) -> None:
        self._socket, self._origin = socket, origin
        self._leave, self._scrubber = leave, scrubber

    @property
    def close_code(self) -> int | None:
        return self._socket.close_code

    async def send(self, text: str) -> None:
        filled = Filling(self._leave.secrets, self._origin).into_frame(text)
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
        if frame.type is aiohttp.WSMsgType.TEXT:
            return (await self._scrubber.body(str(frame.data).encode())).decode(errors="replace")
        if frame.type is aiohttp.WSMsgType.ERROR:
            raise self._broken(frame.data)
        if frame.type is aiohttp.WSMsgType.BINARY:
            raise HttpFailed("network", f"{self._origin} sent a frame that is no text")
        if self.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
            raise HttpFailed("network", f"the connection to {self._origin} broke off")
        return None

    async def close(self, code: int) -> None:
        await self._socket.close(code=code)

    def _broken(self, error: Exception) -> HttpFailed:
        if isinstance(error, aiohttp.WebSocketError):
            told = f"{self._origin} sent a frame that is too large or none (code {error.code})"
        else:
            told = f"the connection to {self._origin} broke off ({type(error).__name__})"
        return HttpFailed("network", told)
