"""The engine of trees: a tree that was read and checked, which all of its runs share; the blackboard of a
run, its keys, their types and values; and the run itself: ticks, wake-ups, the interrupt, and `:finally`. It
never waits for anything."""

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from operator import methodcaller
from types import MappingProxyType
from typing import Any, Final, Literal

from gateway.control.expressions import ExpressionScope
from gateway.control.trees.reader import TreeProblem
from gateway.domain.errors import GatewayError
from gateway.domain.text import meant, quoted

log = logging.getLogger(__name__)

# Of each type: what it is in Python, and the default of a key that is declared without one.
_TYPES: Mapping[str, tuple[type | tuple[type, ...], object]] = {
    "bool": (bool, False),
    "string": (str, ""),
    "int": (int, 0),
    "float": ((int, float), 0.0),
    "list": ((list, tuple), []),
    "map": (Mapping, {}),
    "any": (object, None),
    "option": (object, None),
}


class BadType(ValueError):
    """Text that names no type; says why."""


@dataclass(frozen=True, slots=True)
class KeyType:
    name: str
    inner: "KeyType | None" = None  # of a list or an option

    def __str__(self) -> str:
        return f"({self.name} {self.inner})" if self.inner else self.name

    @property
    def default(self) -> object:
        """The default of a key that is declared without one."""
        return _TYPES[self.name][1]

    def accepts(self, value: object) -> bool:
        inner = self.inner
        if self.name == "option":
            return value is None or inner is None or inner.accepts(value)
        is_number = self.name in {"int", "float"}
        if not isinstance(value, _TYPES[self.name][0]) or (is_number and type(value) is bool):
            return False
        return inner is None or all(inner.accepts(one) for one in value)  # type: ignore[attr-defined]  # a list

    def may_hold(self, other: "KeyType") -> bool:
        """Whether a value of the other type can be right here; what is checked before a run."""
        ours, theirs = (
            kind.inner or ANY if kind.name == "option" else kind for kind in (self, other)
        )
        if "any" in {ours.name, theirs.name} or (ours.name, theirs.name) == ("float", "int"):
            return True
        if ours.name != theirs.name:
            return False
        return not (ours.inner and theirs.inner) or ours.inner.may_hold(theirs.inner)


ANY = KeyType("any")
UNKNOWN = KeyType("option", ANY)  # what nil says of a key


def is_type(word: object) -> bool:
    return word in _TYPES


def read_type(text: str) -> KeyType:
    """`(list string)`, `(option int)` and so on. Raises BadType."""
    *outer, word = text.replace("(", " ").replace(")", " ").split() or [""]
    if word not in _TYPES:
        near = meant(word, _TYPES)
        raise BadType(f"unknown type {quoted(word)}{near}; types: {', '.join(_TYPES)}")
    found = UNKNOWN if word == "option" else KeyType(word)
    for name in reversed(outer):
        if name not in {"list", "option"}:
            raise BadType(f"{quoted(name)} takes no other type; only list and option do")
        found = KeyType(name, found)
    return found


def type_of(value: object) -> KeyType:
    """The type of a key that is declared by its default."""
    if value is None:
        return UNKNOWN
    return next(kind for kind in map(KeyType, _TYPES) if kind.accepts(value))


# Takes a LeafCall; gives a bool, a status, None (done), or a PendingLeaf for what takes time.
Act = Callable[..., object]
Keys = Mapping[str, str]  # key of the blackboard -> type as text


@dataclass(frozen=True, slots=True)
class LeafFunction:
    """A function that leaves and decorators may name."""

    name: str
    act: Act
    reads: Mapping[str, KeyType]
    writes: Mapping[str, KeyType]
    options: frozenset[str]
    is_plain: bool = False  # it is not given its call, and answers at once


@dataclass(slots=True)
class LeafRegistry:
    """`roots`: names that expressions may use besides keys -> their own keys, or None for any.

    `(config x)` looks into the root `config`, `(env-flag "X")` into the root `flags`.
    """

    roots: Mapping[str, Collection[str] | None] = field(default_factory=dict)
    functions: dict[str, LeafFunction] = field(default_factory=dict)

    def action(
        self,
        name: str,
        *,
        reads: Keys = MappingProxyType({}),
        writes: Keys = MappingProxyType({}),
        options: Collection[str] = (),
        is_plain: bool = False,
    ) -> Callable[[Act], Act]:
        """Offers the decorated function to `:fn "name"` and to nodes called so."""

        def offer(act: Act) -> Act:
            read, written = (
                {key: read_type(text) for key, text in keys.items()} for keys in (reads, writes)
            )
            own = frozenset(options)
            self.functions[name] = LeafFunction(name, act, read, written, own, is_plain)
            return act

        return offer


FAILED = "failure"  # the root under which expressions find why a node failed last


@dataclass(frozen=True, slots=True)
class Operand:
    """What stands behind an option: a constant, or something to look up each time."""

    at: int
    constant: object = None  # of an expression, its text
    run: Callable[[ExpressionScope], object] | None = None
    key: str = ""  # of the blackboard, if the value is what it holds
    parts: Mapping[str, "Operand"] = field(default_factory=dict)  # of a map

    def of(self, scope: ExpressionScope) -> object:
        return self.constant if self.run is None else self.run(scope)


def look_up(path: tuple[str, ...]) -> Callable[[ExpressionScope], object]:
    """Finds what a path leads to: a key, and keys inside of its value."""
    key, *rest = path
    if not rest:
        return methodcaller("get", key)

    def walk(scope: ExpressionScope) -> object:
        value = scope.get(key)
        for part in rest:
            value = value.get(part) if isinstance(value, dict | Mapping) else None
        return value

    return walk


@dataclass(frozen=True, slots=True, eq=False)
class NodePlan:
    """Equal to itself alone: runs keep what they know about a node by it."""

    kind: str
    name: str  # its own, or empty
    at: int  # where in the text
    line: int
    path: str
    values: tuple[Operand, ...] = ()
    options: Mapping[str, Operand] = field(default_factory=dict)  # its own, not those of every node
    children: tuple["NodePlan", ...] = ()
    cases: tuple[str, ...] = ()  # of a switch: one a child
    when: Operand | None = None
    raises: bool = False
    function: LeafFunction | None = None  # behind a leaf or a decorator
    reads: frozenset[str] = frozenset()  # keys, as far as they are known
    writes: frozenset[str] = frozenset()
    bare: str = ""  # what ticks it, without its `:when`
    shape: str = ""  # what ticks it

    @property
    def label(self) -> str:
        return self.name or self.kind

    @property
    def bound(self) -> Mapping[str, Operand]:
        """Keys of a named subtree; a bare reference is bound both ways."""
        return self.options["bind"].parts if "bind" in self.options else {}

    def walk(self) -> Iterator["NodePlan"]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Key:
    """A declared key of the blackboard."""

    type: KeyType
    default: object
    at: int


@dataclass(frozen=True, slots=True)
class TreePlan:
    name: str
    root: NodePlan
    final: NodePlan | None
    schema: Mapping[str, Key]
    inputs: tuple[str, ...]
    file: str
    at: int
    description: str = ""
    version: int | None = None
    decision: str | None = None
    max_ticks: int | None = None
    subtrees: Mapping[str, "TreePlan"] = field(default_factory=dict)  # of the same file
    warnings: tuple[TreeProblem, ...] = ()
    watched: frozenset[str] = frozenset()  # keys whose writers have to wake a run
    types: Mapping[str, KeyType] = field(init=False)  # of the keys

    def __post_init__(self) -> None:
        types = {name: key.type for name, key in self.schema.items()}
        object.__setattr__(self, "types", types)

    def nodes(self) -> Iterator[NodePlan]:
        """Of this tree and its ending, without those of the subtrees that it names."""
        yield from self.root.walk()
        if self.final is not None:
            yield from self.final.walk()


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


@dataclass(frozen=True, slots=True)
class TreeHost:
    """What a run is given. `roots` are looked up at each use, so they may be live mappings."""

    now: Callable[[], float]
    roots: Mapping[str, object] = field(default_factory=dict)  # what trees look up besides keys
    emit: Emit = lambda event, payload: None
    find_act: Callable[[NodePlan], Act | None] | None = None  # for plans without a registry
    arguments: tuple[object, ...] = ()  # of the functions of leaves, before their call


@dataclass(slots=True, eq=False)
class TreeState:
    """What all nodes and frames of a run share."""

    host: TreeHost
    kinds: Mapping[str, Callable[[NodePlan, "TreeFrame"], Any]] = field(default_factory=dict)
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
            self.has_heard, self.work = True, 0

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

    state: TreeState
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
        return self.state.failure if name == FAILED else self.state.host.roots.get(name)

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
                if name in self.state.watched:
                    self.state.wake()
        elif self.outer is not None:
            self.outer.set(name, value)
        else:
            raise BadWrite(f"the blackboard has no key {name!r}")

    def has(self, name: str) -> bool:
        is_here = name in self.values or name in self.links
        return is_here or (self.outer is not None and self.outer.has(name))

    def _check_size(self, name: str, value: object) -> None:
        parts = parts_of(value)
        self.state.spend(parts // PARTS_A_WORK)
        if parts > MOST_PARTS:
            raise BadWrite(f"{name} cannot hold more than {MOST_PARTS} parts")


def defaults(plan: TreePlan) -> dict[str, object]:
    """The keys of a tree as they begin. Runs share a plan and not its lists."""
    found: dict[str, object] = {}
    for name, key in plan.schema.items():
        value = key.default
        if isinstance(value, list | dict):
            value = deepcopy(value) if value else type(value)()
        found[name] = value
    return found


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


class PendingLeaf:
    """The answer of a leaf that takes time: RUNNING until it is completed or halted."""

    outcome: object = None  # as a function gives it, or the exception that it ended with
    is_over = False

    def __init__(self, state: TreeState) -> None:
        self._state = state

    def complete(self, outcome: object = SUCCESS) -> None:
        """Takes the answer, as a function gives it. After an end or a halt it changes nothing."""
        if not self.is_over:
            self.outcome, self.is_over = outcome, True
            self._state.wake()

    def halt(self) -> None:
        """Called when nothing waits for the answer any more."""
        self.is_over = True


Ticks = Generator[TickStatus, None, None]
Kind = Callable[[NodePlan, TreeFrame], Ticks | TickStatus]


def _nothing() -> Ticks:
    yield from ()


NOT_BEGUN: Final = _nothing()
next(NOT_BEGUN, None)  # so that it has ended


class Child:
    """A node at work: the root of a run, or one below another node."""

    __slots__ = ("frame", "kind", "plan", "status", "ticks")

    def __init__(self, plan: NodePlan, frame: TreeFrame, kind: Kind | None = None) -> None:
        self.plan, self.frame, self.ticks = plan, frame, NOT_BEGUN
        self.kind: Kind = kind or frame.state.kinds[plan.shape]
        self.status: TickStatus | None = None  # of the last tick; None: it has to begin

    def tick(self) -> TickStatus:
        status = next(self.ticks, None)
        if status is None:
            answer = self.kind(self.plan, self.frame)
            if isinstance(answer, TickStatus):
                status = answer
            else:
                self.ticks, status = answer, next(answer)
        self.status = status
        return status

    def halt(self) -> None:
        """Stops it if it may go on; it begins anew."""
        if self.status is RUNNING or self.status is SKIPPED:
            self.ticks.close()
        self.status = None


STUCK = 1_000  # ticks in a row that nothing but the tree itself asked for

Reason = Literal["done", "interrupted", "stuck", "max_ticks", "internal_error"]


@dataclass(frozen=True, slots=True)
class TreeOutcome:
    """How a run ended. `failure` says which node failed last, and why."""

    status: TickStatus
    reason: Reason
    detail: str = ""
    failure: Mapping[str, object] | None = None


class Run:
    """Call `step` until it says True; in between wait for something outside or for `next_deadline`,
    unless `state.is_awake`."""

    def __init__(self, plan: TreePlan, host: TreeHost, kinds: Mapping[str, Kind]) -> None:
        self.plan, self.host = plan, host
        self.state = TreeState(host, kinds, plan.file, plan.watched, plan.subtrees)
        self.frame = TreeFrame(self.state, defaults(plan), plan.types)
        self.outcome: TreeOutcome | None = None
        self._body_ended: TreeOutcome | None = None
        self.is_ending = False  # `:finally` is what runs now
        self._yields = 0  # ticks in a row that only the tree asked for
        self._stop: str | None = None  # why it was interrupted in mid-tick
        self._root = Child(plan.root, self.frame)  # the body, and then `:finally`

    def next_deadline(self) -> float | None:
        return min(self.state.timers.values(), default=None)

    def step(self) -> bool:
        """One tick from the root. True if the run is over; then `outcome` is set."""
        if self.outcome is not None:
            return True
        state, has_heard = self.state, self.state.has_heard
        state.has_heard = state.is_awake = False
        state.ticks += 1
        state.is_ticking = True
        try:
            status = self._root.tick()
        except Exception as error:  # a node that breaks ends the run, and says so
            if not isinstance(error, GatewayError):
                log.exception("tree_failed", extra={"tree": self.plan.name})
            self._abort("internal_error", str(error) or type(error).__name__)
            return self.outcome is not None
        finally:
            state.is_ticking = False
        if self._stop is not None:
            self._abort("interrupted", self._stop)
        elif status is not RUNNING:
            self._ended(status, "done")
        elif state.is_awake or self._yields or self.plan.max_ticks is not None:
            self._go_on(has_heard=has_heard)
        return self.outcome is not None

    def _go_on(self, *, has_heard: bool) -> None:
        self._yields = 0 if has_heard or not self.state.is_awake else self._yields + 1
        limit = self.plan.max_ticks
        if self._yields >= STUCK:
            self._abort("stuck", f"{STUCK} ticks in a row without anything happening")
        elif limit is not None and self.state.ticks >= limit and not self.is_ending:
            self._abort("max_ticks", f"not done after {limit} ticks")

    def interrupt(self, reason: str) -> None:
        """Halts what runs; `:finally` is what is left to do."""
        if self.state.is_ticking:
            self._stop = None if self.is_ending else self._stop or reason
        elif self._body_ended is None and self.outcome is None:
            self._abort("interrupted", reason)

    def give_up(self) -> None:
        """Halts even `:finally`, which has had its time."""
        if self.outcome is None:
            self.interrupt("given up")
            self._halt()
            self.outcome = self._body_ended or TreeOutcome(FAILURE, "interrupted")
            self.frame.kept.clear()
            log.warning("tree_finally_cut", extra={"tree": self.plan.name})

    def _abort(self, reason: Reason, detail: str) -> None:
        self._stop = None
        self._halt()
        self._ended(FAILURE, reason, detail)

    def _halt(self) -> None:
        self.state.is_ticking = True
        try:
            self._root.halt()
        except GatewayError:
            log.exception("tree_halt_failed", extra={"tree": self.plan.name})
        finally:
            self.state.is_ticking = False
        self.state.timers.clear()

    def _ended(self, status: TickStatus, reason: Reason, detail: str = "") -> None:
        """Of the body, and then of `:finally`, whose own end changes nothing."""
        self._yields = self.state.work = 0
        failure = self.state.failure if status is FAILURE else None
        if self._body_ended is None:
            self._body_ended, self.is_ending = TreeOutcome(status, reason, detail, failure), True
            if self.plan.final is not None:
                self._root = Child(self.plan.final, self.frame)
                self.state.is_awake = True
                return
        elif status is not SUCCESS:
            extra = {"tree": self.plan.name, "detail": detail or str(failure)}
            log.warning("tree_finally_failed", extra=extra)
        self.outcome = self._body_ended
        self.frame.kept.clear()  # they refer to the frame; without them it is freed at once
