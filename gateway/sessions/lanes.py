"""Lanes: the turns of one session run in order, those of several sessions side by side, within bounds.

`SessionQueues` decides which waiting messages one turn answers."""

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
from gateway.domain.supervision import contain, result_of
from gateway.sessions.runs import LiveRun

Work = Callable[[], Awaitable[None]]


class Rotation:
    """Sessions that wait for a slot. Names take turns, below each name the names of the next level, and
    under the last name the sessions. The cost of `put` and `pop` does not depend on the number waiting.

    A new name goes once before names that had a turn. A name leaves the rotation when its turn comes
    and nothing waits under it.
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
        """Returns the next session. Something must wait."""
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
        else:  # no order is left to keep
            self._below.clear()
            self._new.clear()
            self._served.clear()
        return key


class Lanes:
    """The lanes of all sessions. They run in the given task group and end with it.

    Principals take turns for a free slot, then the sessions of each principal. So a session with a
    thousand messages, or a token with a thousand sessions, delays others by one turn at most.
    """

    def __init__(self, group: TaskGroup, *, width: int) -> None:
        self._group = group
        self._width = width
        self._queues: dict[SessionKey, deque[tuple[Share, Work]]] = {}
        self._waiting = Rotation()
        self.working = 0
        self._at_work = Counter[Hashable]()  # turns by the first name of their share
        self._paused = False
        self._idle: anyio.Event | None = None  # set while `wait_idle` waits

    def is_idle(self, key: SessionKey, *, reserved: int = 0) -> bool:
        """True if a message of this session would start at once. `reserved` slots are promised to others."""
        room = self._width - self.working - reserved
        return key not in self._queues and room > 0 and not self._waiting.waiting

    def submit(self, key: SessionKey, work: Work, share: Share) -> None:
        """Queues work for a session. `share` names the principal whose turn it counts as."""
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
        """Sets the number of slots. A smaller number takes effect as turns end."""
        self._width = width
        self._fill()

    def beside(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts a task that takes no slot."""
        self._group.start_soon(contain, "beside a lane", task)

    def pause(self) -> None:
        """Starts no more turns. Running turns continue."""
        self._paused = True

    async def wait_idle(self) -> None:
        """Waits until no turn is running."""
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
            # The work reports failures of its message. A failure here is a defect of the gateway.
            await result_of("lane_failed", {"session": str(key)}, work)
            is_cancelled = False
        finally:
            self._paused = self._paused or is_cancelled  # the whole group is cancelled
            if queue:
                self._wait(key, queue[0][0])  # before the share leaves `_at_work`: it is not new
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
        """Starts waiting lanes while there are free slots."""
        while self._waiting.waiting and self.working < self._width and not self._paused:
            key = self._waiting.pop()
            self._start(key, self._queues[key][0][0])


MOST_KNOWN = 4096  # choices of sessions in memory; the oldest is dropped
MOST_TOGETHER = 50  # messages of one turn
MOST_CHARACTERS = 400_000  # of those messages
LONGEST_WAIT = 10  # times `debounce_s`


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The handling of messages that arrive while their session has a turn."""

    mode: QueueMode = "followup"
    debounce_s: float = 0.0


@dataclass(slots=True)
class TurnBatch:
    """The messages that one turn answers. `run` carries the turn; the questions of `earlier` runs come
    before its own. The turn may take messages that wait `behind` it; it `took` these. All these runs
    end together."""

    run: LiveRun
    earlier: Sequence[LiveRun] = ()
    behind: Iterable[LiveRun] = ()
    model: str | None = None  # chosen for this session
    took: Sequence[LiveRun] = ()
    crowded: AgentDef | None = None  # set if the history exceeds this agent's rules: compact it
    most_nodes: int = 0  # bound of the session's conversation tree
    has_claimed: bool = True  # False: the run certainly claimed no notices


WorkOn = Callable[[TurnBatch], Awaitable[None]]


@dataclass(slots=True)
class _Queue:
    waiting: deque[LiveRun] = field(default_factory=deque)
    at_work: Sequence[LiveRun] = ()  # the last one carries the turn
    newest: float = 0.0  # arrival of the last message
    together: int = 0  # number of the first messages, which came within one debounce


class SessionQueues:
    """One queue a session. A turn answers its first message, and as many more as the policy says.

    A begun run is never merged into another. So a queued message before a begun run was merged into
    that run by an earlier process, and is merged again: nothing is done twice.
    """

    def __init__(self, lanes: Lanes, work: WorkOn, clock: Clock, policy: QueuePolicy) -> None:
        self._lanes, self._work, self._clock, self._policy = lanes, work, clock, policy
        self._queues: dict[SessionKey, _Queue] = {}
        self._choices: dict[SessionKey, SessionChoice] = {}

    def renew(self, work: WorkOn, policy: QueuePolicy) -> None:
        """Replaces work and policy for the turns that begin from now on."""
        self._work, self._policy = work, policy

    def choice(self, key: SessionKey) -> SessionChoice:
        return self._choices.get(key, NO_CHOICE)

    def choose(self, key: SessionKey, choice: SessionChoice) -> None:
        """Stores a choice, unless a later one is known."""
        if choice.change < self.choice(key).change:
            return
        self._choices.pop(key, None)
        self._choices[key] = choice
        if len(self._choices) > MOST_KNOWN:
            del self._choices[next(iter(self._choices))]

    def mode(self, key: SessionKey) -> QueueMode:
        return self.choice(key).mode or self._policy.mode

    def load(self, key: SessionKey) -> tuple[int, int]:
        """Returns how many messages of a session are running, and how many wait."""
        queue = self._queues.get(key, _Queue())
        return len(queue.at_work), len(queue.waiting)

    def join(self, one: LiveRun, *, wait: bool = True) -> None:
        """Adds a message to its session's queue. Without `wait` there is no debounce."""
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
        """Removes and returns the waiting messages of these sessions. Running turns continue, and keep the
        messages that they took unless `with_taken`."""
        withdrawn = list[LiveRun]()
        for queue in [queue for key, queue in self._queues.items() if is_lost(key)]:
            waiting = [*queue.waiting]
            queue.waiting.clear()
            for one in waiting:
                stays = self._is_taken(one, queue) and not with_taken
                (queue.waiting if stays else withdrawn).append(one)
        return withdrawn

    def _is_taken(self, one: LiveRun, queue: _Queue) -> bool:
        """True if the running turn has taken the message; else withdraws the offer."""
        return one.is_offered and not queue.at_work[-1].control.withdraw(one.run_id)

    def stop(self, run: LiveRun, *, at_once: bool) -> None:
        """Stops a run. A waiting run ends when its turn comes. If the running turn has taken the message,
        that turn is stopped."""
        queue = self._queues.get(run.session_key, _Queue())
        for one in (*queue.at_work, *queue.waiting):
            if one is run:
                one.stop("cancelled", at_once=at_once)
                if self._is_taken(one, queue):
                    queue.at_work[-1].stop("cancelled", at_once=at_once)

    def stop_all(self, key: SessionKey) -> int:
        """Stops every run of a session. Returns how many."""
        queue = self._queues.get(key, _Queue())
        runs = (*queue.at_work, *queue.waiting)
        for run in runs:
            self.stop(run, at_once=True)
        return len(runs)

    async def _settle(self, key: SessionKey, queue: _Queue) -> None:
        """Waits until no message has come for `debounce_s`, at most LONGEST_WAIT times as long."""
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
        else:  # all were withdrawn
            del self._queues[key]
            return
        queue.at_work = asked
        *earlier, run = asked
        for one in earlier:
            one.control = run.control  # stopping one of them stops the turn
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
                if one.ended:  # the turn answered it too
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
        """Offers the waiting messages to the running turn, in order, until one does not fit. A resumed run
        takes only the messages that it took before, so that none overtakes another."""
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
    """True if one turn may answer the message too: same person, thread and limits. Tools act for one
    person, so each person's messages get their own turn."""
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
