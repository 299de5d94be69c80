"""One request and its answer, where the server's own ways do not do: HTTP/1.0, and being cut off."""

import asyncio
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.domain.errors import GatewayError
from gateway.web.guards import SECURITY_HEADERS
from gateway.web.refusals import Stopping
from gateway.web.responses import error_body, error_headers, failure_of


def refusal(error: GatewayError) -> bytes:
    """A whole HTTP answer that also ends the connection."""
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


class Exchange:
    """ASGI around the application, for one request."""

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
                raise  # not the end of the gateway: something that was awaited failed
            self._cut_off()

    async def _send_unchunked(self, message: Message) -> None:
        """HTTP/1.0 knows no chunks: an answer of unknown length ends with its connection."""
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
        """Says that it is over, in whatever way is still open; waits for nobody."""
        cycle, transport = self._cycle, self._cycle.transport
        if not (cycle.disconnected or cycle.response_complete or transport.is_closing()):
            if not cycle.response_started:
                transport.write(refusal(Stopping()))
            elif cycle.chunked_encoding:
                transport.write(b"0\r\n\r\n")
            transport.close()
        cycle.disconnected = True
