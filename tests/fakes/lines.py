"""Lines to platforms without sockets: what comes in is said by the test, what goes out is kept."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf

import anyio

from gateway.domain.dialling import Dial
from gateway.domain.ports import FetchGrant, HttpFailed


class FakeLine:
    def __init__(self, dial: Dial) -> None:
        self.dial = dial
        self.sent: list[dict[str, object]] = []
        self.left_with: int | None = None
        self.close_code: int | None = None
        self._put, self._get = anyio.create_memory_object_stream[str | int | HttpFailed](inf)

    def say(self, *frames: object) -> None:
        for frame in frames:
            self._put.send_nowait(json.dumps(frame))

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


class FakeDialler:
    """Opens a line to wherever `refusal` gives no error for."""

    def __init__(self, refusal: Callable[[Dial], Exception | None] = lambda dial: None) -> None:
        self._refusal = refusal
        self.lines: list[FakeLine] = []
        self.dialled: list[str] = []

    def dial(self, dial: Dial, leave: FetchGrant) -> AbstractAsyncContextManager[FakeLine]:
        return self._dial(dial)

    @asynccontextmanager
    async def _dial(self, dial: Dial) -> AsyncIterator[FakeLine]:
        self.dialled.append(dial.url)
        error = self._refusal(dial)
        if error is not None:
            raise error
        line = FakeLine(dial)
        self.lines.append(line)
        try:
            yield line
        finally:
            await line.close(1_000)
