"""The server: listens, serves until it is stopped, and ends all connections in order."""

import asyncio
import errno
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import TaskStatus
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.api.errors import AddressInUse, CannotListen
from gateway.web.asgi import WebApp
from gateway.web.settings import WebSettings
from gateway.web.wire.connections import OpenConnections
from gateway.web.wire.http import GuardedHttp

log = logging.getLogger(__name__)

BACKLOG = 2048
SEND_BUFFER = (
    262_144  # bytes in the kernel for a connection, so that a stalled reader holds no megabytes
)
LAST_MOMENT_S = 1.0


@dataclass(frozen=True, slots=True)
class ListenAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class WebServer:
    """Serves an application in the task that calls `serve`, without signals and threads. `bound` are sockets that
    listen already."""

    def __init__(
        self, app: WebApp, settings: WebSettings, bound: Sequence[socket.socket] = ()
    ) -> None:
        self._app, self._settings = app, settings
        self._bound = bound
        self._connections = OpenConnections(settings, ServerState())
        self._config = _config(app, settings)
        self._listeners: list[asyncio.Server] = []
        self._stop = anyio.Event()
        self.stopped = anyio.Event()
        self._grace_s = 0.0

    def renew(self, settings: WebSettings) -> None:
        """Applies other limits to later connections. The addresses stay."""
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
        """Returns the listening sockets for another server, so that no connection is refused in between."""
        return [bound.dup() for bound in self._bound]

    def stop_accepting(self) -> None:
        """Closes the listeners, so that the system refuses new connections. Open connections stay."""
        while self._listeners:
            self._listeners.pop().close()

    def stop(self, grace_s: float) -> None:
        """Closes WebSockets with 1012. Requests under way have `grace_s` seconds to finish."""
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
            await asyncio.wait(tuple(tasks), timeout=LAST_MOMENT_S)  # each ends its answer
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


def _config(app: WebApp, settings: WebSettings) -> Config:
    """Returns the settings of uvicorn, with all parts off that the gateway does itself or does not use."""
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
    """Returns a listening socket for each address of the host, all on one port."""
    sockets: list[socket.socket] = []
    try:
        found = await anyio.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, *_, address in dict.fromkeys(found):
            place = (address[0], port, *address[2:])
            sockets.append(socket.create_server(place, family=family, backlog=BACKLOG))
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            port = port or sockets[0].getsockname()[1]
    except OSError as error:
        for bound in sockets:
            bound.close()
        kind = AddressInUse if error.errno == errno.EADDRINUSE else CannotListen
        why = (error.strerror or str(error)).partition(" (while")[0].lower()
        raise kind(host, port, why) from error
    return sockets
