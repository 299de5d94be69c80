"""A file of trees to plans: every problem of the file is said at once."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

from gateway.control.trees.lint import lint
from gateway.control.trees.plan import (
    ALIASES,
    ANY,
    CALLS,
    COMMON,
    HOSTED,
    KINDS,
    OPTION_ALIASES,
    TREE,
    WANTS,
    BadType,
    Key,
    KeyType,
    LeafRegistry,
    Names,
    NodeKind,
    NodePlan,
    Offered,
    PlanValues,
    TreePlan,
    Value,
    is_type,
    pairs,
    read_type,
    type_of,
    watched_keys,
    wrong,
)
from gateway.control.trees.reader import MAX_DEPTH, TreeForm, TreeInvalid, TreeSource, read
from gateway.control.words import meant, short

MAX_NODES = 5_000
NAME = re.compile(r"[a-z][a-z0-9_?!-]*")
_NAMED = frozenset({"action", "condition", "decorator"})


class TooManyNodes(Exception):
    """Nobody reads on; it never leaves the loader."""


@dataclass(slots=True)
class TreeParts:
    """A form, taken apart."""

    form: TreeForm
    kind: NodeKind
    name: TreeForm | None = None
    values: list[TreeForm] = field(default_factory=list)
    options: dict[str, TreeForm] = field(default_factory=dict)  # a flag stands for itself
    keys: dict[str, TreeForm] = field(default_factory=dict)  # of the options
    children: list[TreeForm] = field(default_factory=list)

    def is_value(self) -> bool:
        """Whether a bare symbol is the next value, as in `(subagent librarian)`."""
        place = len(self.values)
        return place < self.kind.needed and self.kind.values[place] == "text"


def taken_apart(form: TreeForm, kind: NodeKind, source: TreeSource) -> TreeParts:
    parts = TreeParts(form, kind)
    rest = list(reversed(form.parts[1:]))
    while rest:
        part = rest.pop()
        if part.kind == "keyword":
            _take_option(part, rest, parts, source)
        elif part.kind == "list" and part.head not in CALLS:
            parts.children.append(part)
        elif part.kind == "symbol" and parts.name is None and not parts.is_value():
            parts.name = part
        else:
            parts.values.append(part)
    _check_counts(parts, source)
    return parts


def _take_option(key: TreeForm, rest: list[TreeForm], parts: TreeParts, source: TreeSource) -> None:
    name = OPTION_ALIASES.get(str(key.value), str(key.value))
    want = parts.kind.want(name)
    if want is None:
        near = meant(name, (*parts.kind.options, *COMMON))
        source.error("BT014", key.start, f'unknown option ":{short(name)}"{near}')
        if rest and (rest[-1].kind not in {"list", "keyword"} or rest[-1].head in CALLS):
            rest.pop()  # its value; what looks like a node is one
        return
    if name in parts.options:
        source.error("BT015", key.start, f":{name} is here twice")
    if want != "flag" and not rest:
        source.error("BT013", key.start, f":{name} has no value")
        return
    parts.keys[name], parts.options[name] = key, key if want == "flag" else rest.pop()


def _check_counts(parts: TreeParts, source: TreeSource) -> None:
    kind, at, head = parts.kind, parts.form.start, parts.form.head
    count = len(parts.children)
    if not kind.least <= count <= kind.most:
        bound = "at least" if count < kind.least else "at most"
        wanted = f"{bound} {kind.least if count < kind.least else kind.most}"
        place = parts.children[kind.most].start if count > kind.most else at
        source.error("BT012", place, f"{head} has {count} children, and takes {wanted}")
    if len(parts.values) > len(kind.values):
        extra = parts.values[len(kind.values)]
        source.error("BT017", extra.start, f"{head} takes no value here")
    if len(parts.values) < kind.needed:
        missing = kind.values[len(parts.values)]
        source.error("BT017", at, f"{head} lacks its value: {missing}")
    for group in kind.excluding:
        both = sorted(group & parts.options.keys())
        if len(both) > 1:
            source.error("BT013", at, f"{head} takes only one of :{', :'.join(both)}")


@dataclass(slots=True)
class Planner:
    """Plans the nodes of one tree."""

    source: TreeSource
    registry: LeafRegistry | None
    count: Callable[[], int]  # nodes of all trees of the file, this one included
    uses: list[tuple[str, int]] = field(default_factory=list)  # subtrees by name, and where
    bound: list[tuple[str, str, int]] = field(default_factory=list)  # subtree, key, and where
    _ids: set[str] = field(default_factory=set)

    def plan(
        self, form: TreeForm, path: str, names: Names, *, raises: bool = False
    ) -> NodePlan | None:
        """`path` and `raises` are those of the parent."""
        name = ALIASES.get(form.head, form.head)
        if name not in KINDS:
            self._refuse(form)
            return None
        if self.count() > MAX_NODES:
            self.source.error("BT006", form.start, f"more than {MAX_NODES} nodes")
            raise TooManyNodes
        parts = taken_apart(form, KINDS[name], self.source)
        own_name = self._own_name(parts)
        path = f"{path}/{own_name or name}"
        values = PlanValues(self.source, self.registry, names)
        found = self._options(parts, values)
        raising = found.get("on-error")
        raises = raises if raising is None else raising.constant == "raise"
        forms = self._children(parts, name)
        node = NodePlan(
            name,
            own_name,
            form.start,
            self.source.place(form.start)[0],
            path,
            self._values(parts, values),
            {key: value for key, value in found.items() if key not in COMMON},
            cases=tuple(forms) if name == "switch" else (),
            when=found.get("when"),
            raises=raises,
        )
        offered = _offered(node, values, parts.name.start if parts.name else form.start)
        inside = self._names_inside(node, names)
        children = [self.plan(each, path, inside, raises=raises) for each in forms.values()]
        self._special(node, parts, values)
        return replace(
            node,
            offered=offered,
            children=tuple(child for child in children if child is not None),
            reads=frozenset(values.reads),
            writes=frozenset(values.writes),
        )

    def _refuse(self, form: TreeForm) -> None:
        if form.head:
            near = meant(form.head, (*KINDS, *ALIASES))
            self.source.error("BT011", form.start, f'unknown node "{short(form.head)}"{near}')
        else:
            self.source.error("BT010", form.start, "a node begins with its kind: (kind …)")

    def _own_name(self, parts: TreeParts) -> str:
        form, head = parts.name, parts.form.head
        if form is None:
            if parts.kind.is_named:
                message = f"{head} needs a name: ({head} NAME …)"
                self.source.error("BT016", parts.form.start, message)
            return ""
        if not NAME.fullmatch(str(form.value)):
            message = f'"{short(str(form.value))}" is no name: small letters, digits, _ ? ! -'
            self.source.error("BT016", form.start, message)
        return str(form.value)

    def _options(self, parts: TreeParts, values: PlanValues) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, form in parts.options.items():
            want = parts.kind.want(name) or "any"
            is_flag = want == "flag"
            value = Value(form.start, True) if is_flag else values.value(form, want, name)  # noqa: FBT003  # the value of a flag
            if value is not None:
                found[name] = value
        if "id" in found:
            one = str(found["id"].constant)
            if one in self._ids:
                message = f'another node has the id "{short(one)}"'
                self.source.error("BT015", found["id"].at, message)
            self._ids.add(one)
        return found

    def _names_inside(self, node: NodePlan, names: Names) -> Names:
        if node.kind != "for-each":
            return names
        name = str(node.options["as"].constant) if "as" in node.options else "item"
        return names.new_child({name: ANY, "index": ANY, "result": ANY})

    def _values(self, parts: TreeParts, values: PlanValues) -> tuple[Value, ...]:
        wants = zip(parts.values, parts.kind.values, strict=False)
        found = [values.value(form, want) for form, want in wants if want != "cases"]
        return tuple(value for value in found if value is not None)

    def _children(self, parts: TreeParts, name: str) -> dict[str, TreeForm]:
        """Those of a switch by case; the catch of a `try` is its last one, without the word."""
        children = list(parts.children)
        if name == "switch" and len(parts.values) > 1:
            return pairs(parts.values[1], self.source)
        if name == "try":
            last = children[-1] if children else parts.form
            if last.head == "catch" and len(last.parts) == 2:
                children[-1] = last.parts[1]
            else:
                self.source.error("BT012", parts.form.start, "try ends with one (catch NODE)")
        return {str(place): child for place, child in enumerate(children)}

    def _special(self, node: NodePlan, parts: TreeParts, values: PlanValues) -> None:
        """What one kind alone has to obey."""
        options = node.options
        match node.kind:
            case "subtree" if not parts.children:
                self.uses.append((node.name, node.at))
                self.bound += [(node.name, key, one.at) for key, one in node.bound.items()]
            case "set!":
                self._check_set(node, parts, values)
            case "for-each" if "collect" in options:
                self._check_collected(options["collect"], values.names)
            case "parallel":
                for name in options.keys() & {"success", "failure"}:
                    count = options[name].constant
                    if isinstance(count, int) and count > len(parts.children):
                        message = f":{name} {count} is more than its {len(parts.children)} children"
                        self.source.error("BT013", options[name].at, message)

    def _check_collected(self, target: Value, names: Names) -> None:
        kind = names.get(str(target.constant), ANY)
        if not kind.may_hold(KeyType("list")):
            message = f"{target.constant} is {kind}, and what is collected is a list"
            self.source.error("BT030", target.at, message)

    def _check_set(self, node: NodePlan, parts: TreeParts, values: PlanValues) -> None:
        if len(parts.form.parts) == 1:
            self.source.error("BT013", node.at, "set! sets nothing: (set! :key value)")
        for key, value in node.options.items():
            kind = values.known(parts.keys[key].start, key)
            if kind is not None:
                values.check_type(value, kind)
                values.writes.add(key)


def _offered(node: NodePlan, values: PlanValues, named_at: int) -> Offered | None:
    """The host's function behind a leaf or a decorator, if there is one and it is known."""
    source, registry = values.source, values.registry
    if registry is None or "expr" in node.options or node.kind not in _NAMED | HOSTED:
        return None
    fn = node.options.get("fn", Value(named_at, node.name))
    at, wanted = fn.at, node.kind if node.kind in HOSTED else str(fn.constant)
    offered = registry.offered.get(wanted)
    if offered is None:
        near = meant(wanted, registry.offered)
        source.error("BT021", at, f'unknown function "{short(wanted)}"{near}')
        return None
    _check_keys(offered, values, at)
    for option in node.options.keys() - KINDS[node.kind].options.keys() - offered.options:
        message = f'{offered.name} has no option ":{option}"{meant(option, offered.options)}'
        source.error("BT014", node.options[option].at, message)
    return offered


def _check_keys(offered: Offered, values: PlanValues, at: int) -> None:
    values.reads |= offered.reads.keys()
    values.writes |= offered.writes.keys()
    for verb, keys in (("reads", offered.reads), ("writes", offered.writes)):
        for key, kind in keys.items():
            declared = values.declared(at, key, kind)
            if not declared.may_hold(kind):
                message = f"{offered.name} {verb} {key} as {kind}, and it is {declared}"
                values.source.error("BT033", at, message)


_OF_THE_FIRST = ("finally", "inputs", "max-ticks")  # options of the tree that is run


def load(text: str, name: str = "tree.bt", registry: LeafRegistry | None = None) -> TreePlan:
    """The first tree of the file, with the others as its subtrees. Raises TreeInvalid.

    Without a registry, functions and what lies outside of the blackboard are taken on trust.
    """
    source = TreeSource(name, text)
    plan = _Loader(source, registry).load()
    if source.has_errors or plan is None:
        raise TreeInvalid(source.problems(), source.left_out)
    for one in (plan, *plan.subtrees.values()):
        lint(one, source, is_complete=registry is not None)
    return replace(plan, warnings=source.problems(), watched=watched_keys(plan))


@dataclass(slots=True)
class _Tree:
    """A tree on its way from form to plan."""

    parts: TreeParts
    schema: dict[str, Key]
    planner: Planner
    plan: TreePlan | None = None
    size: int = 0  # with all that it refers to
    depth: int = 0


@dataclass(slots=True)
class _Loader:
    source: TreeSource
    registry: LeafRegistry | None
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

    def _collect(self, form: TreeForm, counting: Callable[[], int]) -> None:
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

    def _schema(self, parts: TreeParts) -> dict[str, Key]:
        form = parts.options.get("blackboard-schema")
        found: dict[str, Key] = {}
        for name, default in pairs(form, self.source).items() if form else ():
            if name.startswith("_"):
                message = f":{name} is reserved: keys do not begin with _"
                self.source.error("BT016", default.start, message)
            found[name] = self._declared(default)
        return found

    def _declared(self, form: TreeForm) -> Key:
        """A key's type and default: `0`, or `(int 0)`, `(list string)`, `((list string) [])`."""
        values = PlanValues(self.source, self.registry, Names({}))
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

    def _words(self, form: TreeForm) -> str:
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
        values = PlanValues(self.source, self.registry, Names({}))
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


def _is_wrapped(form: TreeForm) -> bool:
    """Whether it is a type itself, as `(list string)`, and not a type with a default."""
    if len(form.parts) < 2 or form.head not in {"list", "option"}:
        return False
    inner = form.parts[1]
    return inner.kind == "list" or (inner.kind == "symbol" and is_type(inner.value))


def _depth(node: NodePlan) -> int:
    return 1 + max((_depth(child) for child in node.children), default=0)
