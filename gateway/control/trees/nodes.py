"""What every node is and does when a run ticks it, and the blackboard that nodes share."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import ClassVar, Final, cast

from gateway.control.expressions import CANNOT
from gateway.control.trees.plan import ANY, FAILED, Act, Key, KeyType, NodePlan, TreePlan, Value
from gateway.domain.errors import GatewayError


class TickStatus(Enum):
    """The value is the letter that traces use."""

    IDLE = "I"
    RUNNING = "R"
    SUCCESS = "S"
    FAILURE = "F"
    SKIPPED = "K"


# Ticks compare by identity with these: an attribute of the class would cost more than the comparison.
IDLE: Final = TickStatus.IDLE
RUNNING: Final = TickStatus.RUNNING
SUCCESS: Final = TickStatus.SUCCESS
FAILURE: Final = TickStatus.FAILURE
SKIPPED: Final = TickStatus.SKIPPED

log = logging.getLogger(__name__)

Emit = Callable[[str, Mapping[str, object]], None]
Make = Callable[[NodePlan, "TreeFrame"], "BehaviourNode"]


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
    kinds: Mapping[str, Make] = field(default_factory=dict)  # how nodes are made, by their shape
    file: str = ""
    watched: frozenset[str] = frozenset()  # keys whose writers wake the run
    subtrees: Mapping[str, TreePlan] = field(default_factory=dict)
    timers: dict[object, float] = field(default_factory=dict)  # who waits -> until when
    is_awake: bool = True  # another tick makes sense
    is_ticking: bool = False
    has_heard: bool = False  # something came from outside since the last tick
    work: int = 0  # done since then
    _note: tuple[NodePlan, str, str] | None = None

    def spend(self, work: int = 1) -> None:
        """Raises TooMuch."""
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

    def note(self, plan: NodePlan, kind: str, message: str) -> None:
        """Keeps why a node failed. An empty reason does not replace one that the same node has just given."""
        if message or self._note is None or self._note[0] is not plan:
            self._note = (plan, kind, message)

    @property
    def failure(self) -> Mapping[str, object] | None:
        """Why a node failed last."""
        if self._note is None:
            return None
        plan, kind, message = self._note
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
    links: dict[str, "tuple[TreeFrame, str]"] = field(
        default_factory=dict
    )  # keys that are another's
    is_item: bool = False  # of a `for-each`: its node gives a "result"

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

    def item(self) -> "TreeFrame | None":
        """The innermost loop's frame around this place."""
        if self.is_item or self.outer is None:
            return self if self.is_item else None
        return self.outer.item()

    def _check_size(self, name: str, value: object) -> None:
        parts = parts_of(value)
        self.ground.spend(parts // PARTS_A_WORK)
        if parts > MOST_PARTS:
            raise BadWrite(f"{name} cannot hold more than {MOST_PARTS} parts")


def defaults(schema: Mapping[str, Key]) -> dict[str, object]:
    """A copy: runs share a plan and not its lists."""
    found: dict[str, object] = {}
    for name, key in schema.items():
        value = key.default
        if isinstance(value, list | dict):
            value = _copied(value) if value else type(value)()
        found[name] = value
    return found


def _copied(value: object) -> object:
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return value


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


class BehaviourNode:
    """Light: a run makes its own, each when it is ticked first. `tick` sets `status` to what it
    gives, unless that is SKIPPED."""

    status: TickStatus = IDLE
    at: float | None = None  # when what it waits for is over
    fresh: ClassVar[Mapping[str, object]] = {}  # attributes of a node that has not begun

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        self.plan, self.frame, self.ground = plan, frame, frame.ground
        self.children: list[BehaviourNode | None] = [None] * len(plan.children)

    def child(self, place: int) -> "BehaviourNode":
        """Makes it if it was never asked for: no run gets to every node of its tree."""
        node = self.children[place]
        if node is None:
            plan = self.plan.children[place]
            node = self.children[place] = self.ground.kinds[plan.shape](plan, self.frame)
        return node

    def tick(self) -> TickStatus:
        raise NotImplementedError

    def halt(self) -> None:
        """Only called while RUNNING."""
        self.done(IDLE)

    def done(self, status: TickStatus) -> TickStatus:
        """Ends with this status: resets the children and its own progress."""
        for child in self.children:
            if child is not None:
                if child.status is RUNNING:
                    child.halt()
                child.status = IDLE
        if self.at is not None:
            self.at = None
            self.ground.timers.pop(self, None)
        for name, value in self.fresh.items():
            setattr(self, name, value)
        if status is not SKIPPED:
            self.status = status
        return status

    def is_over(self, seconds: Value) -> bool:
        """Whether this time has passed since it was asked first."""
        now = self.ground.host.now()
        if self.at is None:
            self.at = now + self.number(seconds)
            self.ground.timers[self] = self.at
        if now < self.at:
            return False
        self.ground.timers.pop(self, None)
        return True

    def holds(self, test: Value) -> bool:
        """Whether the expression is true. If it is not, or has no value, the reason is kept."""
        try:
            if test.run is not None and test.run(self.frame):
                return True
            self.ground.note(self.plan, "condition", str(test.constant))
        except CANNOT as error:
            self.ground.note(self.plan, type(error).__name__, f"{test.constant}: {error}")
        return False

    def number(self, value: Value) -> float:
        number = value.constant if value.run is None else value.run(self.frame)
        if isinstance(number, int | float) and type(number) is not bool:
            return number
        what = f"{type(number).__name__} where a number belongs"
        raise TreeAbort(f"{self.plan.path}: {what}")

    def failed(self, reason: str, kind: str = "failed") -> TickStatus:
        """Ends with a FAILURE that has a reason."""
        self.ground.note(self.plan, kind, reason)
        self.status = FAILURE
        return FAILURE

    def broke(self, error: Exception) -> TickStatus:
        """An exception of a leaf is a failure with a reason, unless the tree says that it ends the run."""
        if isinstance(error, TreeAbort):
            raise error
        kind, message = type(error).__name__, str(error)
        if self.plan.raises:
            self.ground.note(self.plan, kind, message)
            raise TreeAbort(f"{self.plan.label}: {kind}: {message}") from error
        log.warning("tree.leaf_failed", extra={"path": self.plan.path}, exc_info=error)
        return self.failed(message or kind, kind)


def reset_all(nodes: Sequence[BehaviourNode | None], but: BehaviourNode | None = None) -> None:
    for node in nodes:
        if node is not None and node is not but:
            if node.status is RUNNING:
                node.halt()
            node.status = IDLE


class LeafCall(BehaviourNode):
    """A leaf that calls a function once, and waits for the answer if that is a Pending. The function
    is given this node."""

    waiting: PendingLeaf | None = None

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        self.plan, self.frame, self.ground = plan, frame, frame.ground
        self.children = []
        find, offered = self.ground.host.find_act, plan.offered
        act = find(plan) if find else offered.act if offered else None
        if act is None:
            raise TreeAbort(f"{plan.path}: nobody offers a function for {plan.label}")
        given = self.ground.host.given
        self.act = partial(act, *given) if given else act
        self.is_plain = offered is not None and offered.is_plain and find is None

    # -- for its function

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
        return None if value is None else value.of(self.frame)

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

    def pending(self, on_halt: Callable[[], None] | None = None) -> PendingLeaf:
        """To be returned; `on_halt` is called if the leaf is halted before it is completed."""
        return PendingLeaf(self.ground, on_halt)

    # -- for its parent

    def tick(self) -> TickStatus:
        waiting = self.waiting
        answer: object = waiting
        if waiting is None:
            try:
                answer = self.act() if self.is_plain else self.act(self)
            except Exception as error:  # noqa: BLE001  # whatever a leaf raises is its failure
                return self.broke(error)
        elif waiting.is_over:
            answer, self.waiting = waiting.outcome, None
        else:
            answer = RUNNING
        if answer is True or (answer is None and self.plan.kind != "condition"):
            answer = SUCCESS
        if answer is SUCCESS or answer is RUNNING:
            self.status = answer
            return answer
        return self.answered(answer)

    def answered(self, answer: object) -> TickStatus:
        if isinstance(answer, PendingLeaf):
            self.waiting = answer
            return self.tick()
        if answer is FAILURE or answer is False or answer is None:
            return self.failed("")
        if isinstance(answer, TickStatus) and answer is not IDLE:
            self.status = self.status if answer is SKIPPED else answer
            return answer
        if not isinstance(answer, Exception):
            answer = TypeError(f"a leaf cannot answer {type(answer).__name__}")
        return self.broke(answer)

    def halt(self) -> None:
        waiting, self.waiting, self.status = self.waiting, None, IDLE
        if waiting is not None:
            waiting.halt()


_WELL = (None, True)  # what an action answers that has succeeded


class InOrder(BehaviourNode):
    """Goes on where it was, and stops at a FAILURE. It asks plain functions itself: they need no node."""

    ends_with: TickStatus = FAILURE
    otherwise: TickStatus = SUCCESS
    index = skipped = 0  # how far it was when it waited
    beside = 0  # children at the end that are not in the order

    def tick(self) -> TickStatus:
        self.status = RUNNING
        body, index, skipped = self.children, self.index, self.skipped
        if index:
            self.index = self.skipped = 0
        plans, count = self.plan.children, len(body) - self.beside
        while index < count:
            child, plan = body[index], plans[index]
            if child is not None:
                status = child.tick()
            elif plan.plain is None:
                child = body[index] = self.ground.kinds[plan.shape](plan, self.frame)
                status = child.tick()
            else:
                try:
                    answer = plan.plain(*self.ground.host.given)
                except Exception as error:  # noqa: BLE001  # whatever a leaf raises is its failure
                    answer = error
                is_well = answer in _WELL
                status = SUCCESS if is_well else LeafCall(plan, self.frame).answered(answer)
            if status is RUNNING:
                self.index, self.skipped = index, skipped
                return RUNNING
            if status is self.ends_with:
                return self.done(status)
            index += 1
            skipped += status is SKIPPED
        return self.done(SKIPPED if skipped == count else self.otherwise)

    def halt(self) -> None:
        self.index = self.skipped = 0
        self.done(IDLE)


class Selector(InOrder):
    """Stops at a SUCCESS."""

    ends_with, otherwise = SUCCESS, FAILURE


class MemorySequence(InOrder):
    """After a FAILURE, and after a halt, it goes on with the child where it was."""

    fresh = {"index": 0, "skipped": 0}

    def tick(self) -> TickStatus:
        if self.status is IDLE:
            self.skipped = 0
        self.status = RUNNING
        while self.index < len(self.children):
            child = self.child(self.index)
            was = child.status
            status = child.tick()
            if status is RUNNING:
                return RUNNING
            if status is FAILURE:
                reset_all(self.children[self.index :])
                self.status = FAILURE
                return FAILURE
            self.index += 1
            if status is SKIPPED:
                self.skipped += 1
            elif was is IDLE and self.index < len(self.children):
                self.ground.wake()
                return RUNNING
        return self.done(SKIPPED if self.skipped == len(self.children) else SUCCESS)

    def halt(self) -> None:
        reset_all(self.children)
        self.status = IDLE


class Reactive(InOrder):
    """Begins with its first child at each tick."""

    def tick(self) -> TickStatus:
        self.status = RUNNING
        is_skipped = True
        for place, child in enumerate(self.children):
            child = child or self.child(place)
            status = child.tick()
            if status is RUNNING:
                reset_all(self.children, but=child)
                return RUNNING
            if status is self.ends_with:
                return self.done(status)
            if status is SKIPPED:
                reset_all((child,))
            else:
                is_skipped = False
        return self.done(SKIPPED if is_skipped else self.otherwise)


class ReactiveSelector(Reactive):
    ends_with, otherwise = SUCCESS, FAILURE


class Try(InOrder):
    """A sequence; when it fails the last child runs, and then the whole fails."""

    beside = 1
    is_catching = False
    fresh = {"is_catching": False}

    def tick(self) -> TickStatus:
        if not self.is_catching:
            status = super().tick()
            if status is not FAILURE:
                return status
            self.is_catching = True
        self.status = RUNNING
        catch = self.child(len(self.children) - 1)
        return RUNNING if catch.tick() is RUNNING else self.done(FAILURE)


class Ensure(BehaviourNode):
    """The clean-up runs after the body, however it ended; a halt gives it a single tick."""

    kept: TickStatus | None = None
    fresh = {"kept": None}

    def tick(self) -> TickStatus:
        self.status = RUNNING
        if self.kept is None:
            body = self.child(0)
            status = body.tick()
            if status is RUNNING or status is SKIPPED:
                return status
            body.status = IDLE
            self.kept = status
        return RUNNING if self.child(1).tick() is RUNNING else self.done(self.kept)

    def halt(self) -> None:
        reset_all(self.children[:1])
        if self.kept is None:
            self.child(1).tick()
        super().halt()


class If(BehaviourNode):
    """Asks once and stays with the branch."""

    branch = 0
    fresh = {"branch": 0}

    def tick(self) -> TickStatus:
        self.status = RUNNING
        if self.branch == 0:
            test = self.children[0] or self.child(0)
            status = test.tick()
            if status is RUNNING or status is SKIPPED:
                return status
            if status is FAILURE and len(self.children) == 2:
                return self.done(FAILURE)
            self.branch = 1 if status is SUCCESS else 2
        chosen = self.children[self.branch] or self.child(self.branch)
        status = chosen.tick()
        return RUNNING if status is RUNNING else self.done(status)


class While(BehaviourNode):
    """Asks at each tick and halts the branch that is no longer right."""

    def tick(self) -> TickStatus:
        self.status = RUNNING
        status = self.child(0).tick()
        if status is SUCCESS:
            reset_all(self.children[2:])
            status = self.child(1).tick()
        elif status is FAILURE and len(self.children) == 3:
            reset_all(self.children[1:2])
            status = self.child(2).tick()
        return RUNNING if status is RUNNING else self.done(status)


class Switch(BehaviourNode):
    """Chooses at each tick by the value; another branch that runs is halted."""

    def tick(self) -> TickStatus:
        self.status = RUNNING
        now, cases = self.plan.values[0].of(self.frame), self.plan.cases
        word = str(now).lower() if isinstance(now, bool) else "nil" if now is None else str(now)
        word = word if word in cases or "else" not in cases else "else"
        chosen = self.child(cases.index(word)) if word in cases else None
        reset_all(self.children, but=chosen)
        if chosen is None:
            self.ground.note(self.plan, "switch", f"no case for {word[:80]}")
            return self.done(FAILURE)
        status = chosen.tick()
        return status if status is RUNNING or status is SKIPPED else self.done(status)


class Parallel(BehaviourNode):
    """Stops at one of its thresholds and halts the rest; negative ones count from all children.

    With `:policy :continue-on-failure` each runs to its end, and it fails if all of them failed.
    """

    completed: frozenset[int] = frozenset()  # places of children
    failed_ones = 0
    fresh = {"completed": frozenset(), "failed_ones": 0}

    def __init__(self, plan: NodePlan, frame: TreeFrame) -> None:
        super().__init__(plan, frame)
        count, said = len(plan.children), {key: one.constant for key, one in plan.options.items()}
        is_one = said.get("policy") == "require-one" or "require-one" in said
        self.goes_on = said.get("policy") == "continue-on-failure"
        success = cast(int, said.get("success", 1 if is_one else -1))
        failure = cast(int, said.get("failure", -1 if is_one else 1))
        self.is_relative = success < 0
        self.success = max(count + success + 1, 0) if success < 0 else success
        self.failure = max(count + failure + 1, 0) if failure < 0 else failure

    def tick(self) -> TickStatus:
        self.status = RUNNING
        count, skipped = len(self.children), 0
        for place in range(count):
            if place not in self.completed:
                status = self.child(place).tick()
                if status is SKIPPED:
                    skipped += 1
                elif status is not RUNNING:
                    self.completed |= {place}
                    self.failed_ones += status is FAILURE
            ended = self._ended(skipped)
            if ended is not None:
                return self.done(ended)
        if skipped == count:
            return SKIPPED
        if not self.goes_on or skipped + len(self.completed) < count:
            return RUNNING
        return self.done(FAILURE if self.failed_ones == count else SUCCESS)

    def _ended(self, skipped: int) -> TickStatus | None:
        if self.goes_on:
            return None
        succeeded = len(self.completed) - self.failed_ones
        if succeeded + (skipped if self.is_relative else 0) >= self.success:
            return SUCCESS
        most = len(self.children) - self.failed_ones
        return FAILURE if most < self.success or self.failed_ones == self.failure else None


FLOW: Mapping[str, type[BehaviourNode]] = {
    "sequence": InOrder,
    "selector": Selector,
    "reactive-sequence": Reactive,
    "reactive-selector": ReactiveSelector,
    "memory-sequence": MemorySequence,
    "parallel": Parallel,
    "if": If,
    "while": While,
    "switch": Switch,
    "try": Try,
    "ensure": Ensure,
}
