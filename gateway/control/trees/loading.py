"""A file of trees to plans: schemas, subtrees, sizes; every problem of the file is said at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import cast

from gateway.control.trees.lint import lint
from gateway.control.trees.literals import pairs
from gateway.control.trees.plan import Key, NodePlan, TreePlan, watched_keys
from gateway.control.trees.planning import MAX_NODES, NAME, Planner, TooManyNodes
from gateway.control.trees.problems import Source, TreeInvalid
from gateway.control.trees.reader import MAX_DEPTH, Form, read
from gateway.control.trees.registry import Registry
from gateway.control.trees.types import SIMPLE, BadType, KeyType, named_type, type_of, wrapped
from gateway.control.trees.values import Names, Values
from gateway.control.words import meant, short

_OPTIONS = {
    "description": "string",
    "version": "int",
    "decision": "string",
    "blackboard-schema": "map",
    "inputs": "vector",
    "finally": "list",
    "max-ticks": "int",
}


@dataclass(slots=True)
class _Tree:
    """A tree on its way from form to plan."""

    name: str
    form: Form
    options: dict[str, Form]
    nodes: list[Form]
    schema: dict[str, Key] = field(default_factory=dict)
    planner: Planner | None = None
    plan: TreePlan | None = None


def load(text: str, name: str = "tree.bt", registry: Registry | None = None) -> TreePlan:
    """The first tree of the file, with the others as its subtrees. Raises TreeInvalid.

    Without a registry, functions and what lies outside of the blackboard are taken on trust.
    """
    source = Source(name, text)
    loader = _Loader(source, registry)
    plan = loader.load()
    if source.has_errors or plan is None:
        raise TreeInvalid(source.problems(), source.left_out)
    for one in (plan, *plan.subtrees.values()):
        lint(one, source, is_complete=registry is not None)
    return replace(plan, warnings=source.problems(), watched=watched_keys(plan))


class _Loader:
    def __init__(self, source: Source, registry: Registry | None) -> None:
        self._source, self._registry = source, registry
        self._values = Values(source, registry)
        self._count: Callable[[], int] = count(1).__next__

    def load(self) -> TreePlan | None:
        trees: dict[str, _Tree] = {}
        for form in read(self._source):
            if form.kind != "comment":
                self._collect(form, trees)
        if not trees:
            self._source.error("BT010", 0, 'there is no tree here: (tree "name" …)')
            return None
        try:
            for tree in trees.values():
                tree.plan = self._plan(tree)
        except TooManyNodes:
            return None
        self._check_uses(trees)
        plans = {name: tree.plan for name, tree in trees.items() if tree.plan}
        first, *_ = trees
        if self._source.has_errors or len(plans) < len(trees):
            return None
        others = {name: plan for name, plan in plans.items() if name != first}
        return replace(plans[first], subtrees=others)

    def _collect(self, form: Form, trees: dict[str, _Tree]) -> None:
        if form.head != "tree":
            self._source.error("BT010", form.start, 'a file has trees only: (tree "name" …)')
            return
        rest = list(form.parts[1:])
        name = str(rest[0].value) if rest and rest[0].kind == "string" else ""
        if not NAME.fullmatch(name):
            at = rest[0].start if rest else form.start
            message = 'a tree has a name of small letters, digits, _ ? ! -: (tree "name" …)'
            self._source.error("BT016", at, message)
        if name in trees:
            self._source.error("BT015", form.start, f'another tree is called "{name}"')
            return
        tree = _Tree(name, form, {}, [])
        rest = rest[1:]
        while rest:
            part = rest.pop(0)
            if part.kind == "keyword":
                self._option(part, rest, tree)
            else:
                tree.nodes.append(part)
        tree.schema = self._schema(tree)
        trees[name] = tree

    def _option(self, key: Form, rest: list[Form], tree: _Tree) -> None:
        name = str(key.value)
        if name not in _OPTIONS:
            near = meant(name, _OPTIONS)
            self._source.error("BT014", key.start, f'a tree has no option ":{short(name)}"{near}')
        elif name in tree.options:
            self._source.error("BT015", key.start, f":{name} is here twice")
        if not rest:
            self._source.error("BT013", key.start, f":{name} has no value")
            return
        value = rest.pop(0)
        wanted = _OPTIONS.get(name, value.kind)
        if value.kind != wanted:
            self._source.error("BT013", value.start, f":{name} wants a {wanted}")
        else:
            tree.options[name] = value

    def _schema(self, tree: _Tree) -> dict[str, Key]:
        form = tree.options.get("blackboard-schema")
        if form is None:
            return {}
        found: dict[str, Key] = {}
        for name, default in pairs(form, self._source).items():
            if name.startswith("_"):
                message = f":{name} is reserved: keys do not begin with _"
                self._source.error("BT016", default.start, message)
            kind, value = self._declared(default)
            found[name] = Key(kind, value, default.start)
        return found

    def _declared(self, form: Form) -> tuple[KeyType, object]:
        """A key's type and default: `0`, or `(int 0)`, `(list string)`, `((list string) [])`."""
        if form.kind != "list":
            value = self._values.literal(form)
            return type_of(value), value
        try:
            kind, values = self._typed(*(form.parts or (form,)))
        except BadType as error:
            self._source.error("BT031", form.start, str(error))
            return type_of(None), None
        value = self._values.literal(values[0]) if values else kind.natural
        if len(values) > 1 or (values and not kind.accepts(value)):
            self._source.error("BT030", form.start, f"a key of type {kind} has one such default")
        return kind, value

    def _typed(self, first: Form, *rest: Form) -> tuple[KeyType, tuple[Form, ...]]:
        """The type, and the forms that are left."""
        is_wrapping = first.value in {"list", "option"} and rest and self._is_type(rest[0])
        if is_wrapping and first.kind == "symbol":
            return wrapped(str(first.value), self._type(rest[0])), rest[1:]
        return self._type(first), rest

    def _is_type(self, form: Form) -> bool:
        is_word = form.kind == "symbol" and (
            form.value in {*SIMPLE, "option"} or ":" in str(form.value)
        )
        return is_word or form.kind == "list"

    def _type(self, form: Form) -> KeyType:
        models = self._registry.models if self._registry else None
        if form.kind == "symbol":
            return named_type(str(form.value), models)
        if form.kind == "list" and len(form.parts) == 2:
            return wrapped(str(form.parts[0].value), self._type(form.parts[1]))
        raise BadType("a type is a word, (list TYPE) or (option TYPE)")

    def _plan(self, tree: _Tree) -> TreePlan | None:
        if len(tree.nodes) != 1:
            at = tree.nodes[1].start if tree.nodes else tree.form.start
            self._source.error("BT012", at, f"a tree has one node, not {len(tree.nodes)}")
        names = Names({name: key.type for name, key in tree.schema.items()})
        tree.planner = Planner(self._source, self._registry, names, self._count)
        planned = [tree.planner.plan(form, tree.name) for form in tree.nodes]
        final = tree.options.get("finally")
        ending = tree.planner.plan(final, f"{tree.name}:finally") if final else None
        if not planned or planned[0] is None:
            return None
        added = {name: Key(kind, kind.natural, -1) for name, kind in names.keys.items()}
        return self._made(tree, planned[0], ending, {**added, **tree.schema})

    def _made(
        self, tree: _Tree, root: NodePlan, final: NodePlan | None, schema: Mapping[str, Key]
    ) -> TreePlan:
        said = {name: form.value for name, form in tree.options.items()}
        return TreePlan(
            tree.name,
            root,
            final,
            schema,
            self._inputs(tree),
            self._source.name,
            tree.form.start,
            str(said.get("description", "")),
            cast(int | None, said.get("version")),
            cast(str | None, said.get("decision")),
            cast(int | None, said.get("max-ticks")),
        )

    def _inputs(self, tree: _Tree) -> tuple[str, ...]:
        form = tree.options.get("inputs")
        for part in form.parts if form else ():
            if part.value not in tree.schema:
                near = meant(str(part.value), tree.schema)
                message = f'"{short(str(part.value))}" is not in :blackboard-schema{near}'
                self._source.error("BT020", part.start, message)
        return tuple(str(part.value) for part in form.parts) if form else ()

    def _check_uses(self, trees: Mapping[str, _Tree]) -> None:
        first, *others = trees.values()
        for tree in others:
            for option in tree.options.keys() & {"finally", "inputs", "max-ticks"}:
                message = f":{option} belongs to the first tree of a file; this one is a subtree"
                self._source.error("BT014", tree.options[option].start, message)
        for planner in (tree.planner for tree in trees.values() if tree.planner):
            for name, at in planner.uses:
                if name not in trees:
                    near = meant(name, trees)
                    self._source.error("BT022", at, f'unknown subtree "{short(name)}"{near}')
            self._check_bound(planner, trees)
        if not self._source.has_errors:
            self._measure(trees, first.name, {}, ())

    def _check_bound(self, planner: Planner, trees: Mapping[str, _Tree]) -> None:
        for name, key, at in planner.bound:
            if name in trees and key not in trees[name].schema:
                near = meant(key, trees[name].schema)
                message = f'subtree "{name}" has no key "{short(key)}"{near}'
                self._source.error("BT020", at, message)

    def _measure(
        self,
        trees: Mapping[str, _Tree],
        name: str,
        known: dict[str, tuple[int, int]],
        above: tuple[str, ...],
    ) -> tuple[int, int]:
        """Nodes and depth of a tree with all that it refers to; finds what leads back to itself."""
        tree = trees[name]
        if name in known or tree.plan is None or tree.planner is None:
            return known.get(name, (0, 0))
        if len(above) > MAX_DEPTH:
            self._source.error(
                "BT006", tree.form.start, f"subtrees lead more than {MAX_DEPTH} deep"
            )
            return 0, 0
        size, depth = sum(1 for _ in tree.plan.nodes()), _depth(tree.plan.root)
        for other, at in tree.planner.uses:
            if other in (*above, name):
                way = " -> ".join([*above, name, other])
                self._source.error("BT023", at, f"this subtree leads back to itself: {way}")
                continue
            below = self._measure(trees, other, known, (*above, name))
            size, depth = size + below[0], max(depth, _depth(tree.plan.root) + below[1])
            if size > MAX_NODES or depth > MAX_DEPTH:
                message = f"with its subtrees, more than {MAX_NODES} nodes or {MAX_DEPTH} deep"
                self._source.error("BT006", at, message)
                break
        known[name] = (size, depth)
        return known[name]


def _depth(node: NodePlan) -> int:
    return 1 + max((_depth(child) for child in node.children), default=0)
