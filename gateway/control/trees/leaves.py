"""The nodes that do something, and the nodes over one child."""

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
    BehaviourNode,
    LeafCall,
    Make,
    TickStatus,
    TreeAbort,
    TreeFrame,
    defaults,
    parts_of,
    reset_all,
)
from gateway.control.trees.plan import HOSTED, NodePlan


class Check(BehaviourNode):
    """Asks an expression; also as `condition` with `:expr`."""

    def tick(self) -> TickStatus:
        test = self.plan.options.get("expr") or self.plan.values[0]
        self.status = SUCCESS if self.holds(test) else FAILURE
        return self.status


class Assign(BehaviourNode):
    """All values are those from before it."""

    def tick(self) -> TickStatus:
        found: dict[str, object] = {}
        for key, value in self.plan.options.items():
            found[key] = value.constant if value.run is None else value.run(self.frame)
        try:
            for key, new in found.items():
                self.frame.set(key, new)
        except BadWrite as error:
            return self.broke(error)
        self.status = SUCCESS
        return SUCCESS


class EmitLeaf(BehaviourNode):
    def tick(self) -> TickStatus:
        event, *payload = [value.of(self.frame) for value in self.plan.values]
        said = payload[0] if payload else {}
        if parts_of(said) > MOST_PARTS:
            return self.failed(f"an event cannot hold more than {MOST_PARTS} parts", "emit")
        self.ground.spend()
        self.ground.host.emit(str(event), cast(Mapping[str, object], said))
        self.status = SUCCESS
        return SUCCESS


class Wait(BehaviourNode):
    def tick(self) -> TickStatus:
        self.status = RUNNING
        return self.done(SUCCESS) if self.is_over(self.plan.values[0]) else RUNNING


class AlwaysSucceed(BehaviourNode):
    def tick(self) -> TickStatus:
        self.status = SUCCESS
        return SUCCESS


class AlwaysFail(BehaviourNode):
    def tick(self) -> TickStatus:
        values = self.plan.values
        return self.failed(str(values[0].of(self.frame)) if values else "fail", "fail")


LEAVES: Mapping[str, type[BehaviourNode]] = {
    "action": LeafCall,
    "condition": LeafCall,
    "check": Check,
    "set!": Assign,
    "emit": EmitLeaf,
    "wait": Wait,
    "succeed": AlwaysSucceed,
    "fail": AlwaysFail,
    **dict.fromkeys(HOSTED, LeafCall),
}


class Decorator(BehaviourNode):
    """May answer before it ticks its child, and may change the answer of the child."""

    def tick(self) -> TickStatus:
        answer = self.before()
        if answer is not None:
            return answer
        self.status = RUNNING
        status = self.child(0).tick()
        return status if status is RUNNING or status is SKIPPED else self.done(self.after(status))

    def before(self) -> TickStatus | None:
        return None

    def after(self, status: TickStatus) -> TickStatus:
        return status


class Mapped(Decorator):
    """Another answer for the child's."""

    def after(self, status: TickStatus) -> TickStatus:
        if self.plan.kind == "invert":
            return FAILURE if status is SUCCESS else SUCCESS
        return SUCCESS if self.plan.kind == "force-success" else FAILURE


class RunOnce(Decorator):
    """SKIPPED once the child is done, for the rest of the run."""

    is_done = False

    def before(self) -> TickStatus | None:
        return SKIPPED if self.is_done else None

    def after(self, status: TickStatus) -> TickStatus:
        self.is_done = True
        return status


class Guard(Decorator):
    """Asks an expression, or as `decorator` a function, at each tick; halts the child if it says no."""

    asked: LeafCall | None = None

    def before(self) -> TickStatus | None:
        if self.plan.kind == "decorator":
            self.asked = self.asked or LeafCall(self.plan, self.frame)
            is_open = self.asked.tick() is SUCCESS
        else:
            is_open = self.holds(self.plan.values[0])
        return None if is_open else self.done(FAILURE)


class WhenLeaf(BehaviourNode):
    """`:when`: asked before the node begins, and no more while it is RUNNING."""

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        super().__init__(plan, frame)
        self.children = [None]

    def tick(self) -> TickStatus:
        test = self.plan.when
        if self.status is not RUNNING and test is not None and not self.holds(test):
            return SKIPPED
        [child] = self.children
        if child is None:
            child = self.ground.kinds[self.plan.bare](self.plan, self.frame)
            self.children = [child]
        status = child.tick()
        if status is SKIPPED:
            reset_all(self.children)
            self.status = IDLE
        elif status is RUNNING:
            self.status = RUNNING
        else:
            self.done(status)
        return status


class Timeout(Decorator):
    def before(self) -> TickStatus | None:
        if not self.is_over(self.plan.values[0]):
            return None
        self.ground.note(self.plan, "timeout", f"{self.plan.label} took too long")
        return self.done(FAILURE)


class Delay(Decorator):
    """Before every start."""

    def before(self) -> TickStatus | None:
        self.status = RUNNING
        return None if self.is_over(self.plan.values[0]) else RUNNING


class Cooldown(Decorator):
    """SKIPPED for a while after the child was done."""

    until = -inf

    def before(self) -> TickStatus | None:
        return SKIPPED if self.ground.host.now() < self.until else None

    def after(self, status: TickStatus) -> TickStatus:
        self.until = self.ground.host.now() + self.number(self.plan.values[0])
        return status


class UntilFail(BehaviourNode):
    """RUNNING until the child fails, one round a tick."""

    def tick(self) -> TickStatus:
        self.status = RUNNING
        status = self.child(0).tick()
        if status is FAILURE:
            return self.done(FAILURE)
        if status is SUCCESS:
            reset_all(self.children)
        if status is not RUNNING:
            self.ground.wake()
        return RUNNING


class Loop(BehaviourNode):
    """Again while the child succeeds.

    A child that is done in the tick in which it began gives way before it begins again, so that
    a run can be stopped between any two rounds.
    """

    goes_on: TickStatus = SUCCESS
    count = 0
    fresh = {"count": 0}

    def tick(self) -> TickStatus:
        self.status = RUNNING
        if self.at is not None and not self._has_rested():
            return RUNNING
        child, until = self.child(0), self.plan.options.get("until")
        while not self._is_at_limit(child):
            was = child.status
            status = child.tick()
            if status is RUNNING:
                return RUNNING
            reset_all(self.children)
            if status is not self.goes_on:
                return SKIPPED if status is SKIPPED else self.done(status)  # which keeps the count
            self.count += 1
            if until and self.holds(until):
                return self.done(SUCCESS)
            if self._gives_way(child, was):
                return RUNNING
        return self._done_at_limit()

    def _done_at_limit(self) -> TickStatus:
        if self.goes_on is SUCCESS and "until" not in self.plan.options:
            return self.done(SUCCESS)
        if self.plan.kind == "repeat":
            self.ground.note(self.plan, "limit", f"not done after {self.count} rounds")
        return self.done(FAILURE)

    def _is_at_limit(self, child: BehaviourNode) -> bool:
        """Asked before each round."""
        most = self.plan.options.get("max")
        if most is None or child.status is RUNNING:
            return False
        return 0 <= self.number(most) <= self.count

    def _gives_way(self, child: BehaviourNode, was: TickStatus) -> bool:
        """Between two rounds."""
        if self._is_at_limit(child):
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


class Retry(Loop):
    """Again while the child fails; also `repeat` with `:until-success`."""

    goes_on = FAILURE


class Subtree(Decorator):
    """Another tree by its name, with a frame of its own, made anew when it begins."""

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        super().__init__(plan, frame)
        self.tree = self.ground.subtrees[plan.name]
        shared = plan.options.get("share")
        self.shares = shared is not None and shared.constant is True
        self.own = TreeFrame(self.ground, {}, self.tree.types, frame if self.shares else None)
        self.children = [self.ground.kinds[self.tree.root.shape](self.tree.root, self.own)]

    def before(self) -> TickStatus | None:
        """Bound keys are the other frame's; other values are copied."""
        if self.status is RUNNING:
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


class ForEach(BehaviourNode):
    """One child an item, each with a frame of its own; at most so many at once, results in order."""

    items: list[object] | None = None
    failed_ones = skipped = 0
    fresh = {"items": None, "failed_ones": 0, "skipped": 0}

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        super().__init__(plan, frame)
        self.children = []
        said = plan.options.get("on-child-fail")
        self.goes_on = said is not None and said.constant == "continue"

    def tick(self) -> TickStatus:
        self.status = RUNNING
        if self.items is None:
            self._begin()
        assert self.items is not None
        while len(self.children) < self.parallel and len(self.frames) < len(self.items):
            self._add(self.items[len(self.frames)])
        self.children = list(filter(self._is_running, self.children))
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

    def done(self, status: TickStatus) -> TickStatus:
        super().done(status)
        self.children = []
        return status

    def _begin(self) -> None:
        items, options = self.plan.values[0].of(self.frame), self.plan.options
        if not isinstance(items, list | tuple):
            raise TreeAbort(f"for-each goes over a list, not {type(items).__name__}")
        limit = self.number(options["limit"]) if "limit" in options else len(items)
        self.parallel = max(self.number(options["parallel"]), 1) if "parallel" in options else 1
        self.items, self.frames = list(items[: max(int(limit), 0)]), list[TreeFrame]()

    def _add(self, item: object) -> None:
        self.ground.spend()
        options, [plan] = self.plan.options, self.plan.children
        name = str(options["as"].constant) if "as" in options else "item"
        values = {name: item, "index": len(self.frames), "result": None}
        frame = TreeFrame(self.ground, values, {}, self.frame, is_item=True)
        self.frames.append(frame)
        self.children.append(self.ground.kinds[plan.shape](plan, frame))

    def _has_failed(self) -> bool:
        return self.failed_ones > 0 and not self.goes_on

    def _is_running(self, node: BehaviourNode | None) -> bool:
        if node is None or self._has_failed():
            return True  # is halted in a moment, with the others
        status = node.tick()
        if status is RUNNING:
            return True
        self.failed_ones += status is FAILURE
        self.skipped += status is SKIPPED
        reset_all((node,))
        return False

    def _ended(self, status: TickStatus) -> TickStatus:
        target = self.plan.options.get("collect")
        self.done(status)
        if target is not None:
            try:
                results = [frame.values["result"] for frame in self.frames]
                self.frame.set(str(target.constant), results)
            except BadWrite as error:
                return self.failed(str(error), type(error).__name__)
        return status


def part(plan: NodePlan, frame: TreeFrame) -> BehaviourNode:
    """`(subtree NAME child)` is a name for its child."""
    [child] = plan.children
    return frame.ground.kinds[child.shape](child, frame)


DECORATORS: Mapping[str, Make] = {
    "when": WhenLeaf,
    "part": part,
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
    "retry": Retry,
    "subtree": Subtree,
    "for-each": ForEach,
}
