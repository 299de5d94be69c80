"""A plan to the light objects that one run ticks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from gateway.control.expressions import Expression, ExpressionFailed
from gateway.control.trees.blackboard import Frame, defaults, types
from gateway.control.trees.branches import Ensure, If, Switch, Try, While
from gateway.control.trees.calls import Ground, TreeAbort
from gateway.control.trees.decorators import (
    Cooldown,
    Delay,
    ForEach,
    Gate,
    Items,
    Loop,
    Mapped,
    RunOnce,
    Test,
    Timed,
    Timeout,
    UntilFail,
    When,
)
from gateway.control.trees.leaves import Always, Calling, Check, Do, Wait
from gateway.control.trees.nodes import InOrder, MemorySequence, Node, Reactive, reset
from gateway.control.trees.parallels import Parallel, ParallelToTheEnd
from gateway.control.trees.plan import NodePlan, TreePlan, Value
from gateway.control.trees.registry import Act
from gateway.control.trees.status import FAILURE, IDLE, RUNNING, SKIPPED, SUCCESS, Status


class Tracer(Protocol):
    """Is told what each leaf does."""

    def ticked(self, plan: NodePlan, status: Status) -> None: ...

    def halted(self, plan: NodePlan) -> None: ...


@dataclass(frozen=True, slots=True)
class Builder:
    """`find_act` gives the function of a leaf; None if there is none."""

    subtrees: Mapping[str, TreePlan]
    ground: Ground
    find_act: Callable[[NodePlan], Act | None]
    tracer: Tracer | None = None

    def build(self, plan: NodePlan, frame: Frame) -> Node:
        make = _COMPOSITES.get(plan.kind) or _DECORATORS.get(plan.kind)
        if make is not None:
            node = make(self, plan, frame)
        else:
            node = _LEAVES.get(plan.kind, _act)(self, plan, frame)
            if self.tracer is not None:
                node = _Traced(node, plan, self.tracer)
        return node if plan.when is None else When(node, self.test(plan, plan.when, frame))

    def children(self, plan: NodePlan, frame: Frame) -> list[Node]:
        return [self.build(child, frame) for child in plan.children]

    def test(self, plan: NodePlan, expression: Expression, frame: Frame) -> Test:
        """False too where it has no value; why is kept either way."""
        ground, run, text = self.ground, expression.run, expression.text

        def holds() -> bool:
            try:
                if run(frame):
                    return True
            except (
                TypeError,
                ValueError,
                ArithmeticError,
                RecursionError,
                ExpressionFailed,
            ) as error:
                ground.note(plan, type(error).__name__, f"{text}: {error}")
                return False
            ground.note(plan, "condition", text)
            return False

        return holds

    def number(self, plan: NodePlan, value: Value, frame: Frame) -> Callable[[], float]:
        if value.run is None:
            constant = cast(float, value.constant)
            return lambda: constant

        def looked_up() -> float:
            number = value.of(frame)
            if type(number) not in {int, float}:
                raise TreeAbort(f"{plan.path}: {type(number).__name__} where a number belongs")
            return cast(float, number)

        return looked_up

    def act(self, plan: NodePlan) -> Act:
        act = self.find_act(plan)
        if act is None:
            raise TreeAbort(f"{plan.path}: nobody offers a function for {plan.label}")
        return act


class _Traced(Node):
    """A leaf that somebody watches."""

    __slots__ = ("leaf", "plan", "tracer")

    def __init__(self, leaf: Node, plan: NodePlan, tracer: Tracer) -> None:
        super().__init__()
        self.leaf, self.plan, self.tracer = leaf, plan, tracer

    def tick(self) -> Status:
        status = self.leaf.tick()
        self.tracer.ticked(self.plan, status)
        if status is not SKIPPED:
            self.status = status
        return status

    def halt(self) -> None:
        self.leaf.halt()
        self.tracer.halted(self.plan)
        self.status = IDLE


class _Subtree(Node):
    """A named subtree: a frame of its own, made anew when it begins."""

    __slots__ = ("begin", "child")

    def __init__(self, child: Node, begin: Callable[[], None]) -> None:
        super().__init__()
        self.child, self.begin = child, begin

    def tick(self) -> Status:
        if self.status is not RUNNING:
            self.begin()
        self.status = RUNNING
        status = self.child.tick()
        if status is RUNNING or status is SKIPPED:
            return status
        reset(self.child)
        self.status = status
        return status

    def halt(self) -> None:
        reset(self.child)
        self.status = IDLE


_Make = Callable[[Builder, NodePlan, Frame], Node]


def _parallel(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    children, options = builder.children(plan, frame), plan.options
    policy = options["policy"].constant if "policy" in options else None
    if policy == "continue-on-failure":
        return ParallelToTheEnd(children)
    if policy == "require-one" or "require-one" in options:
        return Parallel(children, 1, -1)
    success, failure = options.get("success"), options.get("failure")
    return Parallel(
        children,
        cast(int, success.constant) if success else -1,
        cast(int, failure.constant) if failure else 1,
    )


def _switch(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    [value], cases = plan.values, {case: index for index, case in enumerate(plan.cases)}
    words = {None: "nil", True: "true", False: "false"}

    def choose() -> int | None:
        now = value.of(frame)
        word = words[now] if now is None or isinstance(now, bool) else str(now)
        chosen = cases.get(word, cases.get("else"))
        if chosen is None:
            builder.ground.note(plan, "switch", f"no case for {word[:80]}")
        return chosen

    return Switch(builder.children(plan, frame), choose)


_COMPOSITES: Mapping[str, _Make] = {
    "sequence": lambda b, p, f: InOrder(b.children(p, f), FAILURE),
    "selector": lambda b, p, f: InOrder(b.children(p, f), SUCCESS),
    "reactive-sequence": lambda b, p, f: Reactive(b.children(p, f), FAILURE),
    "reactive-selector": lambda b, p, f: Reactive(b.children(p, f), SUCCESS),
    "memory-sequence": lambda b, p, f: MemorySequence(b.children(p, f), b.ground.wake),
    "parallel": _parallel,
    "if": lambda b, p, f: If(b.children(p, f)),
    "while": lambda b, p, f: While(b.children(p, f)),
    "switch": _switch,
    "try": lambda b, p, f: Try(b.children(p, f)),
    "ensure": lambda b, p, f: Ensure(*b.children(p, f)),
}


def _mapped(on_success: Status, on_failure: Status) -> _Make:
    return lambda b, p, f: Mapped(b.build(p.children[0], f), on_success, on_failure)


def _loop(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    options = plan.options
    is_retry = plan.kind == "retry" or "until-success" in options
    child = builder.build(plan.children[0], frame)
    loop = Loop(child, FAILURE if is_retry else SUCCESS, builder.ground)
    if "max" in options:
        loop.limit = builder.number(plan, options["max"], frame)
    if "backoff" in options:
        loop.pause = builder.number(plan, options["backoff"], frame)
    until = options.get("until")
    if until is not None and until.expression is not None:
        loop.until = builder.test(plan, until.expression, frame)
    return loop


def _guard(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    [value] = plan.values
    assert value.expression is not None
    return Gate(builder.build(plan.children[0], frame), builder.test(plan, value.expression, frame))


def _decorator(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    asked = Calling(plan, builder.ground, frame, builder.act(plan))
    return Gate(builder.build(plan.children[0], frame), lambda: asked.tick() is SUCCESS)


def _timed(kind: type[Timed]) -> _Make:
    def make(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
        seconds = builder.number(plan, plan.values[0], frame)
        return kind(builder.build(plan.children[0], frame), seconds, builder.ground, plan)

    return make


def _for_each(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    options = plan.options
    item = str(options["as"].constant) if "as" in options else "item"
    parallel = builder.number(plan, options.get("parallel", Value(0, 1)), frame)
    limit = builder.number(plan, options["limit"], frame) if "limit" in options else None
    on_fail, collect = options.get("on-child-fail"), options.get("collect")

    def settings() -> Items:
        found = Items(
            plan.values[0].of(frame),
            int(parallel()),
            goes_on=on_fail is not None and on_fail.constant == "continue",
            collect=(lambda all_: frame.set(str(collect.constant), all_)) if collect else None,
        )
        if limit is not None:
            found.items = found.items[: max(int(limit()), 0)]
        return found

    def make(value: object, index: int) -> tuple[Node, Frame]:
        own = Frame(frame.board, {item: value, "index": index, "result": None}, {}, frame)
        return builder.build(plan.children[0], own), own

    return ForEach(settings, make, builder.ground)


def _subtree(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    if plan.children:
        return builder.build(plan.children[0], frame)
    tree = builder.subtrees[plan.name]
    shares = "share" in plan.options and plan.options["share"].constant is True
    own = Frame(frame.board, {}, types(tree.schema), frame if shares else None)
    bound = {
        name.removeprefix("bind:"): value
        for name, value in plan.options.items()
        if name.startswith("bind:")
    }

    def begin() -> None:
        """Bound keys are the other frame's; other values are copied."""
        own.values = defaults(tree.schema)
        if shares:
            own.values = {k: v for k, v in own.values.items() if not _is_known(frame, k)}
        for key, value in bound.items():
            if isinstance(value.constant, str) and value.run is not None:
                own.values.pop(key, None)
                own.links[key] = (frame, value.constant)
            else:
                own.set(key, value.of(frame))

    return _Subtree(builder.build(tree.root, own), begin)


def _is_known(frame: Frame | None, key: str) -> bool:
    return frame is not None and (
        key in frame.values or key in frame.links or _is_known(frame.outer, key)
    )


_DECORATORS: Mapping[str, _Make] = {
    "repeat": _loop,
    "retry": _loop,
    "invert": _mapped(FAILURE, SUCCESS),
    "force-success": _mapped(SUCCESS, SUCCESS),
    "force-failure": _mapped(FAILURE, FAILURE),
    "until-fail": lambda b, p, f: UntilFail(b.build(p.children[0], f), b.ground),
    "run-once": lambda b, p, f: RunOnce(b.build(p.children[0], f)),
    "timeout": _timed(Timeout),
    "delay": _timed(Delay),
    "cooldown": _timed(Cooldown),
    "guard": _guard,
    "decorator": _decorator,
    "for-each": _for_each,
    "subtree": _subtree,
}


def _act(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    expr = plan.options.get("expr")
    if expr is not None and expr.expression is not None and plan.kind == "condition":
        return Check(plan, builder.ground, builder.test(plan, expr.expression, frame))
    return Calling(plan, builder.ground, frame, builder.act(plan))


def _check(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    [value] = plan.values
    assert value.expression is not None
    return Check(plan, builder.ground, builder.test(plan, value.expression, frame))


def _set(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    def put() -> None:
        found = {key: value.of(frame) for key, value in plan.options.items()}
        for key, value in found.items():
            frame.set(key, value)

    return Do(plan, builder.ground, put)


def _emit(builder: Builder, plan: NodePlan, frame: Frame) -> Node:
    def emit() -> None:
        event, *payload = [value.of(frame) for value in plan.values]
        builder.ground.emit(str(event), cast(Mapping[str, object], payload[0] if payload else {}))

    return Do(plan, builder.ground, emit)


def _fail(builder: Builder, plan: NodePlan, _frame: Frame) -> Node:
    reason = str(plan.values[0].constant) if plan.values else "fail"
    return Always(plan, builder.ground, reason)


_LEAVES: Mapping[str, _Make] = {
    "check": _check,
    "set!": _set,
    "emit": _emit,
    "wait": lambda b, p, f: Wait(p, b.ground, b.number(p, p.values[0], f)),
    "succeed": lambda b, p, f: Always(p, b.ground, None),
    "fail": _fail,
}
