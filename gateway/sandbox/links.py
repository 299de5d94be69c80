"""The gateway's end of the socket to one worker: frames out, results and host calls in."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from gateway.sandbox.frames import BrokenFrame, Frame, Kind, Reader, encode

log = logging.getLogger(__name__)


class Service(Protocol):
    """Serves the host functions of one call."""

    def log(self, level: str, message: str) -> None: ...

    async def answer(self, function: str, arguments: Sequence[str]) -> tuple[str, ...]:
        """ "ok", "err" or "none", a text, and of an HTTP answer its body. Raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: a Status, or `busy`, `crashed` or `down` (no worker can be started)."""

    status: str
    text: str
    wall_ms: float = 0.0
    fuel: int = 0
    host_calls: int = 0


@dataclass(slots=True)
class Pending:
    """A call that a worker is at. `outcome` is None if the worker died."""

    service: Service
    release: Callable[[], None]  # its places are free again
    done: anyio.Event = field(default_factory=anyio.Event)
    serving: anyio.CancelScope | None = None  # of the host call that the guest waits for
    outcome: Outcome | None = None
    is_left: bool = False

    def leave(self) -> None:
        """Nobody waits for it any more: whatever the guest still asks for is not done."""
        self.is_left = True
        if self.serving is not None:
            self.serving.cancel()

    def end(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        self.done.set()
        self.leave()
        self.release()


class Link(asyncio.Protocol):
    """Host calls are served in `group`, each until its call ends."""

    def __init__(self, group: TaskGroup) -> None:
        self.ready, self.lost = anyio.Event(), anyio.Event()
        self.kept_in: object = None
        self.pending: dict[int, Pending] = {}
        self._group, self._reader = group, Reader()
        self._transport: asyncio.Transport | None = None

    def send(self, kind: Kind, call: int, texts: Sequence[str] = ()) -> None:
        """To a worker that is gone: nothing; its calls have ended. Raises ValueError (see encode)."""
        frame = encode(kind, call, texts)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # what a socket gives
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except (BrokenFrame, ValueError, RecursionError):
            # A guest got out of its sandbox, or we have a defect: either way nothing more is believed.
            log.exception("a worker does not speak as it should")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        self.ready.set()  # nobody shall wait for what does not come any more
        pending, self.pending = self.pending, {}
        for one in pending.values():
            one.end(None)

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.RESULT:
                status, text, wall_ms, fuel, calls = frame.texts
                outcome = Outcome(status, text, float(wall_ms), int(fuel), int(calls))
                pending = self.pending.pop(frame.call, None)
                if pending is not None:
                    pending.end(outcome)
            case Kind.HOST:
                self._serve(frame)
            case Kind.READY:
                (told,) = frame.texts
                self.kept_in = json.loads(told)
                self.ready.set()
            case kind:
                raise BrokenFrame(f"a worker does not say {kind.name}")

    def _serve(self, frame: Frame) -> None:
        pending = self.pending.get(frame.call)
        if pending is None or pending.is_left:
            return
        function, *arguments = frame.texts
        if function == "log":
            level, message = arguments
            pending.service.log(level, message)
        elif pending.serving is not None:
            raise BrokenFrame("a guest makes one host call at a time")
        else:
            pending.serving = anyio.CancelScope()
            self._group.start_soon(self._answer, frame.call, pending, function, arguments)

    async def _answer(
        self, call: int, pending: Pending, function: str, arguments: Sequence[str]
    ) -> None:
        assert pending.serving is not None
        with pending.serving:
            answer = await pending.service.answer(function, arguments)
            pending.serving = None
            try:
                self.send(Kind.ANSWER, call, answer)
            except ValueError:
                self.send(Kind.ANSWER, call, ("err", "the answer is no text that can be passed on"))
