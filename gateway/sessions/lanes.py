"""One lane a session: in order inside, side by side across, a bound on how many work at once."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
from anyio.abc import TaskGroup

from gateway.domain.ids import SessionKey
from gateway.domain.supervision import contained, survives

log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


class Lanes:
    """Lanes live in the task group they are given and end with it.

    Lanes that wait for a slot get one message each in turn, so a session with a thousand messages
    holds nobody up.
    """

    def __init__(self, group: TaskGroup, *, width: int) -> None:
        self._group = group
        self._width = width
        self._queues: dict[SessionKey, deque[Work]] = {}
        self._waiting: deque[SessionKey] = deque()
        self._working = 0
        self._paused = False
        self._idle = anyio.Event()

    def is_idle(self, key: SessionKey, *, spoken_for: int = 0) -> bool:
        """Whether a message of this session would start at once, when so many others are about to."""
        room = self._width - self._working - spoken_for
        return key not in self._queues and room > 0 and not self._waiting

    @property
    def working(self) -> int:
        return self._working

    def submit(self, key: SessionKey, work: Work) -> None:
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(work)
            return
        self._queues[key] = deque([work])
        self._waiting.append(key)
        self._fill()

    def beside(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Something that takes no slot, and must not fail."""
        self._group.start_soon(contained, "beside a lane", task)

    def pause(self) -> None:
        """Starts nothing more; what is at work goes on."""
        self._paused = True

    async def rest(self) -> None:
        """Waits until nothing is at work."""
        while self._working:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _fill(self) -> None:
        while self._waiting and self._working < self._width and not self._paused:
            self._working += 1
            self._group.start_soon(self._one, self._waiting.popleft())

    async def _one(self, key: SessionKey) -> None:
        queue = self._queues[key]
        try:
            await queue.popleft()()
        except Exception:
            # A message's own trouble is told by its work; what still arrives here is a defect of
            # ours, and it must not cancel the neighbours.
            log.exception("a lane's work failed", extra={"session": str(key)})
        except BaseException as error:
            if not survives(error):
                self._paused = True  # the whole group is being cancelled
                raise
            log.exception("a lane's work was cancelled from within", extra={"session": str(key)})
        finally:
            self._working -= 1
            if queue:
                self._waiting.append(key)
            else:
                del self._queues[key]
            self._fill()
            if not self._working:
                self._idle.set()
