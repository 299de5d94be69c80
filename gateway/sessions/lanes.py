"""One lane a session: in order inside, side by side across, bounds on both, and which messages one turn answers."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from gateway.agent.effects import Steered
from gateway.domain.agents import AgentDef, Share, speaker_in
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import Entry, NewEntry, QueueMode
from gateway.domain.messages import DoneReason
from gateway.domain.ports import Clock
from gateway.domain.supervision import contained, survives
from gateway.sessions.runs import LiveRun

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


MOST_KNOWN = 4096  # sessions; beyond it the oldest choice is forgotten


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """None: as it is configured."""

    model: str | None = None
    mode: QueueMode | None = None


NOTHING = SessionChoice()


@dataclass(slots=True)
class SessionChoices:
    _known: dict[SessionKey, SessionChoice] = field(default_factory=dict)

    def of(self, key: SessionKey) -> SessionChoice:
        return self._known.get(key, NOTHING)

    def choose_model(self, key: SessionKey, model: str | None) -> None:
        self._put(key, replace(self.of(key), model=model))

    def choose_mode(self, key: SessionKey, mode: QueueMode) -> None:
        self._put(key, replace(self.of(key), mode=mode))

    def forget(self, key: SessionKey) -> None:
        self._known.pop(key, None)

    def _put(self, key: SessionKey, choice: SessionChoice) -> None:
        self._known[key] = choice
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


# Of the messages that one turn answers.
MOST_TOGETHER = 50
MOST_CHARACTERS = 400_000
LONGEST_WAIT = 10  # times `debounce_s`, however many come


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What becomes of messages that come before their session's turn is over."""

    mode: QueueMode = "followup"
    debounce_s: float = 0.0


@dataclass(slots=True)
class QueuedMessage:
    """An accepted message until its end. `leave` is called when it has ended."""

    entry: Entry
    run: LiveRun
    leave: Callable[[], None]
    share: Share
    is_stopped: bool = False
    is_offered: bool = False  # to the turn that is at work

    def stop(self, reason: DoneReason, *, at_once: bool) -> None:
        self.is_stopped = True
        self.run.control.stop(reason, at_once=at_once)


def person_of(new: NewEntry) -> str:
    """Whose settings apply, and whom a tool is told of."""
    return speaker_in(new.session_key, new.sender)


class TurnBatch:
    """What one turn answers, oldest first: the newest of `asked` carries it. Of the messages that wait
    `behind`, it may have `taken` some on its way."""

    __slots__ = (
        "asked",
        "behind",
        "crowds",
        "entry",
        "model",
        "most_nodes",
        "person",
        "run",
        "taken",
    )

    def __init__(
        self,
        asked: Sequence[QueuedMessage],
        behind: Callable[[], Sequence[QueuedMessage]] = tuple,
        model: str | None = None,
    ) -> None:
        self.asked, self.behind = asked, behind
        self.entry, self.run = asked[-1].entry, asked[-1].run
        self.person = person_of(self.entry.new)
        self.model = model  # that was chosen for this session
        self.taken: Sequence[QueuedMessage] = ()
        self.crowds: AgentDef | None = None  # whose rules want less than it had to show
        self.most_nodes = 0  # of the tree that its answer goes into

    def take(self, runs: Sequence[RunId]) -> None:
        if runs:
            waiting = {one.run.run_id: one for one in self.behind()}
            self.taken = [waiting[run] for run in runs if run in waiting]

    @property
    def merged(self) -> Sequence[QueuedMessage]:
        """The messages whose end is that of the carrier."""
        return (*self.asked[:-1], *self.taken)


WorkOn = Callable[[TurnBatch], Awaitable[None]]


@dataclass(slots=True)
class _Line:
    waiting: deque[QueuedMessage] = field(default_factory=deque)
    at_work: Sequence[QueuedMessage] = ()
    newest: float = 0.0  # when the last one came
    together: int = 0  # so many of the first came within one wait


class SessionQueues:
    """One line a session; a lane's turn answers its head, and as many more as the manner says.

    A message whose run has begun is never put together with others, so an unbegun one that is
    found before a begun one was merged into it by an earlier process, and is so again: what that
    run has done is not done twice.
    """

    def __init__(self, lanes: Lanes, work: WorkOn, clock: Clock, manner: QueuePolicy) -> None:
        self._lanes, self._work, self._clock, self._manner = lanes, work, clock, manner
        self._lines: dict[SessionKey, _Line] = {}
        self.choices = SessionChoices()

    def mode(self, key: SessionKey) -> QueueMode:
        return self.choices.of(key).mode or self._manner.mode

    def load(self, key: SessionKey) -> tuple[int, int]:
        """How many messages of a session are at work, and how many wait."""
        line = self._lines.get(key, _Line())
        return len(line.at_work), len(line.waiting)

    def join(self, one: QueuedMessage, *, wait: bool = True) -> None:
        """Puts a message behind those of its session; without `wait` its turn may come at once."""
        key = one.run.session_key
        is_first = key not in self._lines
        line = self._lines.setdefault(key, _Line())
        line.newest = self._clock.monotonic()
        if not is_first:
            self._meet(line, one)
            return
        line.waiting.append(one)
        if wait and self._manner.debounce_s:
            self._lanes.beside(partial(self._settle, key, line))
        else:
            self._lanes.submit(key, partial(self._turn, key, line), one.share)

    def _meet(self, line: _Line, one: QueuedMessage) -> None:
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
                if one.is_offered and not line.at_work[-1].run.control.withdraw(run.run_id):
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
        batch = TurnBatch(self._next(key, line), lambda: line.waiting, self.choices.of(key).model)
        line.at_work = batch.asked
        for one in batch.asked:
            one.run.control = batch.run.control  # to stop one of them is to stop the turn
        if line.waiting:
            self._offer(line)
        try:
            await self._work(batch)
        finally:
            line.at_work = ()
            for one in batch.asked:
                one.leave()
            if line.waiting:
                self._go_on(key, line)
            else:
                del self._lines[key]

    def _go_on(self, key: SessionKey, line: _Line) -> None:
        """With who waits and was not answered along with the turn that has ended."""
        for one in line.waiting:
            one.is_offered = False
            if one.run.ended:
                one.leave()
        line.waiting = deque([one for one in line.waiting if not one.run.ended])
        if line.waiting:
            self._lanes.submit(key, partial(self._turn, key, line), line.waiting[0].share)
        else:
            del self._lines[key]

    def _next(self, key: SessionKey, line: _Line) -> Sequence[QueuedMessage]:
        waiting = line.waiting
        if len(waiting) == 1:
            line.together = 0
            return [waiting.popleft()]
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
                said = Steered(one.run.run_id, one.entry.new.content)
                one.is_offered = _fits(had, one) and carrier.run.control.steer(said)
            if not one.is_offered:
                return
            had.append(one)


def _is_resumed(entry: Entry) -> bool:
    return entry.state == "queued" and entry.attempts > 0


def _fits(batch: Sequence[QueuedMessage], one: QueuedMessage) -> bool:
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
