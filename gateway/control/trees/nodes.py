"""What every node is, how a run makes its own from a plan, and the nodes over several children.

They keep step with BehaviorTree.CPP tick by tick, also where that is a matter of taste: a node that
answers SKIPPED keeps the status that it had; children are reset when their parent completes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from gateway.control.expressions import CANNOT
from gateway.control.trees.blackboard import Frame
from gateway.control.trees.calls import TreeAbort
from gateway.control.trees.plan import NodePlan, TreePlan, Value
from gateway.control.trees.registry import Act
from gateway.control.trees.status import FAILURE, IDLE, RUNNING, SKIPPED, SUCCESS, Status


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes the nodes of one run."""

    kinds: Mapping[str, type["Node"]]
    subtrees: Mapping[str, TreePlan]
    act_of: Callable[[NodePlan], Act | None]
    watched: Callable[["Node"], "Node"] | None = None  # what is put around each leaf

    def build(self, plan: NodePlan, frame: Frame, *, is_bare: bool = False) -> "Node":
        """`is_bare`: without its `:when`."""
        kind = plan.kind if is_bare or plan.when is None else "when"
        node = self.kinds[kind](self, plan, frame)
        return self.watched(node) if self.watched is not None and node.is_leaf else node


class _Children:
    """Made when their parent asks for them first: no run gets to every node of its tree."""

    def __get__(self, node: "Node", _: type) -> "list[Node]":
        node.children = node.made()
        return node.children


class Node:
    """Light: a run makes its own. `tick` sets `status` to what it gives, unless that is SKIPPED."""

    is_leaf = False
    status: Status = IDLE
    at: float | None = None  # when what it waits for is over
    children = _Children()

    def __init__(self, builder: Builder, plan: NodePlan, frame: Frame) -> None:
        self.builder, self.plan, self.frame, self.ground = builder, plan, frame, frame.ground

    def made(self) -> "list[Node]":
        """Its children."""
        return [self.builder.build(child, self.frame) for child in self.plan.children]

    def tick(self) -> Status:
        raise NotImplementedError

    def halt(self) -> None:
        """Only called while RUNNING."""
        reset_all(self.children)
        self.clear()
        self.status = IDLE

    def done(self, status: Status) -> Status:
        reset_all(self.children)
        self.clear()
        if status is not SKIPPED:
            self.status = status
        return status

    def clear(self) -> None:
        """Forgets how far it was."""
        if self.at is not None:
            self.at = None
            self.ground.timers.pop(self, None)

    def is_over(self, seconds: Value) -> bool:
        """Whether this time has passed since it was asked first."""
        now = self.ground.now()
        if self.at is None:
            self.at = now + self.number(seconds)
            self.ground.timers[self] = self.at
        if now < self.at:
            return False
        self.ground.timers.pop(self, None)
        return True

    def holds(self, test: Value) -> bool:
        """False too where it has no value; why is kept either way."""
        text = str(test.constant)
        try:
            if test.of(self.frame):
                return True
            self.ground.note(self.plan, "condition", text)
        except CANNOT as error:
            self.ground.note(self.plan, type(error).__name__, f"{text}: {error}")
        return False

    def number(self, value: Value) -> float:
        number = value.of(self.frame)
        if type(number) not in {int, float}:
            what = f"{type(number).__name__} where a number belongs"
            raise TreeAbort(f"{self.plan.path}: {what}")
        return cast(float, number)


def reset(node: Node) -> None:
    if node.status is RUNNING:
        node.halt()
    node.status = IDLE


def reset_all(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if node.status is RUNNING:
            node.halt()
        node.status = IDLE


class InOrder(Node):
    """Goes on where it was, and stops at a FAILURE."""

    ends_with: Status = FAILURE
    otherwise: Status = SUCCESS
    index = skipped = 0
    beside = 0  # children at the end that are not in the order

    def clear(self) -> None:
        self.index = self.skipped = 0

    def tick(self) -> Status:
        self.status = RUNNING
        body, ends_with, index = self.children, self.ends_with, self.index
        count = len(body) - self.beside
        while index < count:
            status = body[index].tick()
            if status is RUNNING:
                self.index = index
                return RUNNING
            if status is ends_with:
                return self.done(status)
            index += 1
            if status is SKIPPED:
                self.skipped += 1
        return self.done(SKIPPED if self.skipped == count else self.otherwise)


class Selector(InOrder):
    """Stops at a SUCCESS."""

    ends_with, otherwise = SUCCESS, FAILURE


class MemorySequence(InOrder):
    """After a FAILURE, and after a halt, it goes on with the child where it was."""

    def tick(self) -> Status:
        if self.status is IDLE:
            self.skipped = 0
        self.status = RUNNING
        while self.index < len(self.children):
            child = self.children[self.index]
            was = child.status
            status = child.tick()
            if status is RUNNING:
                return RUNNING
            if status is FAILURE:
                reset_all(self.children[self.index :])
                self.status = FAILURE
                return FAILURE
            self.index += 1
            if status is SKIPPED:
                self.skipped += 1
            elif was is IDLE and self.index < len(self.children):
                self.ground.wake()
                return RUNNING
        return self.done(SKIPPED if self.skipped == len(self.children) else SUCCESS)

    def halt(self) -> None:
        reset_all(self.children)
        self.status = IDLE


class Reactive(InOrder):
    """Begins with its first child at each tick."""

    def tick(self) -> Status:
        self.status = RUNNING
        is_skipped = True
        for child in self.children:
            status = child.tick()
            if status is RUNNING:
                return self._alone(child)
            if status is self.ends_with:
                return self.done(status)
            if status is SKIPPED:
                reset(child)
            else:
                is_skipped = False
        return self.done(SKIPPED if is_skipped else self.otherwise)

    def _alone(self, child: Node) -> Status:
        for other in self.children:
            if other is not child:
                if other.status is RUNNING:
                    other.halt()
                other.status = IDLE
        return RUNNING


class ReactiveSelector(Reactive):
    ends_with, otherwise = SUCCESS, FAILURE


class Try(InOrder):
    """A sequence; when it fails the last child runs, and then the whole fails."""

    beside = 1
    is_catching = False

    def clear(self) -> None:
        super().clear()
        self.is_catching = False

    def tick(self) -> Status:
        if not self.is_catching:
            status = super().tick()
            if status is not FAILURE:
                return status
            self.is_catching = True
        self.status = RUNNING
        return RUNNING if self.children[-1].tick() is RUNNING else self.done(FAILURE)


class Ensure(Node):
    """The clean-up runs after the body, however it ended; a halt gives it a single tick."""

    kept: Status | None = None

    def clear(self) -> None:
        self.kept = None

    def tick(self) -> Status:
        self.status = RUNNING
        body, cleanup = self.children
        if self.kept is None:
            status = body.tick()
            if status is RUNNING or status is SKIPPED:
                return status
            body.status = IDLE
            self.kept = status
        return RUNNING if cleanup.tick() is RUNNING else self.done(self.kept)

    def halt(self) -> None:
        body, cleanup = self.children
        reset(body)
        if self.kept is None:
            cleanup.tick()
        super().halt()


class If(Node):
    """Asks once and stays with the branch."""

    branch = 0

    def clear(self) -> None:
        self.branch = 0

    def tick(self) -> Status:
        self.status = RUNNING
        if self.branch == 0:
            status = self.children[0].tick()
            if status is RUNNING or status is SKIPPED:
                return status
            if status is FAILURE and len(self.children) == 2:
                return self.done(FAILURE)
            self.branch = 1 if status is SUCCESS else 2
        status = self.children[self.branch].tick()
        return RUNNING if status is RUNNING else self.done(status)


class While(Node):
    """Asks at each tick and halts the branch that is no longer right."""

    def tick(self) -> Status:
        self.status = RUNNING
        test, body, *other = self.children
        status = test.tick()
        if status is SUCCESS:
            reset_all(other)
            status = body.tick()
        elif status is FAILURE and other:
            reset(body)
            status = other[0].tick()
        return RUNNING if status is RUNNING else self.done(status)


class Switch(Node):
    """Chooses at each tick by the value; another branch that runs is halted."""

    def tick(self) -> Status:
        self.status = RUNNING
        now, cases = self.plan.values[0].of(self.frame), self.plan.cases
        word = str(now).lower() if isinstance(now, bool) else "nil" if now is None else str(now)
        word = word if word in cases or "else" not in cases else "else"
        chosen = self.children[cases.index(word)] if word in cases else None
        reset_all([child for child in self.children if child is not chosen])
        if chosen is None:
            self.ground.note(self.plan, "switch", f"no case for {word[:80]}")
            return self.done(FAILURE)
        status = chosen.tick()
        return status if status is RUNNING or status is SKIPPED else self.done(status)


class Parallel(Node):
    """Stops at one of its thresholds and halts the rest; negative ones count from all children.

    With `:policy :continue-on-failure` each runs to its end, and it fails if all of them failed.
    """

    def __init__(self, builder: Builder, plan: NodePlan, frame: Frame) -> None:
        super().__init__(builder, plan, frame)
        count, said = len(self.plan.children), {k: v.constant for k, v in self.plan.options.items()}
        is_one = said.get("policy") == "require-one" or "require-one" in said
        self.goes_on = said.get("policy") == "continue-on-failure"
        success = cast(int, said.get("success", 1 if is_one else -1))
        failure = cast(int, said.get("failure", -1 if is_one else 1))
        self.is_relative = success < 0
        self.success = max(count + success + 1, 0) if success < 0 else success
        self.failure = max(count + failure + 1, 0) if failure < 0 else failure
        self.clear()

    def clear(self) -> None:
        self.completed: set[Node] = set()
        self.failed = 0

    def tick(self) -> Status:
        self.status = RUNNING
        skipped = 0
        for child in self.children:
            if child not in self.completed:
                status = child.tick()
                if status is SKIPPED:
                    skipped += 1
                elif status is not RUNNING:
                    self.completed.add(child)
                    self.failed += status is FAILURE
            ended = self._ended(skipped)
            if ended is not None:
                return self.done(ended)
        return SKIPPED if skipped == len(self.children) else self._at_the_end(skipped)

    def _at_the_end(self, skipped: int) -> Status:
        count = len(self.children)
        if not self.goes_on or skipped + len(self.completed) < count:
            return RUNNING
        return self.done(FAILURE if self.failed == count else SUCCESS)

    def _ended(self, skipped: int) -> Status | None:
        if self.goes_on:
            return None
        succeeded = len(self.completed) - self.failed
        if succeeded + (skipped if self.is_relative else 0) >= self.success:
            return SUCCESS
        if len(self.children) - self.failed < self.success or self.failed == self.failure:
            return FAILURE
        return None


FLOW: Mapping[str, type[Node]] = {
    "sequence": InOrder,
    "selector": Selector,
    "reactive-sequence": Reactive,
    "reactive-selector": ReactiveSelector,
    "memory-sequence": MemorySequence,
    "parallel": Parallel,
    "if": If,
    "while": While,
    "switch": Switch,
    "try": Try,
    "ensure": Ensure,
}
