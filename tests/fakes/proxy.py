"""A way to a server that a test can cut: nothing arrives then, and nobody is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketStream

AWAY_S = 0.5
_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


@dataclass
class Proxy:
    """What is on its way when it is cut is lost; the connections of then end when it is mended."""

    port: int  # of the server
    own_port: int = 0
    breaks_after: int | None = (
        None  # so many pieces of data: all connections end, and none comes for a while
    )
    passed: int = 0
    _is_whole: anyio.Event = field(default_factory=anyio.Event)
    _scopes: set[anyio.CancelScope] = field(default_factory=set)

    def cut(self) -> None:
        self._is_whole = anyio.Event()

    def mend(self) -> None:
        self._is_whole.set()
        for scope in self._scopes:
            scope.cancel()

    def _break(self) -> None:
        for scope in self._scopes:
            scope.cancel()
        self.cut()
        asyncio.get_running_loop().call_later(AWAY_S, self.mend)

    async def serve(self, near: SocketStream) -> None:
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                async with near:
                    await self._is_whole.wait()
                    await self._join(near)
            except* _BROKEN:
                pass
            finally:
                self._scopes.discard(scope)

    async def _join(self, near: SocketStream) -> None:
        async with (
            await anyio.connect_tcp("127.0.0.1", self.port) as far,
            anyio.create_task_group() as group,
        ):
            group.start_soon(self._pump, near, far, group.cancel_scope)
            group.start_soon(self._pump, far, near, group.cancel_scope)

    async def _pump(self, one: SocketStream, other: SocketStream, scope: anyio.CancelScope) -> None:
        try:
            while True:
                data = await one.receive()
                self.passed += 1
                if self.passed == self.breaks_after:
                    self._break()
                if not self._is_whole.is_set():
                    await anyio.sleep_forever()  # until it is mended
                await other.send(data)
        except _BROKEN:
            scope.cancel()


@asynccontextmanager
async def proxy(port: int) -> AsyncIterator[Proxy]:
    """To a server on this machine."""
    made = Proxy(port)
    made.mend()
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        made.own_port = listener.extra(anyio.abc.SocketAttribute.local_port)
        group.start_soon(listener.serve, made.serve)
        yield made
        group.cancel_scope.cancel()
