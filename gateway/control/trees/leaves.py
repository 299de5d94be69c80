"""The nodes that do something, and the nodes over one child."""

import logging
from collections.abc import Mapping
from math import inf
from typing import cast

from gateway.control.trees.nodes import (
    FAILURE,
    IDLE,
    MOST_PARTS,
    RUNNING,
    SKIPPED,
    SUCCESS,
    BadWrite,
    Builder,
    Call,
    Frame,
    Node,
    Pending,
    Status,
    TreeAbort,
    defaults,
    parts_of,
    reset,
)
from gateway.control.trees.plan import HOSTED, NodePlan

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


class Decorator(Node):
    """May answer before its child is ticked, and differently when it is done."""

    def tick(self) -> Status:
        answer = self.before()
        if answer is not None:
            return answer
        self.status = RUNNING
        status = self.children[0].tick()
        return status if status is RUNNING or status is SKIPPED else self.done(self.after(status))

    def before(self) -> Status | None:
        return None

    def after(self, status: Status) -> Status:
        return status


class Mapped(Decorator):
    """Another answer for the child's."""

    def after(self, status: Status) -> Status:
        if self.plan.kind == "invert":
            return FAILURE if status is SUCCESS else SUCCESS
        return SUCCESS if self.plan.kind == "force-success" else FAILURE


class RunOnce(Decorator):
    """SKIPPED once the child is done, for the rest of the run."""

    is_done = False

    def before(self) -> Status | None:
        return SKIPPED if self.is_done else None

    def after(self, status: Status) -> Status:
        self.is_done = True
        return status


class Guard(Decorator):
    """Asks at each tick, an expression or as `decorator` a function: if not, the child is halted."""

    def __init__(self, builder: Builder, plan: NodePlan, frame: Frame) -> None:
        super().__init__(builder, plan, frame)
        self.asked = Calling(builder, plan, frame) if plan.kind == "decorator" else None

    def before(self) -> Status | None:
        asked = self.asked
        is_open = asked.tick() is SUCCESS if asked else self.holds(self.plan.values[0])
        return None if is_open else self.done(FAILURE)


class When(Node):
    """`:when`: asked before the node begins, and no more while it is RUNNING."""

    def made(self) -> list[Node]:
        return [self.builder.build(self.plan, self.frame, is_bare=True)]

    def tick(self) -> Status:
        test, [child] = self.plan.when, self.children
        if self.status is not RUNNING and test is not None and not self.holds(test):
            return SKIPPED
        status = child.tick()
        if status is SKIPPED:
            reset(child)
            self.status = IDLE
        elif status is RUNNING:
            self.status = RUNNING
        else:
            self.done(status)
        return status


class Timeout(Decorator):
    def before(self) -> Status | None:
        if not self.is_over(self.plan.values[0]):
            return None
        self.ground.note(self.plan, "timeout", f"{self.plan.label} took too long")
        return self.done(FAILURE)


class Delay(Decorator):
    """Before every start."""

    def before(self) -> Status | None:
        self.status = RUNNING
        return None if self.is_over(self.plan.values[0]) else RUNNING


class Cooldown(Decorator):
    """SKIPPED for a while after the child was done."""

    until = -inf

    def before(self) -> Status | None:
        return SKIPPED if self.ground.now() < self.until else None

    def after(self, status: Status) -> Status:
        self.until = self.ground.now() + self.number(self.plan.values[0])
        return status


class UntilFail(Node):
    """RUNNING until the child fails, one round a tick."""

    def tick(self) -> Status:
        self.status = RUNNING
        [child] = self.children
        status = child.tick()
        if status is FAILURE:
            return self.done(FAILURE)
        if status is SUCCESS:
            reset(child)
        if status is not RUNNING:
            self.ground.wake()
        return RUNNING


class Loop(Node):
    """Again while the child succeeds, or with `retry` and `:until-success` while it fails.

    A child that is done in the tick in which it began gives way before it begins again, so that
    a run can be stopped between any two rounds.
    """

    count = 0

    def __init__(self, builder: Builder, plan: NodePlan, frame: Frame) -> None:
        super().__init__(builder, plan, frame)
        options = self.plan.options
        self.max, self.until = options.get("max"), options.get("until")
        is_retry = self.plan.kind == "retry" or "until-success" in options
        self.goes_on: Status = FAILURE if is_retry else SUCCESS
        self.at_limit: Status = FAILURE if is_retry or self.until else SUCCESS

    def clear(self) -> None:
        super().clear()
        self.count = 0

    def tick(self) -> Status:
        self.status = RUNNING
        [child] = self.children
        if self.at is not None and not self._has_rested():
            return RUNNING
        while self.count < self._limit():
            was = child.status
            status = child.tick()
            if status is RUNNING:
                return RUNNING
            reset(child)
            if status is not self.goes_on:
                return SKIPPED if status is SKIPPED else self.done(status)  # which keeps the count
            self.count += 1
            if self.until and self.holds(self.until):
                return self.done(SUCCESS)
            if self._gives_way(was):
                return RUNNING
        return self._done_at_limit()

    def _done_at_limit(self) -> Status:
        if self.at_limit is FAILURE and self.plan.kind == "repeat":
            self.ground.note(self.plan, "limit", f"not done after {self.count} rounds")
        return self.done(self.at_limit)

    def _limit(self) -> float:
        limit = self.number(self.max) if self.max else inf
        return inf if limit < 0 else limit

    def _gives_way(self, was: Status) -> bool:
        """Between two rounds."""
        if self.count >= self._limit():
            return False
        is_resting = "backoff" in self.plan.options and not self._has_rested()
        if was is IDLE and not is_resting:
            self.ground.wake()
        return was is IDLE or is_resting

    def _has_rested(self) -> bool:
        is_over = self.is_over(self.plan.options["backoff"])
        if is_over:
            self.at = None
        return is_over


class Subtree(Decorator):
    """In place, or by name: then with a frame of its own, made anew when it begins."""

    def __init__(self, builder: Builder, plan: NodePlan, frame: Frame) -> None:
        super().__init__(builder, plan, frame)
        if not plan.children:
            self.tree = builder.subtrees[plan.name]
            self.own = Frame(self.ground, {}, self.tree.types, frame if self.shares else None)

    def made(self) -> list[Node]:
        if self.plan.children:
            return super().made()
        return [self.builder.build(self.tree.root, self.own)]

    @property
    def shares(self) -> bool:
        return "share" in self.plan.options and self.plan.options["share"].constant is True

    def before(self) -> Status | None:
        """Bound keys are the other frame's; other values are copied."""
        if self.status is RUNNING or self.plan.children:
            return None
        values = defaults(self.tree.schema)
        if self.shares:
            values = {key: value for key, value in values.items() if not self.frame.has(key)}
        self.own.values = values
        for key, value in self.plan.bound.items():
            if value.key:
                values.pop(key, None)
                self.own.links[key] = (self.frame, value.key)
            else:
                self.own.set(key, value.of(self.frame))
        return None


class ForEach(Node):
    """One child an item, each with a frame of its own; at most so many at once, results in order."""

    def __init__(self, builder: Builder, plan: NodePlan, frame: Frame) -> None:
        super().__init__(builder, plan, frame)
        self.clear()

    def clear(self) -> None:
        self.items: list[object] | None = None
        self.failed = self.skipped = 0
        self.frames: list[Frame] = []
        self.children = []

    def tick(self) -> Status:
        self.status = RUNNING
        if self.items is None:
            self.items = self._begun()
        while len(self.children) < self.parallel and len(self.frames) < len(self.items):
            self._add(self.items[len(self.frames)])
        self.children = [node for node in self.children if self._is_running(node)]
        if self._has_failed():
            return self._ended(FAILURE)
        if len(self.frames) < len(self.items):
            if len(self.children) < self.parallel:
                self.ground.wake()
            return RUNNING
        if self.children:
            return RUNNING
        is_skipped = 0 < self.skipped == len(self.items)
        return self.done(SKIPPED) if is_skipped else self._ended(SUCCESS)

    def _begun(self) -> list[object]:
        items, options = self.plan.values[0].of(self.frame), self.plan.options
        if not isinstance(items, list | tuple):
            raise TreeAbort(f"for-each goes over a list, not {type(items).__name__}")
        limit = self.number(options["limit"]) if "limit" in options else len(items)
        self.parallel = max(self.number(options["parallel"]), 1) if "parallel" in options else 1
        return list(items[: max(int(limit), 0)])

    def _add(self, item: object) -> None:
        self.ground.spend()
        options = self.plan.options
        name = str(options["as"].constant) if "as" in options else "item"
        values = {name: item, "index": len(self.frames), "result": None}
        frame = Frame(self.ground, values, {}, self.frame, is_item=True)
        self.frames.append(frame)
        self.children.append(self.builder.build(self.plan.children[0], frame))

    def _has_failed(self) -> bool:
        says = self.plan.options.get("on-child-fail")
        return self.failed > 0 and (says is None or says.constant != "continue")

    def _is_running(self, node: Node) -> bool:
        if self._has_failed():
            return True  # is halted in a moment, with the others
        status = node.tick()
        if status is RUNNING:
            return True
        self.failed += status is FAILURE
        self.skipped += status is SKIPPED
        reset(node)
        return False

    def _ended(self, status: Status) -> Status:
        target = self.plan.options.get("collect")
        results = [frame.values["result"] for frame in self.frames]
        self.done(status)
        if target is None:
            return status
        try:
            self.frame.set(str(target.constant), results)
        except BadWrite as error:
            self.ground.note(self.plan, type(error).__name__, str(error))
            self.status = FAILURE
        return self.status


DECORATORS: Mapping[str, type[Node]] = {
    "when": When,
    "invert": Mapped,
    "force-success": Mapped,
    "force-failure": Mapped,
    "run-once": RunOnce,
    "guard": Guard,
    "decorator": Guard,
    "timeout": Timeout,
    "delay": Delay,
    "cooldown": Cooldown,
    "until-fail": UntilFail,
    "repeat": Loop,
    "retry": Loop,
    "subtree": Subtree,
    "for-each": ForEach,
}
