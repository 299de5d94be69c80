"""The worker processes: started when needed, watched, replaced when they die; calls and their ends."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import anyio
from anyio import Semaphore, to_thread
from anyio.abc import TaskGroup

from gateway.domain.ports import Clock
from gateway.domain.supervision import contained, supervise
from gateway.sandbox.frames import Kind
from gateway.sandbox.links import Link, Outcome, Pending, Service
from gateway.sandbox.programs import Program

log = logging.getLogger(__name__)

CALLS_AT_ONCE = 64  # a worker: each has a thread there
WAITING_OF_ONE_PROGRAM = 256
START_S = 10.0
PAUSE_S = 2.0  # after a start that failed: calls are refused at once, not kept waiting
EXIT_S = 0.5  # for a process that nobody talks to any more
GRACE_S = 0.2  # beyond a call's time, for the worker to say so itself
MERCY_S = 2.0  # beyond that: a worker that is still silent is broken


@dataclass(slots=True)
class _Place:
    """Where one worker is, or will be once it is needed."""

    starting: anyio.Lock = field(default_factory=anyio.Lock)
    link: Link | None = None
    process: subprocess.Popen[bytes] | None = None
    loaded: dict[Program, int] = field(default_factory=dict)
    used: float = 0.0
    coming: int = 0  # calls that wait for its start
    failed: tuple[float, str] | None = None  # when the last start did, and how

    @property
    def is_up(self) -> bool:
        return self.link is not None and not self.link.lost.is_set()


@dataclass(slots=True)
class _Share:
    """What one program has of the places; what is beyond it waits without taking any."""

    slots: Semaphore
    waiting: int = 0


_CRASHED = "the process that runs plugins ended; it is started again"


class WorkerDown(Exception):
    """No worker could be started."""


WORKER = (sys.executable, "-I", "-m", "gateway.sandbox.worker")


class Pool:
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
        self._command, self._start_s = command, start_s
        self._places = [_Place() for _ in range(workers)]
        self._slots = Semaphore(CALLS_AT_ONCE * workers, fast_acquire=True)
        self._shares: dict[Program, _Share] = {}
        self._numbers = count(1)

    async def call(
        self, program: Program, function: str, text: str, service: Service, *, timeout_s: float
    ) -> Outcome:
        """Never raises for what a guest does; a cancelled caller has its guest cancelled."""
        share = self._shares.get(program)
        if share is None:
            slots = Semaphore(program.concurrency, fast_acquire=True)
            share = self._shares[program] = _Share(slots)
        if share.waiting >= WAITING_OF_ONE_PROGRAM:
            return Outcome("busy", f"{share.waiting} calls of it are waiting already")
        share.waiting += 1
        try:
            await share.slots.acquire()
        finally:
            share.waiting -= 1
        try:
            await self._slots.acquire()
        except BaseException:
            share.slots.release()
            raise
        pending = Pending(service, partial(self._release, share), program.bounds)
        try:
            place = await self._ready_place()
        except WorkerDown as error:
            pending.release()
            return Outcome("down", str(error))
        except BaseException:
            pending.release()
            raise
        return await self._run(place, pending, (program, function, text), timeout_s)

    def _release(self, share: _Share) -> None:
        self._slots.release()
        share.slots.release()

    async def _run(
        self, place: _Place, pending: Pending, asked: tuple[Program, str, str], timeout_s: float
    ) -> Outcome:
        program, function, text = asked
        link, number = place.link, next(self._numbers) & 0xFFFFFFFF
        assert link is not None
        place.used = self._clock.monotonic()
        if not await self._reads(place, link, pending, timeout_s):
            return Outcome("timeout", "it did not end in time")
        try:
            loaded = self._loaded(place, program)
            link.send(Kind.CALL, number, (str(loaded), function, str(timeout_s), text))
        except ValueError as error:
            pending.release()
            return Outcome("invalid", f"what it is given cannot be passed on: {error}")
        if link.lost.is_set():
            pending.release()
            return Outcome("crashed", _CRASHED)
        link.pending[number] = pending
        try:
            with anyio.move_on_after(timeout_s + GRACE_S):
                await pending.done.wait()
        finally:
            if not pending.done.is_set():
                pending.leave()
                link.send(Kind.CANCEL, number)
                see = partial(self._see_it_end, place, link, pending)
                self._group.start_soon(contained, "the end of a call", see)
        if not pending.done.is_set():
            return Outcome("timeout", "it did not end in time")
        return pending.outcome or Outcome("crashed", _CRASHED)

    async def _reads(self, place: _Place, link: Link, pending: Pending, timeout_s: float) -> bool:
        """Waits for a worker that has much to read. False: it does not, and is replaced."""
        try:
            with anyio.move_on_after(timeout_s + GRACE_S) as waiting:
                await link.drained()
        except BaseException:
            pending.release()
            raise
        if waiting.cancelled_caught:
            pending.release()
            log.error("a worker reads nothing: it is replaced")
            if place.link is link and place.process is not None:
                place.process.kill()
        return not waiting.cancelled_caught

    def _loaded(self, place: _Place, program: Program) -> int:
        number = place.loaded.get(program)
        if number is None:
            number = place.loaded[program] = len(place.loaded) + 1
            assert place.link is not None
            place.link.send(Kind.LOAD, number, (json.dumps(asdict(program)),))
        return number

    async def _see_it_end(self, place: _Place, link: Link, pending: Pending) -> None:
        """A guest that was told to stop stops within a tick; a worker that cannot is replaced."""
        with anyio.move_on_after(MERCY_S):
            await pending.done.wait()
            return
        log.error("a worker does not end a call: it is replaced")
        if place.link is link and place.process is not None:
            place.process.kill()

    async def _ready_place(self) -> _Place:
        """The worker with the least to do, started if it is not there. Raises WorkerDown."""
        place = min(self._places, key=_busyness)
        if not place.is_up:
            place.coming += 1
            try:
                await self._started(place)
            finally:
                place.coming -= 1
        return place

    async def _started(self, place: _Place) -> None:
        async with place.starting:
            if not place.is_up:  # another call has not started it meanwhile
                await self._start(place)

    async def _start(self, place: _Place) -> None:
        """Raises WorkerDown; for a moment after that it is not tried again."""
        if place.failed is not None and self._clock.monotonic() < place.failed[0] + PAUSE_S:
            raise WorkerDown(place.failed[1])
        link, problem = Link(self._group), f"it is not ready after {self._start_s:g} s"
        try:
            with anyio.move_on_after(self._start_s):
                process = await self._spawned(link)
                await link.ready.wait()
                if not link.lost.is_set():
                    place.link, place.process, place.loaded = link, process, {}
                    place.used, place.failed = self._clock.monotonic(), None
                    kept_in = {"pid": process.pid, "kept_in": link.kept_in}
                    log.info("worker started", extra=kept_in)
                    return
                code = await to_thread.run_sync(process.wait)
                problem = f"it ended at once, with code {code}"
        except OSError as error:
            problem = str(error)
        finally:
            if place.link is not link:
                link.close()  # and with it its process ends
        told = f"no process for plugins can be started: {problem} ({' '.join(self._command)})"
        place.failed = self._clock.monotonic(), told
        log.error("no worker can be started", extra={"why": told})
        raise WorkerDown(told)

    async def _spawned(self, link: Link) -> subprocess.Popen[bytes]:
        """Whole or not at all: half a start would leave a process that nobody knows of."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        with theirs, anyio.CancelScope(shield=True):
            await loop.create_connection(lambda: link, sock=ours)
            process = await to_thread.run_sync(_spawn, self._command, theirs, self._folder)
        self._group.start_soon(contained, "a worker", partial(self._watch, link, process))
        return process

    async def _watch(self, link: Link, process: subprocess.Popen[bytes]) -> None:
        """Until it is gone; whatever it was at has failed by then."""
        try:
            await link.lost.wait()
            with suppress(subprocess.TimeoutExpired):  # its own way out tells more than our signal
                await to_thread.run_sync(process.wait, EXIT_S)
        finally:
            link.close()
            process.kill()
            with anyio.CancelScope(shield=True):
                code = await to_thread.run_sync(process.wait)
        log.info("worker ended", extra={"pid": process.pid, "code": code})

    async def rest(self, idle_s: float) -> None:
        """Ends workers that nobody has used for a while, until cancelled."""
        while True:
            await self._clock.sleep(idle_s / 4)
            now = self._clock.monotonic()
            for place in self._places:
                link = place.link
                if link is not None and not link.pending and now - place.used >= idle_s:
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
    """Workers may read `folder`, where the compiled files are, and nothing else."""
    async with anyio.create_task_group() as group:
        pool = Pool(group, folder, workers=workers, clock=clock)
        group.start_soon(
            supervise, "idle workers", partial(pool.rest, idle_s), clock, name="idle workers"
        )
        try:
            yield pool
        finally:
            group.cancel_scope.cancel()
