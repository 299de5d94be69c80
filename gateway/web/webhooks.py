"""/webhooks/NAME: calls of platforms, which carry no token of the gateway but prove their origin."""

from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.errors import BodyTooLarge, Forbidden, MethodNotAllowed, NotHere, Unauthorized
from gateway.api.http import WEBHOOK_METHODS as METHODS
from gateway.domain.channels import WebhookAnswer, WebhookCall, Webhooks
from gateway.domain.errors import Busy, GatewayError
from gateway.web.responses import error_response
from gateway.web.wire.connections import check_length

PREFIX = b"/webhooks/"
MOST_BYTES_AT_ONCE = 128 * 1024 * 1024  # of bodies that are not verified yet
SMALL = 16 * 1024  # a body of this size is always read: large bodies of others must not block it

_UNPROVED = "the call does not prove that it comes from the platform of this channel"


@dataclass(slots=True)
class WebhookRoutes:
    """The ASGI application of webhooks. A refusal does not say what failed in the proof."""

    webhooks: Webhooks
    max_body_bytes: int
    _held: int = 0  # bytes of bodies, of all calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._answer(scope, receive)
        except GatewayError as error:
            response = error_response(error)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        """Passes a call to its channel. Raises MethodNotAllowed, NotHere, BodyTooLarge, InvalidRequest, Busy."""
        if scope["method"] not in METHODS:
            raise MethodNotAllowed(", ".join(METHODS))
        name, slash, rest = scope["raw_path"].removeprefix(PREFIX).decode("latin-1").partition("/")
        largest = self.webhooks.largest_body(name)
        if largest is None:
            raise NotHere
        limit = min(largest, self.max_body_bytes)
        check_length(scope["headers"], limit)
        parts: list[bytes] = []
        try:
            await self._read(Request(scope, receive), limit, parts)
            call = WebhookCall(
                name,
                scope["method"],
                slash + rest,
                scope["query_string"].decode("latin-1"),
                tuple(
                    (name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t"))
                    for name, value in scope["headers"]
                ),
                b"".join(parts),
            )
            return _response(await self.webhooks.receive(call), limit)
        finally:
            self._held -= sum(map(len, parts))

    async def _read(self, request: Request, limit: int, parts: list[bytes]) -> None:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise BodyTooLarge(limit)
            if size > SMALL and self._held + len(part) > MOST_BYTES_AT_ONCE:
                raise Busy("too many webhook calls at once; try again")
            parts.append(part)
            self._held += len(part)


def is_webhook(scope: Scope) -> bool:
    """True if the raw path, as it was sent, is that of a webhook. Encoded spellings are not."""
    raw: bytes = scope["raw_path"]
    return raw.startswith(PREFIX)


def _response(answer: WebhookAnswer, limit: int) -> Response:
    """Returns the answer of a channel. A refusal without a body gets the gateway's own error."""
    headers = dict(answer.headers)
    if answer.status < 400 or answer.body:
        return Response(answer.body, answer.status, headers)
    error: Exception = RuntimeError()
    match answer.status:
        case 413:
            error = BodyTooLarge(limit)
        case 503:
            error = Busy("nothing was accepted", float(headers.get("retry-after", 1)))
        case 404:
            error = NotHere()
        case 401:
            error = Unauthorized(_UNPROVED)
        case 403:
            error = Forbidden(_UNPROVED)
    response = error_response(error)
    response.status_code = answer.status
    return response
