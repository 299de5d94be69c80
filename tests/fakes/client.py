"""A client as a user would write one: JSON-RPC over a WebSocket, and plain HTTP. It has nothing of ours,
but that it holds the gateway to every answer and event that its documents promise."""

import io
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.fakes import described
from tests.fakes.promises import require_promised, require_promised_answer

WAIT_S = 60.0  # nothing is measured by it: what hangs ends
TERMINAL = frozenset({"done", "error"})
Event = dict[str, Any]


class RpcError(Exception):
    """The error of a JSON-RPC answer."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.data: dict[str, Any] = error["data"]
        self.whole = dict(error)


class Disconnected(Exception):
    """The socket ended before what was waited for."""


async def until(is_so: Callable[[], object]) -> None:
    """Looks again after a moment, which it leaves to what is waited for."""
    with anyio.fail_after(WAIT_S):
        while not is_so():  # noqa: ASYNC110  # for what has no event
            await anyio.sleep(0.01)


def _all(_frame: dict[str, Any]) -> bool:
    return True


@dataclass
class Slot:
    """A call that waits for its answer."""

    done: anyio.Event = field(default_factory=anyio.Event)
    answer: dict[str, Any] | None = None


class Client:
    """`frames` are all that came, in order; `events` the chunks of each run; `told` what came of
    `events.subscribe`."""

    def __init__(self, socket: ClientConnection, *, wait_s: float = WAIT_S) -> None:
        self.socket = socket
        self.frames: list[dict[str, Any]] = []
        self.events: defaultdict[str, list[Event]] = defaultdict(list)
        self.told: list[Event] = []
        self.hear: Callable[[dict[str, Any]], bool] = _all  # told first; False: never came
        self.closed = anyio.Event()
        self._wait_s = wait_s
        self._numbers = itertools.count(1)
        self._slots: dict[object, Slot] = {}
        self._news: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)  # "": of `told`

    async def listen(self) -> None:
        """Takes in frames until the socket ends."""
        try:
            async for text in self.socket:
                frame = json.loads(text)
                if self.hear(frame):
                    self._take(frame)
        except ConnectionClosed:
            pass
        finally:
            self.closed.set()
            for slot in self._slots.values():
                slot.done.set()
            for news in self._news.values():
                news.set()

    def _take(self, frame: Any) -> None:
        self.frames.append(frame)
        if "method" in frame:
            require_promised(frame["method"], frame)
            event, of_a_run = frame["params"], frame["method"] == "chat.event"
            (self.events[event["run_id"]] if of_a_run else self.told).append(event)
            if news := self._news.pop(event["run_id"] if of_a_run else "", None):
                news.set()
        elif slot := self._slots.get(frame["id"]):
            slot.answer = frame
            slot.done.set()

    async def write(self, text: str | bytes) -> None:
        """A frame as it is."""
        try:
            await self.socket.send(text, text=True)
        except ConnectionClosed as error:
            raise Disconnected from error

    async def call(self, method: str, /, **params: object) -> Any:
        """The result of a call. Raises RpcError, Disconnected."""
        number = next(self._numbers)
        slot = self._slots[number] = Slot()
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        try:
            with anyio.fail_after(self._wait_s):
                await self.write(json.dumps(request))
                if not self.closed.is_set():
                    await slot.done.wait()
        finally:
            del self._slots[number]
        if slot.answer is None:
            raise Disconnected
        require_promised_answer(method, slot.answer)
        if "error" in slot.answer:
            raise RpcError(slot.answer["error"])
        return slot.answer["result"]

    async def refused(self, method: str, /, **params: object) -> RpcError:
        """The error of a call that must not succeed."""
        try:
            result = await self.call(method, **params)
        except RpcError as error:
            return error
        raise AssertionError(f"{method} was not refused: {result}")

    async def send(self, content: str, **more: object) -> dict[str, Any]:
        """chat.send"""
        sent: dict[str, Any] = await self.call("chat.send", content=content, **more)
        return sent

    async def until(self, run_id: str, enough: Callable[[Sequence[Event]], object]) -> list[Event]:
        """The events of a run as soon as they are enough. Raises Disconnected."""
        await self._heard(run_id, lambda: enough(self.events[run_id]))
        return self.events[run_id]

    async def until_told(self, enough: Callable[[Sequence[Event]], object]) -> list[Event]:
        """What was subscribed to, as soon as it is enough. Raises Disconnected."""
        await self._heard("", lambda: enough(self.told))
        return self.told

    async def _heard(self, where: str, enough: Callable[[], object]) -> None:
        with anyio.fail_after(self._wait_s):
            while not enough():
                if self.closed.is_set():
                    raise Disconnected
                await self._news[where].wait()

    async def ended(self, run_id: str) -> list[Event]:
        """The events of a run once it has ended."""
        return await self.until(run_id, lambda seen: seen and seen[-1]["type"] in TERMINAL)

    async def ask(self, content: str, **more: object) -> Event:
        """Sends a message and gives the run's last event."""
        sent = await self.send(content, **more)
        return (await self.ended(sent["run_id"]))[-1]


@asynccontextmanager
async def connected(
    url: str, token: str | None = None, *, wait_s: float = WAIT_S, **headers: str
) -> AsyncIterator[Client]:
    """A client of the gateway at an http address. Raises OSError if nobody listens there."""
    headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
    address = url.replace("http", "ws", 1) + "/ws"
    async with connect(
        address,
        additional_headers=headers,
        max_size=None,
        compression=None,
        ping_interval=None,
        open_timeout=wait_s,
        close_timeout=1,
    ) as socket:
        client = Client(socket, wait_s=wait_s)
        async with anyio.create_task_group() as group:
            group.start_soon(client.listen)
            yield client
            group.cancel_scope.cancel()


def texts_of(events: Sequence[Event]) -> str:
    """What a user has read."""
    return "".join(event["content"] for event in events if event["type"] == "content")


def results_of(events: Sequence[Event]) -> list[str]:
    """What tools answered."""
    return [one["tool_call"]["result"] for one in events if one["type"] == "tool_result"]


def types_of(events: Sequence[Event]) -> list[str]:
    """The types of chunks in order, a row of the same type as one."""
    return [kind for kind, _ in itertools.groupby(event["type"] for event in events)]


def seqs_of(events: Sequence[Event]) -> list[int]:
    return [event["seq"] for event in events]


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def sse(self) -> list[Event]:
        """The events of a stream."""
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == ""
        return [json.loads(block.removeprefix("data: ")) for block in blocks]


async def http(
    url: str,
    *,
    method: str = "GET",
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    wait_s: float = WAIT_S,
) -> HttpAnswer:
    """One request on a connection of its own. An answer that is not as described is an AssertionError."""
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    with anyio.fail_after(wait_s):
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=sent, data=io.BytesIO(body or b"")) as answer,
        ):
            told = HttpAnswer(answer.status, dict(answer.headers), await answer.read())
    described.check(method, url, told.status, told.headers, told.body)
    return told


async def post_chat(
    url: str,
    message: str,
    *,
    token: str | None = None,
    key: str | None = None,
    wait_s: float = WAIT_S,
    **more: object,
) -> HttpAnswer:
    """POST /api/chat"""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    body = json.dumps({"message": message, **more}).encode()
    return await http(
        f"{url}/api/chat", method="POST", token=token, headers=headers, body=body, wait_s=wait_s
    )
