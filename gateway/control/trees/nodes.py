"""What the nodes of a tree do when a run ticks them.

A node that answers at once is a function that gives a status. Any other is a generator: each `next` is a tick
and gives a status. After RUNNING and SKIPPED the next tick goes on, after SUCCESS and FAILURE the node begins
anew; so it does if the generator has ended. `close` halts it.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import cast

from gateway.control.expressions import EVALUATION_ERRORS
from gateway.control.trees.engine import (
    FAILURE,
    MOST_PARTS,
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
    defaults,
    parts_of,
)
from gateway.control.trees.kinds import HOSTED
from gateway.domain.errors import GatewayError

log = logging.getLogger(__name__)


class TreeAbort(GatewayError):
    """Ends the run at once: nothing in the tree may catch it."""

    code = "internal_error"


def failed(plan: NodePlan, frame: TreeFrame, reason: str, kind: str = "failed") -> TickStatus:
    """FAILURE with a reason. An empty one does not replace what the same node has just given."""
    state = frame.state
    if reason or state.cause is None or state.cause[0] is not plan:
        state.cause = (plan, kind, reason)
    return FAILURE


def holds(plan: NodePlan, frame: TreeFrame, test: Operand | None) -> bool:
    """Whether there is an expression, and it is true. If it is not, or has no value, the reason is kept."""
    if test is None:
        return False
    try:
        if test.run is not None and test.run(frame):
            return True
        failed(plan, frame, str(test.constant), "condition")
    except EVALUATION_ERRORS as error:
        failed(plan, frame, f"{test.constant}: {error}", type(error).__name__)
    return False


def number_of(plan: NodePlan, frame: TreeFrame, value: Operand) -> float:
    """Raises TreeAbort if it is no number."""
    number = value.constant if value.run is None else value.run(frame)
    if isinstance(number, int | float) and type(number) is not bool:
        return number
    raise TreeAbort(f"{plan.path}: {type(number).__name__} where a number belongs")


class LeafCall:
    """What the function of a leaf is given. Raises TreeAbort if there is no function."""

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        self.plan, self.frame, self.state = plan, frame, frame.state
        find, function = self.state.host.find_act, plan.function
        act = function.act if function else find(plan) if find else None
        if act is None:
            raise TreeAbort(f"{plan.path}: nobody offers a function for {plan.label}")
        self.act, frame.kept[plan] = act, self

    def option(self, name: str) -> object:
        """As it is now; None if it is not there."""
        value = self.plan.options.get(name)
        if value is None or value.run is None:
            return value and value.constant
        return value.run(self.frame)

    @property
    def values(self) -> list[object]:
        """Those without a name: of `(tool-call $call)`, the call."""
        return [value.of(self.frame) for value in self.plan.values]

    def read(self, key: str) -> object:
        return self.frame.get(key)

    def write(self, key: str, value: object) -> None:
        """Raises BadWrite for an unknown key, a wrong type, or one that was not announced."""
        if self.plan.function is not None and key not in self.plan.writes:
            raise BadWrite(f"{self.plan.function.name} did not announce that it writes {key!r}")
        self.frame.set(key, value)

    def give(self, result: object) -> None:
        """The result of this item of the loop around; `:collect` gathers them."""
        frame: TreeFrame | None = self.frame
        while frame is not None and not frame.is_item:
            frame = frame.outer
        if frame is not None:
            frame.values["result"] = result

    def failed(self, reason: str, kind: str = "failed") -> TickStatus:
        """To be returned by a function that fails for this reason."""
        return failed(self.plan, self.frame, reason, kind)


def status_of(plan: NodePlan, frame: TreeFrame, answer: object) -> TickStatus:
    """The status that the answer of a function stands for. An exception is a failure with a reason,
    unless the tree says that it ends the run."""
    if isinstance(answer, TickStatus) and answer is not FAILURE:
        return answer
    if answer is True or (answer is None and plan.kind != "condition"):
        return SUCCESS
    if answer is False or answer is None or answer is FAILURE:
        return failed(plan, frame, "")
    if not isinstance(answer, Exception):
        answer = TypeError(f"a leaf cannot answer {type(answer).__name__}")
    return _broken(plan, frame, answer)


def _broken(plan: NodePlan, frame: TreeFrame, error: Exception) -> TickStatus:
    if isinstance(error, TreeAbort):
        raise error
    kind, message = type(error).__name__, str(error)
    failed(plan, frame, message or kind, kind)
    if plan.raises:
        raise TreeAbort(f"{plan.label}: {kind}: {message}") from error
    log.warning("tree_leaf_failed", extra={"path": plan.path}, exc_info=error)
    return FAILURE


def call_leaf(plan: NodePlan, frame: TreeFrame) -> Ticks | TickStatus:
    """Calls a function, and waits for the answer if that is a PendingLeaf."""
    arguments, function = frame.state.host.arguments, plan.function
    if function is not None and function.is_plain:
        act = function.act
    else:
        call = frame.kept.get(plan) or LeafCall(plan, frame)
        act, arguments = call.act, (*arguments, call)
    try:
        answer = act(*arguments)
    except Exception as error:  # noqa: BLE001  # whatever a leaf raises is its failure
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
    """Asks an expression; also as `condition` with `:expr`."""
    return SUCCESS if holds(plan, frame, plan.options.get("expr") or plan.values[0]) else FAILURE


def assign(plan: NodePlan, frame: TreeFrame) -> TickStatus:
    """Sets keys. All values are those from before it."""
    found: dict[str, object] = {}
    for key, value in plan.options.items():
        found[key] = value.constant if value.run is None else value.run(frame)
    try:
        for key, new in found.items():
            frame.set(key, new)
    except BadWrite as error:
        return status_of(plan, frame, error)
    return SUCCESS


def emit(plan: NodePlan, frame: TreeFrame) -> TickStatus:
    event, *payload = [value.of(frame) for value in plan.values]
    facts = cast(Mapping[str, object], payload[0] if payload else {})
    if parts_of(facts) > MOST_PARTS:
        return failed(plan, frame, f"an event cannot hold more than {MOST_PARTS} parts", "emit")
    frame.state.spend()
    frame.state.host.emit(str(event), facts)
    return SUCCESS


def succeed(_plan: NodePlan, _frame: TreeFrame) -> TickStatus:
    return SUCCESS


def fail(plan: NodePlan, frame: TreeFrame) -> TickStatus:
    return failed(plan, frame, str(plan.values[0].of(frame)) if plan.values else "fail", "fail")


def rest(
    plan: NodePlan, frame: TreeFrame, seconds: Operand | None
) -> Generator[TickStatus, None, bool]:
    """RUNNING until the time has passed. Returns whether there was anything to wait for."""
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


def to_its_end(child: Child, *, waits: bool = True) -> Generator[TickStatus, None, TickStatus]:
    """Ticks a child until it is over, and passes on that it is RUNNING. `waits` also for a child that
    is SKIPPED: it may still begin."""
    try:
        while (status := child.tick()) is RUNNING or (waits and status is SKIPPED):
            yield status
    finally:
        child.halt()
    return status


Choose = Callable[[NodePlan, TreeFrame, Sequence[Child]], TickStatus]


def choosing(choose: Choose) -> Kind:
    """The kind of a node that chooses at each tick which children it ticks."""

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
    """Goes on where it was. `beside`: children at the end that are not in the order."""
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
    """Halts children that were SKIPPED. Gives the status of their parent."""
    for ticks in begun:
        ticks.close()
    return SKIPPED if skipped == len(begun) else status


def try_(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """A sequence; when it fails the last child runs, and then the whole fails."""
    ticks = in_order(FAILURE, SUCCESS, plan, frame, beside=1)
    try:
        while (status := next(ticks)) is RUNNING or status is SKIPPED:
            yield status
    finally:
        ticks.close()
    if status is FAILURE:
        yield from to_its_end(Child(plan.children[-1], frame), waits=False)
    yield status


def memory_sequence(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """After a FAILURE, and after a halt, it goes on with the child where it was."""
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
    """Begins with its first child at each tick."""
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
    """Stops at one of its thresholds and halts the rest; negative ones count from all children.

    With `:policy :continue-on-failure` each runs to its end, and it fails if all of them failed.
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
    """The end of a `parallel` that has come to one of its thresholds."""
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
    """The clean-up runs after the body, however it ended; a halt gives it a single tick."""
    body, clean_up = map(Child, plan.children, repeat(frame))
    status: TickStatus | None = None
    try:
        status = yield from to_its_end(body)
    finally:
        if status is None and frame.state.is_ticking:
            clean_up.tick()
            clean_up.halt()
    yield from to_its_end(clean_up, waits=False)
    yield status


def if_(_plan: NodePlan, _frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Asks once and stays with the branch."""
    status = children[0].status
    if status is not SUCCESS and status is not FAILURE:
        status = children[0].tick()
    if status is SUCCESS or (status is FAILURE and len(children) > 2):
        status = children[1 if status is SUCCESS else 2].tick()
        if status is SKIPPED:
            halt(children)
    return status


def while_(_plan: NodePlan, _frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Asks at each tick and halts the branch that is no longer right."""
    status = children[0].tick()
    if status is SUCCESS or (status is FAILURE and len(children) > 2):
        chosen = children[1 if status is SUCCESS else 2]
        halt(children, but=chosen)
        status = chosen.tick()
    if status is SKIPPED:
        halt(children)
    return status


def switch(plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Chooses at each tick by the value; another branch that runs is halted."""
    now, cases = plan.values[0].of(frame), plan.cases
    word = str(now).lower() if isinstance(now, bool) else "nil" if now is None else str(now)
    case = word if word in cases else "else"
    if case not in cases:
        return failed(plan, frame, f"no case for {word[:80]}", "switch")
    chosen = children[cases.index(case)]
    halt(children, but=chosen)
    return chosen.tick()


def mapped(success: TickStatus, failure: TickStatus) -> Kind:
    """The kind of a node that gives another status than its child."""
    answers = {SUCCESS: success, FAILURE: failure}

    def choose(_plan: NodePlan, _frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
        status = children[0].tick()
        return answers.get(status, status)

    return choosing(choose)


def run_once(plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """SKIPPED once the child is done, for the rest of the run."""
    if plan in frame.kept:
        return SKIPPED
    status = children[0].tick()
    if status is SUCCESS or status is FAILURE:
        frame.kept[plan] = True
    return status


def cooldown(plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """SKIPPED for a while after the child was done."""
    now = frame.state.host.now
    if plan in frame.kept and now() < frame.kept[plan]:
        return SKIPPED
    status = children[0].tick()
    if status is SUCCESS or status is FAILURE:
        frame.kept[plan] = now() + number_of(plan, frame, plan.values[0])
    return status


def guard(plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """Asks an expression, or as `decorator` a function, at each tick; halts the child if it says no."""
    if plan.kind == "guard":
        is_open = holds(plan, frame, plan.values[0])
    else:
        is_open = call_leaf(plan, frame) is SUCCESS
    return children[0].tick() if is_open else FAILURE


def when(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """`:when`: asked before the node begins, and no more while it is RUNNING."""
    is_begun = holds(plan, frame, plan.when)
    node = Child(plan, frame, frame.state.kinds[plan.bare])
    yield (yield from to_its_end(node, waits=False)) if is_begun else SKIPPED


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
            status = failed(plan, frame, f"{plan.label} took too long", "timeout")
    finally:
        state.timers.pop(child, None)
        child.halt()
    yield status


def delay(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """`wait`; and with a child, the wait before each of its starts."""
    yield from rest(plan, frame, plan.values[0])
    yield (yield from to_its_end(Child(plan.children[0], frame))) if plan.children else SUCCESS


def until_fail(_plan: NodePlan, frame: TreeFrame, children: Sequence[Child]) -> TickStatus:
    """RUNNING until the child fails, one round a tick."""
    status = children[0].tick()
    if status is FAILURE:
        return FAILURE
    if status is not RUNNING:
        frame.state.wake()
    return RUNNING


def loop(goes_on: TickStatus, plan: NodePlan, frame: TreeFrame) -> Ticks:
    """`repeat` while the child succeeds, `retry` and `repeat :until-success` while it fails.

    A child that is done in the tick in which it began gives way before it begins again, so that
    a run can be stopped between any two rounds.
    """
    state, [child], count = frame.state, plan.children, 0
    is_next = was_quick = False  # the child has done its part, and in the tick in which it began
    limit = plan.options.get("max")
    while limit is None or not 0 <= number_of(plan, frame, limit) <= count:
        if is_next and (yield from rest(plan, frame, plan.options.get("backoff"))):
            was_quick = False
        if was_quick:
            state.wake()
            yield RUNNING
        began = state.ticks
        status = yield from to_its_end(Child(child, frame), waits=False)
        is_next, was_quick = status is goes_on, state.ticks == began
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
        status = _end_at_limit(goes_on, plan, frame, count)
    yield status


def _end_at_limit(goes_on: TickStatus, plan: NodePlan, frame: TreeFrame, count: int) -> TickStatus:
    if goes_on is SUCCESS and "until" not in plan.options:
        return SUCCESS
    if plan.kind == "retry":
        return FAILURE  # with the reason of its child
    return failed(plan, frame, f"not done after {count} rounds", "limit")


def subtree(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Another tree by its name, with a frame of its own. Bound keys are the other frame's; other values
    are copied."""
    if plan.children:  # it is a name for its child
        yield (yield from to_its_end(Child(plan.children[0], frame)))
        return
    tree, share = frame.state.subtrees[plan.name], plan.options.get("share")
    shares = share is not None and share.constant is True
    own = frame.kept.get(plan)
    if own is None:
        own = TreeFrame(frame.state, {}, tree.types, frame if shares else None)
        frame.kept[plan] = own
    values = own.values = defaults(tree)
    if shares:
        own.values = {key: value for key, value in values.items() if not frame.has(key)}
    for key, value in plan.bound.items():
        if value.key:
            own.values.pop(key, None)
            own.links[key] = (frame, value.key)
        else:
            own.set(key, value.of(frame))
    yield (yield from to_its_end(Child(tree.root, own)))


class _Items:
    """The items of a `for-each`, each with a frame of its own."""

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        """Raises TreeAbort."""
        items, options = plan.values[0].of(frame), plan.options
        if not isinstance(items, list | tuple):
            raise TreeAbort(f"for-each goes over a list, not {type(items).__name__}")
        limit = number_of(plan, frame, options.get("limit", Operand(0, len(items))))
        self.parallel = max(number_of(plan, frame, options.get("parallel", Operand(0, 1))), 1)
        self.name = str(options.get("as", Operand(0, "item")).constant)
        self.goes_on = options.get("on-child-fail", Operand(0)).constant == "continue"
        self.plan, self.frame, self.rest = plan, frame, list(items[: max(int(limit), 0)])[::-1]
        self.frames: list[TreeFrame] = []
        self.at_work: list[Child] = []
        self.ended: list[TickStatus] = []

    @property
    def has_room(self) -> bool:
        """Whether another item can begin."""
        return bool(self.rest) and len(self.at_work) < self.parallel

    def tick(self) -> bool:
        """Begins as many as may, and ticks them; up to a FAILURE. Returns whether it is over."""
        state = self.frame.state
        while self.has_room:
            state.spend()
            values = {self.name: self.rest.pop(), "index": len(self.frames), "result": None}
            item = TreeFrame(state, values, {}, self.frame, is_item=True)
            self.frames.append(item)
            self.at_work.append(Child(self.plan.children[0], item))
        for child in tuple(self.at_work):
            status = child.tick()
            if status is not RUNNING:
                self.at_work.remove(child)
                child.halt()
                self.ended.append(status)
            if status is FAILURE and not self.goes_on:
                return True
        return not self.rest and not self.at_work

    def end(self) -> TickStatus:
        """Collects the results."""
        if self.ended and set(self.ended) == {SKIPPED}:
            return SKIPPED
        if "collect" in self.plan.options:
            results = [each.values["result"] for each in self.frames]
            try:
                self.frame.set(str(self.plan.options["collect"].constant), results)
            except BadWrite as error:
                return failed(self.plan, self.frame, str(error), type(error).__name__)
        return FAILURE if not self.goes_on and FAILURE in self.ended else SUCCESS


def for_each(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """One child an item; at most so many at once, results in order."""
    items = _Items(plan, frame)
    try:
        while not items.tick():
            if items.has_room:
                frame.state.wake()
            yield RUNNING
    finally:
        halt(items.at_work)
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
    **dict.fromkeys(("reactive-sequence", "reactive-selector"), choosing(reactive)),
    "parallel": choosing(parallel),
    "for-each": for_each,
    "if": choosing(if_),
    "while": choosing(while_),
    "switch": choosing(switch),
    "ensure": ensure,
    "invert": mapped(FAILURE, SUCCESS),
    "force-success": mapped(SUCCESS, SUCCESS),
    "force-failure": mapped(FAILURE, FAILURE),
    "until-fail": choosing(until_fail),
    "run-once": choosing(run_once),
    **dict.fromkeys(("guard", "decorator"), choosing(guard)),
    "when": when,
    "timeout": timeout,
    "delay": delay,
    "cooldown": choosing(cooldown),
    "repeat": partial(loop, SUCCESS),
    "retry": partial(loop, FAILURE),
    "subtree": subtree,
}
