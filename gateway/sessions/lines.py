"""Who waits in each session, which of them one turn answers, and what a message does to the others."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gateway.agent.reins import Said
from gateway.domain.agents import AgentDef
from gateway.domain.bindings import Share
from gateway.domain.chunks import DoneReason
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import Entry, QueueMode
from gateway.domain.ports import Clock
from gateway.sessions.choices import Choices
from gateway.sessions.lanes import Lanes
from gateway.sessions.runs import LiveRun

# Of the messages that one turn answers.
MOST_TOGETHER = 50
MOST_CHARACTERS = 400_000
LONGEST_WAIT = 10  # times `debounce_s`, however many come


@dataclass(frozen=True, slots=True)
class Manner:
    """What becomes of messages that come before their session's turn is over."""

    mode: QueueMode = "followup"
    debounce_s: float = 0.0


@dataclass(slots=True)
class Waiting:
    """An accepted message until its end. `leave` is called when it has ended."""

    entry: Entry
    run: LiveRun
    leave: Callable[[], None]
    share: Share
    is_stopped: bool = False
    is_offered: bool = False  # to the turn that is at work

    def stop(self, reason: DoneReason, *, at_once: bool) -> None:
        self.is_stopped = True
        self.run.reins.stop(reason, at_once=at_once)


@dataclass(slots=True)
class Batch:
    """What one turn answers, oldest first: the newest of `asked` carries it. Of those who wait
    `behind`, it may have `taken` some on its way."""

    asked: Sequence[Waiting]
    behind: Callable[[], Sequence[Waiting]] = tuple
    taken: Sequence[Waiting] = ()
    crowds: AgentDef | None = None  # whose rules want less than it had to show
    most_nodes: int = 0  # of the tree that its answer goes into
    model: str | None = None  # that was chosen for this session

    @property
    def entry(self) -> Entry:
        return self.asked[-1].entry

    @property
    def run(self) -> LiveRun:
        return self.asked[-1].run

    def take(self, runs: Sequence[RunId]) -> None:
        waiting = {one.run.run_id: one for one in self.behind()}
        self.taken = [waiting[run] for run in runs if run in waiting]

    @property
    def merged(self) -> Sequence[Waiting]:
        """Those whose end is that of the carrier."""
        return (*self.asked[:-1], *self.taken)


WorkOn = Callable[[Batch], Awaitable[None]]


@dataclass(slots=True)
class _Line:
    waiting: deque[Waiting] = field(default_factory=deque)
    at_work: Sequence[Waiting] = ()
    newest: float = 0.0  # when the last one came
    together: int = 0  # so many of the first came within one wait


class Lines:
    """One line a session; a lane's turn answers its head, and as many more as the manner says.

    A message whose run has begun is never put together with others, so an unbegun one that is
    found before a begun one was merged into it by an earlier process, and is so again: what that
    run has done is not done twice.
    """

    def __init__(self, lanes: Lanes, work: WorkOn, clock: Clock, manner: Manner) -> None:
        self._lanes, self._work, self._clock, self._manner = lanes, work, clock, manner
        self._lines: dict[SessionKey, _Line] = {}
        self.choices = Choices()

    def mode(self, key: SessionKey) -> QueueMode:
        return self.choices.of(key).mode or self._manner.mode

    def load(self, key: SessionKey) -> tuple[int, int]:
        """How many messages of a session are at work, and how many wait."""
        line = self._lines.get(key, _Line())
        return len(line.at_work), len(line.waiting)

    def join(self, one: Waiting, *, wait: bool = True) -> None:
        """Puts a message behind those of its session; without `wait` its turn may come at once."""
        key = one.run.session_key
        is_first = key not in self._lines
        line = self._lines.setdefault(key, _Line())
        line.newest = self._clock.monotonic()
        self._meet(line, one)
        if is_first and wait and self._manner.debounce_s:
            self._lanes.beside(partial(self._settle, key, line))
        elif is_first:
            self._lanes.submit(key, partial(self._turn, key, line), one.share)

    def _meet(self, line: _Line, one: Waiting) -> None:
        if self.mode(one.run.session_key) == "interrupt":
            for other in (*line.at_work[-1:], *line.waiting):
                other.stop("superseded", at_once=True)
        line.waiting.append(one)
        if line.at_work:
            self._offer(line)

    def stop(self, run: LiveRun, *, at_once: bool) -> None:
        """A run that waits ends when its turn comes. One that a turn at work has taken over ends
        with that turn, which is stopped."""
        line = self._lines.get(run.session_key, _Line())
        for one in (*line.at_work, *line.waiting):
            if one.run is run:
                one.stop("cancelled", at_once=at_once)
                if one.is_offered and not line.at_work[-1].run.reins.unsay(run.run_id):
                    line.at_work[-1].stop("cancelled", at_once=at_once)

    def stop_all(self, key: SessionKey) -> int:
        """Stops every run of a session; gives how many."""
        line = self._lines.get(key, _Line())
        runs = [one.run for one in (*line.at_work, *line.waiting)]
        for run in runs:
            self.stop(run, at_once=True)
        return len(runs)

    async def _settle(self, key: SessionKey, line: _Line) -> None:
        """Waits until nobody has come for a while, but not for ever."""
        wait, now = self._manner.debounce_s, self._clock.monotonic
        latest = now() + LONGEST_WAIT * wait
        while (rest := min(line.newest + wait, latest) - now()) > 0:
            await self._clock.sleep(rest)
        line.together = len(line.waiting)
        self._lanes.submit(key, partial(self._turn, key, line), line.waiting[0].share)

    async def _turn(self, key: SessionKey, line: _Line) -> None:
        model = self.choices.of(key).model
        batch = Batch(self._next(key, line), lambda: line.waiting, model=model)
        line.at_work = batch.asked
        for one in batch.asked:
            one.run.reins = batch.run.reins  # to stop one of them is to stop the turn
        self._offer(line)
        try:
            await self._work(batch)
        finally:
            line.at_work = ()
            gone = [*batch.asked, *(one for one in line.waiting if one.run.ended)]
            line.waiting = deque(one for one in line.waiting if not one.run.ended)
            for one in gone:
                one.leave()
            for one in line.waiting:
                one.is_offered = False
            if line.waiting:
                self._lanes.submit(key, partial(self._turn, key, line), line.waiting[0].share)
            else:
                del self._lines[key]

    def _next(self, key: SessionKey, line: _Line) -> Sequence[Waiting]:
        waiting = line.waiting
        begun = (place for place, one in enumerate(waiting, 1) if one.entry.attempts)
        usual = len(waiting) if self.mode(key) == "collect" else line.together
        most = next(begun, usual)
        batch = [waiting.popleft()]
        while waiting and len(batch) < most and _fits(batch, waiting[0]):
            batch.append(waiting.popleft())
        line.together = max(0, line.together - len(batch))
        return batch

    def _offer(self, line: _Line) -> None:
        """Lets the turn that is at work have those who wait, as far as they fit, in order. One that
        an earlier process began takes again what it took, and nobody else: none must overtake."""
        carrier = line.at_work[-1]
        if self.mode(carrier.run.session_key) != "steer" or _is_resumed(carrier.entry):
            return
        had = list(line.at_work)
        for one in line.waiting:
            if not one.is_offered:
                said = Said(one.run.run_id, one.entry.new.content)
                one.is_offered = _fits(had, one) and carrier.run.reins.say(said)
            if not one.is_offered:
                return
            had.append(one)


def _is_resumed(entry: Entry) -> bool:
    return entry.state == "queued" and entry.attempts > 0


def _fits(batch: Sequence[Waiting], one: Waiting) -> bool:
    """Whether one turn may answer it as well: for the same person, in the same thread, within the
    same limit. Tools act for one person, so that of others are answered by themselves."""
    first, new = batch[0].entry.new, one.entry.new
    size = sum(len(other.entry.new.content) for other in batch) + len(new.content)
    return (
        len(batch) < MOST_TOGETHER
        and size <= MOST_CHARACTERS
        and first.context_id is None
        and new.context_id is None
        and (first.sender, first.limits, first.whither) == (new.sender, new.limits, new.whither)
        and not (batch[-1].is_stopped or one.is_stopped)
    )
