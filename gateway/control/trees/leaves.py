"""The nodes that do something: functions of the host, and the few that need none."""

import logging
from collections.abc import Mapping
from typing import cast

from gateway.control.trees.blackboard import MOST_PARTS, BadWrite, Frame, parts_of
from gateway.control.trees.calls import Call, Pending, TreeAbort
from gateway.control.trees.kinds import HOSTED
from gateway.control.trees.nodes import Builder, Node
from gateway.control.trees.plan import NodePlan
from gateway.control.trees.status import FAILURE, IDLE, RUNNING, SKIPPED, SUCCESS, Status

log = logging.getLogger(__name__)

# What a function's answer means; a Pending may give RUNNING only to wake the tree.
_MEANING: Mapping[object, Status] = {
    True: SUCCESS,
    False: FAILURE,
    **{status: status for status in (SUCCESS, FAILURE, RUNNING, SKIPPED)},
}


class Leaf(Node):
    is_leaf = True

    def failed(self, kind: str, message: str) -> Status:
        self.ground.note(self.plan, kind, message)
        self.status = FAILURE
        return FAILURE

    def broke(self, error: Exception) -> Status:
        """An exception is a failure with a reason, unless the tree says that it ends the run."""
        kind, message = type(error).__name__, str(error)
        if self.plan.raises:
            self.ground.note(self.plan, kind, message)
            raise TreeAbort(f"{self.plan.label}: {kind}: {message}") from error
        log.warning("tree.leaf_failed", extra={"path": self.plan.path}, exc_info=error)
        return self.failed(kind, message or kind)


class Calling(Leaf):
    """Calls a function once, and waits for its answer if it gives a Pending."""

    pending: Pending | None = None

    def __init__(self, builder: Builder, plan: NodePlan, frame: Frame) -> None:
        super().__init__(builder, plan, frame)
        act = builder.act_of(plan)
        if act is None:
            raise TreeAbort(f"{plan.path}: nobody offers a function for {plan.label}")
        self.act, self.call = act, Call(plan, frame)

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
        if answer is None:
            answer = self.plan.kind != "condition"
        status = _MEANING.get(answer) if isinstance(answer, bool | Status) else None
        if status is FAILURE:
            return self.failed("failed", "")
        if status is not None:
            self.status = self.status if status is SKIPPED else status
            return status
        if isinstance(answer, TreeAbort):
            raise answer
        if not isinstance(answer, Exception):
            answer = TypeError(f"a leaf cannot answer {type(answer).__name__}")
        return self.broke(answer)

    def halt(self) -> None:
        pending, self.pending, self.status = self.pending, None, IDLE
        if pending is not None:
            pending.halt()


class Condition(Calling):
    """Asks its `:expr`, or a function."""

    def __init__(self, builder: Builder, plan: NodePlan, frame: Frame) -> None:
        self.test = plan.options.get("expr")
        if self.test is None:
            super().__init__(builder, plan, frame)
        else:
            Node.__init__(self, builder, plan, frame)

    def tick(self) -> Status:
        if self.test is None:
            return super().tick()
        self.status = SUCCESS if self.holds(self.test) else FAILURE
        return self.status


class Check(Leaf):
    def tick(self) -> Status:
        self.status = SUCCESS if self.holds(self.plan.values[0]) else FAILURE
        return self.status


class Assign(Leaf):
    """All values are those from before it."""

    def tick(self) -> Status:
        found = {key: value.of(self.frame) for key, value in self.plan.options.items()}
        try:
            for key, value in found.items():
                self.frame.set(key, value)
        except BadWrite as error:
            return self.broke(error)
        self.status = SUCCESS
        return SUCCESS


class Emit(Leaf):
    def tick(self) -> Status:
        event, *payload = [value.of(self.frame) for value in self.plan.values]
        said = payload[0] if payload else {}
        if parts_of(said) > MOST_PARTS:
            return self.failed("emit", f"an event cannot hold more than {MOST_PARTS} parts")
        self.ground.spend()
        self.ground.emit(str(event), cast(Mapping[str, object], said))
        self.status = SUCCESS
        return SUCCESS


class Wait(Leaf):
    def tick(self) -> Status:
        self.status = RUNNING
        return self.done(SUCCESS) if self.is_over(self.plan.values[0]) else RUNNING


class Always(Leaf):
    def tick(self) -> Status:
        if self.plan.kind == "succeed":
            self.status = SUCCESS
            return SUCCESS
        reason = str(self.plan.values[0].of(self.frame)) if self.plan.values else "fail"
        return self.failed("fail", reason)


LEAVES: Mapping[str, type[Node]] = {
    "action": Calling,
    "condition": Condition,
    "check": Check,
    "set!": Assign,
    "emit": Emit,
    "wait": Wait,
    "succeed": Always,
    "fail": Always,
    **dict.fromkeys(HOSTED, Calling),
}
