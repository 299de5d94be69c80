"""The engine of behaviour trees: the plan of a loaded tree, shared by all its runs; the blackboard with its
keys and types; and the run with its ticks, wake-ups, interrupt and `:finally`. It never waits."""

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

# Type name -> Python type, and the default of a key that is declared without one.
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
    """The text is not a type."""


@dataclass(frozen=True, slots=True)
class KeyType:
    name: str
    inner: "KeyType | None" = None  # of a list or an option

    def __str__(self) -> str:
        return f"({self.name} {self.inner})" if self.inner else self.name

    @property
    def default(self) -> object:
        """Returns the default of a key that is declared without one."""
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
        """True if a value of the other type can be valid for this type; checked before a run."""
        bare = [kind.inner or ANY if kind.name == "option" else kind for kind in (self, other)]
        own, given = bare
        if "any" in {own.name, given.name} or (own.name, given.name) == ("float", "int"):
            return True
        if own.name != given.name:
            return False
        return not (own.inner and given.inner) or own.inner.may_hold(given.inner)


ANY = KeyType("any")
UNKNOWN = KeyType("option", ANY)  # the type of a key whose default is nil


def is_type(word: object) -> bool:
    return word in _TYPES


def read_type(text: str) -> KeyType:
    """Parses a type such as `(list string)` or `(option int)`. Raises BadType."""
    *outer, word = text.replace("(", " ").replace(")", " ").split() or [""]
    if word not in _TYPES:
        near = meant(word, _TYPES)
        raise BadType(f"unknown type {quoted(word)}{near}; types: {', '.join(_TYPES)}")
    found = UNKNOWN if word == "option" else KeyType(word)
    for name in reversed(outer):
        if name not in {"list", "option"}:
            raise BadType(f"{quoted(name)} has no inner type; only list and option have one")
        found = KeyType(name, found)
    return found


def type_of(value: object) -> KeyType:
    """Returns the type of a key that is declared by its default only."""
    if value is None:
        return UNKNOWN
    return next(kind for kind in map(KeyType, _TYPES) if kind.accepts(value))


# Takes a LeafCall; returns a bool, a status, None for success, or a PendingLeaf.
Act = Callable[..., object]
Keys = Mapping[str, str]  # blackboard key -> type as text


@dataclass(frozen=True, slots=True)
class LeafFunction:
    """A function of the host that leaves and decorators can name."""

    name: str
    act: Act
    reads: Mapping[str, KeyType]
    writes: Mapping[str, KeyType]
    options: frozenset[str]
    is_plain: bool = False  # called without a LeafCall; never returns a PendingLeaf


@dataclass(slots=True)
class LeafRegistry:
    """The functions and roots that trees can use.

    `roots`: name of a root that expressions can read -> its keys, or None for any key. `(config x)`
    reads the root `config`, `(env-flag "X")` the root `flags`.
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
        """Registers the decorated function for `:fn "name"` and for nodes of that name."""

        def register(act: Act) -> Act:
            read, written = (
                {key: read_type(text) for key, text in keys.items()} for keys in (reads, writes)
            )
            own = frozenset(options)
            self.functions[name] = LeafFunction(name, act, read, written, own, is_plain)
            return act

        return register


FAILED = "failure"  # the root in which expressions find the last failure


@dataclass(frozen=True, slots=True)
class Operand:
    """The value of an option: a constant, or a function that computes it at each use."""

    at: int
    constant: object = None  # the text, for an expression
    run: Callable[[ExpressionScope], object] | None = None  # None: the value is the constant
    key: str = ""  # the blackboard key, for a plain reference to it
    parts: Mapping[str, "Operand"] = field(default_factory=dict)  # of a map

    def of(self, scope: ExpressionScope) -> object:
        return self.constant if self.run is None else self.run(scope)


def path_getter(path: tuple[str, ...]) -> Callable[[ExpressionScope], object]:
    """Returns the function that reads a path: a key, and keys inside its value."""
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
    """A node of a loaded tree. It is compared by identity: runs use it as a key of their state."""

    kind: str
    name: str  # may be ""
    at: int  # index in the text
    line: int
    path: str
    values: tuple[Operand, ...] = ()
    options: Mapping[str, Operand] = field(default_factory=dict)  # without the common ones
    children: tuple["NodePlan", ...] = ()
    cases: tuple[str, ...] = ()  # of a switch: one per child
    when: Operand | None = None
    raises: bool = False  # an error of the node ends the run
    function: LeafFunction | None = None  # of a leaf or a decorator
    reads: frozenset[str] = frozenset()  # the known keys
    writes: frozenset[str] = frozenset()
    bare: str = ""  # the kind that ticks the node, without its `:when`
    shape: str = ""  # the kind that ticks the node

    @property
    def label(self) -> str:
        return self.name or self.kind

    @property
    def bound(self) -> Mapping[str, Operand]:
        """Returns the bindings of a named subtree. A plain reference binds a key in both directions."""
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
    watched: frozenset[str] = frozenset()  # keys; a write to one wakes the run
    types: Mapping[str, KeyType] = field(init=False)  # of the keys

    def __post_init__(self) -> None:
        types = {name: key.type for name, key in self.schema.items()}
        object.__setattr__(self, "types", types)

    def nodes(self) -> Iterator[NodePlan]:
        """Yields the nodes of this tree and its `:finally`, without those of named subtrees."""
        yield from self.root.walk()
        if self.final is not None:
            yield from self.final.walk()


Emit = Callable[[str, Mapping[str, object]], None]

MAX_WORK = 1_000  # loop items and events without an input from outside
MAX_PARTS = 10_000  # of a value
PARTS_A_WORK = 100  # parts of a value that count as one unit of work


class TreeTooMuch(GatewayError):
    """A tree worked too long without waiting for something outside."""

    code = "internal_error"


class BadWrite(GatewayError):
    """A write to an unknown key, or of a value that the key does not accept."""

    code = "bad_write"


@dataclass(frozen=True, slots=True)
class TreeHost:
    """The dependencies of a run."""

    now: Callable[[], float]
    roots: Mapping[str, object] = field(default_factory=dict)  # read at each use; may be live
    emit: Emit = lambda event, payload: None
    find_act: Callable[[NodePlan], Act | None] | None = None  # for plans without a registry
    arguments: tuple[object, ...] = ()  # first arguments of every leaf function


@dataclass(slots=True, eq=False)
class TreeState:
    """The state that all nodes and frames of a run share."""

    host: TreeHost
    kinds: Mapping[str, Callable[[NodePlan, "TreeFrame"], Any]] = field(default_factory=dict)
    file: str = ""
    watched: frozenset[str] = frozenset()  # keys; a write to one wakes the run
    subtrees: Mapping[str, TreePlan] = field(default_factory=dict)
    timers: dict[object, float] = field(default_factory=dict)  # waiting node -> deadline
    is_awake: bool = True  # another tick is due
    # A tick or a halt is running. A node that is closed at any other time belongs to a dropped run,
    # and must not act.
    is_ticking: bool = False
    has_input: bool = False  # something happened outside since the last tick
    work: int = 0  # units since the last input
    ticks: int = 0  # of the run
    cause: tuple[NodePlan, str, str] | None = None  # of the last failure: node, kind, message

    def spend(self, work: int = 1) -> None:
        """Raises TreeTooMuch."""
        self.work += work
        if self.work > MAX_WORK:
            raise TreeTooMuch(f"more than {MAX_WORK} loop items and events without any input")

    def wake(self) -> None:
        """Requests another tick. A call during a tick comes from the tree and is not an input."""
        self.is_awake = True
        if not self.is_ticking:
            self.has_input, self.work = True, 0

    @property
    def failure(self) -> Mapping[str, object] | None:
        """Returns the last failure, as expressions see it."""
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
    """Keys and their values. A missing key is looked up in the outer frame, then in the roots."""

    state: TreeState
    values: dict[str, object]
    types: Mapping[str, KeyType]
    outer: "TreeFrame | None" = None
    # Key -> the frame and the key that it is bound to.
    links: dict[str, "tuple[TreeFrame, str]"] = field(default_factory=dict)
    is_item: bool = False  # the frame of an item of `for-each`, which has a "result"
    kept: dict[NodePlan, Any] = field(default_factory=dict)  # node state that outlives a restart

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
                raise BadWrite(f"{name} is {self.types[name]}, not {type(value).__name__}")
            if isinstance(value, list | dict) and value:
                parts = count_parts(value)
                self.state.spend(parts // PARTS_A_WORK)
                if parts > MAX_PARTS:
                    raise BadWrite(f"{name} cannot hold more than {MAX_PARTS} parts")
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


def initial_values(plan: TreePlan) -> dict[str, object]:
    """Returns the initial values of a tree's keys. Lists and maps are copied, because runs share the
    plan."""
    found: dict[str, object] = {}
    for name, key in plan.schema.items():
        value = key.default
        if isinstance(value, list | dict):
            value = deepcopy(value) if value else type(value)()
        found[name] = value
    return found


def count_parts(value: object) -> int:
    """Counts the parts of a value at all depths, shared parts more than once. Stops after
    MAX_PARTS."""
    waiting, count = [value], 0
    while waiting and count <= MAX_PARTS:
        one = waiting.pop()
        if isinstance(one, list | tuple | dict):
            count += len(one)
            if count <= MAX_PARTS:
                waiting.extend(one.values() if isinstance(one, dict) else one)
    return count


class TickStatus(Enum):
    """The result of a tick; the value is its letter in traces."""

    RUNNING = "R"
    SUCCESS = "S"
    FAILURE = "F"
    SKIPPED = "K"


# Ticks compare by identity with these globals: reading an attribute of the class takes longer.
RUNNING: Final = TickStatus.RUNNING
SUCCESS: Final = TickStatus.SUCCESS
FAILURE: Final = TickStatus.FAILURE
SKIPPED: Final = TickStatus.SKIPPED


class PendingLeaf:
    """The pending answer of a leaf, which is RUNNING until it is completed or halted."""

    outcome: object = None  # the result of a leaf function, or the exception that it raised
    is_over = False

    def __init__(self, state: TreeState) -> None:
        self._state = state

    def complete(self, outcome: object = SUCCESS) -> None:
        """Sets the answer: any result of a leaf function. No effect after an answer or a halt."""
        if not self.is_over:
            self.outcome, self.is_over = outcome, True
            self._state.wake()

    def halt(self) -> None:
        """Cancels the answer; the leaf no longer waits for it."""
        self.is_over = True


Ticks = Generator[TickStatus, None, None]
Kind = Callable[[NodePlan, TreeFrame], Ticks | TickStatus]


NOT_BEGUN: Final[Ticks] = (status for status in list[TickStatus]())
next(NOT_BEGUN, None)  # ends the generator


class Child:
    """A node in a run: the root, or a child of another node."""

    __slots__ = ("frame", "kind", "plan", "status", "ticks")

    def __init__(self, plan: NodePlan, frame: TreeFrame, kind: Kind | None = None) -> None:
        self.plan, self.frame, self.ticks = plan, frame, NOT_BEGUN
        self.kind: Kind = kind or frame.state.kinds[plan.shape]
        self.status: TickStatus | None = None  # of the last tick; None: not begun

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
        """Stops the node if it has not ended. Its next tick starts it again."""
        if self.status is RUNNING or self.status is SKIPPED:
            self.ticks.close()
        self.status = None


STUCK = 1_000  # successive ticks that the tree itself requested

Reason = Literal["done", "interrupted", "stuck", "max_ticks", "internal_error"]


@dataclass(frozen=True, slots=True)
class TreeOutcome:
    """How a run ended; `failure` is its last failure."""

    status: TickStatus
    reason: Reason
    detail: str = ""
    failure: Mapping[str, object] | None = None


class Run:
    """A run of a tree. The caller calls `step` until it returns True, and between two steps waits for an
    input or for `next_deadline` unless `state.is_awake`."""

    def __init__(self, plan: TreePlan, host: TreeHost, kinds: Mapping[str, Kind]) -> None:
        self.plan, self.host = plan, host
        self.state = TreeState(host, kinds, plan.file, plan.watched, plan.subtrees)
        self.frame = TreeFrame(self.state, initial_values(plan), plan.types)
        self.outcome: TreeOutcome | None = None
        self._body_ended: TreeOutcome | None = None
        self.is_ending = False  # `:finally` is running
        self._yields = 0  # successive ticks that only the tree requested
        self._stop: str | None = None  # the reason of an interrupt during a tick
        self._root = Child(plan.root, self.frame)  # the body, then `:finally`

    def next_deadline(self) -> float | None:
        return min(self.state.timers.values(), default=None)

    def step(self) -> bool:
        """Ticks the root once. Returns True if the run is over; then `outcome` is set."""
        if self.outcome is not None:
            return True
        state, has_input = self.state, self.state.has_input
        state.has_input = state.is_awake = False
        state.ticks += 1
        state.is_ticking = True
        try:
            status = self._root.tick()
        except Exception as error:  # an error in a node ends the run
            if not isinstance(error, GatewayError):
                log.exception("tree_failed", extra={"tree": self.plan.name})
            self._abort("internal_error", str(error) or type(error).__name__)
            return self.outcome is not None
        finally:
            state.is_ticking = False
        if self._stop is not None:
            self._abort("interrupted", self._stop)
        elif status is not RUNNING:
            self._finish(status, "done")
        elif state.is_awake or self._yields or self.plan.max_ticks is not None:
            self._check_limits(has_input=has_input)
        return self.outcome is not None

    def _check_limits(self, *, has_input: bool) -> None:
        self._yields = 0 if has_input or not self.state.is_awake else self._yields + 1
        limit = self.plan.max_ticks
        if self._yields >= STUCK:
            self._abort("stuck", f"{STUCK} ticks in a row without any input")
        elif limit is not None and self.state.ticks >= limit and not self.is_ending:
            self._abort("max_ticks", f"not done after {limit} ticks")

    def interrupt(self, reason: str) -> None:
        """Halts the body; `:finally` runs next. No effect after the body has ended."""
        if self.state.is_ticking:
            self._stop = None if self.is_ending else self._stop or reason
        elif self._body_ended is None and self.outcome is None:
            self._abort("interrupted", reason)

    def abandon(self) -> None:
        """Halts the body and `:finally`, after the time for `:finally` has passed."""
        if self.outcome is None:
            self.interrupt("abandoned")
            self._halt()
            self.outcome = self._body_ended or TreeOutcome(FAILURE, "interrupted")
            self.frame.kept.clear()
            log.warning("tree_finally_cut", extra={"tree": self.plan.name})

    def _abort(self, reason: Reason, detail: str) -> None:
        self._stop = None
        self._halt()
        self._finish(FAILURE, reason, detail)

    def _halt(self) -> None:
        self.state.is_ticking = True
        try:
            self._root.halt()
        except GatewayError:
            log.exception("tree_halt_failed", extra={"tree": self.plan.name})
        finally:
            self.state.is_ticking = False
        self.state.timers.clear()

    def _finish(self, status: TickStatus, reason: Reason, detail: str = "") -> None:
        """Ends the body and starts `:finally`; or ends `:finally`, whose status changes nothing."""
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
        self.frame.kept.clear()  # breaks reference cycles, so the frame is freed at once
