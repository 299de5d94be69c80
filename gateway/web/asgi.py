"""The web application: guards and identity in front of the routes, sockets beside them."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
from gateway.domain.channels import WebhookAnswer, WebhookCall, Webhooks
from gateway.domain.errors import BadSessionKey, GatewayError, NotFound, StoreUnavailable
from gateway.domain.ports import Clock
from gateway.web import rpc
from gateway.web.health import Readiness, Ready
from gateway.web.identity import Identities, Principal, has_scope
from gateway.web.responses import OpenAiFailure, error_response, json_response
from gateway.web.rpc import Call, Registry, validate
from gateway.web.settings import WebSettings
from gateway.web.socket import Sockets
from gateway.web.webhooks import WebhookRoutes, is_webhook
from gateway.web.wire.visitors import BodyLimit, OriginGuard, SecurityHeaders, VisitorReader

log = logging.getLogger(__name__)

OPENAI = "/v1/"
T = TypeVar("T", bound=Params)
Raised = Callable[[Request, Exception], Awaitable[Response]]
Routes = Sequence[BaseRoute]


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
        routes: Routes,
        ready: Ready,
    ) -> None:
        self.sockets = sockets
        self.identities, self._ready = identities, ready
        self.degraded: Callable[[], Sequence[str]] = tuple
        self._webhooks: WebhookRoutes | None = None
        self._guarded = SecurityHeaders(self._answer)
        self._take(settings, routes)

    def renew(self, settings: WebSettings, registry: Registry, routes: Routes) -> None:
        """From now on requests are let in and answered so; those at work are answered as they began. No
        connection is closed but those of tokens that are gone."""
        self._take(settings, routes)
        self.sockets.renew(settings, registry, self._guard)
        self.identities.replace(settings)

    def _take(self, settings: WebSettings, routes: Routes) -> None:
        self._guard = OriginGuard(settings)
        self._visitors = VisitorReader(settings.trusted_proxies)
        starlette = Starlette(routes=list(routes), exception_handlers=_HANDLERS)
        starlette.router.redirect_slashes = False
        self._routes = BodyLimit(starlette, settings.max_body_bytes)
        self._largest_body = settings.max_body_bytes
        if self._webhooks is not None:
            self._webhooks.max_body_bytes = settings.max_body_bytes

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
                response = await self._while_let_in(scope, receive, send)
        except GatewayError as error:
            response = await _refusal_at_the_door(scope["path"], error)
        if response is not None:
            await response(scope, receive, send)

    async def _while_let_in(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Answers until the token is no longer in force: an answer that has begun ends there, and what has
        not begun is refused."""
        has_begun = has_ended = False

        async def begun(message: Message) -> None:
            nonlocal has_begun, has_ended
            has_begun = True
            await send(message)
            has_ended = message["type"] == "http.response.body" and not message.get("more_body")

        with self.identities.lasting(scope["state"]["identity"]) as lasting:
            await self._routes(scope, receive, begun)
        if not lasting.cancelled_caught or has_ended:
            return None
        if not has_begun:
            return _told(scope["path"], Unauthorized())
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    def _enter(self, scope: Scope) -> ASGIApp | None:
        """What is answered without any route; None once the visitor may go on to them."""
        visitor = self._visitors.read(scope["headers"], scope["client"], scope["server"])
        self._guard.check(visitor)
        path, method = scope["path"], scope["method"]
        if path == "/healthz":
            _require_read(method)
            return json_response(Alive(status="ok"))
        identity = self.identities.identify(visitor, allow_any_key=path.startswith(OPENAI))
        if path == "/readyz":
            _require_read(method)
            may_know = identity is not None and has_scope(identity.principal, "read")
            return Readiness(self._ready, may_know, self.degraded)
        if identity is None:
            raise Unauthorized
        scope["state"]["principal"] = identity.principal
        scope["state"]["identity"] = identity
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
    if not any(has_scope(principal, scope) for scope in scopes):
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


def method_routes(registry: Registry) -> Sequence[Described]:
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
        log.error("route_failed", extra={"path": request.url.path}, exc_info=error)
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
    routes: Routes = (),
    identities: Identities | None = None,
) -> WebApp:
    """The whole front door. `identities` is given by whoever wants to replace tokens later."""
    known = identities or Identities(settings, clock)
    sockets = Sockets(settings, registry, OriginGuard(settings), known)
    return WebApp(settings, sockets, known, routes=routes, ready=ready)


# --- a door without rooms behind it ---------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Shut:
    """Refuses whatever is asked, because of what `why` says now; implements the port Webhooks."""

    why: Callable[[], str]

    def largest_body(self, channel: str) -> int | None:
        raise StoreUnavailable(self.why())

    async def receive(self, call: WebhookCall) -> WebhookAnswer:
        raise StoreUnavailable(self.why())

    async def route(self, _request: Request) -> Response:
        raise StoreUnavailable(self.why())

    async def method(self, _call: Call, _params: Params) -> object:
        raise StoreUnavailable(self.why())

    async def reasons(self) -> Sequence[str]:
        return [self.why()]


def build_closed(
    settings: WebSettings, methods: Iterable[Method], clock: Clock, why: Callable[[], str]
) -> WebApp:
    """Alive, not ready, and shut: for a gateway whose store does not answer yet."""
    closed, known = Shut(why), tuple(methods)
    registry = Registry(known, {one.name: closed.method for one in known})
    routes = [Route("/{path:path}", closed.route, methods=_ALL_VERBS)]
    app = build(settings, registry, ready=closed.reasons, clock=clock, routes=routes)
    app.open_webhooks(closed)
    return app


_ALL_VERBS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
