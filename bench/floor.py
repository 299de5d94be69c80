"""The floor: the gateway's stack without its features, tuned, to show the cost of the features.

    python -m bench.floor --model http://127.0.0.1:PORT/v1 --data-dir DIR

It makes one validation, one durable commit and one streamed model call per message. Prints its port as JSON.
"""

import argparse
import asyncio
import gc
import json
import socket
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

import aiohttp
import uvicorn
import uvloop
from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json, to_json
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from yarl import URL

SYSTEM = "You are a helpful assistant. " * 8
WINDOW = 40  # messages of history in a request
GROUP = 64
HEADERS = {"authorization": "Bearer sk-test", "content-type": "application/json"}
Row = tuple[str, str]
Ticket = tuple[Row, asyncio.Future[int]]


class Params(BaseModel, extra="forbid"):
    content: str
    peer: str = "main"


class Send(BaseModel, extra="forbid"):
    jsonrpc: Literal["2.0"]
    id: int | str
    method: Literal["chat.send"]
    params: Params


READ: Callable[[str], Send] = TypeAdapter(Send).validate_json


class Log:
    """The messages on disk: all messages that wait during a commit form the next one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Ticket | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="floor writer")
        self._thread.start()

    def append(self, row: Row) -> asyncio.Future[int]:
        """Returns a future of the row number, done after the fsync."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._queue.put((row, future))
        return future

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY, peer, content)")
        last = db.execute("SELECT coalesce(max(id), 0) FROM message").fetchone()[0]
        while batch := self._batch():
            if len(batch) == 1:
                db.execute("INSERT INTO message (peer, content) VALUES (?, ?)", batch[0][0])
            else:
                db.execute("BEGIN IMMEDIATE")
                db.executemany(
                    "INSERT INTO message (peer, content) VALUES (?, ?)", [row for row, _ in batch]
                )
                db.execute("COMMIT")
            self._loop.call_soon_threadsafe(_settle, [future for _, future in batch], last)
            last += len(batch)
        db.close()

    def _batch(self) -> list[Ticket]:
        first = self._queue.get()
        if first is None:
            return []
        batch = [first]
        try:
            while len(batch) < GROUP:
                more = self._queue.get_nowait()
                if more is None:
                    self._queue.put(None)
                    break
                batch.append(more)
        except Empty:
            pass
        return batch


def _settle(futures: list[asyncio.Future[int]], last: int) -> None:
    for number, future in enumerate(futures, last + 1):
        if not future.done():
            future.set_result(number)


class Conversations:
    """The last messages of each session in the model's format, each encoded once."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[bytes]] = {}
        system = to_json({"role": "system", "content": SYSTEM})
        self._head = b'{"model":"m","stream":true,"stream_options":{"include_usage":true},'
        self._head += b'"messages":[' + system + b","

    def request(self, peer: str, content: str) -> bytes:
        kept = self._kept.get(peer)
        if kept is None:
            kept = self._kept[peer] = deque(maxlen=WINDOW)
        kept.append(b'{"role":"user","content":%b}' % to_json(content))
        return b"%b%b]}" % (self._head, b",".join(kept))

    def answered(self, peer: str, text: str) -> None:
        self._kept[peer].append(b'{"role":"assistant","content":%b}' % to_json(text))


def texts(buffer: bytes) -> tuple[str, bytes]:
    """Returns the texts of the complete events in these bytes, and the remaining bytes."""
    *events, rest = buffer.split(b"\n\n")
    said = []
    for event in events:
        if event == b"data: [DONE]":
            continue
        choices = from_json(event[6:])["choices"]
        if choices and (text := choices[0]["delta"].get("content")):
            said.append(text)
    return "".join(said), rest


class Floor:
    """The single route."""

    def __init__(self, model: str) -> None:
        self._url = URL(f"{model}/chat/completions", encoded=True)
        self._conversations = Conversations()
        self._log: Log
        self._http: aiohttp.ClientSession

    @asynccontextmanager
    async def at_work(self, path: Path) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        self._log = Log(path)
        try:
            async with aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            ) as self._http:
                yield
        finally:
            self._log.close()

    async def serve(self, socket: WebSocket) -> None:
        await socket.accept()
        try:
            while True:
                await self._answer(socket, READ(await socket.receive_text()))
        except WebSocketDisconnect:
            return

    async def _answer(self, socket: WebSocket, send: Send) -> None:
        peer, content = send.params.peer, send.params.content
        number = await self._log.append((peer, content))
        accepted = f'{{"message_id":"m_{number}","run_id":"r_{number}","duplicate":false}}'
        await socket.send_text(
            f'{{"jsonrpc":"2.0","id":{to_json(send.id).decode()},"result":{accepted}}}'
        )
        head = (
            '{"jsonrpc":"2.0","method":"chat.event","params":'
            f'{{"run_id":"r_{number}","session_key":{to_json(peer).decode()},"seq":'
        )
        body = self._conversations.request(peer, content)
        said, rest, seq = [], b"", 0
        async with self._http.post(self._url, data=body, headers=HEADERS) as answer:
            async for data in answer.content.iter_any():
                text, rest = texts(rest + data)
                if text:
                    seq += 1
                    said.append(text)
                    shown = to_json(text).decode()
                    await socket.send_text(f'{head}{seq},"type":"content","content":{shown}}}}}')
        self._conversations.answered(peer, "".join(said))
        await socket.send_text(f'{head}{seq + 1},"type":"done","reason":"complete"}}}}')


async def serve(model: str, data_dir: Path) -> None:
    """Serves until the process gets a signal."""
    floor = Floor(model)
    app = Starlette(routes=[WebSocketRoute("/ws", floor.serve)])
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
    )
    async with floor.at_work(data_dir / "floor.db"):
        gc.collect()
        gc.freeze()
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="base URL of a chat completions server")
    parser.add_argument("--data-dir", type=Path, required=True)
    args = parser.parse_args()
    uvloop.run(serve(args.model, args.data_dir))


if __name__ == "__main__":
    main()
