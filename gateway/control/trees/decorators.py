"""Nodes over one child, and the loop over a list."""

from collections.abc import Callable
from math import inf

from gateway.control.trees.blackboard import Frame
from gateway.control.trees.calls import Ground, TreeAbort
from gateway.control.trees.nodes import Node, reset, reset_all
from gateway.control.trees.plan import NodePlan
from gateway.control.trees.status import FAILURE, IDLE, RUNNING, SKIPPED, SUCCESS, Status

Test = Callable[[], bool]
Number = Callable[[], float]


class Decorator(Node):
    __slots__ = ("child",)

    def __init__(self, child: Node) -> None:
        super().__init__()
        self.child = child

    def halt(self) -> None:
        reset(self.child)
        self.status = IDLE

    def done(self, status: Status) -> Status:
        reset(self.child)
        self.status = status
        return status


class Mapped(Decorator):
    """Another answer for the child's: invert, force-success, force-failure."""

    __slots__ = ("on_failure", "on_success")

    def __init__(self, child: Node, on_success: Status, on_failure: Status) -> None:
        super().__init__(child)
        self.on_success, self.on_failure = on_success, on_failure

    def tick(self) -> Status:
        self.status = RUNNING
        status = self.child.tick()
        if status is RUNNING or status is SKIPPED:
            return status
        self.child.status = IDLE
        self.status = self.on_success if status is SUCCESS else self.on_failure
        return self.status


class Loop(Decorator):
    """Again while the child gives `goes_on`: SUCCESS for repeat, FAILURE for retry.

    A child that is done in the tick in which it began gives way before it begins again, so that
    a run can be stopped between any two rounds.
    """

    __slots__ = ("count", "goes_on", "ground", "limit", "pause", "resume_at", "until")

    def __init__(self, child: Node, goes_on: Status, ground: Ground) -> None:
        super().__init__(child)
        self.goes_on, self.ground = goes_on, ground
        self.count = 0
        self.limit: Number = lambda: -1
        self.until: Test | None = None
        self.pause: Number | None = None
        self.resume_at = 0.0

    def tick(self) -> Status:
        child = self.child
        self.status = RUNNING
        if self._is_resting():
            return RUNNING
        limit = self.limit()
        if limit < 0:
            limit = inf
        while self.count < limit:
            was = child.status
            status = child.tick()
            if status is RUNNING:
                return RUNNING
            reset(child)
            if status is not self.goes_on:
                return self._ended(status)
            self.count += 1
            if self.until is not None and self.until():
                return self._ended(SUCCESS)
            if self.count < limit and self._gives_way(was):
                return RUNNING
        return self._ended(self._at_limit())

    def _at_limit(self) -> Status:
        return SUCCESS if self.goes_on is SUCCESS and self.until is None else FAILURE

    def _gives_way(self, was: Status) -> bool:
        """Between two rounds."""
        if self.pause is not None:
            self.resume_at = self.ground.now() + self.pause()
            self.ground.timers[self] = self.resume_at
            return True
        if was is IDLE:
            self.ground.wake()
        return was is IDLE

    def _ended(self, status: Status) -> Status:
        if status is not SKIPPED:  # which keeps the count
            self.count = 0
            self.status = status
        return status

    def _is_resting(self) -> bool:
        if not self.resume_at:
            return False
        if self.ground.now() < self.resume_at:
            return True
        self._awake()
        return False

    def _awake(self) -> None:
        self.resume_at = 0.0
        self.ground.timers.pop(self, None)

    def halt(self) -> None:
        self.count = 0
        self._awake()
        super().halt()


class UntilFail(Decorator):
    """RUNNING until the child fails, one round a tick."""

    __slots__ = ("ground",)

    def __init__(self, child: Node, ground: Ground) -> None:
        super().__init__(child)
        self.ground = ground

    def tick(self) -> Status:
        self.status = RUNNING
        status = self.child.tick()
        if status is FAILURE:
            return self.done(FAILURE)
        if status is SUCCESS:
            reset(self.child)
        if status is not RUNNING:
            self.ground.wake()
        return RUNNING


class RunOnce(Decorator):
    """SKIPPED once the child is done, for the rest of the run."""

    __slots__ = ("is_done",)

    def __init__(self, child: Node) -> None:
        super().__init__(child)
        self.is_done = False

    def tick(self) -> Status:
        if self.is_done:
            return SKIPPED
        self.status = RUNNING
        status = self.child.tick()
        if status is RUNNING or status is SKIPPED:
            return status
        self.is_done = True
        return self.done(status)


class Gate(Decorator):
    """Asks at each tick: the child is halted and the node fails as soon as the test does not hold."""

    __slots__ = ("test",)

    def __init__(self, child: Node, test: Test) -> None:
        super().__init__(child)
        self.test = test

    def tick(self) -> Status:
        self.status = RUNNING
        if not self.test():
            return self.done(FAILURE)
        status = self.child.tick()
        return status if status is RUNNING or status is SKIPPED else self.done(status)


class When(Decorator):
    """`:when`: asked before the node begins, and no more while it is RUNNING."""

    __slots__ = ("test",)

    def __init__(self, child: Node, test: Test) -> None:
        super().__init__(child)
        self.test = test

    def tick(self) -> Status:
        if self.status is not RUNNING and not self.test():
            return SKIPPED
        status = self.child.tick()
        if status is SKIPPED:
            reset(self.child)
            self.status = IDLE
        elif status is RUNNING:
            self.status = RUNNING
        else:
            self.done(status)
        return status


class Timed(Decorator):
    """What the three nodes with a clock share."""

    __slots__ = ("at", "ground", "plan", "seconds")

    def __init__(self, child: Node, seconds: Number, ground: Ground, plan: NodePlan) -> None:
        super().__init__(child)
        self.seconds, self.ground, self.plan = seconds, ground, plan
        self.at: float | None = None  # when the time is over

    def is_over(self) -> bool:
        """Begins to wait when it is asked first."""
        if self.at is None:
            self.at = self.ground.now() + self.seconds()
            self.ground.timers[self] = self.at
        return self.ground.now() >= self.at

    def forget(self) -> None:
        self.at = None
        self.ground.timers.pop(self, None)

    def halt(self) -> None:
        self.forget()
        super().halt()


class Timeout(Timed):
    __slots__ = ()

    def tick(self) -> Status:
        self.status = RUNNING
        if self.is_over():
            self.forget()
            self.ground.note(self.plan, "timeout", f"{self.plan.label} took too long")
            return self.done(FAILURE)
        status = self.child.tick()
        if status is RUNNING or status is SKIPPED:
            return status
        self.forget()
        return self.done(status)


class Delay(Timed):
    __slots__ = ("is_open",)

    def tick(self) -> Status:
        self.status = RUNNING
        if not self.is_over():
            return RUNNING
        self.ground.timers.pop(self, None)
        status = self.child.tick()
        if status is RUNNING or status is SKIPPED:
            return status
        self.forget()
        return self.done(status)


class Cooldown(Timed):
    """SKIPPED for a while after the child was done."""

    __slots__ = ()

    def tick(self) -> Status:
        if self.at is not None and self.ground.now() < self.at:
            return SKIPPED
        self.status = RUNNING
        status = self.child.tick()
        if status is RUNNING or status is SKIPPED:
            return status
        self.at = self.ground.now() + self.seconds()
        return self.done(status)

    def halt(self) -> None:
        Decorator.halt(self)


class ForEach(Node):
    """One child an item, each with a frame of its own; at most so many at once, results in order."""

    __slots__ = ("active", "failed", "frames", "ground", "make", "next", "settings", "skipped")

    def __init__(
        self,
        settings: Callable[[], "Items"],
        make: Callable[[object, int], tuple[Node, Frame]],
        ground: Ground,
    ) -> None:
        super().__init__()
        self.settings, self.make, self.ground = settings, make, ground
        self.active: list[Node] = []
        self.frames: list[Frame] = []
        self.next: Items | None = None
        self.failed = self.skipped = 0

    def tick(self) -> Status:
        if self.next is None:
            self.next = self.settings()
            self.failed = self.skipped = 0
            self.frames = []
        items = self.next
        self.status = RUNNING
        while len(self.active) < items.parallel and len(self.frames) < len(items.items):
            place = len(self.frames)
            node, frame = self.make(items.items[place], place)
            self.active.append(node)
            self.frames.append(frame)
        self.active = [node for node in self.active if self._is_running(node)]
        if self.failed and not items.goes_on:
            return self._ended(FAILURE)
        if len(self.frames) < len(items.items):
            if len(self.active) < items.parallel:
                self.ground.wake()
            return RUNNING
        return RUNNING if self.active else self._done()

    def _done(self) -> Status:
        is_skipped = bool(self.skipped) and self.skipped == len(self.frames)
        return self._ended(SKIPPED if is_skipped else SUCCESS)

    def _is_running(self, node: Node) -> bool:
        if self.failed and self.next is not None and not self.next.goes_on:
            return True  # is halted in a moment, with the others
        status = node.tick()
        if status is RUNNING:
            return True
        self.failed += status is FAILURE
        self.skipped += status is SKIPPED
        reset(node)
        return False

    def _ended(self, status: Status) -> Status:
        items = self.next
        self._clear()
        if items is not None and items.collect is not None and status is not SKIPPED:
            items.collect([frame.values["result"] for frame in self.frames])
        self.status = IDLE if status is SKIPPED else status
        return status

    def _clear(self) -> None:
        reset_all(self.active)
        self.active, self.next = [], None

    def halt(self) -> None:
        self._clear()
        self.status = IDLE


class Items:
    """What a `for-each` goes over, as it was when it began."""

    __slots__ = ("collect", "goes_on", "items", "parallel")

    def __init__(
        self,
        items: object,
        parallel: int,
        *,
        goes_on: bool,
        collect: Callable[[object], None] | None,
    ) -> None:
        if not isinstance(items, list | tuple):
            raise TreeAbort(f"for-each goes over a list, not {type(items).__name__}")
        self.items = list(items)
        self.parallel, self.goes_on, self.collect = max(parallel, 1), goes_on, collect
