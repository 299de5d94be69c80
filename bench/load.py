"""The load generator: sessions that send their next message after the last answer.

    python -m bench.load --port PORT --sessions 32 --seconds 2 --pid PID

It implements the gateway's WebSocket protocol with little CPU. Prints its measurements as JSON, and
the CPU time of the given processes in that time.
"""

import argparse
import asyncio
import base64
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import cast

import uvloop

from bench.process import cpu_ns, tree

TEXT = "Tell me something about the weather of tomorrow, and keep it short, for I am in a hurry."
WORD = b"word"  # occurs once in each token of the model server
NEVER = 10**9
MAX_ERRORS = 20
QUIET_S = 60.0


@dataclass(slots=True)
class Seen:
    """The measurements of a run of the load generator."""

    messages: int = 0
    errors: list[str] = field(default_factory=list)
    frames: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cpu_ms: float = 0.0
    own_cpu_ms: float = 0.0
    round_trips_ms: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, object]:
        """Returns the figures, with quantiles instead of the single round trips."""
        trips = sorted(self.round_trips_ms)
        rest = {key: value for key, value in asdict(self).items() if key != "round_trips_ms"}
        if trips:
            rest |= {"p50_ms": _quantile(trips, 0.5), "p99_ms": _quantile(trips, 0.99)}
            rest["max_ms"] = trips[-1]
        return rest


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def client_frame(payload: bytes, *, opcode: int = 1) -> bytes:
    """Returns a masked frame. The mask is zero, so masking costs nothing."""
    size = len(payload)
    if size < 126:
        head = b"%c%c" % (0x80 | opcode, 0x80 | size)
    else:
        head = b"%c\xfe%b" % (0x80 | opcode, size.to_bytes(2, "big"))
    return head + bytes(4) + payload


def frames(buffer: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields opcode, start and end of each complete server frame in these bytes."""
    at, size = 0, len(buffer)
    while size - at >= 2:
        length, start = buffer[at + 1] & 0x7F, at + 2
        if length >= 126:
            width = 2 if length == 126 else 8
            if size - start < width:
                return
            length = int.from_bytes(buffer[start : start + width], "big")
            start += width
        if start + length > size:
            return
        yield buffer[at] & 0x0F, start, start + length
        at = start + length


def upgrade(token: str | None) -> bytes:
    """Returns the request that opens a WebSocket."""
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    auth = f"Authorization: Bearer {token}\r\n" if token else ""
    return (
        "GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        f"Sec-WebSocket-Version: 13\r\n{auth}\r\n"
    ).encode()


class Session(asyncio.Protocol):
    """A connection with one message in flight."""

    def __init__(self, run: "Run", token: str | None) -> None:
        self._run, self._token = run, token
        self._transport: asyncio.Transport
        self._buffer = b""
        self._is_open = False
        self._began = 0.0
        self.is_idle = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods but not its base class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(upgrade(self._token))

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.lost(self)

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        if not self._is_open:
            if b"\r\n\r\n" not in data:
                self._buffer = data
                return
            head, data = data.split(b"\r\n\r\n", 1)
            if b" 101 " not in head:
                self._run.failed(head.decode(errors="replace"))
                return
            self._is_open = True
            self._run.opened()
        end = 0
        for opcode, start, end in frames(data):  # end of the last complete frame
            self._frame(opcode, data, start, end)
        self._buffer = data[end:]

    def send(self) -> None:
        """Sends the next message if one is left."""
        frame = self._run.next_frame()
        self.is_idle = frame is None
        if frame is not None:
            self._began = time.perf_counter()
            self._transport.write(frame)

    def close(self) -> None:
        self._transport.close()

    def _frame(self, opcode: int, data: bytes, start: int, end: int) -> None:
        self._run.seen.frames += 1
        if opcode == 1:
            if data.find(b'"type":"done"', start, end) >= 0:
                self._run.answered((time.perf_counter() - self._began) * 1000)
                self.send()
            elif data.find(b'"type":"content"', start, end) >= 0:
                self._run.seen.tokens += data.count(WORD, start, end)
            elif data.find(b'"error"', start, end) >= 0:
                self._run.failed(data[start:end].decode(errors="replace"))
                self.send()
        elif opcode == 9:
            self._transport.write(client_frame(data[start:end], opcode=10))


class Run:
    """All sessions together: the number of messages left, and the measurements."""

    def __init__(self, sessions: int, frame: Callable[[int], bytes]) -> None:
        self.seen = Seen()
        self._sessions, self._frame = sessions, frame
        self._left = self._sent = self._opened = self._under_way = 0
        self.rest = asyncio.Event()
        self.is_open = asyncio.Event()
        self.is_over = False
        self.enough = asyncio.Event()
        self._enough_at = NEVER

    def allow(self, messages: int) -> None:
        self._left = messages
        self.rest.clear()

    async def answers(self, messages: int) -> None:
        """Waits for the given number of further answers, while the sessions continue."""
        self._enough_at = self.seen.messages + messages
        self.enough.clear()
        await self.enough.wait()

    def stop(self) -> None:
        self._left = 0

    def next_frame(self) -> bytes | None:
        if self._left <= 0:
            if self._under_way == 0:
                self.rest.set()
            return None
        self._left -= 1
        self._sent += 1
        self._under_way += 1
        return self._frame(self._sent)

    def opened(self) -> None:
        self._opened += 1
        if self._opened == self._sessions:
            self.is_open.set()

    def answered(self, took_ms: float) -> None:
        self._under_way -= 1
        self.seen.messages += 1
        self.seen.round_trips_ms.append(took_ms)
        if self.seen.messages == self._enough_at:
            self.enough.set()

    def failed(self, what: str) -> None:
        self._under_way -= 1
        self.seen.errors.append(what[:400])
        if len(self.seen.errors) >= MAX_ERRORS:
            raise SystemExit(f"too many errors: {self.seen.errors}")

    def lost(self, session: Session) -> None:
        if not self.is_over and not session.is_idle:
            self.failed("the connection was closed in the middle of a message")


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages and the duration. `peers` 0: each session has its own peer."""

    port: int
    token: str | None = None
    sessions: int = 1
    seconds: float = 0.0
    messages: int = 0
    warm_up: int = 1  # uncounted first messages of each session
    peers: int = 0
    name: str = "s"
    pid: int = 0
    flowing: int = 0  # 1: counts `messages` in the middle of an unbroken flow


def message(peer: str, number: int) -> bytes:
    params = {"content": f"{number}: {TEXT}", "peer": peer}
    call = {"jsonrpc": "2.0", "id": number, "method": "chat.send", "params": params}
    return client_frame(json.dumps(call, separators=(",", ":")).encode())


def ask_once(port: int, token: str | None) -> float:
    """Sends one message without an event loop. Returns the time of its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=QUIET_S) as connection:
        connection.sendall(upgrade(token))
        _hear(connection, b"\r\n\r\n")
        connection.sendall(message("first", 1))
        _hear(connection, b'"type":"done"')
        return time.perf_counter()


def _hear(connection: socket.socket, wanted: bytes) -> None:
    heard = b""
    while wanted not in heard:
        data = connection.recv(65_536)
        if not data:
            raise RuntimeError(f"closed without an answer: {heard[-400:]!r}")
        heard += data


async def drive(plan: Plan) -> Seen:
    """Runs the plan. Raises TimeoutError if no more answers arrive."""
    loop = asyncio.get_running_loop()
    peers = plan.peers or plan.sessions
    run = Run(plan.sessions, lambda n: message(f"{plan.name}{n % peers}", n))
    sessions = [Session(run, plan.token) for _ in range(plan.sessions)]
    for session in sessions:
        await loop.create_connection(_given(session), "127.0.0.1", plan.port)
    async with asyncio.timeout(QUIET_S):
        await run.is_open.wait()
    await _warm_up(run, sessions, plan)
    run.seen = Seen()
    pids = tree(plan.pid) if plan.pid else []
    began, cpu, own = time.perf_counter(), cpu_ns(pids), time.process_time_ns()
    await _measured(run, sessions, plan)
    seen = run.seen
    seen.cpu_ms = (cpu_ns(pids) - cpu) / 1e6
    seen.own_cpu_ms = (time.process_time_ns() - own) / 1e6
    seen.seconds = time.perf_counter() - began
    run.seen = Seen()  # later answers are not counted
    run.stop()
    run.is_over = True
    if plan.flowing or not plan.messages:
        async with asyncio.timeout(QUIET_S):
            await run.rest.wait()
    seen.errors += run.seen.errors
    for session in sessions:
        session.close()
    return seen


async def _warm_up(run: Run, sessions: list[Session], plan: Plan) -> None:
    if plan.flowing:
        run.allow(NEVER)
        _start(sessions)
        async with asyncio.timeout(QUIET_S):
            await run.answers(plan.warm_up * plan.sessions)
    else:
        await _send(run, sessions, plan.warm_up * plan.sessions)


async def _measured(run: Run, sessions: list[Session], plan: Plan) -> None:
    if plan.flowing:
        async with asyncio.timeout(max(QUIET_S, plan.messages / 20)):
            await run.answers(plan.messages)
    elif plan.messages:
        await _send(run, sessions, plan.messages)
    else:
        run.allow(NEVER)
        _start(sessions)
        await asyncio.sleep(plan.seconds)


def _given(session: Session) -> Callable[[], Session]:
    return lambda: session


def _start(sessions: list[Session]) -> None:
    for session in sessions:
        session.send()


async def _send(run: Run, sessions: list[Session], messages: int) -> None:
    run.allow(messages)
    _start(sessions)
    async with asyncio.timeout(max(QUIET_S, messages / 20)):
        await run.rest.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token")
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--messages", type=int, default=0, help="so many, instead of seconds")
    parser.add_argument("--warm-up", type=int, default=1, help="messages a session, not counted")
    parser.add_argument("--peers", type=int, default=0, help="conversations; 0: one a session")
    parser.add_argument("--name", default="s", help="how the peers are called")
    parser.add_argument("--pid", type=int, default=0, help="whose CPU time is told")
    parser.add_argument(
        "--flowing", type=int, default=0, help="1: count `messages` out of an unbroken flow"
    )
    args = parser.parse_args()
    print(json.dumps(uvloop.run(drive(Plan(**vars(args)))).summary()))


if __name__ == "__main__":
    main()
