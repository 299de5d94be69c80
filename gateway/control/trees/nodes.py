"""What every node is, and the composites that go from child to child.

They keep step with BehaviorTree.CPP tick by tick, also where that is a matter of taste: a node that
answers SKIPPED keeps the status that it had; children are reset when their parent completes.
"""

from collections.abc import Callable, Sequence

from gateway.control.trees.status import FAILURE, IDLE, RUNNING, SKIPPED, SUCCESS, Status

Wake = Callable[[], None]  # asks for another tick, as nothing outside will


class Node:
    """Light: a run makes its own. `tick` sets `status` to what it gives, unless that is SKIPPED."""

    __slots__ = ("status",)

    def __init__(self) -> None:
        self.status = IDLE

    def tick(self) -> Status:
        raise NotImplementedError

    def halt(self) -> None:
        """Only called while RUNNING."""
        self.status = IDLE


def reset(node: Node) -> None:
    if node.status is RUNNING:
        node.halt()
    node.status = IDLE


def reset_all(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if node.status is RUNNING:
            node.halt()
        node.status = IDLE


class Composite(Node):
    __slots__ = ("children",)

    def __init__(self, children: Sequence[Node]) -> None:
        super().__init__()
        self.children = list(children)

    def halt(self) -> None:
        reset_all(self.children)
        self.status = IDLE

    def done(self, status: Status) -> Status:
        reset_all(self.children)
        self.status = status
        return status


class InOrder(Composite):
    """Goes on where it was; `ends_with` FAILURE makes a sequence, SUCCESS a selector."""

    __slots__ = ("ends_with", "index", "otherwise", "skipped")

    def __init__(self, children: Sequence[Node], ends_with: Status) -> None:
        super().__init__(children)
        self.ends_with: Status = ends_with
        self.otherwise: Status = SUCCESS if ends_with is FAILURE else FAILURE
        self.index = self.skipped = 0

    def tick(self) -> Status:
        if self.status is IDLE:
            self.skipped = 0
        self.status = RUNNING
        children, ends_with, index = self.children, self.ends_with, self.index
        count = len(children)
        while index < count:
            status = children[index].tick()
            if status is RUNNING:
                self.index = index
                return RUNNING
            if status is ends_with:
                self.index = 0
                return self.done(status)
            index += 1
            if status is SKIPPED:
                self.skipped += 1
        return self._all_done()

    def _all_done(self) -> Status:
        is_skipped = self.skipped == len(self.children)
        reset_all(self.children)
        self.index = self.skipped = 0
        if is_skipped:
            return SKIPPED
        self.status = self.otherwise
        return self.otherwise

    def halt(self) -> None:
        self.index = self.skipped = 0
        super().halt()


class MemorySequence(InOrder):
    """After a FAILURE, and after a halt, it goes on with the child where it was."""

    __slots__ = ("wake",)

    def __init__(self, children: Sequence[Node], wake: Wake) -> None:
        super().__init__(children, FAILURE)
        self.wake = wake

    def tick(self) -> Status:
        if self.status is IDLE:
            self.skipped = 0
        self.status = RUNNING
        children = self.children
        while self.index < len(children):
            child = children[self.index]
            was = child.status
            status = child.tick()
            if status is RUNNING:
                return RUNNING
            if status is FAILURE:
                reset_all(children[self.index :])
                self.status = FAILURE
                return FAILURE
            self.index += 1
            if status is SKIPPED:
                self.skipped += 1
            elif was is IDLE and self.index < len(children):
                self.wake()
                return RUNNING
        return self._all_done()

    def halt(self) -> None:
        Composite.halt(self)


class Reactive(Composite):
    """Begins with its first child at each tick; `ends_with` as above."""

    __slots__ = ("ends_with", "otherwise")

    def __init__(self, children: Sequence[Node], ends_with: Status) -> None:
        super().__init__(children)
        self.ends_with: Status = ends_with
        self.otherwise: Status = SUCCESS if ends_with is FAILURE else FAILURE

    def tick(self) -> Status:
        self.status = RUNNING
        is_skipped = True
        for child in self.children:
            status = child.tick()
            if status is RUNNING:
                return self._runs(child)
            if status is self.ends_with:
                return self.done(status)
            if status is SKIPPED:
                reset(child)
            else:
                is_skipped = False
        reset_all(self.children)
        if is_skipped:
            return SKIPPED
        self.status = self.otherwise
        return self.otherwise

    def _runs(self, child: Node) -> Status:
        """Alone."""
        for other in self.children:
            if other is not child and other.status is not IDLE:
                reset(other)
        return RUNNING
