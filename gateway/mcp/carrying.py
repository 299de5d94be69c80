"""What the SDK sends over HTTP leaves by the gateway's own client, to one origin and nowhere else."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from urllib.parse import quote

import httpx2

from gateway.domain.mcp import DEPTH_HEADER
from gateway.domain.ports import Http, HttpAnswer, HttpCall, HttpFailed

MOST_ANSWER = 16 * 1024 * 1024
IDLE_S = 300.0
SESSION = "mcp-session-id"
_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_LEFT_OUT = {"set-cookie", "set-cookie2"}

user: ContextVar[str | None] = ContextVar("user", default=None)  # on whose behalf a call is made

Leave = Callable[[None, None, None], Awaitable[bool | None]]


class Carrier(httpx2.AsyncBaseTransport):
    """No proxies, no cookies, nothing packed; `headers` go along, and the user of each call. `lost`
    is called when the server no longer knows the session."""

    def __init__(
        self,
        http: Http,
        url: str,
        headers: Mapping[str, str],
        user_header: str,
        lost: Callable[[], None],
    ) -> None:
        self._http, self._origin, self._lost = http, _origin(httpx2.URL(url)), lost
        self._headers, self._user_header = dict(headers), user_header

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _origin(request.url) != self._origin:
            raise httpx2.UnsupportedProtocol("it leads to another server", request=request)
        headers = {
            **request.headers,
            **self._headers,
            "accept-encoding": "identity",
            DEPTH_HEADER: "1",
        }
        if (name := user.get()) is not None:
            headers[self._user_header] = quote(name, safe=_VISIBLE)
        body = await request.aread()
        call = HttpCall(request.method, str(request.url), headers, body, idle_timeout_s=IDLE_S)
        context = self._http.send(call)
        try:
            answer = await context.__aenter__()
        except HttpFailed as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        if answer.status == 404 and SESSION in headers:
            self._lost()
        kept = {name: text for name, text in answer.headers.items() if name not in _LEFT_OUT}
        if kept.pop("content-encoding", "identity") != "identity":
            await context.__aexit__(None, None, None)
            raise httpx2.RemoteProtocolError("it sends what nobody asked to be packed")
        stream = _Body(answer, context.__aexit__)
        return httpx2.Response(answer.status, headers=kept, stream=stream, request=request)


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: HttpAnswer, leave: Leave) -> None:
        self._answer, self._leave = answer, leave

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            while data := await self._answer.read_some():
                size += len(data)
                if size > MOST_ANSWER:
                    raise httpx2.StreamError(f"an answer of more than {MOST_ANSWER} bytes")
                yield data
        except HttpFailed as error:
            raise httpx2.ReadError(str(error)) from error

    async def aclose(self) -> None:
        await self._leave(None, None, None)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)
