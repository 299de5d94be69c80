"""A server that sends the very bytes of a script, whatever they are worth as HTTP."""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint
from anyio.streams.tls import TLSListener

from gateway.domain.ports import Http, HttpCall

GONE = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError)


@dataclass
class Said:
    """What is sent on each request of a connection, at most so many bytes at once; then `again`
    for ever. The connection is closed then, unless it `stays` open."""

    answers: Sequence[bytes]
    again: bytes = b""
    stays: bool = False
    most: int = 1_000_000


@dataclass
class RawServer:
    """`heads` are the requests as they came; `sent` counts bytes of answers."""

    script: Sequence[Said]
    url: str = ""
    connections: int = 0
    sent: int = 0
    heads: list[bytes] = field(default_factory=list)
    left: anyio.Event = field(default_factory=anyio.Event)  # a client hung up
    closed: anyio.Event = field(default_factory=anyio.Event)  # or we did

    async def handle(self, stream: ByteStream) -> None:
        said = self.script[min(self.connections, len(self.script) - 1)]
        self.connections += 1
        try:
            async with stream:
                for answer in said.answers:
                    self.heads.append(await stream.receive())
                    await self._send(stream, answer, said.most)
                while said.again:
                    await self._send(stream, said.again, said.most)
                if said.stays:
                    await stream.receive()
        except GONE:
            self.left.set()
        self.closed.set()

    async def _send(self, stream: ByteStream, data: bytes, most: int) -> None:
        for at in range(0, len(data), most):
            await stream.send(data[at : at + most])
            self.sent += len(data[at : at + most])
            await checkpoint()


@asynccontextmanager
async def raw_server(
    *script: Said | bytes, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    """Plays one entry of the script a connection, the last one for ever. Bytes: one answer."""
    server = RawServer([Said([one]) if isinstance(one, bytes) else one for one in script])
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    server.url = f"https://localhost:{port}/" if tls else f"http://127.0.0.1:{port}/"
    serving = TLSListener(listener, tls, standard_compatible=False) if tls else listener
    async with serving, anyio.create_task_group() as group:
        group.start_soon(serving.serve, server.handle)
        yield server
        group.cancel_scope.cancel()


async def read_all(http: Http, call: HttpCall) -> bytes:
    body = bytearray()
    with closing(await http.send(call)) as answer:
        while data := await answer.read_some():
            body += data
    return bytes(body)
