"""A model server on a real socket that does what a test tells it, and remembers what it was asked."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from anyio.abc import ByteStream, SocketAttribute

from bench.model_server import (
    LAST_CHUNK,
    USAGE,
    Call,
    anthropic_events,
    anthropic_whole,
    http_chunk,
    http_head,
    openai_events,
    openai_whole,
)
from tests.fakes.boundaries import inside

Wire = Literal["openai", "anthropic"]


@dataclass
class Asked:
    """One request as it came. `disconnected` is set when the client left before the end."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    disconnected: anyio.Event = field(default_factory=anyio.Event)
    answered: anyio.Event = field(default_factory=anyio.Event)

    @property
    def wire(self) -> Wire:
        return "anthropic" if self.path.endswith("/messages") else "openai"

    @property
    def last_text(self) -> str:
        """The text of the last message, whichever wire it came by; of a tool's what it gave."""
        messages = self.body.get("messages") or [{"content": ""}]
        content = messages[-1].get("content") or ""
        if isinstance(content, str):
            return inside(content)
        texts = (inside(str(block.get("text") or block.get("content") or "")) for block in content)
        return "".join(texts)


@dataclass
class Reply:
    """What to answer. Without `status`, `body` or `raw`: a good answer on the asked wire."""

    text: str | Sequence[str] = ""  # a list: one event each
    thinking: Sequence[str] = ()
    calls: Sequence[Call] = ()
    usage: tuple[int, int] | None = USAGE
    finish: str | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None  # a whole answer, instead of a stream
    raw: Sequence[bytes] | None = None  # the stream's pieces, instead of events
    gate: anyio.Event | None = None  # waited for before the first byte
    gates: Mapping[int, anyio.Event] = field(default_factory=dict)  # before the n-th piece
    stop_after: int | None = None  # so many pieces, then `ending`
    ending: Literal["end", "reset"] = "end"  # a proper end of the body, or a broken connection


# What a stream says of a client that is gone, however it went.
GONE = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError)
Script = Callable[[Asked], Reply] | Sequence[Reply]


class ModelServer:
    """`requests` in the order of their coming; `wait_for(n)` until there are so many."""

    def __init__(self, script: Script) -> None:
        self.url = ""
        self.requests: list[Asked] = []
        self.connections = 0
        self.open = 0
        self.open_max = 0
        self._script = script
        self._came = anyio.Event()

    async def wait_for(self, count: int) -> Asked:
        """The n-th request, once it is there."""
        while len(self.requests) < count:
            await self._came.wait()
        return self.requests[count - 1]

    async def handle(self, stream: ByteStream) -> None:
        self.connections += 1
        buffer = bytearray()
        try:
            async with stream:
                while asked := await self._read(stream, buffer):
                    await self._answer_watched(stream, asked, buffer)
        except* GONE:
            pass  # also in the middle of an answer: that harms nobody else

    async def _read(self, stream: ByteStream, buffer: bytearray) -> Asked:
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            buffer += await stream.receive()
        lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        total = end + 4 + int(headers.get("content-length", "0"))
        while len(buffer) < total:
            buffer += await stream.receive()
        body = bytes(buffer[end + 4 : total])
        del buffer[:total]
        method, path, _ = lines[0].split(" ", 2)
        asked = Asked(
            len(self.requests) + 1, method, path, headers, json.loads(body) if body else {}
        )
        self.requests.append(asked)
        came, self._came = self._came, anyio.Event()
        came.set()
        return asked

    async def _answer_watched(self, stream: ByteStream, asked: Asked, buffer: bytearray) -> None:
        """Answers, while a second task notices when the client hangs up."""
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, stream, asked, buffer, group.cancel_scope)
                await self._answer(stream, asked, self._reply_to(asked))
                asked.answered.set()
                group.cancel_scope.cancel()
        except* GONE:
            asked.disconnected.set()
        finally:
            self.open -= 1
        if asked.disconnected.is_set():
            raise anyio.EndOfStream

    async def _watch(
        self,
        stream: ByteStream,
        asked: Asked,
        buffer: bytearray,
        scope: anyio.CancelScope,
    ) -> None:
        try:
            while True:
                buffer += await stream.receive()
        except GONE:
            asked.disconnected.set()
            scope.cancel()

    def _reply_to(self, asked: Asked) -> Reply:
        if callable(self._script):
            return self._script(asked)
        return self._script[min(asked.number, len(self._script)) - 1]

    async def _answer(self, stream: ByteStream, asked: Asked, reply: Reply) -> None:
        if reply.gate is not None:
            await reply.gate.wait()
        pieces, is_stream = _pieces(asked, reply)
        content_type = "text/event-stream" if is_stream else "application/json"
        length = None if is_stream else sum(map(len, pieces))
        head = http_head(
            reply.status, reply.headers.get("content-type", content_type), length=length
        )
        more = {name: value for name, value in reply.headers.items() if name != "content-type"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in more.items()).encode()
        await stream.send(head[:-2] + lines + b"\r\n")
        for number, piece in enumerate(pieces):
            if number in reply.gates:
                await reply.gates[number].wait()
            if number == reply.stop_after:
                break
            await stream.send(http_chunk(piece) if is_stream else piece)
        if reply.ending == "reset":
            # Closed in the middle of a body: the client sees it broken off.
            await stream.aclose()
        elif is_stream:
            await stream.send(LAST_CHUNK)


def _pieces(asked: Asked, reply: Reply) -> tuple[Sequence[bytes], bool]:
    """The body in pieces, and whether it is a stream."""
    if reply.body is not None:
        return [reply.body], False
    if reply.raw is not None:
        return reply.raw, True
    if reply.status != 200:
        kind = {"type": "error"} if asked.wire == "anthropic" else {}
        error = {"type": "server_error", "message": f"scripted {reply.status}"}
        return [json.dumps({**kind, "error": error}).encode()], False
    texts = [reply.text] if isinstance(reply.text, str) else list(reply.text)
    texts = [text for text in texts if text]
    if not asked.body.get("stream"):
        whole = openai_whole if asked.wire == "openai" else anthropic_whole
        return [whole("".join(texts), calls=reply.calls, usage=reply.usage or (0, 0))], False
    events = openai_events if asked.wire == "openai" else anthropic_events
    return events(
        texts,
        thinking=reply.thinking,
        calls=reply.calls,
        usage=reply.usage,
        finish=reply.finish,
    ), True


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[ModelServer]:
    """Serves on loopback until the block is left. A list's last reply is repeated for ever."""
    server = ModelServer(script)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    server.url = f"http://127.0.0.1:{port}/v1"
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, server.handle)
        try:
            yield server
        finally:
            group.cancel_scope.cancel()
