"""The gateway's end of a worker's socket: what it does for a guest, and for how long."""

from collections.abc import Sequence

import anyio

from gateway.sandbox.pool import WaitingCall, WorkerSocket
from gateway.sandbox.protocol import Bounds, Frame, Kind, Reader, encode

BOUNDS = Bounds(1 << 20, 10**9, 1 << 20)


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def frames(self) -> list[Frame]:
        return list(Reader().feed(bytes(self.written)))


class CallHost:
    """Keeps what it was asked for; answers once the gate is open."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate = anyio.Event()

    def log(self, level: str, message: str) -> None:
        self.asked.append(f"log {message}")

    async def answer(self, function: str, arguments: Sequence[str]) -> tuple[str, ...]:
        self.asked.append(function)
        await self.gate.wait()
        return "ok", "done"


def asked(function: str) -> bytes:
    return encode(Kind.HOST, 1, (function, "ns", "key"))


async def test_a_host_call_is_answered_once_its_service_is_done() -> None:
    service, transport = CallHost(), Transport()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            link = WorkerSocket(group)
            link.connection_made(transport)  # type: ignore[arg-type]  # as much of one as is used
            link.pending[1] = WaitingCall(service, lambda: None, BOUNDS)

            link.data_received(asked("store.get"))
            service.gate.set()

    assert transport.frames() == [Frame(Kind.ANSWER, 1, ("ok", "done"))]


async def test_for_a_call_that_nobody_waits_for_nothing_more_is_done() -> None:
    service, transport = CallHost(), Transport()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            link = WorkerSocket(group)
            link.connection_made(transport)  # type: ignore[arg-type]  # as much of one as is used
            pending = link.pending[1] = WaitingCall(service, lambda: None, BOUNDS)
            link.data_received(asked("store.get"))
            await anyio.lowlevel.checkpoint()

            pending.abandon()
            link.data_received(asked("store.set") + encode(Kind.HOST, 1, ("log", "info", "late")))
            service.gate.set()

    assert service.asked == ["store.get"]
    assert transport.frames() == []
