"""The load generator of accepts: each connection sends its next message when the last one is accepted.

    python -m bench.accepts --port PORT --way webhook --connections 16 --seconds 4 --pid PID

It does not wait for the agent's answers. Prints its measurements as JSON.
"""

import argparse
import asyncio
import base64
import hmac
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import uvloop

from bench.load import TEXT, Seen, frames, message, upgrade
from bench.process import cpu_ns, tree

SECRET = b"a secret of the benchmark"  # whsec_ and its base64 in the configuration
CHANNEL = "hook"
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


def call(peer: str, number: int, now: float) -> bytes:
    """Returns a message from a person, signed by Standard Webhooks."""
    body = json.dumps({"sender": peer, "text": f"{number}: {TEXT}"}).encode()
    name, stamp = f"msg_{int(now * 1e6)}_{number}", str(int(now))
    signed = f"{name}.{stamp}.".encode() + body
    proof = base64.b64encode(hmac.digest(SECRET, signed, "sha256")).decode()
    return (
        f"POST /webhooks/{CHANNEL} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"webhook-id: {name}\r\nwebhook-timestamp: {stamp}\r\nwebhook-signature: v1,{proof}\r\n\r\n"
    ).encode() + body


@dataclass(frozen=True, slots=True)
class Plan:
    port: int
    way: str = "webhook"  # or chat: `chat.send` on a WebSocket
    connections: int = 16
    sessions: int = 2_000
    seconds: float = 4.0
    pid: int = 0
    token: str = ""


@dataclass(slots=True)
class Run:
    """One run of the load generator; `is_over`: it sends no more messages."""

    next_message: Callable[[], bytes]
    seen: Seen = field(default_factory=Seen)
    is_over: bool = False

    def accepted(self, began: float) -> None:
        self.seen.messages += 1
        self.seen.round_trips_ms.append((time.perf_counter() - began) * 1000)


class Sender(asyncio.Protocol):
    """A connection with one message in flight."""

    def __init__(self, run: Run, opening: bytes = b"") -> None:
        self._run, self._opening = run, opening
        self._transport: asyncio.Transport
        self._buffer, self._began = b"", 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._opening:
            self._transport.write(self._opening)
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._run.is_over:
            self._run.seen.errors.append("the connection was closed")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._opening:
            self._read_socket()
        else:
            self._read_http()

    def close(self) -> None:
        self._transport.close()

    def _send(self) -> None:
        if not self._run.is_over:
            self._began = time.perf_counter()
            self._transport.write(self._run.next_message())

    def _record_answer(self, *, is_fine: bool) -> None:
        if is_fine:
            self._run.accepted(self._began)
        elif len(self._run.seen.errors) < 20:
            self._run.seen.errors.append(self._buffer[:400].decode(errors="replace"))
        self._send()

    def _read_http(self) -> None:
        head, whole, rest = self._buffer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if whole and len(rest) >= (int(length[1]) if length else 0):
            self._record_answer(is_fine=head.startswith(b"HTTP/1.1 200"))
            self._buffer = b""

    def _read_socket(self) -> None:
        if not self._began:
            head, whole, self._buffer = self._buffer.partition(b"\r\n\r\n")
            if not whole:
                self._buffer = head
                return
            self._send()
        end = 0
        for _, start, end in frames(self._buffer):
            if self._buffer.find(b'"duplicate"', start, end) >= 0:
                self._record_answer(is_fine=True)
            elif self._buffer.find(b'"error"', start, end) >= 0:
                self._record_answer(is_fine=False)
        self._buffer = self._buffer[end:]


async def drive(plan: Plan) -> Seen:
    number = 0

    def next_message() -> bytes:
        nonlocal number
        number += 1
        peer = f"{plan.way}{number % plan.sessions}"
        if plan.way == "chat":
            return message(peer, number)
        return call(peer, number, time.time())  # noqa: TID251  # platforms go by the real one

    run = Run(next_message)
    opening = upgrade(plan.token) if plan.way == "chat" else b""
    loop = asyncio.get_running_loop()
    senders = [Sender(run, opening) for _ in range(plan.connections)]
    for sender in senders:
        await loop.create_connection(lambda sender=sender: sender, "127.0.0.1", plan.port)  # type: ignore[misc]  # a default is no argument
    await asyncio.sleep(min(1.0, plan.seconds / 4))  # the connections open and the modules warm up
    seen = run.seen = Seen()
    pids = tree(plan.pid) if plan.pid else []
    began, cpu, own = time.perf_counter(), cpu_ns(pids), time.process_time_ns()
    await asyncio.sleep(plan.seconds)
    seen.cpu_ms = (cpu_ns(pids) - cpu) / 1e6
    seen.own_cpu_ms = (time.process_time_ns() - own) / 1e6
    seen.seconds = time.perf_counter() - began
    run.is_over = True
    run.seen = Seen()
    for sender in senders:
        sender.close()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--way", choices=["webhook", "chat"], default="webhook")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--sessions", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--pid", type=int, default=0, help="whose CPU time is told")
    parser.add_argument("--token", default="")
    print(json.dumps(uvloop.run(drive(Plan(**vars(parser.parse_args())))).summary()))


if __name__ == "__main__":
    main()
