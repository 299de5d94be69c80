"""The scripted model server outlives its clients."""

import anyio
from anyio.abc import ByteStream

from tests.fakes.model_server import ModelServer, Reply

REQUEST = b'POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 16\r\n\r\n{"stream": true}'


class KilledClient(ByteStream):
    """Asks, and is gone when the answer comes: only who sends to it notices."""

    def __init__(self) -> None:
        self.asks = [REQUEST]

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self.asks:
            return self.asks.pop()
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    async def send(self, item: bytes) -> None:
        raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        raise anyio.BrokenResourceError

    async def aclose(self) -> None:
        pass


async def test_a_client_that_is_killed_in_the_middle_of_its_answer_harms_nobody() -> None:
    server = ModelServer([Reply("hello")])

    with anyio.fail_after(60):
        await server.handle(KilledClient())

    assert server.open == 0
    assert server.requests[0].disconnected.is_set()
    assert not server.requests[0].answered.is_set()
