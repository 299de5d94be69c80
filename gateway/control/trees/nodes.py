"""What the nodes of a tree do when a run ticks them, and the blackboard that they share.

A node that answers at once is a function that gives a status. Any other is a generator: each `next` is a tick
and gives a status. After RUNNING and SKIPPED the next tick goes on, after SUCCESS and FAILURE the node begins
anew; so it does if the generator has ended. `close` halts it.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, cast

from gateway.control.expressions import CANNOT
from gateway.control.trees.plan import ANY, FAILED, HOSTED, Act, KeyType, NodePlan, TreePlan, Value
from gateway.domain.errors import GatewayError


class TickStatus(Enum):
    """The value is the letter that traces use."""

    RUNNING = "R"
    SUCCESS = "S"
    FAILURE = "F"
    SKIPPED = "K"


# Ticks compare by identity with these: an attribute of the class would cost more than the comparison.
RUNNING: Final = TickStatus.RUNNING
SUCCESS: Final = TickStatus.SUCCESS
FAILURE: Final = TickStatus.FAILURE
SKIPPED: Final = TickStatus.SKIPPED

log = logging.getLogger(__name__)

Ticks = Generator[TickStatus, None, None]
Kind = Callable[[NodePlan, "TreeFrame"], Ticks | TickStatus]
Emit = Callable[[str, Mapping[str, object]], None]


MOST_WORK = 1_000  # items of loops, and events, before something happens outside
MOST_PARTS = 10_000  # of a value
PARTS_A_WORK = 100  # to look at so many is as much work as an event


class TreeTooMuch(GatewayError):
    """A tree works for too long without waiting for anything outside."""

    code = "internal_error"


class BadWrite(GatewayError):
    """A key that is not there, or a value that it does not take."""

    code = "bad_write"


class TreeAbort(GatewayError):
    """Ends the run at once: nothing in the tree may catch it."""

    code = "internal_error"


@dataclass(frozen=True, slots=True)
class TreeHost:
    """What a run is given. `roots` are looked up at each use, so they may be live mappings."""

    now: Callable[[], float]
    roots: Mapping[str, object] = field(default_factory=dict)  # what trees look up besides keys
    emit: Emit = lambda event, payload: None
    find_act: Callable[[NodePlan], Act | None] | None = None  # for plans without a registry
    woken: Callable[[], None] | None = None  # something happened outside: step() makes sense
    given: tuple[object, ...] = ()  # what functions of leaves are given before their call


@dataclass(slots=True, eq=False)
class Ground:
    """What all nodes and frames of a run share."""

    host: TreeHost
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # what nodes do, by their shape
    file: str = ""
    watched: frozenset[str] = frozenset()  # keys whose writers wake the run
    subtrees: Mapping[str, TreePlan] = field(default_factory=dict)
    timers: dict[object, float] = field(default_factory=dict)  # who waits -> until when
    is_awake: bool = True  # another tick makes sense
    # A tick or a halt is on its way. A node that is closed at another time was not halted: its run
    # was dropped, and nothing may happen any more.
    is_ticking: bool = False
    has_heard: bool = False  # something came from outside since the last tick
    work: int = 0  # done since then
    ticks: int = 0  # of the run
    cause: tuple[NodePlan, str, str] | None = None  # why a node failed last: its kind, in words

    def spend(self, work: int = 1) -> None:
        """Raises TreeTooMuch."""
        self.work += work
        if self.work > MOST_WORK:
            raise TreeTooMuch(
                f"more than {MOST_WORK} items and events, and nothing happened meanwhile"
            )

    def wake(self) -> None:
        """Asks for another tick; during a tick it is the tree itself that asks."""
        self.is_awake = True
        if not self.is_ticking:
            self.has_heard = True
            if self.host.woken is not None:
                self.host.woken()

    @property
    def failure(self) -> Mapping[str, object] | None:
        """Why a node failed last."""
        if self.cause is None:
            return None
        plan, kind, message = self.cause
        return {
            "node": plan.label,
            "path": plan.path,
            "file": self.file,
            "line": plan.line,
            "type": kind,
            "message": message or f"{plan.label} failed",
        }


@dataclass(slots=True, eq=False)
class TreeFrame:
    """Keys and their values. A key that is not here is looked up in the outer frame, then in the roots."""

    ground: Ground
    values: dict[str, object]
    types: Mapping[str, KeyType]
    outer: "TreeFrame | None" = None
    # Keys that are another frame's.
    links: dict[str, "tuple[TreeFrame, str]"] = field(default_factory=dict)
    is_item: bool = False  # of a `for-each`: its node gives a "result"
    kept: dict[NodePlan, Any] = field(default_factory=dict)  # what nodes know when they begin anew

    def get(self, name: str, /) -> object:
        if name in self.values:
            return self.values[name]
        if name in self.links:
            frame, key = self.links[name]
            return frame.get(key)
        if self.outer is not None:
            return self.outer.get(name)
        return self.ground.failure if name == FAILED else self.ground.host.roots.get(name)

    def set(self, name: str, value: object) -> None:
        """Raises BadWrite."""
        if name in self.links:
            frame, key = self.links[name]
            frame.set(key, value)
        elif name in self.values:
            if not self.types.get(name, ANY).accepts(value):
                raise BadWrite(f"{name} is {self.types[name]}, and not {type(value).__name__}")
            if isinstance(value, list | dict) and value:
                self._check_size(name, value)
            if self.values[name] is not value:
                self.values[name] = value
                if name in self.ground.watched:
                    self.ground.wake()
        elif self.outer is not None:
            self.outer.set(name, value)
        else:
            raise BadWrite(f"the blackboard has no key {name!r}")

    def has(self, name: str) -> bool:
        is_here = name in self.values or name in self.links
        return is_here or (self.outer is not None and self.outer.has(name))

    def _check_size(self, name: str, value: object) -> None:
        parts = parts_of(value)
        self.ground.spend(parts // PARTS_A_WORK)
        if parts > MOST_PARTS:
            raise BadWrite(f"{name} cannot hold more than {MOST_PARTS} parts")


def defaults(plan: TreePlan) -> dict[str, object]:
    """The keys of a tree as they begin. Runs share a plan and not its lists."""
    return {
        name: deepcopy(key.default) if isinstance(key.default, list | dict) else key.default
        for name, key in plan.schema.items()
    }


def parts_of(value: object) -> int:
    """Counts the parts of a value, those inside of it too; a part that is there twice counts twice.
    It stops beyond MOST_PARTS."""
    waiting, count = [value], 0
    while waiting and count <= MOST_PARTS:
        one = waiting.pop()
        if isinstance(one, list | tuple | dict):
            count += len(one)
            if count <= MOST_PARTS:
                waiting.extend(one.values() if isinstance(one, dict) else one)
    return count


def failed(plan: NodePlan, frame: TreeFrame, reason: str, kind: str = "failed") -> TickStatus:
    """FAILURE with a reason. An empty one does not replace what the same node has just given."""
    ground = frame.ground
    if reason or ground.cause is None or ground.cause[0] is not plan:
        ground.cause = (plan, kind, reason)
    return FAILURE


def holds(plan: NodePlan, frame: TreeFrame, test: Value) -> bool:
    """Whether an expression is true. If it is not, or has no value, the reason is kept."""
    try:
        if test.run is not None and test.run(frame):
            return True
        failed(plan, frame, str(test.constant), "condition")
    except CANNOT as error:
        failed(plan, frame, f"{test.constant}: {error}", type(error).__name__)
    return False


def number_of(plan: NodePlan, frame: TreeFrame, value: Value) -> float:
    """Raises TreeAbort if it is no number."""
    number = value.constant if value.run is None else value.run(frame)
    if isinstance(number, int | float) and type(number) is not bool:
        return number
    what = f"{type(number).__name__} where a number belongs"
    raise TreeAbort(f"{plan.path}: {what}")


class PendingLeaf:
    """The answer of a leaf that takes time: RUNNING until it is completed or halted."""

    outcome: object = None  # as a function gives it, or the exception that it ended with
    is_over = False

    def __init__(self, ground: Ground, on_halt: Callable[[], None] | None = None) -> None:
        self._ground, self._on_halt = ground, on_halt

    def complete(self, outcome: object = SUCCESS) -> None:
        """Takes the answer, as a function gives it. After an end or a halt it changes nothing."""
        if not self.is_over:
            self.outcome, self.is_over = outcome, True
            self._ground.wake()

    def halt(self) -> None:
        if not self.is_over:
            self.is_over = True
            if self._on_halt is not None:
                self._on_halt()


class LeafCall:
    """What the function of a leaf is given. Raises TreeAbort if there is no function."""

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        self.plan, self.frame, self.ground = plan, frame, frame.ground
        find, offered = self.ground.host.find_act, plan.offered
        act = offered.act if offered else find(plan) if find else None
        if act is None:
            raise TreeAbort(f"{plan.path}: nobody offers a function for {plan.label}")
        self.act, frame.kept[plan] = act, self

    @property
    def name(self) -> str:
        return self.plan.label

    @property
    def options(self) -> dict[str, object]:
        """Those of the node as they are now."""
        return {name: self.option(name) for name in self.plan.options if name != "fn"}

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
        if self.plan.offered is not None and key not in self.plan.writes:
            raise BadWrite(f"{self.plan.offered.name} did not announce that it writes {key!r}")
        self.frame.set(key, value)

    def give(self, result: object) -> None:
        """The result of this item of the loop around; `:collect` gathers them."""
        frame: TreeFrame | None = self.frame
        while frame is not None and not frame.is_item:
            frame = frame.outer
        if frame is not None:
            frame.values["result"] = result

    def pending(self, on_halt: Callable[[], None] | None = None) -> PendingLeaf:
        """To be returned; `on_halt` is called if the leaf is halted before it is completed."""
        return PendingLeaf(self.ground, on_halt)

    def failed(self, reason: str, kind: str = "failed") -> TickStatus:
        """To be returned by a function that fails for this reason."""
        return failed(self.plan, self.frame, reason, kind)


def settled(plan: NodePlan, frame: TreeFrame, answer: object) -> TickStatus:
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
    if isinstance(answer, TreeAbort):
        raise answer
    kind, message = type(answer).__name__, str(answer)
    if plan.raises:
        failed(plan, frame, message, kind)
        raise TreeAbort(f"{plan.label}: {kind}: {message}") from answer
    log.warning("tree.leaf_failed", extra={"path": plan.path}, exc_info=answer)
    return failed(plan, frame, message or kind, kind)


# -- the nodes that do something


def call_leaf(plan: NodePlan, frame: TreeFrame) -> Ticks | TickStatus:
    """Calls a function, and waits for the answer if that is a PendingLeaf."""
    given, offered = frame.ground.host.given, plan.offered
    if offered is not None and offered.is_plain:
        act = offered.act
    else:
        call = frame.kept.get(plan) or LeafCall(plan, frame)
        act, given = call.act, (*given, call)
    try:
        answer = act(*given)
    except Exception as error:  # noqa: BLE001  # whatever a leaf raises is its failure
        answer = error
    if answer is SUCCESS or answer is True or (answer is None and plan.kind != "condition"):
        return SUCCESS
    if isinstance(answer, PendingLeaf):
        return _wait_for(answer, plan, frame)
    return settled(plan, frame, answer)


def _wait_for(answer: object, plan: NodePlan, frame: TreeFrame) -> Ticks:
    while isinstance(answer, PendingLeaf):
        try:
            while not answer.is_over:
                yield RUNNING
        finally:
            if frame.ground.is_ticking:
                answer.halt()
        answer = answer.outcome
    yield settled(plan, frame, answer)


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
        return settled(plan, frame, error)
    return SUCCESS


def emit(plan: NodePlan, frame: TreeFrame) -> TickStatus:
    event, *payload = [value.of(frame) for value in plan.values]
    said = cast(Mapping[str, object], payload[0] if payload else {})
    if parts_of(said) > MOST_PARTS:
        return failed(plan, frame, f"an event cannot hold more than {MOST_PARTS} parts", "emit")
    frame.ground.spend()
    frame.ground.host.emit(str(event), said)
    return SUCCESS


def wait(plan: NodePlan, frame: TreeFrame) -> Ticks:
    yield from rest(plan, frame, plan.values[0])
    yield SUCCESS


def succeed(_plan: NodePlan, _frame: TreeFrame) -> TickStatus:
    return SUCCESS


def fail(plan: NodePlan, frame: TreeFrame) -> TickStatus:
    return failed(plan, frame, str(plan.values[0].of(frame)) if plan.values else "fail", "fail")


# -- the nodes over others


def rest(plan: NodePlan, frame: TreeFrame, seconds: Value) -> Generator[TickStatus, None, bool]:
    """RUNNING until the time has passed. Returns whether there was anything to wait for."""
    ground, me, was_running = frame.ground, object(), False
    now = ground.host.now()
    until = now + number_of(plan, frame, seconds)
    try:
        while now < until:
            ground.timers[me], was_running = until, True
            yield RUNNING
            now = ground.host.now()
    finally:
        ground.timers.pop(me, None)
    return was_running


class Children:
    """Nodes below another one, by their places."""

    def __init__(
        self,
        plans: Sequence[NodePlan],
        frame: TreeFrame,
        kinds: Mapping[str, Kind] | None = None,
    ) -> None:
        self.plans, self.frame, self.kinds = plans, frame, kinds or frame.ground.kinds
        self.begun: list[Ticks | None] = [None] * len(plans)
        # Of the last tick of each; none: it has to begin.
        self.statuses: list[TickStatus | None] = [None] * len(plans)
        self.running: int | None = None  # the only one that is RUNNING, where there is one at most

    def tick(self, place: int = 0) -> TickStatus:
        ticks = self.begun[place]
        status = next(ticks, None) if ticks is not None else None
        if status is None:
            plan = self.plans[place]
            answer = self.kinds[plan.shape](plan, self.frame)
            if isinstance(answer, TickStatus):
                status = answer
            else:
                self.begun[place], status = answer, next(answer)
        self.statuses[place] = status
        return status

    def halt(self, *places: int, but: int | None = None) -> None:
        """Halts those that may go on, of these or of all; they begin anew."""
        for place in places or range(len(self.plans)):
            status, ticks = self.statuses[place], self.begun[place]
            if status is None or place == but:
                continue
            self.statuses[place] = None
            if ticks is not None and (status is RUNNING or status is SKIPPED):
                self.begun[place] = None
                ticks.close()


def to_its_end(
    plan: NodePlan, frame: TreeFrame, *, waits: bool = True
) -> Generator[TickStatus, None, TickStatus]:
    """Ticks a child until it is over, and passes on that it is RUNNING. `waits` also for a child that
    is SKIPPED: it may still begin."""
    child = Children((plan,), frame)
    try:
        while (status := child.tick()) is RUNNING or (waits and status is SKIPPED):
            yield status
    finally:
        child.halt()
    return status


Choose = Callable[[NodePlan, TreeFrame, Children], TickStatus]


def choosing(choose: Choose) -> Kind:
    """The kind of a node that chooses at each tick which children it ticks."""

    def ticks(plan: NodePlan, frame: TreeFrame) -> Ticks:
        children = Children(plan.children, frame)
        try:
            while True:
                status = choose(plan, frame, children)
                if status is SUCCESS or status is FAILURE:
                    children.halt()
                yield status
        finally:
            children.halt()

    return ticks


def in_order(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """`sequence`, `selector` and `try`: goes on where it was. When a `try` fails its last child runs, and then
    the whole fails."""
    kinds, is_try = frame.ground.kinds, plan.kind == "try"
    stops_at, otherwise = (SUCCESS, FAILURE) if plan.kind == "selector" else (FAILURE, SUCCESS)
    body = plan.children[:-1] if is_try else plan.children
    begun: list[Ticks | None] = [None] * len(body)
    place = skipped = 0
    try:
        while True:
            ticks = begun[place]
            status = next(ticks, None) if ticks is not None else None
            if status is None:
                new = kinds[body[place].shape](body[place], frame)
                begun[place], status = (
                    (None, new) if isinstance(new, TickStatus) else (new, next(new))
                )
            if status is RUNNING:
                yield RUNNING
                continue
            place += 1
            skipped += status is SKIPPED
            if status is not stops_at and place < len(body):
                continue
            if status is not stops_at:
                status = SKIPPED if skipped == len(body) else otherwise
            if skipped:
                begun = _closed(begun)
            if status is FAILURE and is_try:
                yield from to_its_end(plan.children[-1], frame, waits=False)
            place = skipped = 0
            yield status
    finally:
        _closed(begun)


def _closed(begun: list[Ticks | None]) -> list[Ticks | None]:
    for ticks in begun:
        if ticks is not None:
            ticks.close()
    return [None] * len(begun)


def memory_sequence(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """After a FAILURE, and after a halt, it goes on with the child where it was."""
    children, place = frame.kept.get(plan) or (Children(plan.children, frame), 0)
    count, skipped, status = len(plan.children), 0, SKIPPED
    try:
        while place < count and status is not FAILURE:
            was_running = children.statuses[place] is RUNNING
            status = children.tick(place)
            gives_way = status is RUNNING
            if status is SUCCESS or status is SKIPPED:
                place, skipped = place + 1, skipped + (status is SKIPPED)
                frame.kept[plan] = children, place % count
                gives_way = status is SUCCESS and not was_running and place < count
            if gives_way and status is SUCCESS:
                frame.ground.wake()
            if gives_way:
                yield RUNNING
    finally:
        children.halt(*range(place, count) if status is FAILURE else ())
    yield status if status is FAILURE else SKIPPED if skipped == count else SUCCESS


def reactive(plan: NodePlan, _frame: TreeFrame, children: Children) -> TickStatus:
    """Begins with its first child at each tick."""
    is_selector, is_skipped = plan.kind == "reactive-selector", True
    stops_at, otherwise = (SUCCESS, FAILURE) if is_selector else (FAILURE, SUCCESS)
    for place in range(len(plan.children)):
        status = children.tick(place)
        if status is RUNNING:
            if children.running != place:
                children.halt(but=place)
                children.running = place
            return RUNNING
        if status is stops_at:
            return status
        if status is SKIPPED:
            children.halt(place)
        else:
            is_skipped = False
    return SKIPPED if is_skipped else otherwise


def parallel(plan: NodePlan, _frame: TreeFrame, children: Children) -> TickStatus:
    """Stops at one of its thresholds and halts the rest; negative ones count from all children.

    With `:policy :continue-on-failure` each runs to its end, and it fails if all of them failed.
    """
    said = {key: one.constant for key, one in plan.options.items()}
    goes_on = said.get("policy") == "continue-on-failure"
    is_one = said.get("policy") == "require-one" or "require-one" in said
    least = cast(int, said.get("success", 1 if is_one else -1))
    most = cast(int, said.get("failure", -1 if is_one else 1))
    statuses, count, skipped = children.statuses, len(plan.children), 0
    enough, too_many = (max(count + n + 1, 0) if n < 0 else n for n in (least, most))
    for place, status in enumerate(statuses):
        if status is not SUCCESS and status is not FAILURE:
            skipped += children.tick(place) is SKIPPED
        succeeded, failures = statuses.count(SUCCESS), statuses.count(FAILURE)
        if not goes_on and succeeded + (skipped if least < 0 else 0) >= enough:
            return SUCCESS
        if not goes_on and (count - failures < enough or failures == too_many):
            return FAILURE
    if skipped == count:
        return SKIPPED
    if not goes_on or skipped + succeeded + failures < count:
        return RUNNING
    return FAILURE if failures == count else SUCCESS


def ensure(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """The clean-up runs after the body, however it ended; a halt gives it a single tick."""
    body, clean_up = plan.children
    status: TickStatus | None = None
    try:
        status = yield from to_its_end(body, frame)
    finally:
        if status is None and frame.ground.is_ticking:
            child = Children((clean_up,), frame)
            child.tick()
            child.halt()
    yield from to_its_end(clean_up, frame, waits=False)
    yield status


def if_(plan: NodePlan, _frame: TreeFrame, children: Children) -> TickStatus:
    """Asks once and stays with the branch."""
    status = children.statuses[0]
    if status is not SUCCESS and status is not FAILURE:
        status = children.tick(0)
    if status is SUCCESS or (status is FAILURE and len(plan.children) > 2):
        status = children.tick(1 if status is SUCCESS else 2)
        if status is SKIPPED:
            children.halt()
    return status


def while_(plan: NodePlan, _frame: TreeFrame, children: Children) -> TickStatus:
    """Asks at each tick and halts the branch that is no longer right."""
    status = children.tick(0)
    if status is SUCCESS or (status is FAILURE and len(plan.children) > 2):
        chosen = 1 if status is SUCCESS else 2
        children.halt(but=chosen)
        status = children.tick(chosen)
    if status is SKIPPED:
        children.halt()
    return status


def switch(plan: NodePlan, frame: TreeFrame, children: Children) -> TickStatus:
    """Chooses at each tick by the value; another branch that runs is halted."""
    now, cases = plan.values[0].of(frame), plan.cases
    word = str(now).lower() if isinstance(now, bool) else "nil" if now is None else str(now)
    case = word if word in cases else "else"
    if case not in cases:
        return failed(plan, frame, f"no case for {word[:80]}", "switch")
    chosen = cases.index(case)
    children.halt(but=chosen)
    return children.tick(chosen)


def mapped(success: TickStatus, failure: TickStatus) -> Kind:
    """The kind of a node that gives another status than its child."""
    answers = {SUCCESS: success, FAILURE: failure}

    def choose(_plan: NodePlan, _frame: TreeFrame, children: Children) -> TickStatus:
        status = children.tick()
        return answers.get(status, status)

    return choosing(choose)


def run_once(plan: NodePlan, frame: TreeFrame, children: Children) -> TickStatus:
    """SKIPPED once the child is done, for the rest of the run."""
    if plan in frame.kept:
        return SKIPPED
    status = children.tick()
    if status is SUCCESS or status is FAILURE:
        frame.kept[plan] = True
    return status


def cooldown(plan: NodePlan, frame: TreeFrame, children: Children) -> TickStatus:
    """SKIPPED for a while after the child was done."""
    now = frame.ground.host.now
    if plan in frame.kept and now() < frame.kept[plan]:
        return SKIPPED
    status = children.tick()
    if status is SUCCESS or status is FAILURE:
        frame.kept[plan] = now() + number_of(plan, frame, plan.values[0])
    return status


def guard(plan: NodePlan, frame: TreeFrame, children: Children) -> TickStatus:
    """Asks an expression, or as `decorator` a function, at each tick; halts the child if it says no."""
    if plan.kind == "guard":
        is_open = holds(plan, frame, plan.values[0])
    else:
        is_open = call_leaf(plan, frame) is SUCCESS
    return children.tick() if is_open else FAILURE


def when(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """`:when`: asked before the node begins, and no more while it is RUNNING."""
    assert plan.when is not None
    if not holds(plan, frame, plan.when):
        yield SKIPPED
        return
    answer = frame.ground.kinds[plan.bare](plan, frame)
    if isinstance(answer, TickStatus):
        yield answer
        return
    try:
        while (status := next(answer)) is RUNNING:
            yield RUNNING
    finally:
        answer.close()
    yield status


def timeout(plan: NodePlan, frame: TreeFrame) -> Ticks:
    ground, child = frame.ground, Children(plan.children, frame)
    until = ground.host.now() + number_of(plan, frame, plan.values[0])
    ground.timers[child] = until
    try:
        while ground.host.now() < until:
            status = child.tick()
            if status is SUCCESS or status is FAILURE:
                break
            yield status
        else:
            status = failed(plan, frame, f"{plan.label} took too long", "timeout")
    finally:
        ground.timers.pop(child, None)
        child.halt()
    yield status


def delay(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Waits before every start."""
    yield from rest(plan, frame, plan.values[0])
    yield (yield from to_its_end(plan.children[0], frame))


def until_fail(_plan: NodePlan, frame: TreeFrame, children: Children) -> TickStatus:
    """RUNNING until the child fails, one round a tick."""
    status = children.tick()
    if status is FAILURE:
        return FAILURE
    if status is not RUNNING:
        frame.ground.wake()
    return RUNNING


def loop(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """`repeat` while the child succeeds, `retry` and `repeat :until-success` while it fails.

    A child that is done in the tick in which it began gives way before it begins again, so that
    a run can be stopped between any two rounds.
    """
    is_retry = plan.kind == "retry" or "until-success" in plan.options
    goes_on = FAILURE if is_retry else SUCCESS
    most, until = plan.options.get("max"), plan.options.get("until")
    backoff = plan.options.get("backoff")
    ground, child, count = frame.ground, Children(plan.children, frame), 0
    is_next = was_quick = False  # the child has succeeded, and in the tick in which it began
    while most is None or not 0 <= number_of(plan, frame, most) <= count:
        if is_next and backoff is not None and (yield from rest(plan, frame, backoff)):
            was_quick = False
        if was_quick:
            ground.wake()
            yield RUNNING
        began = ground.ticks
        try:
            while (status := child.tick()) is RUNNING:
                yield RUNNING
        finally:
            child.halt()
        is_next = status is goes_on
        was_quick = is_next and ground.ticks == began
        count += is_next
        if status is SKIPPED:
            yield SKIPPED
        elif is_next and until is not None and holds(plan, frame, until):
            status = SUCCESS
            break
        elif not is_next:
            break
    else:
        status = SUCCESS if goes_on is SUCCESS and until is None else FAILURE
        if status is FAILURE and plan.kind == "repeat":
            failed(plan, frame, f"not done after {count} rounds", "limit")
    yield status


def subtree(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """Another tree by its name, with a frame of its own. Bound keys are the other frame's; other values
    are copied."""
    tree, share = frame.ground.subtrees[plan.name], plan.options.get("share")
    shares = share is not None and share.constant is True
    own = frame.kept.get(plan)
    if own is None:
        own = TreeFrame(frame.ground, {}, tree.types, frame if shares else None)
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
    yield (yield from to_its_end(tree.root, own))


def for_each(plan: NodePlan, frame: TreeFrame) -> Ticks:
    """One child an item, each with a frame of its own; at most so many at once, results in order."""
    options, ground = plan.options, frame.ground
    items = plan.values[0].of(frame)
    if not isinstance(items, list | tuple):
        raise TreeAbort(f"for-each goes over a list, not {type(items).__name__}")
    limit = number_of(plan, frame, options["limit"]) if "limit" in options else len(items)
    most = max(number_of(plan, frame, options["parallel"]), 1) if "parallel" in options else 1
    name = str(options["as"].constant) if "as" in options else "item"
    goes_on = "on-child-fail" in options and options["on-child-fail"].constant == "continue"
    items, frames = list(items[: max(int(limit), 0)]), list[TreeFrame]()
    at_work, ended, has_failed = list[Children](), list[TickStatus](), False
    try:
        while not has_failed and len(ended) < len(items):
            while len(at_work) < most and len(frames) < len(items):
                ground.spend()
                values = {name: items[len(frames)], "index": len(frames), "result": None}
                frames.append(TreeFrame(ground, values, {}, frame, is_item=True))
                at_work.append(Children(plan.children, frames[-1]))
            ended += _tick_each(at_work, goes_on=goes_on)
            has_failed = not goes_on and FAILURE in ended
            if len(at_work) < most and len(frames) < len(items):
                ground.wake()
            if not has_failed and len(ended) < len(items):
                yield RUNNING
    finally:
        for child in at_work:
            child.halt()
    status = FAILURE if has_failed else SUCCESS
    if 0 < ended.count(SKIPPED) == len(items):
        status = SKIPPED
    elif "collect" in options:
        try:
            results = [each.values["result"] for each in frames]
            frame.set(str(options["collect"].constant), results)
        except BadWrite as error:
            status = failed(plan, frame, str(error), type(error).__name__)
    yield status


def _tick_each(children: list[Children], *, goes_on: bool) -> Iterator[TickStatus]:
    """Ticks children, takes out those that are over, and gives their statuses; up to a FAILURE."""
    for child in tuple(children):
        status = child.tick()
        if status is not RUNNING:
            children.remove(child)
            child.halt()
            yield status
        if status is FAILURE and not goes_on:
            return


def named(plan: NodePlan, frame: TreeFrame) -> Ticks | TickStatus:
    """`(subtree NAME child)` is a name for its child."""
    [child] = plan.children
    return frame.ground.kinds[child.shape](child, frame)


LEAVES: Mapping[str, Kind] = {
    "action": call_leaf,
    "condition": call_leaf,
    "check": check,
    "set!": assign,
    "emit": emit,
    "wait": wait,
    "succeed": succeed,
    "fail": fail,
    **dict.fromkeys(HOSTED, call_leaf),
}
KINDS: Mapping[str, Kind] = {
    **LEAVES,
    **dict.fromkeys(("sequence", "selector", "try"), in_order),
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
    **dict.fromkeys(("repeat", "retry"), loop),
    "subtree": subtree,
    "named": named,
}
