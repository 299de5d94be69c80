"""One lane a session: in order inside, side by side across, a bound on how many work at once."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any

import anyio
from anyio.abc import TaskGroup

from gateway.domain.bindings import Share
from gateway.domain.ids import SessionKey
from gateway.domain.supervision import contained, survives

log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


class Rotation:
    """Sessions that wait for a slot. Names take turns, and below a name the names of the next level;
    under the last name the sessions do. A put and a take cost the same however many wait.

    A name that is new goes before those that had a turn, once: it keeps its place in the rotation
    until it is reached without anything waiting.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._keys: deque[SessionKey] = deque()
        self._below: dict[Hashable, Rotation] = {}
        self._new: deque[Hashable] = deque()
        self._served: deque[Hashable] = deque()

    def put(self, key: SessionKey, names: tuple[Hashable, ...], *, is_new: bool = False) -> None:
        self.waiting += 1
        if not names:
            self._keys.append(key)
            return
        below = self._below.get(names[0])
        if below is None:
            below = self._below[names[0]] = Rotation()
            (self._new if is_new else self._served).append(names[0])
        below.put(key, names[1:])

    def take(self) -> SessionKey:
        """Of one in which something waits."""
        self.waiting -= 1
        if self._keys:
            return self._keys.popleft()
        while True:
            name = (self._new or self._served).popleft()
            below = self._below[name]
            if below.waiting:
                break
            del self._below[name]
        key = below.take()
        if self.waiting:
            self._served.append(name)
        else:  # nobody is left who could have waited longer
            self._below.clear()
            self._new.clear()
            self._served.clear()
        return key


class Lanes:
    """Lanes live in the task group they are given and end with it.

    Lanes that wait for a slot are started by turns: the principals first, then the sessions of each.
    So neither a session with a thousand messages nor a token with a thousand sessions holds anybody
    else up for longer than the turn that frees a slot.
    """

    def __init__(self, group: TaskGroup, *, width: int) -> None:
        self._group = group
        self._width = width
        self._queues: dict[SessionKey, deque[tuple[Share, Work]]] = {}
        self._waiting = Rotation()
        self._working = 0
        self._at_work: dict[Hashable, int] = {}  # by the first name of their share
        self._paused = False
        self._idle = anyio.Event()

    def is_idle(self, key: SessionKey, *, spoken_for: int = 0) -> bool:
        """Whether a message of this session would start at once, when so many others are about to."""
        room = self._width - self._working - spoken_for
        return key not in self._queues and room > 0 and not self._waiting.waiting

    @property
    def working(self) -> int:
        return self._working

    def submit(self, key: SessionKey, work: Work, share: Share) -> None:
        """`share`: as whose turn it counts."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.append((share, work))
            return
        self._queues[key] = deque([(share, work)])
        if self._working < self._width and not self._waiting.waiting and not self._paused:
            self._start(key, share)
        else:
            self._line_up(key, share)

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

    def _line_up(self, key: SessionKey, share: Share) -> None:
        self._waiting.put(key, share, is_new=share[0] not in self._at_work)

    def _fill(self) -> None:
        while self._waiting.waiting and self._working < self._width and not self._paused:
            key = self._waiting.take()
            self._start(key, self._queues[key][0][0])

    def _start(self, key: SessionKey, share: Share) -> None:
        self._working += 1
        self._at_work[share[0]] = self._at_work.get(share[0], 0) + 1
        self._group.start_soon(self._one, key)

    async def _one(self, key: SessionKey) -> None:
        queue = self._queues[key]
        share, work = queue.popleft()
        try:
            await work()
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
            if queue:
                self._line_up(key, queue[0][0])  # while it still counts as one that had a turn
            else:
                del self._queues[key]
            self._working -= 1
            self._at_work[share[0]] -= 1
            if not self._at_work[share[0]]:
                del self._at_work[share[0]]
            self._fill()
            if not self._working:
                self._idle.set()
