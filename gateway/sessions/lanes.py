"""One lane a session: in order inside, side by side across, bounds on both, and which messages one turn answers."""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from gateway.agent.effects import Steered
from gateway.domain.agents import AgentDef, Share
from gateway.domain.ids import SessionKey
from gateway.domain.inbox import NO_CHOICE, QueueMode, SessionChoice
from gateway.domain.ports import Clock
from gateway.domain.supervision import contained, result_of
from gateway.sessions.runs import LiveRun

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

    def pop(self) -> SessionKey:
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
        key = below.pop()
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
        self.working = 0
        self._at_work = Counter[Hashable]()  # by the first name of their share
        self._paused = False
        self._idle: anyio.Event | None = None  # of whoever waits until nothing is at work

    def is_idle(self, key: SessionKey, *, reserved: int = 0) -> bool:
        """Whether a message of this session would start at once, when so many others are about to."""
        room = self._width - self.working - reserved
        return key not in self._queues and room > 0 and not self._waiting.waiting

    def submit(self, key: SessionKey, work: Work, share: Share) -> None:
        """`share`: as whose turn it counts."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.append((share, work))
            return
        self._queues[key] = deque([(share, work)])
        if self.working < self._width and not self._waiting.waiting and not self._paused:
            self._start(key, share)
        else:
            self._wait(key, share)

    def widen(self, width: int) -> None:
        """From now on so many are at work at a time; fewer take effect as turns end."""
        self._width = width
        self._fill()

    def beside(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Something that takes no slot."""
        self._group.start_soon(contained, "beside a lane", task)

    def pause(self) -> None:
        """Starts nothing more; what is at work goes on."""
        self._paused = True

    async def wait_idle(self) -> None:
        """Waits until nothing is at work."""
        while self.working:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _wait(self, key: SessionKey, share: Share) -> None:
        self._waiting.put(key, share, is_new=share[0] not in self._at_work)

    def _start(self, key: SessionKey, share: Share) -> None:
        self.working += 1
        self._at_work[share[0]] += 1
        self._group.start_soon(self._one, key)

    async def _one(self, key: SessionKey) -> None:
        queue = self._queues[key]
        share, work = queue.popleft()
        is_cancelled = True
        try:
            # A message's own trouble is told by its work; what still fails here is a defect of ours.
            await result_of("lane_failed", {"session": str(key)}, work)
            is_cancelled = False
        finally:
            self._paused = self._paused or is_cancelled  # with the whole group
            if queue:
                self._wait(key, queue[0][0])  # while it still counts as one that had a turn
            else:
                del self._queues[key]
            self.working -= 1
            self._at_work[share[0]] -= 1
            if not self._at_work[share[0]]:
                del self._at_work[share[0]]
            if self._waiting.waiting:
                self._fill()
            if not self.working and self._idle is not None:
                self._idle.set()

    def _fill(self) -> None:
        """Starts those that wait, as far as there is room."""
        while self._waiting.waiting and self.working < self._width and not self._paused:
            following = self._waiting.pop()
            self._start(following, self._queues[following][0][0])


MOST_KNOWN = 4096  # sessions; beyond it the oldest choice is forgotten


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
class TurnBatch:
    """What one turn answers: the question of the run that carries it, after those of `earlier` runs. Of
    the messages that wait `behind`, it may take some on its way, which it `took` then. The runs of
    others end with that of the carrier."""

    run: LiveRun
    earlier: Sequence[LiveRun] = ()
    behind: Iterable[LiveRun] = ()
    model: str | None = None  # that was chosen for this session
    took: Sequence[LiveRun] = ()
    crowded: AgentDef | None = None  # whose rules want less than it had to show
    most_nodes: int = 0  # of the tree that its answer goes into
    has_claimed: bool = True  # notices, or it may have


WorkOn = Callable[[TurnBatch], Awaitable[None]]


@dataclass(slots=True)
class _Queue:
    waiting: deque[LiveRun] = field(default_factory=deque)
    at_work: Sequence[LiveRun] = ()  # the last one carries the turn
    newest: float = 0.0  # when the last one came
    together: int = 0  # so many of the first came within one wait


class SessionQueues:
    """One queue a session; a lane's turn answers its head, and as many more as the policy says.

    A message whose run has begun is never put together with others, so an unbegun one that is
    found before a begun one was merged into it by an earlier process, and is so again: what that
    run has done is not done twice.
    """

    def __init__(self, lanes: Lanes, work: WorkOn, clock: Clock, policy: QueuePolicy) -> None:
        self._lanes, self._work, self._clock, self._policy = lanes, work, clock, policy
        self._queues: dict[SessionKey, _Queue] = {}
        self._choices: dict[SessionKey, SessionChoice] = {}

    def renew(self, work: WorkOn, policy: QueuePolicy) -> None:
        """From now on turns are begun so."""
        self._work, self._policy = work, policy

    def choice(self, key: SessionKey) -> SessionChoice:
        """What was chosen for this session."""
        return self._choices.get(key, NO_CHOICE)

    def choose(self, key: SessionKey, choice: SessionChoice) -> None:
        """Unless a later choice is known."""
        if choice.change < self.choice(key).change:
            return
        self._choices.pop(key, None)
        self._choices[key] = choice
        if len(self._choices) > MOST_KNOWN:
            del self._choices[next(iter(self._choices))]

    def mode(self, key: SessionKey) -> QueueMode:
        return self.choice(key).mode or self._policy.mode

    def load(self, key: SessionKey) -> tuple[int, int]:
        """How many messages of a session are at work, and how many wait."""
        queue = self._queues.get(key, _Queue())
        return len(queue.at_work), len(queue.waiting)

    def join(self, one: LiveRun, *, wait: bool = True) -> None:
        """Puts a message behind those of its session; without `wait` its turn may come at once."""
        key = one.session_key
        queue, now = self._queues.get(key), self._clock.monotonic()
        if queue is None:
            queue = self._queues[key] = _Queue(deque([one]), newest=now)
            if wait and self._policy.debounce_s:
                self._lanes.beside(partial(self._settle, key, queue))
            else:
                self._lanes.submit(key, partial(self._turn, key, queue), one.share)
            return
        queue.newest = now
        if self.mode(key) == "interrupt":
            for other in (*queue.at_work[-1:], *queue.waiting):
                other.stop("superseded", at_once=True)
        queue.waiting.append(one)
        if queue.at_work:
            self._offer(queue)

    def withdraw(
        self, is_lost: Callable[[SessionKey], bool], *, with_taken: bool = False
    ) -> Sequence[LiveRun]:
        """Takes out what waits in these sessions; what is at work goes on, with what it has taken over."""
        withdrawn = list[LiveRun]()
        for queue in [queue for key, queue in self._queues.items() if is_lost(key)]:
            waiting = [*queue.waiting]
            queue.waiting.clear()
            for one in waiting:
                stays = self._is_taken(one, queue) and not with_taken
                (queue.waiting if stays else withdrawn).append(one)
        return withdrawn

    def _is_taken(self, one: LiveRun, queue: _Queue) -> bool:
        """By the turn at work. If not, it is offered to it no more."""
        return one.is_offered and not queue.at_work[-1].control.withdraw(one.run_id)

    def stop(self, run: LiveRun, *, at_once: bool) -> None:
        """A run that waits ends when its turn comes. One that a turn at work has taken over ends
        with that turn, which is stopped."""
        queue = self._queues.get(run.session_key, _Queue())
        for one in (*queue.at_work, *queue.waiting):
            if one is run:
                one.stop("cancelled", at_once=at_once)
                if self._is_taken(one, queue):
                    queue.at_work[-1].stop("cancelled", at_once=at_once)

    def stop_all(self, key: SessionKey) -> int:
        """Stops every run of a session; gives how many."""
        queue = self._queues.get(key, _Queue())
        runs = (*queue.at_work, *queue.waiting)
        for run in runs:
            self.stop(run, at_once=True)
        return len(runs)

    async def _settle(self, key: SessionKey, queue: _Queue) -> None:
        """Waits until nothing has come for a while, but not for ever."""
        wait, now = self._policy.debounce_s, self._clock.monotonic
        latest = now() + LONGEST_WAIT * wait
        while (rest := min(queue.newest + wait, latest) - now()) > 0:
            await self._clock.sleep(rest)
        queue.together = len(queue.waiting)
        if queue.waiting:
            self._lanes.submit(key, partial(self._turn, key, queue), queue.waiting[0].share)
        else:
            del self._queues[key]

    async def _turn(self, key: SessionKey, queue: _Queue) -> None:
        waiting, choice = queue.waiting, self._choices.get(key, NO_CHOICE)
        if len(waiting) > 1:
            asked = self._next(key, queue)
        elif waiting:
            asked, queue.together = [waiting.popleft()], 0
        else:  # they were withdrawn
            del self._queues[key]
            return
        queue.at_work = asked
        *earlier, run = asked
        for one in earlier:
            one.control = run.control  # to stop one of them is to stop the turn
        if waiting:
            self._offer(queue)
        try:
            await self._work(TurnBatch(run, earlier, waiting, choice.model))
        finally:
            queue.at_work = ()
            for one in asked:
                one.leave()
            for one in tuple(waiting):
                one.is_offered = False
                if one.ended:  # it was answered along with the turn
                    waiting.remove(one)
                    one.leave()
            if waiting:
                self._lanes.submit(key, partial(self._turn, key, queue), waiting[0].share)
            else:
                del self._queues[key]

    def _next(self, key: SessionKey, queue: _Queue) -> Sequence[LiveRun]:
        waiting = queue.waiting
        begun = (place for place, one in enumerate(waiting, 1) if one.entry.attempts)
        usual = len(waiting) if self.mode(key) == "collect" else queue.together
        most = next(begun, usual)
        batch = [waiting.popleft()]
        while waiting and len(batch) < most and _fits(batch, waiting[0]):
            batch.append(waiting.popleft())
        queue.together = max(0, queue.together - len(batch))
        return batch

    def _offer(self, queue: _Queue) -> None:
        """Offers those who wait to the turn at work, as far as they fit, in order. A run that an
        earlier process began takes again what it took, and nothing else: none must overtake."""
        carrier = queue.at_work[-1]
        is_resumed = carrier.entry.state == "queued" and carrier.entry.attempts > 0
        if self.mode(carrier.session_key) != "steer" or is_resumed:
            return
        had = list(queue.at_work)
        for one in queue.waiting:
            if not one.is_offered:
                said = Steered(one.run_id, one.new.content)
                one.is_offered = _fits(had, one) and carrier.control.steer(said)
            if not one.is_offered:
                return
            had.append(one)


def _fits(batch: Sequence[LiveRun], one: LiveRun) -> bool:
    """Whether one turn may answer it as well: for the same person, in the same thread, within the
    same limit. Tools act for one person, so that of others are answered by themselves."""
    first, new = batch[0].new, one.new
    size = sum(len(other.new.content) for other in batch) + len(new.content)
    return (
        len(batch) < MOST_TOGETHER
        and size <= MOST_CHARACTERS
        and first.context_id is None
        and new.context_id is None
        and (first.sender, first.limits, first.destination)
        == (new.sender, new.limits, new.destination)
        and not (batch[-1].is_stopped or one.is_stopped)
    )
