"""A place on a tape: whoever waits for a mark gets it when its turn comes, and what others did to the
run is done again."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NoReturn

import anyio
from anyio.lowlevel import checkpoint

from gateway.agent.job import Job
from gateway.agent.pace import News, Pace
from gateway.agent.reins import Reins, Said
from gateway.agent.wishes import Told
from gateway.domain.tape import Mark, MarkKind, Tape
from gateway.domain.times import EPOCH, to_time
from gateway.sessions.asked import Difference, Parts, parted, parts_at, unequal
from gateway.sessions.taping import TapeUnreadable, damaged, names

STALL_S = 1.0  # side by side, another's mark may come first; but not for so long
_NOTHING = Mark("over")
_CLOCKS = frozenset({"now", "tick"})
_UNREAD = frozenset({"bytes", "end"})  # of an answer that nobody read to its end
# What may be left over in front of a mark: it is not asked for any more.
_LEFT: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("sent", "metered", "reply", "failed", "refused"), _UNREAD),
    "kept": frozenset({"remembered"}),
    "begin": frozenset({"kept", "remembered"}),
}
OTHERS = frozenset({"stop", "said", "unsaid"})  # what others did to the run
# Whoever is stopped may go one step further.
_UNHEARD = _UNREAD | OTHERS | {"sent", "spent", "over"}

Part = Callable[[Difference | TapeUnreadable], None]


class ReplayedClock:
    """Implements the Clock port: what the clocks said between two marks, in its order; whoever reads
    them more often gets the last again."""

    def __init__(self) -> None:
        self._now, self._tick = EPOCH, 0.0
        self._nows: deque[datetime] = deque()
        self._ticks: deque[float] = deque()

    def now(self) -> datetime:
        if self._nows:
            self._now = self._nows.popleft()
        return self._now

    def monotonic(self) -> float:
        if self._ticks:
            self._tick = self._ticks.popleft()
        return self._tick

    async def sleep(self, seconds: float) -> None:
        await checkpoint()

    def take(self, marks: Sequence[Mark], place: int) -> int:
        """What they said from that place on; gives the place after it."""
        self._now = self._nows[-1] if self._nows else self._now
        self._tick = self._ticks[-1] if self._ticks else self._tick
        self._nows.clear()
        self._ticks.clear()
        while place < len(marks) and marks[place].kind in _CLOCKS:
            mark = marks[place]
            if mark.kind == "now":
                self._nows.append(to_time(mark.values[0]))
            else:
                self._ticks.append(mark.values[0])
            place += 1
        return place


class Player(Pace):
    """The pace of a run that is replayed. `part` is told where the run leaves the tape, or what is
    wrong with it; the replay ends there."""

    def __init__(self, tape: Tape, reins: Reins, part: Part, soul: str) -> None:
        self._marks = tape.marks
        self._reins, self._part, self._soul = reins, part, soul
        self._parts = Parts()
        self._moved = anyio.Event()
        self._ends_unread = 0
        self.clock = ReplayedClock()
        self._place = self.clock.take(self._marks, 0)

    # -- the tape

    def coming(self) -> Iterator[Mark]:
        """The marks from here on, without the clocks."""
        rest = (self._marks[place] for place in range(self._place, len(self._marks)))
        return (mark for mark in rest if mark.kind not in _CLOCKS)

    async def reach(self, *kinds: MarkKind, key: tuple[object, ...] = ()) -> Mark:
        """The next mark, when it is of one of these kinds and its values begin so. Does not wait if
        it is there already."""
        while True:
            mark = self._next()
            if mark.kind in kinds and mark.values[: len(key)] == key:
                self.advance()
                return mark
            if mark.kind in _LEFT.get(kinds[0], ()):
                self.advance()
            else:
                await self._wait(" or ".join(kinds))

    def advance(self) -> None:
        self._place = self.clock.take(self._marks, self._place + 1)
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    def forget_end(self) -> None:
        """Of an answer that nobody reads any more; it may stand a little further on."""
        self._ends_unread += 1
        self._skip_ends()

    def _skip_ends(self) -> None:
        while self._ends_unread and next(self.coming(), _NOTHING).kind == "end":
            self._ends_unread -= 1
            self.advance()

    async def cut(self) -> NoReturn:
        """What becomes of a call that has no end: its time was over, or nobody wanted it any more."""
        for mark in self.coming():
            if mark.kind == "told" and "ModelBroke" in mark.values[0]:
                raise TimeoutError
            if mark.kind in {"ask", "over"}:
                break
        while True:
            self._next()
            await self._wait("the end of a call")

    async def leave(self, difference: Difference | TapeUnreadable) -> NoReturn:
        self._part(difference)
        await anyio.sleep_forever()
        raise AssertionError("the replay has ended")

    def _next(self) -> Mark:
        """The next mark. What others did before it is done."""
        self._skip_ends()
        while (mark := next(self.coming(), _NOTHING)).kind in OTHERS:
            self.advance()
            match mark:
                case Mark("stop", (reason, at_once)):
                    self._reins.stop(reason, at_once=at_once)
                case Mark("said", (run_id, text)):
                    self._reins.say(Said(run_id, text))
                case _:
                    self._reins.unsay(mark.values[0])
        return mark

    async def _wait(self, wanted: str, news: News | None = None) -> None:
        """Until something else has had its turn."""
        with anyio.move_on_after(STALL_S) as scope:
            if news is None:
                await self._moved.wait()
            else:
                await _either(self._moved, news.came)
        if scope.cancelled_caught:
            found = next(self.coming(), _NOTHING).kind
            await self.leave(Difference("the order of what happened", found, wanted))

    # -- what the driver asks of it

    async def begins(self, job: Job, scene: Mapping[str, object]) -> None:
        recorded, parts = (await self.reach("begin")).values
        if (difference := unequal(recorded, scene)) is not None:
            await self.leave(difference)
        await self.compare("call 1", parts, parts_at(job))

    async def compare(self, call: str, told: Mapping[str, object], now: Parts) -> None:
        """What is asked, with what was; `told` is how it stands on the tape."""
        try:
            self._parts = self._parts.then(told)
        except ValueError as error:
            await self.leave(damaged(error))
        if (difference := parted(call, self._parts, now, self._soul)) is not None:
            await self.leave(difference)

    async def wait(self, news: News, seconds: float) -> bool:
        while True:
            news.expect()
            mark = self._next()
            if mark.kind == "told" and mark.values[0] == names(news.items):
                return True
            if mark.kind == "late":
                self.advance()
                return False
            await self._wait("something to tell", news)

    def tells(self, told: Sequence[Told]) -> None:
        mark = next(self.coming(), _NOTHING)
        if mark.kind == "told" and mark.values[0] == names(told):
            self.advance()
        else:
            self._part(Difference("what the turn is told", mark.kind, names(told)))

    def ends(self) -> None:
        """All that was told has been told again, but for what nobody heard any more."""
        for mark in self.coming():
            if mark.kind not in _UNHEARD:
                self._part(Difference("the order of what happened", mark.kind, "the end"))
                break
            self.advance()
            if mark.kind == "over":
                break


async def _either(one: anyio.Event, other: anyio.Event) -> None:
    async with anyio.create_task_group() as group:

        async def until(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(until, one)
        group.start_soon(until, other)
