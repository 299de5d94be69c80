"""The web application: guards and authentication before the routes, the sockets, and readiness:
`/healthz` shows that the process answers, `/readyz` whether it accepts work, and why not."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

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
from gateway.api.http import Alive, NotReady, Operation, ReadyForWork, twin
from gateway.domain.channels import Webhooks
from gateway.domain.errors import BadSessionKey, GatewayError, NotFound, StoreLost, StoreUnavailable
from gateway.domain.ports import Clock
from gateway.web import rpc
from gateway.web.identity import Identities, Principal, has_scope
from gateway.web.responses import OpenAiFailure, error_response, json_response
from gateway.web.rpc import Registry, validate
from gateway.web.settings import WebSettings
from gateway.web.socket import Sockets
from gateway.web.webhooks import WebhookRoutes, is_webhook
from gateway.web.wire.connections import BodyLimit, OriginGuard, SecurityHeaders

log = logging.getLogger(__name__)

OPENAI = "/v1/"
T = TypeVar("T", bound=Params)
Routes = Sequence[BaseRoute]
Ready = Callable[[], Awaitable[Sequence[str]]]  # the reasons why not; none means ready


class WebApp:
    """The ASGI application for HTTP; `sockets` serves WebSockets, which never become ASGI events.

    Every request has its Host and Origin checked. Every path but `/healthz` and `/readyz` needs a credential, also a
    path that does not exist. Webhooks prove their origin in their own way.
    """

    def __init__(
        self,
        settings: WebSettings,
        registry: Registry,
        identities: Identities,
        *,
        ready: Ready,
        routes: Routes = (),
        degraded: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.sockets = Sockets(settings, registry, OriginGuard(settings), identities)
        self.identities, self._ready, self._degraded = identities, ready, degraded
        self._webhooks: WebhookRoutes | None = None
        self._guarded = SecurityHeaders(self._answer)
        self._configure(settings, routes)

    def renew(self, settings: WebSettings, registry: Registry, routes: Routes) -> None:
        """Applies other settings and routes to later requests. Only connections of removed tokens are closed."""
        self._configure(settings, routes)
        self.sockets.renew(settings, registry, self._guard)
        self.identities.replace(settings)

    def _configure(self, settings: WebSettings, routes: Routes) -> None:
        self._guard = OriginGuard(settings)
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
            response = await self._admit(scope)
            if response is None:
                response = await self._answer_while_valid(scope, receive, send)
        except GatewayError as error:
            response = _error_answer(scope["path"], error)
            if delay_s := delay_of(error):
                await anyio.sleep(delay_s)
            elif isinstance(error, TooManyFailures):
                response.headers["connection"] = "close"
        if response is not None:
            await response(scope, receive, send)

    async def _answer_while_valid(
        self, scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """Answers until the token ends: an answer that has begun is cut there, another request is refused."""
        has_begun = has_ended = False

        async def begun(message: Message) -> None:
            nonlocal has_begun, has_ended
            has_begun = True
            await send(message)
            has_ended = message["type"] == "http.response.body" and not message.get("more_body")

        with self.identities.cancel_when_lost(scope["state"]["identity"]) as cancelling:
            await self._routes(scope, receive, begun)
        if not cancelling.cancelled_caught or has_ended:
            return None
        if not has_begun:
            return _error_answer(scope["path"], Unauthorized())
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    async def _admit(self, scope: Scope) -> Response | None:
        """Returns the answer of a probe; None if the routes may answer. Raises GatewayError for a refusal."""
        visitor = self._guard.admit(scope["headers"], scope["client"], scope["server"])
        path = scope["path"]
        if path in {"/healthz", "/readyz"} and scope["method"] not in {"GET", "HEAD"}:
            raise MethodNotAllowed("GET, HEAD")
        if path == "/healthz":
            return json_response(Alive(status="ok"))
        identity = self.identities.identify(visitor, allow_any_key=path.startswith(OPENAI))
        if path == "/readyz":
            may_know = identity is not None and has_scope(identity.principal, "read")
            return await answer_readiness(self._ready, self._degraded, shows_reasons=may_know)
        if identity is None:
            raise Unauthorized
        scope["state"]["principal"] = identity.principal
        scope["state"]["identity"] = identity
        return None


def principal_of(request: Request) -> Principal:
    """Returns the principal of a request that a route answers."""
    found: Principal = request.state.principal
    return found


def require_scope(request: Request, what: str, *scopes: str) -> Principal:
    """Returns the principal if it has any of the scopes. Raises Forbidden. `what` names the request in the error."""
    principal = principal_of(request)
    if not any(has_scope(principal, scope) for scope in scopes):
        needed = " or ".join(repr(scope) for scope in scopes)
        raise Forbidden(f"{what} needs the scope {needed}")
    return principal


def query_of(request: Request, kind: type[T]) -> T:
    """Raises InvalidParams."""
    return validate(kind, _once(request))


def _once(request: Request) -> dict[str, object]:
    """Returns the parameters of the query. Raises InvalidParams for a repeated one, which would be ambiguous."""
    items = request.query_params.multi_items()
    once: dict[str, object] = dict(items)
    if len(once) < len(items):
        raise InvalidParams("a query parameter is given twice")
    return once


class Described(Route):
    """A route with its description, from which the OpenAPI document is made."""

    def __init__(self, operation: Operation, endpoint: Callable[..., Awaitable[object]]) -> None:
        super().__init__(operation.path, endpoint, methods=[operation.method])
        self.operation = operation


def method_routes(registry: Registry) -> Sequence[Described]:
    """Returns the routes of the methods that also answer `GET`."""
    return [
        Described(twin(one), partial(_do, registry, one)) for one in registry.methods if one.http
    ]


async def _do(registry: Registry, method: Method, request: Request) -> Response:
    """Runs a method for a `GET`. Raises NotFound if the path holds no valid name."""
    in_path = [str(part) for part in request.path_params.values()]
    named: dict[str, object] = dict(
        zip((name for name, _ in method.params.defaults), in_path, strict=False)
    )
    try:
        wanted = rpc.Request(None, method.name, named or _once(request))
        prepared = registry.prepare(wanted, principal_of(request))
        result = prepared.handler(prepared.call, prepared.params)
        return json_response(await result if prepared.waits else result)
    except (InvalidParams, BadSessionKey) as error:
        if not in_path:
            raise
        raise NotFound(f"{method.name.partition('.')[0]} {in_path[0][:200]!r}") from error


async def _handle(request: Request, error: Exception) -> Response:
    path = request.url.path
    match error:
        case ClientDisconnect():
            return Response(status_code=400)  # the client does not read it any more
        case HTTPException(status_code=405, headers=headers):
            error = MethodNotAllowed((headers or {}).get("Allow", ""))
        case HTTPException(status_code=404):
            error = NotHere()
        case GatewayError() if failure_of(error) is INTERNAL:
            log.error("route_failed", extra={"path": path}, exc_info=error)
    return _error_answer(path, error)  # Starlette raises other errors again; the server logs them


def _error_answer(path: str, error: Exception) -> Response:
    """Returns the error in the form that clients of that path expect."""
    if not path.startswith(OPENAI):
        return error_response(error)
    return OpenAiFailure.of_request(error).response()


_HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = dict.fromkeys(
    (GatewayError, HTTPException, ClientDisconnect, Exception), _handle
)


# --- readiness -----------------------------------------------------------------------------------
RETRY_AFTER_S = "2"
PROBE_EVERY_S = 5.0  # without requests for readiness
KNOWN_S = 0.25  # a successful probe is valid for this long
AGAIN_S = 1.0  # a failed probe is valid for this long
STALE_S = 30.0  # after so long without an answer the store counts as dead
SLOW_S = 0.5  # a store that takes longer cannot commit now
SILENT = "the store does not answer: check its server, its disk and programs that may lock it"


async def answer_readiness(
    ready: Ready, degraded: Callable[[], Sequence[str]], *, shows_reasons: bool
) -> Response:
    """Returns the answer of `/readyz`."""
    if reasons := await ready():
        answer = NotReady(status="not_ready", reasons=list(reasons) if shows_reasons else None)
        return json_response(answer, 503, {"retry-after": RETRY_AFTER_S})
    return json_response(ReadyForWork(status="ready", degraded=list(degraded()) or None))


@dataclass(slots=True)
class Health:
    """The reasons why the gateway accepts no work; it is ready without any."""

    starting: bool = True
    draining: bool = False
    store: str | None = None

    def reasons(self) -> Sequence[str]:
        reasons = (
            "the gateway is starting" if self.starting else None,
            "the gateway is draining before it stops" if self.draining else None,
            self.store,
        )
        return [reason for reason in reasons if reason is not None]


@dataclass(slots=True)
class StoreWatch:
    """Keeps `Health.store` up to date. It probes the store every few seconds and on requests for readiness, so a
    message costs nothing."""

    probe: Callable[[], Awaitable[None]]
    clock: Clock
    health: Health = field(default_factory=Health)
    _probed_at: float = float("-inf")
    _asked: anyio.Event = field(default_factory=anyio.Event)
    _probed: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> None:
        """Probes until it is cancelled."""
        while True:
            with anyio.move_on_after(PROBE_EVERY_S):
                await self._asked.wait()
            self._asked = anyio.Event()
            try:
                await self.probe()
                self.health.store = None
            except StoreLost:
                raise  # accepted messages are safe; the next start finds out which answers are
            except StoreUnavailable as error:
                self.health.store = str(error)
            self._probed_at = self.clock.monotonic()
            self._probed.set()
            self._probed = anyio.Event()

    def is_alive(self) -> bool:
        """True if the store answered lately, with success or failure."""
        return self.clock.monotonic() - self._probed_at < STALE_S

    async def reasons(self) -> Sequence[str]:
        """Returns the reasons of `Health`, after a probe of the store if the latest one is too old."""
        known_s = KNOWN_S if self.health.store is None else AGAIN_S
        if self.clock.monotonic() - self._probed_at > known_s:
            self._asked.set()
            with anyio.move_on_after(SLOW_S) as waiting:
                await self._probed.wait()
            if waiting.cancelled_caught and self.health.store is None:
                self.health.store = SILENT
        return self.health.reasons()


# --- a gateway whose store does not answer yet ----------------------------------------------------
@dataclass(frozen=True, slots=True)
class Unavailable:
    """Refuses every request with the current reason; implements the port Webhooks."""

    why: Callable[[], str]

    def largest_body(self, channel: str) -> int | None:
        raise StoreUnavailable(self.why())

    async def receive(self, *_: object) -> Any:
        raise StoreUnavailable(self.why())

    route = method = receive

    async def reasons(self) -> Sequence[str]:
        return [self.why()]


def build_closed(
    settings: WebSettings, methods: Iterable[Method], clock: Clock, why: Callable[[], str]
) -> WebApp:
    """Builds an application that is alive, not ready, and refuses every other request."""
    closed, known = Unavailable(why), tuple(methods)
    registry = Registry(known, {one.name: closed.method for one in known})
    routes = [Route("/{path:path}", closed.route, methods=_ALL_VERBS)]
    identities = Identities(settings, clock)
    app = WebApp(settings, registry, identities, ready=closed.reasons, routes=routes)
    app.open_webhooks(closed)
    return app


_ALL_VERBS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
