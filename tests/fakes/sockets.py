"""WebSockets to platforms without a network: what comes in is said by the test, what goes out is kept."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf

import anyio

from gateway.domain.ports import FetchGrant, HttpFailed, SocketRequest


class FakeSocket:
    def __init__(self) -> None:
        self.sent: list[dict[str, object]] = []
        self.left_with: int | None = None
        self.close_code: int | None = None
        self._put, self._get = anyio.create_memory_object_stream[str | int | HttpFailed](inf)

    def say(self, *frames: object) -> None:
        for frame in frames:
            self._put.send_nowait(json.dumps(frame))

    def say_text(self, text: str) -> None:
        self._put.send_nowait(text)

    def hang_up(self, code: int) -> None:
        self._put.send_nowait(code)

    def break_off(self) -> None:
        self._put.send_nowait(HttpFailed("network", "the connection broke off"))

    async def send(self, text: str) -> None:
        self.sent.append(json.loads(text))

    async def receive(self) -> str | None:
        came = await self._get.receive()
        if isinstance(came, HttpFailed):
            raise came
        if isinstance(came, int):
            self.close_code = came
            return None
        return came

    async def close(self, code: int) -> None:
        if self.left_with is None:
            self.left_with = code
            self._put.close()
            self._get.close()


class FakeSockets:
    """Opens a socket to wherever `refusal` gives no error for."""

    def __init__(
        self, refusal: Callable[[SocketRequest], Exception | None] = lambda request: None
    ) -> None:
        self._refusal = refusal
        self.opened: list[FakeSocket] = []
        self.connected: list[str] = []

    def connect(
        self, request: SocketRequest, grant: FetchGrant
    ) -> AbstractAsyncContextManager[FakeSocket]:
        return self._connect(request)

    @asynccontextmanager
    async def _connect(self, request: SocketRequest) -> AsyncIterator[FakeSocket]:
        self.connected.append(request.url)
        error = self._refusal(request)
        if error is not None:
            raise error
        socket = FakeSocket()
        self.opened.append(socket)
        try:
            yield socket
        finally:
            await socket.close(1_000)
