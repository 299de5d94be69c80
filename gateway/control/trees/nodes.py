"""The behaviour of each kind of node in a tick.

A node that answers at once is a function that returns a status. Any other node is a generator: each `next`
is a tick and yields a status. After RUNNING and SKIPPED the next tick continues the node; after SUCCESS and
FAILURE, and after the end of the generator, it restarts the node. `close` halts the node.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import cast

from gateway.control.expressions import EVALUATION_ERRORS
from gateway.control.trees.engine import (
    FAILURE,
    MAX_PARTS,
    NOT_BEGUN,
    RUNNING,
    SKIPPED,
    SUCCESS,
    BadWrite,
    Child,
    Kind,
    NodePlan,
    Operand,
    PendingLeaf,
    Ticks,
    TickStatus,
    TreeFrame,
    count_parts,
    initial_values,
)
from gateway.control.trees.kinds import HOSTED
from gateway.domain.errors import GatewayError

log = logging.getLogger(__name__)


class TreeAbort(GatewayError):
    """Ends the run at once; no node catches it."""

    code = "internal_error"


def fail_with(plan: NodePlan, frame: TreeFrame, reason: str, kind: str = "failed") -> TickStatus:
    """Records a failure and returns FAILURE. An empty reason keeps the reason that the same node has
    recorded."""
    state = frame.state
    if reason or state.cause is None or state.cause[0] is not plan:
        state.cause = (plan, kind, reason)
    return FAILURE


def holds(plan: NodePlan, frame: TreeFrame, test: Operand | None) -> bool:
    """True if there is an expression and it is true. Records a failure if it is false or raises."""
    if test is None:
        return False
    try:
        if test.run is not None and test.run(frame):
            return True
        fail_with(plan, frame, str(test.constant), "condition")
    except EVALUATION_ERRORS as error:
        fail_with(plan, frame, f"{test.constant}: {error}", type(error).__name__)
    return False


def number_of(plan: NodePlan, frame: TreeFrame, value: Operand) -> float:
    """Returns the value of an operand. Raises TreeAbort if it is not a number."""
    number = value.of(frame)
    if isinstance(number, int | float) and type(number) is not bool:
        return number
    raise TreeAbort(f"{plan.path}: a number is needed, not {type(number).__name__}")


class LeafCall:
    """The argument of a leaf function. Raises TreeAbort if the leaf has no function."""

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        self.plan, self.frame, self.state = plan, frame, frame.state
        find, function = self.state.host.find_act, plan.function
        act = function.act if function else find(plan) if find else None
        if act is None:
            raise TreeAbort(f"{plan.path}: no function is registered for {plan.label}")
        self.act, frame.kept[plan] = act, self

    def option(self, name: str) -> object:
        """Returns the current value of an option; None if it is absent."""
        value = self.plan.options.get(name)
        return value and value.of(self.frame)

    @property
    def values(self) -> list[object]:
        """Returns the positional values: for `(tool-call $call)`, the call."""
        return [value.of(self.frame) for value in self.plan.values]

    def read(self, key: str) -> object:
        return self.frame.get(key)

    def write(self, key: str, value: object) -> None:
        """Raises BadWrite for an unknown or undeclared key, or a value of a wrong type."""
        if self.plan.function is not None and key not in self.plan.writes:
            raise BadWrite(f"{self.plan.function.name} does not declare that it writes {key!r}")
        self.frame.set(key, value)

    def set_result(self, result: object) -> None:
        """Sets the result of the current item of the enclosing `for-each`, for `:collect`."""
        frame: TreeFrame | None = self.frame
        while frame is not None and not frame.is_item:
            frame = frame.outer
        if frame is not None:
            frame.values["result"] = result

    def fail(self, reason: str, kind: str = "failed") -> TickStatus:
        """Records a failure. Returns FAILURE, for the function to return."""
        return fail_with(self.plan, self.frame, reason, kind)


def status_of(plan: NodePlan, frame: TreeFrame, answer: object) -> TickStatus:
    """Returns the status for the answer of a leaf function. An exception is a failure, or ends the run
    if the tree says so."""
    if isinstance(answer, TickStatus) and answer is not FAILURE:
        return answer
    if answer is True or (answer is None and plan.kind != "condition"):
        return SUCCESS
    if answer is False or answer is None or answer is FAILURE:
        return fail_with(plan, frame, "")
    if not isinstance(answer, Exception):
        answer = TypeError(f"a leaf cannot return {type(answer).__name__}")
    return _fail_with_error(plan, frame, answer)


def _fail_with_error(plan: NodePlan, frame: TreeFrame, error: Exception) -> TickStatus:
    if isinstance(error, TreeAbort):
        raise error
    kind, message = type(error).__name__, str(error)
    fail_with(plan, frame, message or kind, kind)
    if plan.raises:
        raise TreeAbort(f"{plan.label}: {kind}: {message}") from error
    log.warning("tree_leaf_failed", extra={"path": plan.path}, exc_info=error)
    return FAILURE


def call_leaf(plan: NodePlan, frame: TreeFrame) -> Ticks | TickStatus:
    """Calls the function of a leaf, and waits for its answer if it returns a PendingLeaf."""
    arguments, function = frame.state.host.arguments, plan.function
    if function is not None and function.is_plain:
        act = function.act
    else:
        call = frame.kept.get(plan) or LeafCall(plan, frame)
        act, arguments = call.act, (*arguments, call)
    try:
        answer = act(*arguments)
    except Exception as error:  # noqa: BLE001  # any exception is a failure of the leaf
        answer = error
    if answer is SUCCESS or answer is True or (answer is None and plan.kind != "condition"):
        return SUCCESS
    if isinstance(answer, PendingLeaf):
        return _wait_for(answer, plan, frame)
    return status_of(plan, frame, answer)


def _wait_for(answer: object, plan: NodePlan, frame: TreeFrame) -> Ticks:
    while isinstance(answer, PendingLeaf):
        try:
            while not answer.is_over:
                yield RUNNING
        finally:
            if frame.state.is_ticking and not answer.is_over:
                answer.halt()
        answer = answer.outcome
    yield SUCCESS if answer is SUCCESS else status_of(plan, frame, answer)


def check(plan: NodePlan, frame: TreeFrame) -> TickStatus:
    """Evaluates an expression: `check`, and `condition` with `:expr`."""
    return SUCCESS if holds(plan, frame, plan.options.get("expr") or plan.values[0]) else FAILURE


def assign(plan: NodePlan, frame: TreeFrame) -> TickStatus:
    """Sets keys. All values are computed before the first key is set."""
    values: dict[str, object] = {}
    for key, operand in plan.options.items():
        values[key] = operand.of(frame)
    try:
        for key, value in values.items():
            frame.set(key, value)
    except BadWrite as error:
        return status_of(plan, frame, error)
    return SUCCESS


def emit(plan: NodePlan, frame: TreeFrame) -> TickStatus:
    event, *payload = [value.of(frame) for value in plan.values]
    data = cast(Mapping[str, object], payload[0] if payload else {})
    if count_parts(data) > MAX_PARTS:
        return fail_with(plan, frame, f"an event cannot hold more than {MAX_PARTS} parts", "emit")
    frame.state.spend()
    frame.state.host.emit(str(event), data)
    return SUCCESS


def succeed(_plan: NodePlan, _frame: TreeFrame) -> TickStatus:
    return SUCCESS


def fail(plan: NodePlan, frame: TreeFrame) -> TickStatus:
    return fail_with(plan, frame, str(plan.values[0].of(frame)) if plan.values else "fail", "fail")


def pause(
    plan: NodePlan, frame: TreeFrame, seconds: Operand | None
) -> Generator[TickStatus, None, bool]:
    """Is RUNNING until the time has passed. Returns True if it had to wait."""
    if seconds is None:
        return False
    state, me, was_running = frame.state, object(), False
    now = state.host.now()
    until = now + number_of(plan, frame, seconds)
    try:
        while now < until:
            state.timers[me], was_running = until, True
            yield RUNNING
            now = state.host.now()
    finally:
        state.timers.pop(me, None)
    return was_running


def halt(children: Iterable[Child], but: Child | None = None) -> None:
    for child in children:
        if child is not but and child.status is not None:
            child.halt()


def run_to_end(child: Child, *, waits: bool = True) -> Generator[TickStatus, None, TickStatus]:
    """Ticks a child until it has ended. `waits`: a SKIPPED child is ticked again, because it may begin
    later."""
    try:
        while (status := child.tick()) is RUNNING or (waits and status is SKIPPED):
            yield status
    finally:
        child.halt()
    return status


Choose = Callable[[NodePlan, TreeFrame, Sequence[Child]], TickStatus]


def per_tick(choose: Choose) -> Kind:
    """Returns the kind of a node that chooses the children to tick at each tick."""

    def ticks(plan: NodePlan, frame: TreeFrame) -> Ticks:
        children, is_over = list(map(Child, plan.children, repeat(frame))), False
        try:
            while True:
                is_over = False
                status = choose(plan, frame, children)
                is_over = status is SUCCESS or status is FAILURE
                if is_over:
                    halt(children)
                yield status
        finally:
            if not is_over:
                halt(children)

    return ticks


def in_order(
    stops_at: TickStatus, otherwise: TickStatus, plan: NodePlan, frame: TreeFrame, beside: int = 0
) -> Ticks:
    """Ticks children in order and continues at the running one. `beside`: number of last children that
    are not in the order."""
    kinds, body = frame.state.kinds, plan.children[: len(plan.children) - beside]
    begun = [NOT_BEGUN] * len(body)
    place = skipped = 0
    try:
        while True:
            status = next(begun[place], None)
            if status is None:
                new = kinds[body[place].shape](body[place], frame)
                begun[place], status = (
                    (NOT_BEGUN, new) if isinstance(new, TickStatus) else (new, next(new))
                )
            if status is RUNNING:
                yield RUNNING
                continue
            place += 1
            skipped += status is SKIPPED
            if status is not stops_at and place < len(body):
                continue
            if status is not stops_at:
                status = otherwise
            if skipped:
                status = _without_skipped(begun, skipped, status)
            place = skipped = 0
            yield status
    finally:
        for ticks in begun:
            ticks.close()


def _without_skipped(begun: Sequence[Ticks], skipped: int, status: TickStatus) -> TickStatus:
    """Halts the children that were SKIPPED. Returns the status of their parent."""
    for ticks in begun:
        ticks.close()
    return SKIPPED if skipped == len(begun) else status


def try_(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Ticks a sequence of all children but the last. If it fails, the last child runs, then the node
    fails."""
    ticks = in_order(FAILURE, SUCCESS, plan, frame, beside=1)
    try:
        while (status := next(ticks)) is RUNNING or status is SKIPPED:
            yield status
    finally:
        ticks.close()
    if status is FAILURE:
        yield from run_to_end(Child(plan.children[-1], frame), waits=False)
    yield status


def memory_sequence(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """A sequence that continues at the same child after a FAILURE or a halt."""
    fresh = list(map(Child, plan.children, repeat(frame)))
    children, place = frame.kept.get(plan) or (fresh, 0)
    count, skipped, status = len(children), 0, SKIPPED
    try:
        while place < count:
            was_running = children[place].status is RUNNING
            status = children[place].tick()
            if status is RUNNING:
                yield RUNNING
                continue
            if status is FAILURE:
                break
            place, skipped = place + 1, skipped + (status is SKIPPED)
            frame.kept[plan] = children, place % count
            if status is SUCCESS and not was_running and place < count:
                frame.state.wake()
                yield RUNNING
        else:
            status = SKIPPED if skipped == count else SUCCESS
    finally:
        halt(children[place:] if status is FAILURE else children)
    yield status


def reactive(plan: NodePlan, _frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Ticks its children from the first one at each tick."""
    is_selector, is_skipped = plan.kind == "reactive-selector", True
    stops_at, otherwise = (SUCCESS, FAILURE) if is_selector else (FAILURE, SUCCESS)
    for child in children:
        status = child.tick()
        if status is RUNNING:
            halt(children, but=child)
            return RUNNING
        if status is stops_at:
            return status
        if status is SKIPPED:
            child.halt()
        else:
            is_skipped = False
    return SKIPPED if is_skipped else otherwise


def parallel(plan: NodePlan, _frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Ends at one of its thresholds and halts the rest; a negative threshold counts from all children.

    With `:policy :continue-on-failure` every child runs to its end; the node fails if all fail.
    """
    options, skipped = _constants(plan), 0
    for child in children:
        if child.status not in {SUCCESS, FAILURE}:
            skipped += child.tick() is SKIPPED
        decided = _decided(options, [one.status for one in children], skipped)
        if decided is not None:
            return decided
    if skipped == len(children):
        return SKIPPED
    statuses = {child.status for child in children}
    if options.get("policy") != "continue-on-failure" or RUNNING in statuses:
        return RUNNING
    return FAILURE if statuses == {FAILURE} else SUCCESS


def _constants(plan: NodePlan) -> Mapping[str, object]:
    return {key: one.constant for key, one in plan.options.items()}


def _decided(
    options: Mapping[str, object], statuses: Sequence[TickStatus | None], skipped: int
) -> TickStatus | None:
    """Returns the end of a `parallel` that has reached a threshold, else None."""
    if options.get("policy") == "continue-on-failure":
        return None
    count, is_one = len(statuses), "require-one" in {*options, options.get("policy")}
    success = cast(int, options.get("success", 1 if is_one else -1))
    failure = cast(int, options.get("failure", -1 if is_one else 1))
    enough, too_many = (max(count + n + 1, 0) if n < 0 else n for n in (success, failure))
    if statuses.count(SUCCESS) + (skipped if success < 0 else 0) >= enough:
        return SUCCESS
    failures = statuses.count(FAILURE)
    return FAILURE if count - failures < enough or failures == too_many else None


def ensure(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Runs the clean-up after the body, whatever its status. A halt ticks the clean-up once."""
    body, clean_up = map(Child, plan.children, repeat(frame))
    status: TickStatus | None = None
    try:
        status = yield from run_to_end(body)
    finally:
        if status is None and frame.state.is_ticking:
            clean_up.tick()
            clean_up.halt()
    yield from run_to_end(clean_up, waits=False)
    yield status


def if_(_plan: NodePlan, _frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Evaluates the condition once and keeps the branch."""
    status = children[0].status
    if status is not SUCCESS and status is not FAILURE:
        status = children[0].tick()
    if status is SUCCESS or (status is FAILURE and len(children) > 2):
        status = children[1 if status is SUCCESS else 2].tick()
        if status is SKIPPED:
            halt(children)
    return status


def while_(_plan: NodePlan, _frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Evaluates the condition at each tick and halts the other branch."""
    status = children[0].tick()
    if status is SUCCESS or (status is FAILURE and len(children) > 2):
        chosen = children[1 if status is SUCCESS else 2]
        halt(children, but=chosen)
        status = chosen.tick()
    if status is SKIPPED:
        halt(children)
    return status


def switch(plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Chooses the branch by the value at each tick and halts any other."""
    now, cases = plan.values[0].of(frame), plan.cases
    word = str(now).lower() if isinstance(now, bool) else "nil" if now is None else str(now)
    case = word if word in cases else "else"
    if case not in cases:
        return fail_with(plan, frame, f"no case for {word[:80]}", "switch")
    chosen = children[cases.index(case)]
    halt(children, but=chosen)
    return chosen.tick()


def map_status(success: TickStatus, failure: TickStatus) -> Kind:
    """Returns the kind of a node that replaces the status of its child."""
    answers = {SUCCESS: success, FAILURE: failure}

    def choose(_plan: NodePlan, _frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
        status = children[0].tick()
        return answers.get(status, status)

    return per_tick(choose)


def run_once(plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Is SKIPPED for the rest of the run after the child has ended."""
    if plan in frame.kept:
        return SKIPPED
    status = children[0].tick()
    if status is SUCCESS or status is FAILURE:
        frame.kept[plan] = True
    return status


def cooldown(plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Is SKIPPED for a time after the child has ended."""
    now = frame.state.host.now
    if plan in frame.kept and now() < frame.kept[plan]:
        return SKIPPED
    status = children[0].tick()
    if status is SUCCESS or status is FAILURE:
        frame.kept[plan] = now() + number_of(plan, frame, plan.values[0])
    return status


def guard(plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Evaluates an expression (`guard`) or a function (`decorator`) at each tick. Halts the child if it
    is false."""
    if plan.kind == "guard":
        is_open = holds(plan, frame, plan.values[0])
    else:
        is_open = call_leaf(plan, frame) is SUCCESS
    return children[0].tick() if is_open else FAILURE


def when(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Evaluates `:when` before the node begins, and not while it is RUNNING."""
    is_begun = holds(plan, frame, plan.when)
    node = Child(plan, frame, frame.state.kinds[plan.bare])
    yield (yield from run_to_end(node, waits=False)) if is_begun else SKIPPED


def timeout(plan: NodePlan, frame: TreeFrame) -> Ticks:
    state, child = frame.state, Child(plan.children[0], frame)
    until = state.host.now() + number_of(plan, frame, plan.values[0])
    state.timers[child] = until
    try:
        while state.host.now() < until:
            status = child.tick()
            if status is SUCCESS or status is FAILURE:
                break
            yield status
        else:
            status = fail_with(plan, frame, f"{plan.label} timed out", "timeout")
    finally:
        state.timers.pop(child, None)
        child.halt()
    yield status


def delay(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Waits; with a child (`delay`), before each start of the child."""
    yield from pause(plan, frame, plan.values[0])
    yield (yield from run_to_end(Child(plan.children[0], frame))) if plan.children else SUCCESS


def until_fail(_plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Is RUNNING until the child fails; at most one round a tick."""
    status = children[0].tick()
    if status is FAILURE:
        return FAILURE
    if status is not RUNNING:
        frame.state.wake()
    return RUNNING


def loop(repeat_on: TickStatus, plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Repeats the child: `repeat` after SUCCESS, `retry` and `repeat :until-success` after FAILURE.

    A child that ends in the tick in which it began restarts in the next tick, so that a run can be
    stopped between any two rounds.
    """
    state, [child], count = frame.state, plan.children, 0
    is_next = was_quick = False  # another round follows; the last one took a single tick
    limit = plan.options.get("max")
    while limit is None or not 0 <= number_of(plan, frame, limit) <= count:
        if is_next and (yield from pause(plan, frame, plan.options.get("backoff"))):
            was_quick = False
        if was_quick:
            state.wake()
            yield RUNNING
        began = state.ticks
        status = yield from run_to_end(Child(child, frame), waits=False)
        is_next, was_quick = status is repeat_on, state.ticks == began
        count += is_next
        if status is SKIPPED:
            was_quick = False
            yield SKIPPED
        elif not is_next:
            break
        elif holds(plan, frame, plan.options.get("until")):
            status = SUCCESS
            break
    else:
        status = _end_at_limit(repeat_on, plan, frame, count)
    yield status


def _end_at_limit(
    repeat_on: TickStatus, plan: NodePlan, frame: TreeFrame, count: int
) -> TickStatus:
    if repeat_on is SUCCESS and "until" not in plan.options:
        return SUCCESS
    if plan.kind == "retry":
        return FAILURE  # with the reason of its child
    return fail_with(plan, frame, f"not done after {count} rounds", "limit")


def subtree(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Runs a named tree in a frame of its own. Keys bound to keys are shared with the outer frame;
    other bound values are copied."""
    if plan.children:  # an inline subtree only names its child
        yield (yield from run_to_end(Child(plan.children[0], frame)))
        return
    tree, share = frame.state.subtrees[plan.name], plan.options.get("share")
    shares = share is not None and share.constant is True
    own = frame.kept.get(plan)
    if own is None:
        own = TreeFrame(frame.state, {}, tree.types, frame if shares else None)
        frame.kept[plan] = own
    values = own.values = initial_values(tree)
    if shares:
        own.values = {key: value for key, value in values.items() if not frame.has(key)}
    for key, value in plan.bound.items():
        if value.key:
            own.values.pop(key, None)
            own.links[key] = (frame, value.key)
        else:
            own.set(key, value.of(frame))
    yield (yield from run_to_end(Child(tree.root, own)))


class _Items:
    """The items of a `for-each`, each in a frame of its own."""

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        """Raises TreeAbort."""
        items, options = plan.values[0].of(frame), plan.options
        if not isinstance(items, list | tuple):
            raise TreeAbort(f"for-each needs a list, not {type(items).__name__}")
        limit = number_of(plan, frame, options.get("limit", Operand(0, len(items))))
        self.parallel = max(number_of(plan, frame, options.get("parallel", Operand(0, 1))), 1)
        self.name = str(options.get("as", Operand(0, "item")).constant)
        self.continues = options.get("on-child-fail", Operand(0)).constant == "continue"
        self.plan, self.frame, self.rest = plan, frame, list(items[: max(int(limit), 0)])[::-1]
        self.frames: list[TreeFrame] = []
        self.running: list[Child] = []
        self.ended: list[TickStatus] = []

    @property
    def has_room(self) -> bool:
        """True if another item can begin."""
        return bool(self.rest) and len(self.running) < self.parallel

    def tick(self) -> bool:
        """Begins items while there is room and ticks the running ones. Returns True at the end: after the
        last item, or after a FAILURE."""
        state = self.frame.state
        while self.has_room:
            state.spend()
            values = {self.name: self.rest.pop(), "index": len(self.frames), "result": None}
            item = TreeFrame(state, values, {}, self.frame, is_item=True)
            self.frames.append(item)
            self.running.append(Child(self.plan.children[0], item))
        for child in tuple(self.running):
            status = child.tick()
            if status is not RUNNING:
                self.running.remove(child)
                child.halt()
                self.ended.append(status)
            if status is FAILURE and not self.continues:
                return True
        return not self.rest and not self.running

    def end(self) -> TickStatus:
        """Collects the results and returns the status of the node."""
        if self.ended and set(self.ended) == {SKIPPED}:
            return SKIPPED
        if "collect" in self.plan.options:
            results = [each.values["result"] for each in self.frames]
            try:
                self.frame.set(str(self.plan.options["collect"].constant), results)
            except BadWrite as error:
                return fail_with(self.plan, self.frame, str(error), type(error).__name__)
        return FAILURE if not self.continues and FAILURE in self.ended else SUCCESS


def for_each(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Runs the child for each item, at most `:parallel` at a time; results are in item order."""
    items = _Items(plan, frame)
    try:
        while not items.tick():
            if items.has_room:
                frame.state.wake()
            yield RUNNING
    finally:
        halt(items.running)
    yield items.end()


LEAVES: Mapping[str, Kind] = {
    "action": call_leaf,
    "condition": call_leaf,
    "check": check,
    "set!": assign,
    "emit": emit,
    "wait": delay,
    "succeed": succeed,
    "fail": fail,
    **dict.fromkeys(HOSTED, call_leaf),
}
NODES: Mapping[str, Kind] = {
    **LEAVES,
    "sequence": partial(in_order, FAILURE, SUCCESS),
    "selector": partial(in_order, SUCCESS, FAILURE),
    "try": try_,
    "memory-sequence": memory_sequence,
    **dict.fromkeys(("reactive-sequence", "reactive-selector"), per_tick(reactive)),
    "parallel": per_tick(parallel),
    "for-each": for_each,
    "if": per_tick(if_),
    "while": per_tick(while_),
    "switch": per_tick(switch),
    "ensure": ensure,
    "invert": map_status(FAILURE, SUCCESS),
    "force-success": map_status(SUCCESS, SUCCESS),
    "force-failure": map_status(FAILURE, FAILURE),
    "until-fail": per_tick(until_fail),
    "run-once": per_tick(run_once),
    **dict.fromkeys(("guard", "decorator"), per_tick(guard)),
    "when": when,
    "timeout": timeout,
    "delay": delay,
    "cooldown": per_tick(cooldown),
    "repeat": partial(loop, SUCCESS),
    "retry": partial(loop, FAILURE),
    "subtree": subtree,
}
