"""How a driver waits for what happens, and in which order it tells it: for real here, and from a tape
where a run is replayed."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from gateway.agent.job import Job
from gateway.agent.wishes import Told


@dataclass(slots=True)
class News:
    """What has happened and was not told yet."""

    items: deque[Told] = field(default_factory=deque)
    came: anyio.Event = field(default_factory=anyio.Event)

    def put(self, told: Told) -> None:
        self.items.append(told)
        self.came.set()

    def expect(self) -> None:
        self.came = anyio.Event()


class Pace:
    """In real time."""

    async def begins(self, job: Job, scene: Mapping[str, object]) -> None:
        """The run begins; `scene` is what decides over it besides the job, plain."""

    async def wait(self, news: News, seconds: float) -> bool:
        """Until there is something to tell, or to do; False: not within that time."""
        if news.items:
            return True
        news.expect()
        with anyio.move_on_after(seconds):
            await news.came.wait()
            return True
        return False

    def tells(self, told: Sequence[Told]) -> None:
        """The turn is told this now."""

    def ends(self) -> None:
        """Nothing more will be told."""
