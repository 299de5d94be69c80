"""The gateway's end of the socket to one worker: frames out, results and host calls in."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol, get_args

import anyio
from anyio.abc import TaskGroup

from gateway.domain.supervision import survives
from gateway.sandbox.frames import BrokenFrame, Frame, Kind, Reader, encode
from gateway.sandbox.programs import (
    ALL_ASKED_BYTES,
    ASKED_BYTES,
    ESCAPED,
    REQUEST_BYTES,
    Bounds,
    Status,
)

log = logging.getLogger(__name__)

_ROOM = 4096  # bytes of a frame besides the text that has a bound of its own
_STATUSES = frozenset(get_args(Status))
_LONGEST_FIGURE = 32


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
    bounds: Bounds
    done: anyio.Event = field(default_factory=anyio.Event)
    serving: anyio.CancelScope | None = None  # of the host call that the guest waits for
    outcome: Outcome | None = None
    is_left: bool = False
    _counts: Counter[str] = field(default_factory=Counter)  # of host calls
    _asked_bytes: int = 0

    def count(self, function: str, size: int) -> None:
        """The worker keeps a guest within these; a guest that got out of it comes up against us.
        Raises BrokenFrame."""
        bounds, kind = self.bounds, function.partition(".")[0]
        most, size_most = bounds.host_calls, ASKED_BYTES
        if kind == "log":
            most, size_most = bounds.log_lines, bounds.log_bytes
        elif kind == "http":
            most, size_most = bounds.http_calls, REQUEST_BYTES * ESCAPED
        else:
            kind = "other"
        self._counts[kind] += 1
        self._asked_bytes += size
        if size > size_most + _ROOM or self._asked_bytes > ALL_ASKED_BYTES * ESCAPED:
            raise BrokenFrame(f"a host call of {size} bytes")
        if self._counts[kind] > most:
            raise BrokenFrame(f"more than {most} host calls of a kind ({kind})")

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
        self._group, self._reader = group, Reader(self._most)
        self._transport: asyncio.Transport | None = None
        self._writable = anyio.Event()  # set: what is written is read as well
        self._writable.set()

    def send(self, kind: Kind, call: int, texts: Sequence[str] = ()) -> None:
        """To a worker that is gone: nothing; its calls have ended. Raises ValueError (see encode)."""
        self._write(encode(kind, call, texts))

    def _write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    async def drained(self) -> None:
        """Until it has read what it was sent, or is gone: a worker that reads nothing has nothing
        pile up for it here."""
        while not self._writable.is_set():
            await self._writable.wait()

    def pause_writing(self) -> None:
        self._writable = anyio.Event()

    def resume_writing(self) -> None:
        self._writable.set()

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
            if self._transport is not None:
                self._transport.abort()  # it may read nothing of what is still to be sent

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        self._writable.set()
        self.ready.set()  # nobody shall wait for what does not come any more
        pending, self.pending = self.pending, {}
        for one in pending.values():
            one.end(None)

    def _most(self, kind: Kind, call: int) -> int:
        """Bytes of a frame that has not come yet."""
        pending = self.pending.get(call)
        match kind:
            case Kind.RESULT if pending is not None:
                return pending.bounds.output_bytes + _ROOM
            case Kind.HOST if pending is not None:
                return REQUEST_BYTES * ESCAPED + _ROOM
            case Kind.RESULT | Kind.HOST | Kind.READY:
                return _ROOM
        raise BrokenFrame(f"a worker does not say {kind.name}")

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.RESULT:
                outcome = _outcome(frame.texts)
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
        pending.count(function, frame.size)
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
            answer: tuple[str, ...] = ("err", "the host function failed")
            try:
                answer = await pending.service.answer(function, arguments)
            except BaseException as error:
                if not survives(error):
                    raise
                log.exception("a host function failed", extra={"function": function[:64]})
            try:
                frame = encode(Kind.ANSWER, call, answer)
            except ValueError:
                told = "the answer is no text that can be passed on"
                frame = encode(Kind.ANSWER, call, ("err", told))
            await self.drained()
            pending.serving = None
            self._write(frame)


def _outcome(texts: Sequence[str]) -> Outcome:
    """Raises BrokenFrame and ValueError."""
    status, text, wall_ms, fuel, calls = texts
    if status not in _STATUSES or max(len(wall_ms), len(fuel), len(calls)) > _LONGEST_FIGURE:
        raise BrokenFrame("a result that is none")
    outcome = Outcome(status, text, float(wall_ms), int(fuel), int(calls))
    if not isfinite(outcome.wall_ms):
        raise BrokenFrame("a result that took no time that could be told")
    return outcome
