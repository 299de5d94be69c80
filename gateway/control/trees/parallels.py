"""Children side by side: to a threshold, or to the end."""

from collections.abc import Sequence

from gateway.control.trees.nodes import Composite, Node
from gateway.control.trees.status import FAILURE, RUNNING, SKIPPED, SUCCESS, Status


class Parallel(Composite):
    """Stops at one of its thresholds and halts the rest; negative ones count from all children."""

    __slots__ = ("completed", "failed", "failure", "is_relative", "success", "succeeded")

    def __init__(self, children: Sequence[Node], success: int, failure: int) -> None:
        super().__init__(children)
        count = len(self.children)
        self.is_relative = success < 0
        self.success = max(count + success + 1, 0) if success < 0 else success
        self.failure = max(count + failure + 1, 0) if failure < 0 else failure
        self.clear()

    def clear(self) -> None:
        self.completed: set[int] = set()
        self.succeeded = self.failed = 0

    def tick(self) -> Status:
        self.status = RUNNING
        skipped = 0
        for index, child in enumerate(self.children):
            if index not in self.completed:
                status = child.tick()
                if status is SKIPPED:
                    skipped += 1
                elif status is not RUNNING:
                    self.note(index, status)
            ended = self.ended(skipped)
            if ended is not None:
                self.clear()
                return self.done(ended)
        return SKIPPED if skipped == len(self.children) else RUNNING

    def note(self, index: int, status: Status) -> None:
        self.completed.add(index)
        if status is SUCCESS:
            self.succeeded += 1
        else:
            self.failed += 1

    def ended(self, skipped: int) -> Status | None:
        if self.succeeded + (skipped if self.is_relative else 0) >= self.success:
            return SUCCESS
        if len(self.children) - self.failed < self.success or self.failed == self.failure:
            return FAILURE
        return None

    def halt(self) -> None:
        self.clear()
        super().halt()


class ParallelToTheEnd(Parallel):
    """Every child runs to its end, whatever the others do; it fails if all of them failed."""

    __slots__ = ()

    def __init__(self, children: Sequence[Node]) -> None:
        super().__init__(children, -1, -1)

    def tick(self) -> Status:
        self.status = RUNNING
        skipped = 0
        for index, child in enumerate(self.children):
            if index in self.completed:
                continue
            status = child.tick()
            if status is SKIPPED:
                skipped += 1
            elif status is not RUNNING:
                self.note(index, status)
        count = len(self.children)
        if skipped == count:
            return SKIPPED
        if skipped + len(self.completed) < count:
            return RUNNING
        ended = FAILURE if self.failed >= count else SUCCESS
        self.clear()
        return self.done(ended)
