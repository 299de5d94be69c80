"""How a leaf's function is called, and how it answers later."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.control.trees.blackboard import BadWrite, Frame
from gateway.control.trees.plan import NodePlan
from gateway.control.trees.status import FAILURE, SUCCESS, Status
from gateway.domain.errors import GatewayError


class TreeAbort(GatewayError):
    """Ends the run at once: nothing in the tree may catch it."""

    code = "internal_error"


@dataclass(slots=True, eq=False)
class Pending:
    """The answer of a leaf that takes time: RUNNING until it is completed or halted."""

    _wake: Callable[[], None]
    _on_halt: Callable[[], None] | None = None
    outcome: object = None  # as a function gives it, or the exception that it ended with
    is_over: bool = False

    def complete(self, outcome: object = SUCCESS) -> None:
        """As a function would have answered; what comes after an end or a halt changes nothing."""
        if not self.is_over:
            self.outcome, self.is_over = outcome, True
            self._wake()

    def halt(self) -> None:
        if not self.is_over:
            self.is_over = True
            if self._on_halt is not None:
                self._on_halt()


@dataclass(slots=True, eq=False)
class Call:
    """One leaf as its function sees it; the same for all of its ticks."""

    plan: NodePlan
    frame: Frame = field(repr=False)

    @property
    def name(self) -> str:
        return self.plan.label

    @property
    def options(self) -> dict[str, object]:
        """Those of the node as they are now."""
        found = self.plan.options.items()
        return {name: value.of(self.frame) for name, value in found if name != "fn"}

    @property
    def values(self) -> list[object]:
        """Those without a name: of `(tool-call $call)`, the call."""
        return [value.of(self.frame) for value in self.plan.values]

    def read(self, key: str) -> object:
        return self.frame.get(key)

    def write(self, key: str, value: object) -> None:
        """Raises BadWrite for an unknown key, a wrong type, or one that was not announced."""
        if self.plan.offered is not None and key not in self.plan.writes:
            raise BadWrite(f"{self.plan.offered.name} did not announce that it writes {key!r}")
        self.frame.set(key, value)

    def give(self, result: object) -> None:
        """The result of this item of the loop around; `:collect` gathers them."""
        item = self.frame.item()
        if item is not None:
            item.values["result"] = result

    def pending(self, on_halt: Callable[[], None] | None = None) -> Pending:
        """To be returned; `on_halt` is called if the leaf is halted before it is completed."""
        return Pending(self.frame.ground.wake, on_halt)

    def failed(self, reason: str, kind: str = "failed") -> Status:
        """To be returned, for a failure with a reason."""
        self.frame.ground.note(self.plan, kind, reason)
        return FAILURE
