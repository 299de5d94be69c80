"""Listens, serves until it is told to stop, and lets everybody go in good order."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
from anyio.abc import TaskStatus
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config

from gateway.api.errors import AddressInUse, CannotListen
from gateway.web.settings import WebSettings
from gateway.web.wire.connections import Connections
from gateway.web.wire.http import Admitter, GuardedHttp

log = logging.getLogger(__name__)

BACKLOG = 2048
SEND_BUFFER = 262_144  # of the kernel, a connection: a stalled reader must not hold megabytes there
LAST_MOMENT_S = 1.0


class SocketWorkers(Protocol):
    """Do what is asked for over WebSockets."""

    async def run(self, *, task_status: TaskStatus[None]) -> None: ...

    async def wait_until_idle(self) -> None: ...


class SocketEndpoint(Admitter, Protocol):
    @property
    def workers(self) -> SocketWorkers: ...


class App(Protocol):
    """The ASGI application for HTTP, and who decides on WebSockets."""

    @property
    def sockets(self) -> SocketEndpoint: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@dataclass(frozen=True, slots=True)
class ListenAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class WebServer:
    """Runs in the task that calls `serve`; takes no signals and starts no thread."""

    def __init__(
        self, app: App, settings: WebSettings, bound: Sequence[socket.socket] = ()
    ) -> None:
        """`bound`: sockets that listen already."""
        self._app, self._settings = app, settings
        self._bound = bound
        self._connections = Connections(settings)
        self._config = _config(app, settings)
        self._listeners: list[asyncio.Server] = []
        self._stop = anyio.Event()
        self.stopped = anyio.Event()
        self._grace_s = 0.0

    def renew(self, settings: WebSettings) -> None:
        """From now on connections are bounded so. Where it listens stays."""
        self._settings = settings
        self._connections.renew(settings)

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def serve(
        self, *, task_status: TaskStatus[ListenAddress] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves until `stop`, or until it is cancelled. Raises AddressInUse, CannotListen."""
        address = await self._listen()
        try:
            async with anyio.create_task_group() as group:
                await group.start(self._app.sockets.workers.run)
                task_status.started(address)
                await self._stop.wait()
                await self._shut_down(self._grace_s)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._shut_down(0.0)
            self.stopped.set()

    def duplicate_sockets(self) -> Sequence[socket.socket]:
        """What it listens on, for another server: nobody is refused in between."""
        return [bound.dup() for bound in self._bound]

    def stop_accepting(self) -> None:
        """New connections are refused by the system; those that are there go on."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()

    def stop(self, grace_s: float) -> None:
        """WebSockets are closed with 1012; requests under way have `grace_s` to finish."""
        self._grace_s = grace_s
        self._stop.set()

    async def _shut_down(self, grace_s: float) -> None:
        self.stop_accepting()
        self._connections.shut_down_all()
        tasks = self._connections.state.tasks
        with anyio.move_on_after(grace_s):
            await self._connections.wait_until_empty()
            while tasks:
                await asyncio.wait(tuple(tasks))
            await self._app.sockets.workers.wait_until_idle()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tuple(tasks), timeout=LAST_MOMENT_S)  # each says that it is over
        self._connections.abort_all()
        with anyio.move_on_after(LAST_MOMENT_S):
            while tasks:
                await asyncio.wait(tuple(tasks))
            await self._connections.wait_until_empty()

    async def _listen(self) -> ListenAddress:
        self._bound = self._bound or await _bind(self._settings.bind, self._settings.port)
        loop = asyncio.get_running_loop()
        for bound in self._bound:
            self._listeners.append(
                await loop.create_server(self._open_connection, sock=bound, backlog=BACKLOG)
            )
        host, port = self._bound[0].getsockname()[:2]
        return ListenAddress(str(host), int(port))

    def _open_connection(self) -> GuardedHttp:
        return GuardedHttp(self._config, self._settings, self._connections, self._app.sockets)


async def serve(
    app: App,
    settings: WebSettings,
    *,
    task_status: TaskStatus[ListenAddress] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until it is cancelled; gives the address once it listens."""
    await WebServer(app, settings).serve(task_status=task_status)


def _config(app: App, settings: WebSettings) -> Config:
    """uvicorn with everything off that we do ourselves or do not want."""
    config = Config(
        app,
        http="httptools",
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        forwarded_allow_ips="",
        workers=1,
        timeout_keep_alive=settings.keep_alive_s,
    )
    config.load()
    return config


async def _bind(host: str, port: int) -> Sequence[socket.socket]:
    """A socket for each address that the name has, all on one port."""
    sockets: list[socket.socket] = []
    try:
        found = await anyio.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, *_, address in dict.fromkeys(found):
            sockets.append(_listener(family, (address[0], port, *address[2:])))
            port = port or sockets[0].getsockname()[1]
    except OSError as error:
        for bound in sockets:
            bound.close()
        kind = AddressInUse if error.errno == errno.EADDRINUSE else CannotListen
        raise kind(host, port, _reason(error)) from error
    return sockets


def _listener(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listener.settimeout(0.0)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
