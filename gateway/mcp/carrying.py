"""What the SDK sends over HTTP leaves by the gateway's own client, to one origin and nowhere else."""

from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import quote

import httpx2

from gateway.domain.mcp import DEPTH_HEADER
from gateway.domain.ports import Http, HttpAnswer, HttpCall, HttpFailed
from gateway.mcp.bounds import TooMuch, Weight

IDLE_S = 300.0
NOTICE_S = 2.0  # for what nobody waits for: the SDK sends nothing else meanwhile
SESSION = "mcp-session-id"
_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_LEFT_OUT = {"set-cookie", "set-cookie2"}


@dataclass(slots=True)
class Fate:
    """What became of the request of one call, as far as the wire can tell."""

    is_begun: bool = False
    is_lost: bool = False  # no answer came, or not all of it
    is_unsent: bool = False  # the server surely did not carry it out
    status: int = 0  # of the answer to a request within a session
    too_much: str | None = None  # that it answered with

    @property
    def is_done(self) -> bool | None:
        """False: the server surely did not carry it out."""
        return False if self.is_unsent or self.status == 404 else None

    def has_no_session(self, *, is_vague: bool) -> bool:
        """`is_vague`: so is the error that came with it."""
        return self.status == 404 or (self.status == 400 and is_vague)


user: ContextVar[str | None] = ContextVar("user", default=None)  # on whose behalf a call is made
fate: ContextVar[Fate | None] = ContextVar("fate", default=None)  # of the call that is made


class Carrier(httpx2.AsyncBaseTransport):
    """No proxies, no cookies, nothing packed; `headers` go along, and the user of each call."""

    def __init__(self, http: Http, url: str, headers: Mapping[str, str], user_header: str) -> None:
        self._http, self._origin = http, _origin(httpx2.URL(url))
        self._headers, self._user_header = dict(headers), user_header

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _origin(request.url) != self._origin:
            raise httpx2.UnsupportedProtocol("it leads to another server", request=request)
        headers, body = self._signed(request), await request.aread()
        idle_s = NOTICE_S if _is_notice(request.method, body) else IDLE_S
        call = HttpCall(request.method, str(request.url), headers, body, idle_timeout_s=idle_s)
        known = _begun() if request.method == "POST" else None
        try:
            answer = await self._http.send(call)
        except HttpFailed as error:
            return _unanswered(request, error, known)
        if known is not None and SESSION in headers:
            known.status = answer.status
        kept = {name: text for name, text in answer.headers.items() if name not in _LEFT_OUT}
        if kept.pop("content-encoding", "identity") != "identity":
            answer.close()
            raise httpx2.RemoteProtocolError("it sends what nobody asked to be packed")
        is_events = kept.get("content-type", "").startswith("text/event-stream")
        stream = _Body(answer, known, is_events=is_events)
        return httpx2.Response(answer.status, headers=kept, stream=stream, request=request)

    def _signed(self, request: httpx2.Request) -> dict[str, str]:
        headers = {
            **request.headers,
            **self._headers,
            "accept-encoding": "identity",
            DEPTH_HEADER: "1",
        }
        if (name := user.get()) is not None:
            headers[self._user_header] = quote(name, safe=_VISIBLE)
        return headers


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: HttpAnswer, known: Fate | None, *, is_events: bool) -> None:
        self._answer, self._known, self._is_events = answer, known, is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        weight = Weight()
        try:
            while data := await self._answer.read_some():
                weight.add(data)
                if self._is_events and (b"\n\n" in data or b"\r\n\r\n" in data):
                    weight = Weight()  # another message begins
                yield data
        except (HttpFailed, TooMuch) as error:
            if self._known is not None:
                self._known.is_lost = True
                self._known.too_much = str(error) if isinstance(error, TooMuch) else None
            raise httpx2.StreamError(str(error)) from error

    async def aclose(self) -> None:
        self._answer.close()


def _begun() -> Fate | None:
    """Of the call itself: what is sent on its account later says nothing of it."""
    known = fate.get()
    if known is None or known.is_begun:
        return None
    known.is_begun = True
    return known


def _unanswered(request: httpx2.Request, error: HttpFailed, known: Fate | None) -> httpx2.Response:
    """What is raised ends the connection, with the calls of everybody else."""
    if fate.get() is None:
        raise httpx2.ConnectError(str(error), request=request) from error
    if known is not None:
        known.is_lost, known.is_unsent = True, not error.sent
    return httpx2.Response(502, request=request)


def _is_notice(method: str, body: bytes) -> bool:
    return method == "DELETE" or b'"method":"notifications/' in body[:64]


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)
