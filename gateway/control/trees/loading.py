"""A file of trees to plans: schemas, subtrees, sizes; every problem of the file is said at once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

from gateway.control.trees.kinds import TREE, WANTS
from gateway.control.trees.lint import lint
from gateway.control.trees.plan import Key, NodePlan, TreePlan, watched_keys
from gateway.control.trees.planning import (
    MAX_NODES,
    NAME,
    Parts,
    Planner,
    TooManyNodes,
    taken_apart,
)
from gateway.control.trees.problems import Source, TreeInvalid
from gateway.control.trees.reader import MAX_DEPTH, Form, read
from gateway.control.trees.registry import Registry
from gateway.control.trees.types import BadType, is_type, read_type, type_of
from gateway.control.trees.values import Names, Values, pairs, wrong
from gateway.control.words import meant, short

_OF_THE_FIRST = ("finally", "inputs", "max-ticks")  # options of the tree that is run


def load(text: str, name: str = "tree.bt", registry: Registry | None = None) -> TreePlan:
    """The first tree of the file, with the others as its subtrees. Raises TreeInvalid.

    Without a registry, functions and what lies outside of the blackboard are taken on trust.
    """
    source = Source(name, text)
    plan = _Loader(source, registry).load()
    if source.has_errors or plan is None:
        raise TreeInvalid(source.problems(), source.left_out)
    for one in (plan, *plan.subtrees.values()):
        lint(one, source, is_complete=registry is not None)
    return replace(plan, warnings=source.problems(), watched=watched_keys(plan))


@dataclass(slots=True)
class _Tree:
    """A tree on its way from form to plan."""

    parts: Parts
    schema: dict[str, Key]
    planner: Planner
    plan: TreePlan | None = None
    size: int = 0  # with all that it refers to
    depth: int = 0


@dataclass(slots=True)
class _Loader:
    source: Source
    registry: Registry | None
    trees: dict[str, _Tree] = field(default_factory=dict)

    def load(self) -> TreePlan | None:
        counting = count(1).__next__
        for form in read(self.source):
            if form.kind != "comment":
                self._collect(form, counting)
        if not self.trees:
            self.source.error("BT010", 0, 'there is no tree here: (tree "name" …)')
            return None
        try:
            for name, tree in self.trees.items():
                tree.plan = self._plan(name, tree)
        except TooManyNodes:
            return None
        self._check_uses()
        first, *_ = self.trees
        if not self.source.has_errors:
            self._measure(first, ())
        plans = {name: tree.plan for name, tree in self.trees.items() if tree.plan}
        if self.source.has_errors:
            return None
        return replace(plans.pop(first), subtrees=plans)

    def _collect(self, form: Form, counting: Callable[[], int]) -> None:
        if form.head != "tree":
            self.source.error("BT010", form.start, 'a file has trees only: (tree "name" …)')
            return
        parts = taken_apart(form, TREE, self.source)
        said = parts.values[0] if parts.values else form
        name = str(said.value) if said.kind == "string" else ""
        if not NAME.fullmatch(name):
            message = 'a tree has a name of small letters, digits, _ ? ! -: (tree "name" …)'
            self.source.error("BT016", said.start, message)
        if name in self.trees:
            self.source.error("BT015", form.start, f'another tree is called "{name}"')
            return
        planner = Planner(self.source, self.registry, counting)
        self.trees[name] = _Tree(parts, self._schema(parts), planner)

    def _schema(self, parts: Parts) -> dict[str, Key]:
        form = parts.options.get("blackboard-schema")
        found: dict[str, Key] = {}
        for name, default in pairs(form, self.source).items() if form else ():
            if name.startswith("_"):
                message = f":{name} is reserved: keys do not begin with _"
                self.source.error("BT016", default.start, message)
            found[name] = self._declared(default)
        return found

    def _declared(self, form: Form) -> Key:
        """A key's type and default: `0`, or `(int 0)`, `(list string)`, `((list string) [])`."""
        values = Values(self.source, self.registry, Names({}))
        if form.kind != "list":
            value = values.literal(form)
            return Key(type_of(value), value, form.start)
        length = 2 if _is_wrapped(form) else 1
        typed, rest = form.parts[:length] or (form,), form.parts[length:]
        models = self.registry.models if self.registry else None
        try:
            kind = read_type(" ".join(map(self._words, typed)), models)
        except BadType as error:
            self.source.error("BT031", form.start, str(error))
            return Key(type_of(None), None, form.start)
        value = values.literal(rest[0]) if rest else kind.natural
        if len(rest) > 1 or (rest and not kind.accepts(value)):
            self.source.error("BT030", form.start, f"a key of type {kind} has one such default")
        return Key(kind, value, form.start)

    def _words(self, form: Form) -> str:
        if form.kind == "list" and len(form.parts) == 2:
            return " ".join(map(self._words, form.parts))
        if form.kind != "symbol":
            raise BadType("a type is a word, (list TYPE) or (option TYPE)")
        return str(form.value)

    def _plan(self, name: str, tree: _Tree) -> TreePlan | None:
        options = tree.parts.options
        names = Names({name: key.type for name, key in tree.schema.items()})
        planned = [tree.planner.plan(form, name, names) for form in tree.parts.children]
        final = options.get("finally")
        ending = tree.planner.plan(final, f"{name}:finally", names) if final else None
        if not planned or planned[0] is None:
            return None
        values = Values(self.source, self.registry, Names({}))
        wanted = {name: want for name, want in TREE.options.items() if want in {"text", "int"}}
        said = {
            name.replace("-", "_"): values.literal(options[name], want)
            for name, want in wanted.items()
            if name in options
        }
        added = {name: Key(kind, kind.natural, -1) for name, kind in names.items()}
        return TreePlan(
            name,
            planned[0],
            ending,
            {**added, **tree.schema},
            self._inputs(tree),
            self.source.name,
            tree.parts.form.start,
            **cast(dict[str, Any], said),
        )

    def _inputs(self, tree: _Tree) -> tuple[str, ...]:
        form = tree.parts.options.get("inputs")
        if form is None:
            return ()
        if form.kind not in WANTS["inputs"].forms:
            wrong(self.source, form, "inputs")
        found = tuple(str(part.value) for part in form.parts)
        for part, key in zip(form.parts, found, strict=True):
            if key not in tree.schema:
                near = meant(key, tree.schema)
                message = f'"{short(key)}" is not in :blackboard-schema{near}'
                self.source.error("BT020", part.start, message)
        return found

    def _check_uses(self) -> None:
        _, *others = self.trees.values()
        for tree in others:
            for option in tree.parts.options.keys() & set(_OF_THE_FIRST):
                message = f":{option} belongs to the first tree of a file; this one is a subtree"
                self.source.error("BT014", tree.parts.options[option].start, message)
        for tree in self.trees.values():
            for name, at in tree.planner.uses:
                if name not in self.trees:
                    near = meant(name, self.trees)
                    self.source.error("BT022", at, f'unknown subtree "{short(name)}"{near}')
            for name, key, at in tree.planner.bound:
                if name in self.trees and key not in self.trees[name].schema:
                    near = meant(key, self.trees[name].schema)
                    message = f'subtree "{name}" has no key "{short(key)}"{near}'
                    self.source.error("BT020", at, message)

    def _measure(self, name: str, above: tuple[str, ...]) -> _Tree:
        """Nodes and depth of a tree with all that it refers to; finds what leads back to itself."""
        tree = self.trees[name]
        if tree.size or tree.plan is None:
            return tree
        own = _depth(tree.plan.root)
        tree.size, tree.depth = sum(1 for _ in tree.plan.nodes()), own
        for other, at in tree.planner.uses:
            if other in (*above, name):
                way = " -> ".join([*above, name, other])
                self.source.error("BT023", at, f"this subtree leads back to itself: {way}")
                continue
            if len(above) < MAX_DEPTH:
                below = self._measure(other, (*above, name))
                tree.size, tree.depth = tree.size + below.size, max(tree.depth, own + below.depth)
            if len(above) >= MAX_DEPTH or tree.size > MAX_NODES or tree.depth > MAX_DEPTH:
                message = f"with its subtrees, more than {MAX_NODES} nodes or {MAX_DEPTH} deep"
                self.source.error("BT006", at, message)
                break
        return tree


def _is_wrapped(form: Form) -> bool:
    """Whether it is a type itself, as `(list string)`, and not a type with a default."""
    if len(form.parts) < 2 or form.head not in {"list", "option"}:
        return False
    inner = form.parts[1]
    return inner.kind == "list" or (inner.kind == "symbol" and is_type(inner.value))


def _depth(node: NodePlan) -> int:
    return 1 + max((_depth(child) for child in node.children), default=0)
