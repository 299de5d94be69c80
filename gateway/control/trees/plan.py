"""A tree that was read and checked: immutable, shared by all of its runs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gateway.control.expressions import Scope
from gateway.control.trees.kinds import REACTIVE
from gateway.control.trees.problems import Problem
from gateway.control.trees.registry import Offered
from gateway.control.trees.types import KeyType

_ASKING = frozenset({"check", "condition"})
FAILED = "failure"  # the root under which expressions find why a node failed last


@dataclass(frozen=True, slots=True)
class Value:
    """What stands behind an option: a constant, or something to look up each time."""

    at: int
    constant: object = None  # of an expression, its text
    run: Callable[[Scope], object] | None = None
    key: str = ""  # of the blackboard, if the value is what it holds
    parts: Mapping[str, "Value"] = field(default_factory=dict)  # of a map

    def of(self, scope: Scope) -> object:
        return self.constant if self.run is None else self.run(scope)


@dataclass(frozen=True, slots=True)
class NodePlan:
    kind: str
    name: str  # its own, or empty
    at: int  # where in the text
    line: int
    path: str
    values: tuple[Value, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)  # its own, not those of every node
    children: tuple["NodePlan", ...] = ()
    cases: tuple[str, ...] = ()  # of a switch: one a child
    when: Value | None = None
    raises: bool = False
    offered: Offered | None = None
    reads: frozenset[str] = frozenset()  # keys, as far as they are known
    writes: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        return self.name or self.kind

    @property
    def bound(self) -> Mapping[str, Value]:
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
    warnings: tuple[Problem, ...] = ()
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


def watched_keys(plan: TreePlan) -> frozenset[str]:
    """Keys that a node asks for again at each tick: who writes one has to wake the run."""
    nodes = [node for tree in (plan, *plan.subtrees.values()) for node in tree.nodes()]
    found = {key for node in nodes for key in _asked_each_tick(node)}
    bound = [pair for node in nodes for pair in node.bound.items()]
    for _ in plan.subtrees:  # a key may be handed down through all of them
        found |= {value.key for inner, value in bound if inner in found and value.key}
    return frozenset(found)


def _asked_each_tick(node: NodePlan) -> frozenset[str]:
    if node.kind in {"guard", "switch"}:
        return node.reads
    asked = node.children if node.kind in REACTIVE else node.children[: node.kind == "while"]
    return frozenset().union(*(child.reads for child in asked if child.kind in _ASKING))
