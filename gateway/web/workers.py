"""Tasks that are kept and used again: a call that waits costs a wake-up, not a new task."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

from gateway.domain.supervision import contained, survives

Job = tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]
Args = TypeVarTuple("Args")
KEPT_IDLE = 256


class Workers:
    """Jobs start in the order in which they are given. Those who run live in the group of `run`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._group: TaskGroup | None = None
        self._idle: list[asyncio.Future[Job]] = []
        self._busy = 0
        self._rested = anyio.Event()

    @property
    def busy(self) -> int:
        return self._busy

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Works until it is cancelled."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._group = None
            self._idle.clear()

    def take(self, work: Callable[[*Args], Awaitable[None]], *args: *Args) -> bool:
        """Whether it will be done; False if there is too much at work already."""
        if self._group is None or self._busy >= self._limit:
            return False
        self._busy += 1
        while self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result((work, args))
                return True
        self._group.start_soon(self._work, (work, args), name="rpc worker")
        return True

    async def rest(self) -> None:
        """Returns when nobody works."""
        while self._busy:
            self._rested = anyio.Event()
            await self._rested.wait()

    async def _work(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await contained("an RPC call", partial(job[0], *job[1]))
            finally:
                self._busy -= 1
                if not self._busy:
                    self._rested.set()
            if len(self._idle) >= KEPT_IDLE:
                return
            waiting: asyncio.Future[Job] = loop.create_future()
            self._idle.append(waiting)
            try:
                job = await waiting
            except asyncio.CancelledError as error:
                if not survives(error):
                    raise
                if waiting.cancelled():
                    return  # another begins when it is needed
                job = waiting.result()
