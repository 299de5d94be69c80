"""Loads the text of a file into the plan of a tree. Reports all problems of the file together."""

import re
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

from gateway.control.expressions import ExpressionInvalid, ExpressionScope, compile_expression
from gateway.control.trees.engine import (
    ANY,
    FAILED,
    UNKNOWN,
    BadType,
    Key,
    KeyType,
    LeafFunction,
    LeafRegistry,
    NodePlan,
    Operand,
    TreePlan,
    is_type,
    path_getter,
    read_type,
    type_of,
)
from gateway.control.trees.kinds import (
    ALIASES,
    CALLS,
    CHOICES,
    COMMON,
    HOSTED,
    KINDS,
    OPTION_ALIASES,
    REACTIVE,
    TREE,
    WANTS,
    NodeKind,
)
from gateway.control.trees.lint import lint
from gateway.control.trees.reader import (
    MAX_DEPTH,
    MAX_SECONDS,
    TreeForm,
    TreeInvalid,
    TreeSource,
    read,
)
from gateway.domain.text import meant, quoted, short

MAX_NODES = 5_000
NAME = re.compile(r"[a-z][a-z0-9_?!-]*")
# The keys that are visible in a node: those of the loops around it, then those of the tree.
Names = ChainMap[str, KeyType]
_COUNTS: Mapping[object, int] = {"all": -1, "one": 1}
_COLLECTIONS = {"any": ("vector", "map"), "list": ("vector",), "map": ("map",)}
_ROOTS = {"config": "config", "env-flag": "flags"}
_WITH_FUNCTION = HOSTED | {"action", "condition", "decorator"}
_FIRST_TREE_ONLY = {"finally", "inputs", "max-ticks"}


def load(text: str, name: str = "tree.bt", registry: LeafRegistry | None = None) -> TreePlan:
    """Returns the first tree of the file, with the others as its subtrees. Raises TreeInvalid.

    Without a registry, the names of functions and roots are not checked.
    """
    source = TreeSource(name, text)
    trees = _read_declarations(source, registry)
    if not trees:
        source.error("BT010", 0, 'the file has no tree; write (tree "name" …)')
    with suppress(_TooManyNodes):
        for tree in trees.values():
            tree.read()
        _check_subtrees(trees, source)
    if not source.has_errors:
        _measure(trees, next(iter(trees)), (), source)
    if source.has_errors:
        raise TreeInvalid(source.problems(), source.left_out)
    first, *others = [tree.plan for tree in trees.values() if tree.plan]
    plan = replace(first, subtrees={one.name: one for one in others})
    for one in (plan, *others):
        lint(one, source, is_complete=registry is not None)
    return replace(plan, warnings=source.problems(), watched=watched_keys(plan))


def _read_declarations(
    source: TreeSource, registry: LeafRegistry | None
) -> dict[str, "_TreeReader"]:
    """Returns the trees of the file by name, with their schemas read."""
    trees: dict[str, _TreeReader] = {}
    counting = count(1).__next__
    for form in read(source):
        if form.kind == "comment":
            continue
        if form.head != "tree":
            source.error("BT010", form.start, 'a file can only have trees: (tree "name" …)')
            continue
        tree = _TreeReader(_NodeReader(form, TREE, source, registry, Names({})), counting)
        if tree.name in trees:
            source.error("BT015", form.start, f'another tree has the name "{tree.name}"')
        else:
            trees[tree.name] = tree
            tree.declare()
    return trees


class _TooManyNodes(Exception):
    """Ends the reading; never leaves this file."""


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    """Returns the message about an unknown name."""
    return f"{what} {quoted(name)}{meant(name, known)}"


@dataclass(slots=True)
class _NodeReader:
    """Splits the list of a node by its kind and reads its values. An invalid value is None, and its
    problem is in `source`."""

    form: TreeForm
    kind: NodeKind
    source: TreeSource
    registry: LeafRegistry | None
    names: Names
    symbol: TreeForm | None = None  # the name of the node
    values: list[TreeForm] = field(default_factory=list)
    options: dict[str, TreeForm] = field(default_factory=dict)  # a flag is its own value
    keys: dict[str, TreeForm] = field(default_factory=dict)  # of the options
    children: list[TreeForm] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)  # blackboard keys
    writes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        rest = list(reversed(self.form.parts[1:]))
        while rest:
            part, place = rest.pop(), len(self.values)
            # A bare symbol can be the next value, as in `(subagent librarian)`.
            is_value = place < self.kind.needed and self.kind.values[place] == "text"
            if part.kind == "keyword":
                self._read_option(part, rest)
            elif part.kind == "list" and part.head not in CALLS:
                self.children.append(part)
            elif part.kind == "symbol" and self.symbol is None and not is_value:
                self.symbol = part
            else:
                self.values.append(part)
        self._check_counts()

    def _read_option(self, key: TreeForm, rest: list[TreeForm]) -> None:
        name = OPTION_ALIASES.get(str(key.value), str(key.value))
        want = self.kind.want(name)
        if want is None:
            near = meant(name, (*self.kind.options, *COMMON))
            self.source.error("BT014", key.start, f'unknown option ":{short(name)}"{near}')
            if rest and (rest[-1].kind not in {"list", "keyword"} or rest[-1].head in CALLS):
                rest.pop()  # the value, unless it looks like a node
            return
        if name in self.options:
            self.source.error("BT015", key.start, f":{name} is given twice")
        if want != "flag" and not rest:
            self.source.error("BT013", key.start, f":{name} has no value")
            return
        self.keys[name], self.options[name] = key, key if want == "flag" else rest.pop()

    def _check_counts(self) -> None:
        kind, at, head, error = self.kind, self.form.start, self.form.head, self.source.error
        count, given, takes = len(self.children), len(self.values), len(kind.values)
        if count < kind.min_children:
            message = f"{head} has {count} children but needs at least {kind.min_children}"
            error("BT012", at, message)
        if count > kind.max_children:
            message = f"{head} has {count} children but allows at most {kind.max_children}"
            error("BT012", self.children[kind.max_children].start, message)
        if given > takes:
            error("BT017", self.values[takes].start, f"{head} takes no value here")
        if given < kind.needed:
            error("BT017", at, f"{head} needs a value: {kind.values[given]}")
        for group in kind.excluding:
            both = sorted(group & self.options.keys())
            if len(both) > 1:
                error("BT013", at, f"{head} takes only one of :{', :'.join(both)}")

    def expect(self, form: TreeForm, want: str) -> None:
        """Reports that a form is not of the wanted type."""
        self.source.error("BT013", form.start, f"expected {WANTS[want].shape}")

    def pairs(self, form: TreeForm) -> dict[str, TreeForm]:
        """Returns the entries of a map form."""
        error, found = self.source.error, dict[str, TreeForm]()
        if form.kind != "map":
            self.expect(form, "map")
            return found
        for key, value in zip(form.parts[::2], form.parts[1::2], strict=False):
            if key.kind != "keyword":
                error("BT013", key.start, "a map needs a :key before each value")
                return found
            if key.value in found:
                error("BT015", key.start, f":{key.value} is given twice")
            found[str(key.value)] = value
        if len(form.parts) % 2:
            error("BT013", form.parts[-1].start, "a map needs a value after each :key")
        return found

    def name(self) -> str:
        """Returns the node's name, or ""."""
        error, head = self.source.error, self.form.head
        if self.symbol is None:
            if self.kind.is_named:
                error("BT016", self.form.start, f"{head} needs a name: ({head} NAME …)")
            return ""
        name = str(self.symbol.value)
        if not NAME.fullmatch(name):
            message = f"{quoted(name)} is not a name: use small letters, digits, _ ? ! -"
            error("BT016", self.symbol.start, message)
        return name

    def cases(self, kind: str) -> dict[str, TreeForm]:
        """Returns the children by place, those of a switch by case. The last child of a `try` is the
        node inside its `catch`."""
        children = list(self.children)
        if kind == "switch" and len(self.values) > 1:
            return self.pairs(self.values[1])
        if kind == "try":
            last = children[-1] if children else self.form
            if last.head == "catch" and len(last.parts) == 2:
                children[-1] = last.parts[1]
            else:
                self.source.error("BT012", self.form.start, "try must end with one (catch NODE)")
        return {str(place): child for place, child in enumerate(children)}

    def read_values(self) -> tuple[Operand, ...]:
        """Reads the positional values."""
        wants = zip(self.values, self.kind.values, strict=False)
        found = [self.value(form, want) for form, want in wants if want != "cases"]
        return tuple(value for value in found if value is not None)

    def read_options(self) -> dict[str, Operand]:
        wants = {name: self.kind.want(name) or "any" for name in self.options}
        read = {name: self.value(form, wants[name], name) for name, form in self.options.items()}
        return {name: value for name, value in read.items() if value is not None}

    def value(self, form: TreeForm, want: str, option: str = "") -> Operand | None:
        wanted = WANTS[want]
        if want == "flag":
            return Operand(form.start, constant=True)
        if form.kind == "ref" and wanted.type is not None:
            path = cast(tuple[str, ...], form.value)
            kind = self.type_of_key(form.start, path[0])
            return self._reference(form, wanted.type, kind, path) if kind else None
        if form.head in CALLS and wanted.type is not None:
            return self._call(form, wanted.type)
        if form.kind in _COLLECTIONS.get(want, ()):
            return self._collection(form)
        if form.kind not in wanted.forms:
            self.expect(form, want)
            return None
        special = {"expression": self._expression, "target": self._target, "keys": self._keys}
        return special[want](form) if want in special else self._constant(form, want, option)

    def _constant(self, form: TreeForm, want: str, option: str) -> Operand:
        found, choices = form.value, CHOICES.get(option, ())
        is_right = True
        if want == "word" and choices and found not in choices:
            message = f"{quoted(str(found))} is not one of {', '.join(choices)}"
            self.source.error("BT013", form.start, message + meant(str(found), choices))
        if want == "count" and form.kind != "int":
            found = _COUNTS.get(found)
            is_right = found is not None
        if want == "duration":
            found = float(str(found))
            is_right = 0 <= found <= MAX_SECONDS
            if form.kind != "duration":
                self.source.warn("BT034", form.start, "a time without a unit means seconds")
        if not is_right:
            self.expect(form, want)
        return Operand(form.start, found)

    def _expression(self, form: TreeForm) -> Operand | None:
        registry, text = self.registry, str(form.value)
        roots = {*self.names, FAILED, *(registry.roots if registry else ())}
        try:
            made = compile_expression(text, roots=roots, open_roots=registry is None)
        except ExpressionInvalid as error:
            is_plain = form.end - form.start == len(text) + 2  # the string has no escapes
            at = form.start + 1 + min(error.column, len(text)) if is_plain else form.start
            self.source.error("BT026", at, error.problem)
            return None
        self.reads |= made.roots & self.names.keys()
        return Operand(form.start, made.text, made.run)

    def _target(self, form: TreeForm) -> Operand | None:
        path = form.value
        if form.head == "blackboard" and len(form.parts) == 2:
            path = (form.parts[1].value,)
        if not isinstance(path, tuple) or len(path) > 1:
            self.expect(form, "target")
            return None
        key = str(path[0])
        if self.type_of_key(form.start, key) is None:
            return None
        self.writes.add(key)
        return Operand(form.start, key)

    def _keys(self, form: TreeForm) -> Operand | None:
        if any(part.kind != "keyword" for part in form.parts):
            self.expect(form, "keys")
            return None
        keys = [str(part.value) for part in form.parts]
        for key, part in zip(keys, form.parts, strict=True):
            self.declare(part.start, key, UNKNOWN)
        self.writes |= set(keys)
        return Operand(form.start, keys)

    def type_of_key(self, at: int, key: str) -> KeyType | None:
        """Returns the type of a key. Reports a key that is not declared, and returns None."""
        if key not in self.names:
            near = meant(key, self.names)
            self.source.error("BT020", at, f"{quoted(key)} is not in :blackboard-schema{near}")
        return self.names.get(key)

    def declare(self, at: int, key: str, kind: KeyType) -> KeyType:
        """Returns the type of a key. Declares a missing key with the given type, and warns."""
        if key not in self.names:
            near = meant(key, self.names)
            message = f":{short(key)} is not in :blackboard-schema; it starts as nil{near}"
            self.source.warn("BT024", at, message)
            self.names.maps[-1][key] = kind
        return self.names[key]

    def _reference(
        self, form: TreeForm, wanted: KeyType, kind: KeyType, path: tuple[str, ...]
    ) -> Operand | None:
        if len(path) == 1 and not wanted.may_hold(kind):
            self.source.error("BT030", form.start, f"{path[0]} is {kind}; expected {wanted}")
            return None
        self.reads.add(path[0])
        return Operand(form.start, None, path_getter(path), path[0] if len(path) == 1 else "")

    def _call(self, form: TreeForm, wanted: KeyType) -> Operand | None:
        head, arguments = form.head, form.parts[1:]
        if len(arguments) != 1 or arguments[0].kind not in WANTS["word"].forms:
            self.source.error("BT013", form.start, f"({head} …) takes one name")
            return None
        name = str(arguments[0].value)
        if head == "blackboard":
            kind = self.declare(form.start, name, UNKNOWN)
            return self._reference(form, wanted, kind, (name,))
        known = self.registry.roots.get(_ROOTS[head], ()) if self.registry else None
        if known is not None and name not in known:
            self.source.error("BT025", form.start, f'{head} has no "{name}"{meant(name, known)}')
            return None
        return Operand(form.start, None, path_getter((_ROOTS[head], name)))

    def _collection(self, form: TreeForm) -> Operand:
        is_map = form.kind == "map"
        forms = self.pairs(form).items() if is_map else enumerate(form.parts)
        found = {str(key): self.value(part, "any") for key, part in forms}
        made = {key: value for key, value in found.items() if value is not None}

        def run(scope: ExpressionScope) -> object:
            values = {key: value.of(scope) for key, value in made.items()}
            return values if is_map else list(values.values())

        is_plain = all(value.run is None for value in made.values())
        constant = run({}) if is_plain else None
        return Operand(form.start, constant, None if is_plain else run, parts=made)

    def constant(self, form: TreeForm, want: str = "any") -> object:
        """Returns a constant value; reports any other."""
        value = self.value(form, want)
        if value is not None and value.run is not None:
            self.source.error("BT013", form.start, "expected a constant value")
        return value.constant if value else None

    def function(self, kind: str, name: str, options: Mapping[str, Operand]) -> LeafFunction | None:
        """Returns the function of a leaf or decorator; None if it has none or there is no registry."""
        registry, error = self.registry, self.source.error
        if registry is None or "expr" in options or kind not in _WITH_FUNCTION:
            return None
        fn = options.get("fn") or Operand((self.symbol or self.form).start, name)
        wanted = kind if kind in HOSTED else str(fn.constant)
        function = registry.functions.get(wanted)
        if function is None:
            error("BT021", fn.at, _unknown("unknown function", wanted, registry.functions))
            return None
        for option in options.keys() - self.kind.options.keys() - function.options:
            message = f'{wanted} has no option ":{option}"{meant(option, function.options)}'
            error("BT014", options[option].at, message)
        self._note_keys(function, fn.at)
        return function

    def _note_keys(self, function: LeafFunction, at: int) -> None:
        self.reads |= function.reads.keys()
        self.writes |= function.writes.keys()
        for verb, keys in (("reads", function.reads), ("writes", function.writes)):
            for key, type_ in keys.items():
                declared = self.declare(at, key, type_)
                if not declared.may_hold(type_):
                    message = f"{function.name} {verb} {key} as {type_}, but it is {declared}"
                    self.source.error("BT033", at, message)

    def check(self, kind: str, options: Mapping[str, Operand]) -> None:
        """Checks the constraints of single kinds."""
        error = self.source.error
        if kind == "set!":
            self._check_set(options)
        elif kind == "for-each" and "collect" in options:
            target = options["collect"]
            type_ = self.names.get(str(target.constant), ANY)
            if not type_.may_hold(KeyType("list")):
                error("BT030", target.at, f"{target.constant} is {type_}; :collect writes a list")
        elif kind == "parallel":
            for name in options.keys() & {"success", "failure"}:
                number, count = options[name].constant, len(self.children)
                if isinstance(number, int) and number > count:
                    message = f":{name} {number} is more than the {count} children"
                    error("BT013", options[name].at, message)

    def _check_set(self, options: Mapping[str, Operand]) -> None:
        """Checks the keys and, as far as known, the types of the values of `set!`."""
        if len(self.form.parts) == 1:
            self.source.error("BT013", self.form.start, "set! needs a key: (set! :key value)")
        for key, value in options.items():
            type_ = self.type_of_key(self.keys[key].start, key)
            if type_ is None:
                continue
            self.writes.add(key)
            is_plain = value.run is None
            given = type_of(value.constant) if is_plain else self.names.get(value.key, ANY)
            if not (type_.accepts(value.constant) if is_plain else type_.may_hold(given)):
                self.source.error("BT030", value.at, f"this is {given}; expected {type_}")


class _TreeReader:
    """Reads a tree. `count` counts the nodes of all trees in the file."""

    def __init__(self, parts: _NodeReader, count: Callable[[], int]) -> None:
        self.parts, self.source, self.count = parts, parts.source, count
        self.schema: dict[str, Key] = {}
        self.nodes: list[NodePlan] = []
        self.ids: set[str] = set()
        self.plan: TreePlan | None = None
        self.size = self.depth = 0  # with its named subtrees
        title = parts.values[0] if parts.values else parts.form
        self.name = str(title.value) if title.kind == "string" else ""
        if not NAME.fullmatch(self.name):
            message = 'a tree needs a name of small letters, digits, _ ? ! -: (tree "name" …)'
            self.source.error("BT016", title.start, message)

    @property
    def uses(self) -> list[NodePlan]:
        """Returns the nodes that refer to a subtree by name."""
        return [node for node in self.nodes if node.bare == "subtree" and not node.children]

    def declare(self) -> None:
        """Reads the schema."""
        form = self.parts.options.get("blackboard-schema")
        for name, default in self.parts.pairs(form).items() if form else ():
            if name.startswith("_"):
                self.source.error("BT016", default.start, f":{name}: a key cannot begin with _")
            self.schema[name] = self._key(default)

    def _key(self, form: TreeForm) -> Key:
        """Reads the type and default of a key: `0`, `(int 0)`, `(list string)` or
        `((list string) [])`."""
        parts, error = self.parts, self.source.error
        if form.kind != "list":
            value = parts.constant(form)
            return Key(type_of(value), value, form.start)
        length = 2 if _is_nested_type(form) else 1
        typed, rest = form.parts[:length] or (form,), form.parts[length:]
        try:
            kind = read_type(" ".join(map(_type_words, typed)))
        except BadType as problem:
            error("BT031", form.start, str(problem))
            return Key(UNKNOWN, None, form.start)
        value = parts.constant(rest[0]) if rest else kind.default
        if len(rest) > 1 or (rest and not kind.accepts(value)):
            error("BT030", form.start, f"a key of type {kind} needs one default of that type")
        return Key(kind, value, form.start)

    def read(self) -> None:
        """Raises _TooManyNodes."""
        parts, options = self.parts, self.parts.options
        plain = {
            name.replace("-", "_"): parts.constant(options[name], want)
            for name, want in TREE.options.items()
            if want in {"text", "int"} and name in options
        }
        parts.names = names = Names({name: key.type for name, key in self.schema.items()})
        inputs = self._inputs(options["inputs"]) if "inputs" in options else ()
        planned = [self.node(form, self.name, names) for form in parts.children]
        final = options.get("finally")
        ending = self.node(final, f"{self.name}:finally", names) if final else None
        if not planned or planned[0] is None:
            return
        added = {name: Key(kind, kind.default, -1) for name, kind in names.items()}
        self.plan = TreePlan(
            *(self.name, planned[0], ending, {**added, **self.schema}, inputs),
            *(self.source.name, parts.form.start),
            **cast(dict[str, Any], plain),
        )

    def _inputs(self, form: TreeForm) -> tuple[str, ...]:
        if form.kind not in WANTS["inputs"].forms:
            self.parts.expect(form, "inputs")
        for part in form.parts:
            self.parts.type_of_key(part.start, str(part.value))
        return tuple(str(part.value) for part in form.parts)

    def node(
        self, form: TreeForm, path: str, names: Names, *, raises: bool = False
    ) -> NodePlan | None:
        """Reads a node. `path` and `raises` are those of the parent. Raises _TooManyNodes."""
        kind, source = ALIASES.get(form.head, form.head), self.source
        if not self._is_node(kind, form):
            return None
        parts = _NodeReader(form, KINDS[kind], source, self.parts.registry, names)
        name, found, cases = parts.name(), parts.read_options(), parts.cases(kind)
        raises = self._check_common(found, raises=raises)
        path, values = f"{path}/{name or kind}", parts.read_values()
        options = {key: found[key] for key in found if key not in COMMON}
        function = parts.function(kind, name, options)
        parts.check(kind, options)
        names = _names_inside(kind, options, names)
        planned = [self.node(each, path, names, raises=raises) for each in cases.values()]
        if kind == "subtree" and planned and "when" not in found:
            return self._named(planned[0], name)
        bare = _shape(kind, options)
        node = NodePlan(
            *(kind, name, form.start, source.place(form.start)[0], path, values, options),
            children=tuple(filter(None, planned)),
            cases=tuple(cases) if kind == "switch" else (),
            when=found.get("when"),
            raises=raises,
            function=function,
            reads=frozenset(parts.reads),
            writes=frozenset(parts.writes),
            bare=bare,
            shape="when" if "when" in found else bare,
        )
        self.nodes.append(node)
        return node

    def _named(self, child: NodePlan | None, name: str) -> NodePlan | None:
        """Returns the child of an inline subtree, which only names it. A leaf keeps its own name."""
        if child is not None and child.children and not child.name:
            child = self.nodes[-1] = replace(child, name=name)
        return child

    def _is_node(self, kind: str, form: TreeForm) -> bool:
        """Raises _TooManyNodes."""
        error = self.source.error
        if not kind:
            error("BT010", form.start, "a node must begin with its kind: (kind …)")
        elif kind not in KINDS:
            error("BT011", form.start, _unknown("unknown node", form.head, (*KINDS, *ALIASES)))
        elif self.count() > MAX_NODES:
            error("BT006", form.start, f"more than {MAX_NODES} nodes")
            raise _TooManyNodes
        return kind in KINDS

    def _check_common(self, options: Mapping[str, Operand], *, raises: bool) -> bool:
        """Checks the id. Returns whether an error of the node ends the run; `raises` is the parent's
        value."""
        if "id" in options:
            name = str(options["id"].constant)
            if name in self.ids:
                message = f"another node has the id {quoted(name)}"
                self.source.error("BT015", options["id"].at, message)
            self.ids.add(name)
        return options["on-error"].constant == "raise" if "on-error" in options else raises


def _names_inside(kind: str, options: Mapping[str, Operand], names: Names) -> Names:
    item = str(options.get("as", Operand(0, "item")).constant)
    seen = {item: ANY, "index": ANY, "result": ANY}
    return names.new_child(seen) if kind == "for-each" else names


def _shape(kind: str, options: Collection[str]) -> str:
    """Returns the kind that ticks a node, without its `:when`."""
    if kind == "condition" and "expr" in options:
        return "check"
    return "retry" if kind == "repeat" and "until-success" in options else kind


def _check_subtrees(trees: Mapping[str, _TreeReader], source: TreeSource) -> None:
    for tree in list(trees.values())[1:]:
        for option in tree.parts.options.keys() & _FIRST_TREE_ONLY:
            message = f":{option} is for the first tree of a file; this one is a subtree"
            source.error("BT014", tree.parts.options[option].start, message)
    for node in [node for tree in trees.values() for node in tree.uses]:
        name = node.name
        if name not in trees:
            source.error("BT022", node.at, _unknown("unknown subtree", name, trees))
            continue
        for key in node.bound.keys() - trees[name].schema.keys():
            message = _unknown(f'subtree "{name}" has no key', key, trees[name].schema)
            source.error("BT020", node.bound[key].at, message)


def _measure(
    trees: Mapping[str, _TreeReader], name: str, above: tuple[str, ...], source: TreeSource
) -> _TreeReader:
    """Measures the size and depth of a tree with its named subtrees. Reports a subtree that contains
    itself."""
    tree = trees[name]
    if tree.size or tree.plan is None:
        return tree
    own = _depth(tree.plan.root)
    tree.size, tree.depth = len(tree.nodes), own
    for node in tree.uses:
        if node.name in (*above, name):
            way = " -> ".join([*above, name, node.name])
            source.error("BT023", node.at, f"this subtree contains itself: {way}")
            continue
        if len(above) < MAX_DEPTH:
            below = _measure(trees, node.name, (*above, name), source)
            tree.size, tree.depth = tree.size + below.size, max(tree.depth, own + below.depth)
        if len(above) >= MAX_DEPTH or tree.size > MAX_NODES or tree.depth > MAX_DEPTH:
            message = f"the tree has more than {MAX_NODES} nodes or levels deeper than {MAX_DEPTH}"
            source.error("BT006", node.at, message)
            break
    return tree


def watched_keys(plan: TreePlan) -> frozenset[str]:
    """Returns the keys that some node reads at each tick; a write to one must wake the run."""
    nodes = [node for tree in (plan, *plan.subtrees.values()) for node in tree.nodes()]
    found = {key for node in nodes for key in _keys_read_each_tick(node)}
    bound = [pair for node in nodes for pair in node.bound.items()]
    for _ in plan.subtrees:  # a binding can pass a key through all subtrees
        found |= {value.key for inner, value in bound if inner in found and value.key}
    return frozenset(found)


def _keys_read_each_tick(node: NodePlan) -> frozenset[str]:
    if node.kind in {"guard", "switch"}:
        return node.reads
    ticked = node.children if node.kind in REACTIVE else node.children[: node.kind == "while"]
    tests = {"check", "condition"}
    return frozenset().union(*(child.reads for child in ticked if child.kind in tests))


def _type_words(form: TreeForm) -> str:
    if form.kind == "list" and len(form.parts) == 2:
        return " ".join(map(_type_words, form.parts))
    if form.kind != "symbol":
        raise BadType("a type is a word, (list TYPE) or (option TYPE)")
    return str(form.value)


def _is_nested_type(form: TreeForm) -> bool:
    """True for a type such as `(list string)`, False for a type with a default."""
    if len(form.parts) < 2 or form.head not in {"list", "option"}:
        return False
    inner = form.parts[1]
    return inner.kind == "list" or (inner.kind == "symbol" and is_type(inner.value))


def _depth(node: NodePlan) -> int:
    return 1 + max((_depth(child) for child in node.children), default=0)
