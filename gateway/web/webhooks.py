"""/webhooks/NAME: calls of platforms, which present no credential of ours but prove who they are."""

from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.errors import BodyTooLarge, Forbidden, MethodNotAllowed, NotHere, Unauthorized
from gateway.api.http import WEBHOOK_METHODS as METHODS
from gateway.domain.channels import WebhookAnswer, WebhookCall, Webhooks
from gateway.domain.errors import Busy, GatewayError
from gateway.web.responses import error_response
from gateway.web.wire.visitors import check_length

PREFIX = b"/webhooks/"
MOST_BYTES_AT_ONCE = 128 * 1024 * 1024  # of bodies that nobody has vouched for yet
SMALL = 16 * 1024  # such a one always gets in: strangers with large ones must not keep it out

_UNPROVED = "the call does not prove that it comes from the platform of this channel"


@dataclass(slots=True)
class WebhookRoutes:
    """ASGI; what is refused reads as anywhere else, and says nothing of why."""

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
        """Raises MethodNotAllowed, NotHere, BodyTooLarge, InvalidRequest, Busy."""
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
            await self._read(receive, limit, parts)
            call = WebhookCall(
                name,
                scope["method"],
                slash + rest,
                scope["query_string"].decode("latin-1"),
                tuple(_header(*pair) for pair in scope["headers"]),
                b"".join(parts),
            )
            return _response(await self.webhooks.receive(call), limit)
        finally:
            self._held -= sum(map(len, parts))

    async def _read(self, receive: Receive, limit: int, parts: list[bytes]) -> None:
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise BodyTooLarge(limit)
            if size > SMALL and self._held + len(part) > MOST_BYTES_AT_ONCE:
                raise Busy("too many webhook calls at once; try again")
            parts.append(part)
            self._held += len(part)
            if not message.get("more_body", False):
                return


def is_webhook(scope: Scope) -> bool:
    """By the address as it was sent: another spelling of it is no webhook's."""
    raw: bytes = scope["raw_path"]
    return raw.startswith(PREFIX)


def _header(name: bytes, value: bytes) -> tuple[str, str]:
    return name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")


def _response(answer: WebhookAnswer, limit: int) -> Response:
    """What a channel refuses without a word gets the same words from all of them."""
    headers = dict(answer.headers)
    if answer.status < 400 or answer.body:
        return Response(answer.body, answer.status, headers)
    if answer.status == 413:
        return error_response(BodyTooLarge(limit))
    if answer.status == 503:
        return error_response(Busy("nothing was accepted", float(headers.get("retry-after", 1))))
    if answer.status == 404:
        return error_response(NotHere())
    if answer.status in {401, 403}:
        unproved = Unauthorized if answer.status == 401 else Forbidden
        return error_response(unproved(_UNPROVED))
    return _internal(answer)


def _internal(answer: WebhookAnswer) -> Response:
    response = error_response(RuntimeError())
    response.status_code = answer.status
    return response
