"""The worker processes: started on demand, watched and replaced; calls and their outcomes."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Protocol, get_args

import anyio
from anyio import Semaphore, to_thread
from anyio.abc import TaskGroup

from gateway.domain.ports import Clock
from gateway.domain.supervision import contain, result_of, supervise
from gateway.sandbox.protocol import (
    ALL_ASKED_BYTES,
    ASKED_BYTES,
    ESCAPED,
    REQUEST_BYTES,
    Bounds,
    BrokenFrame,
    Frame,
    Kind,
    Program,
    Reader,
    Status,
    encode,
)

# -------------------------------------------------------------------------- the socket to a worker
log = logging.getLogger(__name__)

_ROOM = 4096  # bytes of a frame in addition to its bounded text
_STATUSES = frozenset(get_args(Status))
_LONGEST_FIGURE = 32


class CallHost(Protocol):
    """Serves the host functions of one call."""

    def log(self, level: str, message: str) -> None: ...

    async def answer(self, function: str, arguments: Sequence[str]) -> tuple[str, ...]:
        """Returns "ok", "err" or "none", a text, and the body of an HTTP answer. Raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call: a Status, or `busy`, `crashed` or `down` (no worker can be started)."""

    status: str
    text: str
    wall_ms: float = 0.0
    fuel: int = 0
    host_calls: int = 0


@dataclass(slots=True)
class WaitingCall:
    """A call that a worker is running. `outcome` stays None if the worker dies."""

    service: CallHost
    release: Callable[[], None]  # frees the slots of the call
    bounds: Bounds
    done: anyio.Event = field(default_factory=anyio.Event)
    serving: anyio.CancelScope | None = None  # of the running host call
    outcome: Outcome | None = None
    is_sent: bool = False
    is_abandoned: bool = False  # the caller no longer waits
    _counts: Counter[str] = field(default_factory=Counter)  # host calls by kind
    _asked_bytes: int = 0

    def count(self, function: str, size: int) -> None:
        """Checks the bounds of host calls once more, in case a guest controls its worker. Raises
        BrokenFrame."""
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

    def abandon(self) -> None:
        """Stops serving the host calls of a call whose caller no longer waits."""
        self.is_abandoned = True
        if self.serving is not None:
            self.serving.cancel()

    def end(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        self.done.set()
        self.abandon()
        self.release()


class WorkerSocket(asyncio.Protocol):
    """The socket to one worker. `group` runs the host calls, each until its call ends."""

    def __init__(self, group: TaskGroup) -> None:
        self.ready, self.lost = anyio.Event(), anyio.Event()
        self.confinement: object = None
        self.pending: dict[int, WaitingCall] = {}
        self._group, self._reader = group, Reader(self._most)
        self._transport: asyncio.Transport | None = None
        self._writable = anyio.Event()  # set while the worker reads its input
        self._writable.set()

    def send(self, kind: Kind, call: int, texts: Sequence[str] = ()) -> None:
        """Sends a frame; does nothing if the worker is gone. Raises ValueError, as encode."""
        self._write(encode(kind, call, texts))

    def _write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    async def wait_writable(self) -> None:
        """Waits until the worker has read its input or is gone, so that input does not pile up."""
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
                self._handle(frame)
        except (BrokenFrame, ValueError, RecursionError):
            # A guest escaped its sandbox, or the gateway has a defect; trust nothing more.
            log.exception("worker_protocol_broken")
            if self._transport is not None:
                self._transport.abort()  # close() would wait for a worker that may not read

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        self._writable.set()
        self.ready.set()  # a lost worker never reports ready
        pending, self.pending = self.pending, {}
        for one in pending.values():
            one.end(None)

    def _most(self, kind: Kind, call: int) -> int:
        """Returns the bound of a frame by its kind and call."""
        pending = self.pending.get(call)
        match kind:
            case Kind.RESULT if pending is not None:
                return pending.bounds.output_bytes + _ROOM
            case Kind.HOST if pending is not None:
                return REQUEST_BYTES * ESCAPED + _ROOM
            case Kind.RESULT | Kind.HOST | Kind.READY:
                return _ROOM
        raise BrokenFrame(f"a worker may not send {kind.name}")

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.RESULT:
                outcome = _outcome(frame.texts)
                pending = self.pending.pop(frame.call, None)
                if pending is not None:
                    pending.end(outcome)
            case Kind.HOST:
                self._serve(frame)
            case Kind.READY:
                (confinement,) = frame.texts
                self.confinement = json.loads(confinement)
                self.ready.set()
            case kind:
                raise BrokenFrame(f"a worker may not send {kind.name}")

    def _serve(self, frame: Frame) -> None:
        pending = self.pending.get(frame.call)
        if pending is None or pending.is_abandoned:
            return
        function, *arguments = frame.texts
        pending.count(function, frame.size)
        if function == "log":
            level, message = arguments
            pending.service.log(level, message)
        elif pending.serving is not None:
            raise BrokenFrame("two host calls of one guest at a time")
        else:
            pending.serving = anyio.CancelScope()
            self._group.start_soon(self._answer, frame.call, pending, function, arguments)

    async def _answer(
        self, call: int, pending: WaitingCall, function: str, arguments: Sequence[str]
    ) -> None:
        assert pending.serving is not None
        with pending.serving:
            facts, serve = {"function": function[:64]}, pending.service.answer
            answer = await result_of("host_function_failed", facts, serve, function, arguments)
            answer = answer or ("err", "the host function failed")
            try:
                frame = encode(Kind.ANSWER, call, answer)
            except ValueError:
                frame = encode(Kind.ANSWER, call, ("err", "the answer is not valid UTF-8 text"))
            await self.wait_writable()
            pending.serving = None
            self._write(frame)


def _outcome(texts: Sequence[str]) -> Outcome:
    """Raises BrokenFrame and ValueError."""
    status, text, wall_ms, fuel, calls = texts
    if status not in _STATUSES or max(len(wall_ms), len(fuel), len(calls)) > _LONGEST_FIGURE:
        raise BrokenFrame("an invalid result")
    outcome = Outcome(status, text, float(wall_ms), int(fuel), int(calls))
    if not isfinite(outcome.wall_ms):
        raise BrokenFrame("a result with an invalid time")
    return outcome


# ---------------------------------------------------------------------------------------- the pool
CALLS_AT_ONCE = 64  # in a worker; each has a thread
WAITING_OF_ONE_PROGRAM = 256
START_S = 10.0
PAUSE_S = 2.0  # after a failed start, during which calls are refused at once
EXIT_S = 0.5  # for a worker to exit once its socket is closed
GRACE_S = 0.2  # after a call's time, for the worker to report the timeout itself
MERCY_S = 2.0  # after a cancel, before a silent worker is killed


@dataclass(slots=True)
class _Place:
    """The place of one worker, which starts on demand."""

    starting: anyio.Lock = field(default_factory=anyio.Lock)
    link: WorkerSocket | None = None
    process: subprocess.Popen[bytes] | None = None
    loaded: dict[Program, int] = field(default_factory=dict)
    used: float = 0.0
    coming: int = 0  # calls that wait for its start
    failed: tuple[float, str] | None = None  # time and reason of the last failed start

    @property
    def is_up(self) -> bool:
        return self.link is not None and not self.link.lost.is_set()


@dataclass(slots=True)
class _Share:
    """The slots of one program. Further calls of it wait without holding a slot of the pool."""

    slots: Semaphore
    waiting: int = 0


_CRASHED = "the process that runs plugins ended; it restarts with the next call"


class WorkerDown(Exception):
    """No worker could be started."""


WORKER = (sys.executable, "-I", "-m", "gateway.sandbox.worker")


class Pool:
    """The places of the workers, and the calls that wait for them."""

    def __init__(
        self,
        group: TaskGroup,
        folder: Path,
        *,
        workers: int,
        clock: Clock,
        command: Sequence[str] = WORKER,
        start_s: float = START_S,
    ) -> None:
        self._group, self._folder, self._clock = group, folder, clock
        self.idle_s = 300.0  # an unused worker ends after this time
        self._command, self._start_s = command, start_s
        self._places = [_Place() for _ in range(workers)]
        self._slots = Semaphore(CALLS_AT_ONCE * workers, fast_acquire=True)
        self._shares: dict[Program, _Share] = {}
        self._numbers = count(1)

    async def call(
        self, program: Program, function: str, text: str, service: CallHost, *, timeout_s: float
    ) -> Outcome:
        """Calls a guest and returns the outcome for every failure of the guest. Cancelling the caller
        cancels the guest."""
        share = self._shares.get(program)
        if share is None:
            slots = Semaphore(program.concurrency, fast_acquire=True)
            share = self._shares[program] = _Share(slots)
        if share.waiting >= WAITING_OF_ONE_PROGRAM:
            return Outcome("busy", f"{share.waiting} of its calls are already waiting")
        share.waiting += 1
        try:
            await share.slots.acquire()
        finally:
            share.waiting -= 1
        with ExitStack() as undo:
            undo.callback(share.slots.release)
            await self._slots.acquire()
            undo.pop_all()
        pending = WaitingCall(service, partial(self._release, share), program.bounds)
        try:
            place = await self._ready_place()
            return await self._run(place, pending, (program, function, text), timeout_s)
        except WorkerDown as error:
            return Outcome("down", str(error))
        finally:
            if not pending.is_sent:
                pending.release()

    def _release(self, share: _Share) -> None:
        self._slots.release()
        share.slots.release()

    async def _run(
        self, place: _Place, pending: WaitingCall, asked: tuple[Program, str, str], timeout_s: float
    ) -> Outcome:
        program, function, text = asked
        link, number = place.link, next(self._numbers) & 0xFFFFFFFF
        assert link is not None
        place.used = self._clock.monotonic()
        with anyio.move_on_after(timeout_s + GRACE_S) as waiting:
            await link.wait_writable()
        if waiting.cancelled_caught:
            self._replace(place, link, "does not read its input")
            return Outcome("timeout", "it did not end in time")
        try:
            loaded = self._program_number(place, program)
            link.send(Kind.CALL, number, (str(loaded), function, str(timeout_s), text))
        except ValueError as error:
            return Outcome("invalid", f"its input cannot be sent: {error}")
        if link.lost.is_set():
            return Outcome("crashed", _CRASHED)
        link.pending[number], pending.is_sent = pending, True
        try:
            with anyio.move_on_after(timeout_s + GRACE_S):
                await pending.done.wait()
        finally:
            if not pending.done.is_set():
                pending.abandon()
                link.send(Kind.CANCEL, number)
                watch = partial(self._require_end, place, link, pending)
                self._group.start_soon(contain, "the end of a call", watch)
        if not pending.done.is_set():
            return Outcome("timeout", "it did not end in time")
        return pending.outcome or Outcome("crashed", _CRASHED)

    def _replace(self, place: _Place, link: WorkerSocket, why: str) -> None:
        log.error("worker_stuck", extra={"why": why})
        if place.link is link and place.process is not None:
            place.process.kill()

    def _program_number(self, place: _Place, program: Program) -> int:
        number = place.loaded.get(program)
        if number is None:
            number = place.loaded[program] = len(place.loaded) + 1
            assert place.link is not None
            place.link.send(Kind.LOAD, number, (json.dumps(asdict(program)),))
        return number

    async def _require_end(self, place: _Place, link: WorkerSocket, pending: WaitingCall) -> None:
        """Replaces a worker that does not end a cancelled call, which takes one tick."""
        with anyio.move_on_after(MERCY_S):
            await pending.done.wait()
            return
        self._replace(place, link, "does not end a call")

    async def _ready_place(self) -> _Place:
        """Returns the worker with the fewest calls, and starts it if needed. Raises WorkerDown."""
        place = min(self._places, key=_busyness)
        if place.is_up:
            return place
        place.coming += 1
        try:
            async with place.starting:
                if not place.is_up:  # another call may have started it
                    await self._start(place)
        finally:
            place.coming -= 1
        return place

    async def _start(self, place: _Place) -> None:
        """Starts a worker. Raises WorkerDown, also for PAUSE_S after a failed start."""
        if place.failed is not None and self._clock.monotonic() < place.failed[0] + PAUSE_S:
            raise WorkerDown(place.failed[1])
        link, problem = WorkerSocket(self._group), f"it is not ready after {self._start_s:g} s"
        try:
            with anyio.move_on_after(self._start_s):
                process = await self._start_process(link)
                await link.ready.wait()
                if not link.lost.is_set():
                    place.link, place.process, place.loaded = link, process, {}
                    place.used, place.failed = self._clock.monotonic(), None
                    extra = {"pid": process.pid, "kept_in": link.confinement}
                    log.info("worker_started", extra=extra)
                    return
                code = await to_thread.run_sync(process.wait)
                problem = f"it ended with code {code} before it was ready"
        except OSError as error:
            problem = str(error)
        finally:
            if place.link is not link:
                link.close()  # its process ends with it
        why = f"no process for plugins can be started: {problem} ({' '.join(self._command)})"
        place.failed = self._clock.monotonic(), why
        log.error("worker_start_failed", extra={"why": why})
        raise WorkerDown(why)

    async def _start_process(self, link: WorkerSocket) -> subprocess.Popen[bytes]:
        """Starts a process and its watch without interruption, so that no process is left alone."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        with theirs, anyio.CancelScope(shield=True):
            await loop.create_connection(lambda: link, sock=ours)
            process = await to_thread.run_sync(_spawn, self._command, theirs, self._folder)
        self._group.start_soon(contain, "a worker", partial(self._watch, link, process))
        return process

    async def _watch(self, link: WorkerSocket, process: subprocess.Popen[bytes]) -> None:
        """Waits for the end of a worker's socket, then reaps the process."""
        try:
            await link.lost.wait()
            with suppress(subprocess.TimeoutExpired):  # its own exit code says more than a kill
                await to_thread.run_sync(process.wait, EXIT_S)
        finally:
            link.close()
            process.kill()
            with anyio.CancelScope(shield=True):
                code = await to_thread.run_sync(process.wait)
        log.info("worker_ended", extra={"pid": process.pid, "code": code})

    async def end_idle(self) -> None:
        """Ends unused workers, until cancelled."""
        while True:
            await self._clock.sleep(self.idle_s / 4)
            now = self._clock.monotonic()
            for place in self._places:
                link = place.link
                if link is not None and not link.pending and now - place.used >= self.idle_s:
                    place.link = None
                    link.close()


def _busyness(place: _Place) -> int:
    return place.coming + (len(place.link.pending) if place.link else 0)


def _spawn(command: Sequence[str], theirs: socket.socket, folder: Path) -> subprocess.Popen[bytes]:
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        [*command, str(theirs.fileno()), str(folder)],
        stdin=nowhere, stdout=nowhere, stderr=nowhere,
        pass_fds=(theirs.fileno(),), env={}, cwd="/",
    )  # fmt: skip


@asynccontextmanager
async def open_pool(
    folder: Path, *, workers: int, idle_s: float, clock: Clock
) -> AsyncIterator[Pool]:
    """Opens a pool. Workers may read only `folder`, which holds the compiled files."""
    async with anyio.create_task_group() as group:
        pool = Pool(group, folder, workers=workers, clock=clock)
        pool.idle_s = idle_s
        group.start_soon(supervise, "idle workers", pool.end_idle, clock, name="idle workers")
        try:
            yield pool
        finally:
            group.cancel_scope.cancel()
