"""A Python client of the gateway. It needs this file, `websockets` and `anyio`.

    async with connect("http://127.0.0.1:7200", token) as gateway:
        async for chunk in gateway.ask("What is on my list?"):
            if chunk["type"] == "content":
                print(chunk["content"], end="")

A question is sent once. After a lost connection `ask` continues behind the last chunk that it yielded.
"""

import itertools
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import uuid4

import anyio
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

Chunk: TypeAlias = dict[str, Any]  # `type` says which; docs/reference/chunks.md has its fields

ENDS = ("done", "error")
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)  # before each new attempt to connect


class Refused(Exception):
    """The gateway answered with an error. `data` has its type, whether it is retryable, and facts."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error["message"]))
        self.code: int = error.get("code", 0)
        self.data: Mapping[str, Any] = error.get("data") or {}


class Failed(Exception):
    """A run ended with an error; `chunk` is its last chunk."""

    def __init__(self, chunk: Mapping[str, Any]) -> None:
        super().__init__(str(chunk["message"]))
        self.chunk = chunk


class ConnectionLost(Exception):
    """No gateway answers, or the connection ended. The gateway may have carried out a `call` all the same."""


@dataclass
class _Run:
    """`last_seq`: of the last chunk that was yielded; `socket`: the connection that delivers its chunks."""

    params: Mapping[str, object]
    id: str = ""
    last_seq: int = 0
    socket: ClientConnection | None = None


class Client:
    """A connection that many tasks may share. One of the tasks that wait for a frame reads for all of them."""

    def __init__(self, url: str, token: str | None, backoff_s: Sequence[float]) -> None:
        self._address = url.rstrip("/").replace("http", "ws", 1) + "/ws"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._backoff_s = backoff_s
        self._socket: ClientConnection | None = None
        self._connecting = anyio.Lock()
        self._is_reading, self._frame_read = False, anyio.Event()
        self._numbers = itertools.count(1)
        self._answers: dict[int, Mapping[str, Any] | None] = {}
        self._chunks: defaultdict[str, deque[Chunk]] = defaultdict(deque)

    async def call(self, method: str, /, **params: object) -> Any:
        """Calls a method of the protocol and returns its result. Raises Refused, ConnectionLost."""
        socket, number = await self._connect(), next(self._numbers)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._answers[number] = None
        try:
            await socket.send(json.dumps(request))
            await self._wait_for(socket, lambda: self._answers[number] is not None)
        except ConnectionClosed as error:
            raise self._disconnect(socket) from error
        finally:
            answer = self._answers.pop(number)
        assert answer is not None
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    async def ask(self, content: str, **params: object) -> AsyncIterator[Chunk]:
        """Yields each chunk of the run once; `done` or `error` is the last. `params` are those of `chat.send`. A caller
        that stops listening does not stop the run; `chat.abort` does."""
        run = _Run({"content": content, "idempotency_key": uuid4().hex, **params})
        try:
            while (chunk := await self._next_chunk(run))["type"] not in ENDS:
                yield chunk
            yield chunk
        finally:
            self._chunks.pop(run.id, None)

    async def answer(self, content: str, **params: object) -> Chunk:
        """Returns the last chunk of the run; `response` is the text. Raises Failed, Refused, ConnectionLost."""
        last = [chunk async for chunk in self.ask(content, **params)][-1]
        if last["type"] != "done":
            raise Failed(last)
        return last

    async def _next_chunk(self, run: _Run) -> Chunk:
        for wait in self._backoff_s:
            try:
                return await self._receive_chunk(run)
            except ConnectionLost:
                await anyio.sleep(wait)
        return await self._receive_chunk(run)

    async def _receive_chunk(self, run: _Run) -> Chunk:
        if run.socket is None or run.socket is not self._socket:
            await self._subscribe(run)
        while True:
            await self._wait_for(run.socket, lambda: bool(self._chunks[run.id]))
            chunk = self._chunks[run.id].popleft()
            if chunk["seq"] > run.last_seq:
                run.last_seq = chunk["seq"]
                return chunk

    async def _subscribe(self, run: _Run) -> None:
        """Sends the question, or resumes its run, on the present connection."""
        run.socket, is_new = await self._connect(), False
        if not run.id:
            sent = await self.call("chat.send", **run.params)
            run.id, is_new = str(sent["run_id"]), not sent["duplicate"]
        if not is_new:
            await self.call("chat.resume", run_id=run.id, after_seq=run.last_seq)

    async def _connect(self) -> ClientConnection:
        async with self._connecting:
            if self._socket is None:
                self._socket = await _open(self._address, self._headers)
            return self._socket

    async def _wait_for(self, socket: ClientConnection | None, is_here: Callable[[], bool]) -> None:
        while not is_here():
            if socket is None or self._socket is not socket:
                raise ConnectionLost("the connection ended")
            if self._is_reading:
                await self._frame_read.wait()
                continue
            self._is_reading = True
            try:
                self._dispatch(json.loads(await socket.recv()))
            except ConnectionClosed as error:
                raise self._disconnect(socket) from error
            finally:
                self._is_reading = False
                self._frame_read.set()
                self._frame_read = anyio.Event()

    def _dispatch(self, frame: Mapping[str, Any]) -> None:
        if frame.get("method") == "chat.event":
            self._chunks[frame["params"]["run_id"]].append(frame["params"])
        elif frame.get("id") in self._answers:
            self._answers[frame["id"]] = frame

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    def _disconnect(self, socket: ClientConnection) -> ConnectionLost:
        if self._socket is socket:
            self._socket = None
            self._chunks.clear()
        return ConnectionLost("the connection ended")


async def _open(address: str, headers: Mapping[str, str]) -> ClientConnection:
    try:
        return await open_socket(address, additional_headers=headers, max_size=None)
    except (OSError, InvalidHandshake) as error:
        if isinstance(error, InvalidStatus) and error.response.status_code < 500:
            raise Refused({"message": f"{address}: {error}"}) from error
        raise ConnectionLost(f"no gateway at {address}") from error


@asynccontextmanager
async def connect(
    url: str, token: str | None = None, *, waits_s: Sequence[float] = BACKOFF_S
) -> AsyncIterator[Client]:
    """Connects until the context is left. `ask` waits for `waits_s` before each new attempt to connect. Raises Refused,
    ConnectionLost."""
    client = Client(url, token, waits_s)
    await client.call("ping")
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
