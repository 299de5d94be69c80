"""The web application: guards and identity in front of the routes, sockets beside them."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.declarations import Method, Params
from gateway.api.errors import (
    INTERNAL,
    Forbidden,
    InvalidParams,
    MethodNotAllowed,
    NotHere,
    TooManyFailures,
    Unauthorized,
    delay_of,
    failure_of,
)
from gateway.api.http import Alive, Operation, twin
from gateway.domain.channels import Webhooks
from gateway.domain.errors import BadSessionKey, GatewayError, NotFound
from gateway.domain.ports import Clock
from gateway.web import rpc
from gateway.web.health import Readiness, Ready
from gateway.web.identity import Identities, Principal, may
from gateway.web.responses import OpenAiFailure, error_response, json_response
from gateway.web.rpc import Call, Registry, validate
from gateway.web.settings import WebSettings
from gateway.web.socket import Sockets
from gateway.web.webhooks import WebhookRoutes, is_webhook
from gateway.web.wire.visitors import BodyLimit, Doorway, Reception, SecurityHeaders

log = logging.getLogger(__name__)

OPENAI = "/v1/"
T = TypeVar("T", bound=Params)
Raised = Callable[[Request, Exception], Awaitable[Response]]


class WebApp:
    """ASGI for HTTP; `sockets` decides on WebSockets, which never become ASGI events.

    Host and Origin are checked for everything; everything but `/healthz` and `/readyz` needs a
    credential, also what does not exist. Webhooks prove in their own way who they are.
    """

    def __init__(
        self,
        settings: WebSettings,
        sockets: Sockets,
        identities: Identities,
        *,
        routes: Sequence[BaseRoute],
        ready: Ready,
    ) -> None:
        self.sockets = sockets
        self._identities, self._ready = identities, ready
        self._doorway = Doorway(settings)
        self._reception = Reception(settings.trusted_proxies)
        starlette = Starlette(routes=list(routes), exception_handlers=_HANDLERS)
        starlette.router.redirect_slashes = False
        self._routes = BodyLimit(starlette, settings.max_body_bytes)
        self._largest_body = settings.max_body_bytes
        self._webhooks: WebhookRoutes | None = None
        self._guarded = SecurityHeaders(self._answer)

    def open_webhooks(self, webhooks: Webhooks) -> None:
        self._webhooks = WebhookRoutes(webhooks, self._largest_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._guarded(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._webhooks is not None and is_webhook(scope):
            await self._webhooks(scope, receive, send)
            return
        try:
            response = self._enter(scope)
            if response is None:
                await self._routes(scope, receive, send)
                return
        except GatewayError as error:
            response = await _refusal_at_the_door(scope["path"], error)
        await response(scope, receive, send)

    def _enter(self, scope: Scope) -> ASGIApp | None:
        """What is answered without any route; None once the visitor may go on to them."""
        visitor = self._reception.visitor(scope["headers"], scope["client"], scope["server"])
        self._doorway.check(visitor)
        path, method = scope["path"], scope["method"]
        if path == "/healthz":
            _require_read(method)
            return json_response(Alive(status="ok"))
        identity = self._identities.of_visitor(visitor, sends_any=path.startswith(OPENAI))
        if path == "/readyz":
            _require_read(method)
            may_know = identity is not None and may(identity.principal, "read")
            return Readiness(self._ready, tells_why=may_know)
        if identity is None:
            raise Unauthorized
        scope["state"]["principal"] = identity.principal
        return None


async def _refusal_at_the_door(path: str, error: GatewayError) -> Response:
    """Whoever guesses tokens hears of it late, or has to connect anew for the next one."""
    response = _told(path, error)
    if delay_s := delay_of(error):
        await anyio.sleep(delay_s)
    elif isinstance(error, TooManyFailures):
        response.headers["connection"] = "close"
    return response


def _require_read(method: str) -> None:
    if method not in {"GET", "HEAD"}:
        raise MethodNotAllowed("GET, HEAD")


def principal_of(request: Request) -> Principal:
    """Whose request it is; every route has one."""
    found: Principal = request.state.principal
    return found


def require_scope(request: Request, what: str, *scopes: str) -> Principal:
    """Whose request it is, if any of the scopes is theirs. Raises Forbidden."""
    principal = principal_of(request)
    if not any(may(principal, scope) for scope in scopes):
        needed = " or ".join(repr(scope) for scope in scopes)
        raise Forbidden(f"{what} needs the scope {needed}")
    return principal


def query_of(request: Request, kind: type[T]) -> T:
    """Raises InvalidParams."""
    return validate(kind, _once(request))


def _once(request: Request) -> dict[str, object]:
    """Raises InvalidParams for what is said twice: nobody could know which of them counts."""
    given = request.query_params.multi_items()
    once: dict[str, object] = dict(given)
    if len(once) < len(given):
        raise InvalidParams("a parameter stands twice in the address")
    return once


class Described(Route):
    """No route of ours is made without saying what it does."""

    def __init__(self, operation: Operation, endpoint: Callable[..., Awaitable[object]]) -> None:
        super().__init__(operation.path, endpoint, methods=[operation.method])
        self.operation = operation


def twins(registry: Registry) -> Sequence[Described]:
    """The routes of methods that `GET` does as well."""
    return [
        Described(twin(one), partial(_do, registry, one)) for one in registry.methods if one.http
    ]


async def _do(registry: Registry, method: Method, request: Request) -> Response:
    """Raises NotFound for what stands in the path and can be no name."""
    in_path = [str(part) for part in request.path_params.values()]
    named: dict[str, object] = dict(
        zip((name for name, _ in method.params.defaults), in_path, strict=False)
    )
    call = Call(principal_of(request), method.name)
    try:
        asked = rpc.Request(None, method.name, named or _once(request))
        prepared = registry.prepare(asked, call.principal)
        result = prepared.handler(call, prepared.params)
        return json_response(await result if prepared.waits else result)
    except (InvalidParams, BadSessionKey) as error:
        if not in_path:
            raise
        raise NotFound(f"{method.name.partition('.')[0]} {in_path[0][:200]!r}") from error


async def _refused(request: Request, error: Exception) -> Response:
    if failure_of(error) is INTERNAL:
        log.error("a route failed", extra={"path": request.url.path}, exc_info=error)
    return _told(request.url.path, error)


async def _failed(request: Request, error: Exception) -> Response:
    return _told(request.url.path, error)  # Starlette raises it again, and the server logs it


async def _of_starlette(request: Request, error: Exception) -> Response:
    path = request.url.path
    match error:
        case HTTPException(status_code=405, headers=headers):
            return _told(path, MethodNotAllowed((headers or {}).get("Allow", "")))
        case HTTPException(status_code=404):
            return _told(path, NotHere())
    return _told(path, error)


def _told(path: str, error: Exception) -> Response:
    """In the words that whoever asks there expects."""
    if not path.startswith(OPENAI):
        return error_response(error)
    return OpenAiFailure.of_request(error).response()


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it


_HANDLERS: Mapping[Any, Raised] = {
    GatewayError: _refused,
    HTTPException: _of_starlette,
    ClientDisconnect: _gone,
    Exception: _failed,
}


def build(
    settings: WebSettings,
    registry: Registry,
    *,
    ready: Ready,
    clock: Clock,
    routes: Sequence[BaseRoute] = (),
    identities: Identities | None = None,
) -> WebApp:
    """The whole front door. `identities` is given by whoever wants to replace tokens later."""
    known = identities or Identities(settings, clock)
    sockets = Sockets(settings, registry, Doorway(settings), known)
    return WebApp(settings, sockets, known, routes=routes, ready=ready)
