"""The nodes that do something: functions of the host, and the few that need none."""

import logging
from collections.abc import Callable

from gateway.control.trees.blackboard import BadWrite, Frame
from gateway.control.trees.calls import Call, Ground, Pending, TreeAbort
from gateway.control.trees.decorators import Number, Test
from gateway.control.trees.nodes import Node
from gateway.control.trees.plan import NodePlan
from gateway.control.trees.registry import Act
from gateway.control.trees.status import FAILURE, IDLE, RUNNING, SKIPPED, SUCCESS, Status

log = logging.getLogger(__name__)


class Leaf(Node):
    __slots__ = ("ground", "plan")

    def __init__(self, plan: NodePlan, ground: Ground) -> None:
        super().__init__()
        self.plan, self.ground = plan, ground

    def failed(self, kind: str, message: str) -> Status:
        self.ground.note(self.plan, kind, message)
        self.status = FAILURE
        return FAILURE

    def broke(self, error: Exception) -> Status:
        """An exception is a failure with a reason, unless the tree says that it ends the run."""
        message = f"{self.plan.label}: {type(error).__name__}: {error}"
        if self.plan.raises:
            self.ground.note(self.plan, type(error).__name__, str(error))
            raise TreeAbort(message) from error
        log.warning("tree.leaf_failed", extra={"path": self.plan.path}, exc_info=error)
        return self.failed(type(error).__name__, str(error) or type(error).__name__)


class Calling(Leaf):
    """Calls a function once, and waits for its answer if it gives a Pending."""

    __slots__ = ("act", "call", "none_means", "pending")

    def __init__(self, plan: NodePlan, ground: Ground, frame: Frame, act: Act) -> None:
        super().__init__(plan, ground)
        self.act, self.call = act, Call(plan, frame, ground)
        self.pending: Pending | None = None
        self.none_means = FAILURE if plan.kind == "condition" else SUCCESS

    def tick(self) -> Status:
        pending = self.pending
        if pending is None:
            try:
                answer = self.act(self.call)
            except TreeAbort:
                raise
            except Exception as error:  # noqa: BLE001  # whatever a leaf raises is its failure
                return self.broke(error)
            if answer is SUCCESS or answer is RUNNING:
                self.status = answer
                return answer
            if not isinstance(answer, Pending):
                return self._answered(answer)
            self.pending = pending = answer
        if not pending.is_over:
            self.status = RUNNING
            return RUNNING
        self.pending = None
        return self._answered(pending.outcome)

    def _answered(self, answer: object) -> Status:
        if answer is RUNNING:  # of a Pending that only meant to wake the tree
            self.status = RUNNING
            return RUNNING
        if answer is None:
            answer = self.none_means
        if answer is FAILURE or answer is False:
            self.status = FAILURE
            self.ground.note(self.plan, "failed", "")
            return FAILURE
        if answer is SKIPPED:
            return SKIPPED
        if answer is SUCCESS or answer is True:
            self.status = SUCCESS
            return SUCCESS
        if isinstance(answer, TreeAbort):
            raise answer
        if isinstance(answer, Exception):
            return self.broke(answer)
        return self.broke(TypeError(f"a leaf cannot answer {type(answer).__name__}"))

    def halt(self) -> None:
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending.halt()
        self.status = IDLE


class Check(Leaf):
    __slots__ = ("test",)

    def __init__(self, plan: NodePlan, ground: Ground, test: Test) -> None:
        super().__init__(plan, ground)
        self.test = test

    def tick(self) -> Status:
        self.status = SUCCESS if self.test() else FAILURE
        return self.status


class Do(Leaf):
    """Something that is done at once: set!, emit."""

    __slots__ = ("do",)

    def __init__(self, plan: NodePlan, ground: Ground, do: Callable[[], None]) -> None:
        super().__init__(plan, ground)
        self.do = do

    def tick(self) -> Status:
        try:
            self.do()
        except BadWrite as error:
            return self.broke(error)
        self.status = SUCCESS
        return SUCCESS


class Wait(Leaf):
    __slots__ = ("at", "seconds")

    def __init__(self, plan: NodePlan, ground: Ground, seconds: Number) -> None:
        super().__init__(plan, ground)
        self.seconds = seconds

    def tick(self) -> Status:
        now = self.ground.now()
        if self.status is not RUNNING:
            self.ground.timers[self] = now + self.seconds()
        if now < self.ground.timers[self]:
            self.status = RUNNING
            return RUNNING
        del self.ground.timers[self]
        self.status = SUCCESS
        return SUCCESS

    def halt(self) -> None:
        self.ground.timers.pop(self, None)
        self.status = IDLE


class Always(Leaf):
    __slots__ = ("message",)

    def __init__(self, plan: NodePlan, ground: Ground, message: str | None) -> None:
        super().__init__(plan, ground)
        self.message = message  # None: it succeeds

    def tick(self) -> Status:
        if self.message is not None:
            return self.failed("fail", self.message)
        self.status = SUCCESS
        return SUCCESS
