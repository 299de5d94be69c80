"""Nodes that choose between their children, and those that clean up after them."""

from collections.abc import Callable, Sequence

from gateway.control.trees.nodes import Composite, InOrder, Node, reset, reset_all
from gateway.control.trees.status import FAILURE, IDLE, RUNNING, SKIPPED, SUCCESS, Status


class If(Composite):
    """Asks once and stays with the branch."""

    __slots__ = ("branch",)

    def __init__(self, children: Sequence[Node]) -> None:
        super().__init__(children)
        self.branch = 0

    def tick(self) -> Status:
        self.status = RUNNING
        if self.branch == 0:
            status = self.children[0].tick()
            if status is RUNNING or status is SKIPPED:
                return status
            if status is FAILURE and len(self.children) == 2:
                self.status = FAILURE
                return FAILURE
            self.branch = 1 if status is SUCCESS else 2
        status = self.children[self.branch].tick()
        if status is RUNNING:
            return RUNNING
        self.branch = 0
        reset_all(self.children)
        if status is not SKIPPED:
            self.status = status
        return status

    def halt(self) -> None:
        self.branch = 0
        super().halt()


class While(Composite):
    """Asks at each tick and halts the branch that is no longer right."""

    __slots__ = ()

    def tick(self) -> Status:
        self.status = RUNNING
        children = self.children
        asked = children[0].tick()
        if asked is RUNNING:
            return RUNNING
        status: Status = asked  # SKIPPED, or FAILURE without another branch
        if asked is SUCCESS:
            reset_all(children[2:])
            status = children[1].tick()
        elif asked is FAILURE and len(children) == 3:
            reset(children[1])
            status = children[2].tick()
        if status is RUNNING:
            return RUNNING
        reset_all(children)
        if status is not SKIPPED:
            self.status = status
        return status


class Switch(Composite):
    """Chooses at each tick by the value; another branch that runs is halted."""

    __slots__ = ("choose", "running")

    def __init__(self, children: Sequence[Node], choose: Callable[[], int | None]) -> None:
        super().__init__(children)
        self.choose = choose
        self.running: Node | None = None

    def tick(self) -> Status:
        index = self.choose()
        chosen = None if index is None else self.children[index]
        if self.running is not None and self.running is not chosen:
            reset(self.running)
        self.running = None
        if chosen is None:
            return self.done(FAILURE)
        status = chosen.tick()
        if status is SKIPPED:
            return SKIPPED
        if status is RUNNING:
            self.running, self.status = chosen, RUNNING
            return RUNNING
        return self.done(status)

    def halt(self) -> None:
        self.running = None
        super().halt()


class Try(InOrder):
    """A sequence; when it fails the last child runs, and then the whole fails."""

    __slots__ = ("body", "catch", "is_catching")

    def __init__(self, children: Sequence[Node]) -> None:
        *body, self.catch = children
        super().__init__(body, FAILURE)
        self.is_catching = False

    def tick(self) -> Status:
        if not self.is_catching:
            status = super().tick()
            if status is not FAILURE:
                return status
            self.is_catching = True
        self.status = RUNNING
        if self.catch.tick() is RUNNING:
            return RUNNING
        reset(self.catch)
        self.is_catching = False
        self.status = FAILURE
        return FAILURE

    def halt(self) -> None:
        self.is_catching = False
        super().halt()
        reset(self.catch)


class Ensure(Node):
    """The clean-up runs after the body, however it ended; a halt gives it a single tick."""

    __slots__ = ("body", "cleanup", "kept")

    def __init__(self, body: Node, cleanup: Node) -> None:
        super().__init__()
        self.body, self.cleanup = body, cleanup
        self.kept: Status | None = None

    def tick(self) -> Status:
        self.status = RUNNING
        if self.kept is None:
            status = self.body.tick()
            if status is RUNNING or status is SKIPPED:
                return status
            self.body.status = IDLE
            self.kept = status
        if self.cleanup.tick() is RUNNING:
            return RUNNING
        reset(self.cleanup)
        self.status, self.kept = self.kept, None
        return self.status

    def halt(self) -> None:
        reset(self.body)
        if self.kept is None:
            self.cleanup.tick()
        reset(self.cleanup)
        self.kept = None
        self.status = IDLE
