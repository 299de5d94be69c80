"""A real server on a free port for the length of a test, and plain ways to speak with it."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import SocketStream
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from websockets.asyncio.client import ClientConnection, connect

from gateway.api.declarations import CHAT, Method, Params, Scope
from gateway.api.methods import METHODS
from gateway.api.operating import Ping
from gateway.domain.errors import GatewayError
from gateway.web.asgi import WebApp, method_routes, principal_of
from gateway.web.identity import Identities
from gateway.web.responses import json_response
from gateway.web.rpc import Call, Handler, Registry
from gateway.web.server import ListenAddress, WebServer
from gateway.web.settings import TokenDef, WebSettings
from tests.fakes.clock import FakeClock

ALICE = TokenDef("alice", "alice-secret-token", frozenset({"chat"}))
GUARDED = WebSettings(port=0, tokens=(ALICE,))
OPEN = WebSettings(port=0)
BEARER = {"Authorization": f"Bearer {ALICE.secret}"}


class Text(Params):
    content: str = ""


async def whoami(request: Request) -> Response:
    return json_response({"name": principal_of(request).name})


async def length(request: Request) -> Response:
    return json_response({"length": len(await request.body())})


async def broken(_request: Request) -> Response:
    raise RuntimeError("a secret inside")


ROUTES: Sequence[BaseRoute] = (
    Route("/whoami", whoami),
    Route("/length", length, methods=["POST"]),
    Route("/broken", broken),
)


def ping(_call: Call, _params: Ping) -> str:
    """Answers."""
    return "pong"


async def echo(_call: Call, params: Text) -> str:
    """Says it again."""
    return params.content


@dataclass(frozen=True)
class Bound:
    """A method of a test."""

    name: str
    params: type[Params]
    scope: Scope
    handler: Handler


PING = Bound("ping", Ping, None, ping)
ECHO = Bound("echo", Text, CHAT, echo)


def registry_of(methods: Sequence[Bound]) -> Registry:
    declared = [Method(one.name, one.params, one.scope, str) for one in methods]
    return Registry(declared, {one.name: one.handler for one in methods})


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Site:
    address: ListenAddress
    app: WebApp
    server: WebServer
    clock: FakeClock
    identities: Identities

    async def dial(self, local_host: str | None = None) -> SocketStream:
        return await anyio.connect_tcp(self.address.host, self.address.port, local_host=local_host)

    async def raw(self, data: bytes, local_host: str | None = None) -> bytes:
        """Sends and reads until the server closes."""
        async with await self.dial(local_host) as stream:
            await stream.send(data)
            return await read_all(stream)

    async def get(
        self,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        method: str = "GET",
        body: bytes = b"",
        local_host: str | None = None,
    ) -> Answer:
        given = {"Host": str(self.address), "Connection": "close", **(headers or {})}
        if body:
            given["Content-Length"] = str(len(body))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in given.items()
        )
        return parse_answer(await self.raw(head.encode() + b"\r\n" + body, local_host))

    def socket(self, headers: dict[str, str] | None = None, **options: Any) -> connect:
        options.setdefault("compression", None)
        return connect(f"ws://{self.address}/ws", additional_headers=headers, **options)


async def read_all(stream: SocketStream) -> bytes:
    received = b""
    with anyio.fail_after(60):
        try:
            while True:
                received += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return received


async def keep_sending(stream: SocketStream, data: bytes, *, step: int = 65_536) -> None:
    """Raises BrokenResourceError when the server has had enough."""
    with anyio.fail_after(60):
        for at in range(0, len(data), step):
            await stream.send(data[at : at + step])


def parse_answer(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(first.split(" ")[1]), headers, body)


async def always_ready() -> Sequence[str]:
    return ()


@asynccontextmanager
async def running(
    settings: WebSettings = OPEN,
    *,
    methods: Sequence[Bound] | Mapping[str, Handler] = (PING, ECHO),
    routes: Sequence[BaseRoute] = ROUTES,
    reasons: Sequence[str] = (),
) -> AsyncIterator[Site]:
    clock = FakeClock()
    identities = Identities(settings, clock)

    async def ready() -> Sequence[str]:
        return reasons

    if isinstance(methods, Mapping):  # those of the gateway
        declared = [one for one in METHODS if one.name in methods]
        registry = Registry(declared, methods)
    else:
        registry = registry_of(methods)
    all_routes = [*method_routes(registry), *routes]
    app = WebApp(settings, registry, identities, ready=ready, routes=all_routes)
    server = WebServer(app, settings)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            address = await group.start(_serve, server)
            yield Site(address, app, server, clock, identities)
            group.cancel_scope.cancel()


async def _serve(server: WebServer, *, task_status: anyio.abc.TaskStatus[ListenAddress]) -> None:
    await server.serve(task_status=task_status)


def request(method: str, id_: object = 1, **params: object) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})


async def ask(socket: ClientConnection, method: str, id_: object = 1, **params: object) -> Any:
    await socket.send(request(method, id_, **params))
    return await hear(socket)


async def hear(socket: ClientConnection) -> Any:
    with anyio.fail_after(60):
        return json.loads(await socket.recv())


async def closed_with(socket: ClientConnection) -> int:
    """The code with which the server ends a socket that says nothing more."""
    with anyio.fail_after(60):
        await socket.wait_closed()
    assert socket.close_code is not None
    return socket.close_code


class Refused(GatewayError):
    code = "not_in_the_table"
