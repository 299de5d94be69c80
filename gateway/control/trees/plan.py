"""A tree that was read and checked: immutable, shared by all of its runs; kinds, values and keys of nodes."""

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import methodcaller

from gateway.control.expressions import ExpressionInvalid, ExpressionScope, compile_expression
from gateway.control.trees.reader import MAX_SECONDS, FormKind, TreeForm, TreeProblem, TreeSource
from gateway.control.words import meant, short

# Of each simple type: what it is in Python, and the default of a key that is declared without one.
_SIMPLE: Mapping[str, tuple[type | tuple[type, ...], object]] = {
    "bool": (bool, False),
    "string": (str, ""),
    "int": (int, 0),
    "float": ((int, float), 0.0),
    "list": ((list, tuple), []),
    "map": (Mapping, {}),
    "any": (object, None),
}
_WRAPPING = ("list", "option")


class BadType(ValueError):
    """Text that names no type; says why."""


@dataclass(frozen=True, slots=True)
class KeyType:
    name: str
    inner: "KeyType | None" = None  # of a list or an option
    model: type = object

    def __str__(self) -> str:
        return f"({self.name} {self.inner})" if self.inner else self.name

    @property
    def natural(self) -> object:
        """The default of a key that is declared without one."""
        return _SIMPLE[self.name][1] if self.name in _SIMPLE else None

    def accepts(self, value: object) -> bool:
        inner = self.inner
        if self.name == "option":
            return value is None or inner is None or inner.accepts(value)
        python = _SIMPLE[self.name][0] if self.name in _SIMPLE else self.model
        if not isinstance(value, python) or (type(value) is bool and self.name in {"int", "float"}):
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
    return word in _SIMPLE or word == "option" or str(word).startswith("model:")


def read_type(text: str, models: Mapping[str, type] | None = None) -> KeyType:
    """`(list string)`, `model:Name` and so on; any model is let through if `models` is None."""
    *outer, word = text.replace("(", " ").replace(")", " ").split() or [""]
    found = UNKNOWN if word == "option" else _named(word, models)
    for name in reversed(outer):
        if name not in _WRAPPING:
            raise BadType(f'"{short(name)}" takes no other type; only list and option do')
        found = KeyType(name, found)
    return found


def _named(word: str, models: Mapping[str, type] | None) -> KeyType:
    name = word.removeprefix("model:")
    if name != word and (models is None or name in models):
        return KeyType(word, None, (models or {}).get(name, object))
    if word in _SIMPLE:
        return KeyType(word)
    names = (*_SIMPLE, "option", *(f"model:{model}" for model in models or ("NAME",)))
    raise BadType(f'unknown type "{short(word)}"{meant(word, names)}; types: {", ".join(names)}')


def type_of(value: object) -> KeyType:
    """The type of a key that is declared by its default."""
    if value is None:
        return UNKNOWN
    return next(kind for kind in map(KeyType, _SIMPLE) if kind.accepts(value))


# Takes a Call; gives a bool, a Status, None (done), or a Pending for what takes time.
Act = Callable[..., object]
Keys = Mapping[str, str]  # key of the blackboard -> type as text


@dataclass(frozen=True, slots=True)
class Offered:
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
    models: Mapping[str, type] = field(default_factory=dict)
    offered: dict[str, Offered] = field(default_factory=dict)

    def action(
        self,
        name: str,
        *,
        reads: Keys | None = None,
        writes: Keys | None = None,
        options: Collection[str] = (),
        is_plain: bool = False,
    ) -> Callable[[Act], Act]:
        """Offers the decorated function to `:fn "name"` and to nodes called so."""

        def offer(act: Act) -> Act:
            self.offered[name] = Offered(
                name,
                act,
                {key: read_type(text, self.models) for key, text in (reads or {}).items()},
                {key: read_type(text, self.models) for key, text in (writes or {}).items()},
                frozenset(options),
                is_plain,
            )
            return act

        return offer


MANY = 5_000
_WORD: frozenset[FormKind] = frozenset({"symbol", "keyword", "string"})
_ATOM: frozenset[FormKind] = frozenset({"int", "float", "bool", "nil", "duration"})


@dataclass(frozen=True, slots=True)
class Want:
    """What may stand in a place."""

    shape: str
    forms: frozenset[FormKind] = frozenset()  # as it is
    type: KeyType | None = None  # or looked up, if it is of this type


_TIMES: frozenset[FormKind] = frozenset({"duration", "int", "float"})
WANTS: Mapping[str, Want] = {
    "any": Want("a value", _WORD | _ATOM, ANY),
    "text": Want('a "string"', frozenset({"string", "symbol"}), KeyType("string")),
    "int": Want("a whole number", frozenset({"int"}), KeyType("int")),
    "duration": Want("a time such as 500ms, 30s or 2m", _TIMES, KeyType("float")),
    "list": Want("a [vector] or a $key", frozenset(), KeyType("list")),
    "map": Want("a {:key value} map", frozenset(), KeyType("map")),
    "expression": Want('an expression in a "string"', frozenset({"string"})),
    "word": Want("a name", _WORD),
    "count": Want("a whole number, all or one", frozenset({"int", "symbol", "keyword"})),
    "target": Want("a $key to write", frozenset({"ref", "list"})),
    "keys": Want("a [:key …] vector", frozenset({"vector"})),  # that are written
    "inputs": Want("a [key …] vector", frozenset({"vector"})),
    # Read by the loader itself.
    **dict.fromkeys(("flag", "cases", "schema", "node"), Want("something else")),
}
COMMON: Mapping[str, str] = {
    "when": "expression",
    "doc": "text",
    "id": "word",
    "on-error": "word",
}


@dataclass(frozen=True, slots=True)
class NodeKind:
    least: int  # of children
    most: int
    values: tuple[str, ...] = ()
    needed: int = 0  # how many of the values
    options: Mapping[str, str] = field(default_factory=dict)  # besides the common ones
    excluding: tuple[frozenset[str], ...] = ()  # options of which only one may be there
    is_named: bool = False  # has to be, by a bare symbol
    is_open: bool = False  # other options are arguments of its function, or keys

    def want(self, option: str) -> str | None:
        """What belongs behind an option; None if there is no such option."""
        return self.options.get(option) or COMMON.get(option) or ("any" if self.is_open else None)


def _kinds(table: str) -> dict[str, NodeKind]:
    """By their names."""
    found: dict[str, NodeKind] = {}
    for line in table.strip().splitlines():
        names, [children], values, options, rules = (cell.split() for cell in line.split("|"))
        least, dash, most = children.partition("-")
        kind = NodeKind(
            int(least),
            int(most or (MANY if dash else least)),
            tuple(value.rstrip("?") for value in values),
            sum(not value.endswith("?") for value in values),
            dict(one.split(":") for one in options),
            tuple(frozenset(rule.split("/")) for rule in rules if "/" in rule),
            "named" in rules,
            "open" in rules,
        )
        found |= dict.fromkeys(names, kind)
    return found


# names | how many children | values (with ? they need not be there) | options | rules: options of
# which only one may be there, with / between; and `named` and `open`, as in Kind
KINDS: Mapping[str, NodeKind] = _kinds("""
sequence selector reactive-sequence reactive-selector memory-sequence | 1- | | |
parallel | 1- | | success:count failure:count policy:word require-all:flag require-one:flag | policy/require-all/require-one/success policy/require-all/require-one/failure
for-each | 1 | list | as:word parallel:int limit:int collect:target on-child-fail:word |
if while | 2-3 | | |
switch | 0 | any cases | |
try | 2- | | |
ensure | 2 | | |
repeat | 1 | | max:int until:expression until-success:flag | until/until-success
retry | 1 | | max:int backoff:duration |
invert force-success force-failure until-fail run-once | 1 | | |
timeout delay cooldown | 1 | duration | |
guard | 1 | expression | |
decorator | 1 | | | named open
action | 0 | | fn:word | named open
condition | 0 | | fn:word expr:expression | fn/expr named open
check | 0 | expression | |
set! | 0 | | | open
emit | 0 | text map? | |
wait | 0 | duration | |
succeed | 0 | | |
fail | 0 | text? | |
llm-call | 0 | | model:any messages:any tools:any budget:int stream-to:keys timeout:duration idle-timeout:duration interruptible:any | open
tool-call | 0 | any | timeout:duration | open
subagent | 0 | text | input:any output:target max-turns:int timeout:duration | open
subtree | 0-1 | | bind:map share:any | named
""")
[TREE] = _kinds("""
tree | 1 | text | description:text version:int decision:text blackboard-schema:schema inputs:inputs finally:node max-ticks:int |
""").values()
# Other spellings that are understood.
ALIASES: Mapping[str, str] = {
    "fallback": "selector",
    "repeater": "repeat",
    "inverter": "invert",
    "always_succeed": "force-success",
    "always-succeed": "force-success",
    "always_fail": "force-failure",
    "always-fail": "force-failure",
}
OPTION_ALIASES: Mapping[str, str] = {"max-iterations": "max"}
FLAGS = frozenset(
    name for kind in KINDS.values() for name, want in kind.options.items() if want == "flag"
)
CHOICES: Mapping[str, tuple[str, ...]] = {
    "policy": ("continue-on-failure", "require-all", "require-one"),
    "on-child-fail": ("fail", "continue"),
    "on-error": ("fail", "raise"),
}
# Leaves whose function the host provides under the kind's own name.
HOSTED = frozenset({"llm-call", "tool-call", "subagent"})
CALLS = frozenset({"blackboard", "config", "env-flag"})
REACTIVE = frozenset({"reactive-sequence", "reactive-selector"})
# What may stay RUNNING for as long as something outside takes.
ASYNC = frozenset({*HOSTED, "wait", "delay"})

_ASKING = frozenset({"check", "condition"})
FAILED = "failure"  # the root under which expressions find why a node failed last


@dataclass(frozen=True, slots=True)
class Value:
    """What stands behind an option: a constant, or something to look up each time."""

    at: int
    constant: object = None  # of an expression, its text
    run: Callable[[ExpressionScope], object] | None = None
    key: str = ""  # of the blackboard, if the value is what it holds
    parts: Mapping[str, "Value"] = field(default_factory=dict)  # of a map

    def of(self, scope: ExpressionScope) -> object:
        return self.constant if self.run is None else self.run(scope)


@dataclass(frozen=True, slots=True, eq=False)
class NodePlan:
    """Equal to itself alone: runs keep what they know about a node by it."""

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
    shape: str = field(init=False)  # by which its node is made
    plain: Act | None = field(init=False, default=None)  # of an action: its plain function

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.bare if self.when is None else "when")
        if self.offered is not None and self.offered.is_plain and self.shape == "action":
            object.__setattr__(self, "plain", self.offered.act)

    @property
    def bare(self) -> str:
        """Its shape without its `:when`."""
        if self.kind == "condition" and "expr" in self.options:
            return "check"
        return "named" if self.kind == "subtree" and self.children else self.kind

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


# The keys that can be seen from a place: those of loops around it, and last those of the tree.
Names = ChainMap[str, KeyType]
_COUNTS: Mapping[object, int] = {"all": -1, "one": 1}
_COLLECTIONS = {"vector": "list", "map": "map"}
_COLLECTED = {"any": ("list", "map"), "list": ("list",), "map": ("map",)}
_ROOTS = {"config": "config", "env-flag": "flags"}


def wrong(source: TreeSource, form: TreeForm, want: str) -> None:
    source.error("BT013", form.start, f"here belongs {WANTS[want].shape}")


def pairs(form: TreeForm, source: TreeSource) -> dict[str, TreeForm]:
    """Of a map: key to form."""
    if form.kind != "map":
        wrong(source, form, "map")
        return {}
    found: dict[str, TreeForm] = {}
    parts = list(form.parts)
    for key, value in zip(parts[::2], parts[1::2], strict=False):
        if key.kind != "keyword":
            source.error("BT013", key.start, "a map has a :key before each value")
            return found
        if key.value in found:
            source.error("BT015", key.start, f":{key.value} is here twice")
        found[str(key.value)] = value
    if len(parts) % 2:
        source.error("BT013", parts[-1].start, "a map has a value after each :key")
    return found


@dataclass(slots=True)
class PlanValues:
    """Reads the values of one node; notes which keys they touch."""

    source: TreeSource
    registry: LeafRegistry | None
    names: Names
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def value(self, form: TreeForm, want: str, option: str = "") -> Value | None:
        """None if it is wrong, which is then in the source's problems."""
        can_look_up = WANTS[want].type is not None
        if form.kind == "ref" and can_look_up:
            return self._reference(form, want)
        if form.head in CALLS and can_look_up:
            return self._call(form, want)
        if _COLLECTIONS.get(form.kind) in _COLLECTED.get(want, ()):
            return self._collection(form)
        if form.kind not in WANTS[want].forms:
            wrong(self.source, form, want)
            return None
        special = {
            "expression": self._expression,
            "target": self._target,
            "keys": self._keys,
            "duration": self._duration,
        }.get(want)
        return special(form) if special else self._literal(form, want, option)

    def _literal(self, form: TreeForm, want: str, option: str) -> Value:
        found, choices = form.value, CHOICES.get(option)
        if want == "word" and choices and found not in choices:
            near = meant(str(found), choices)
            message = f'"{short(str(found))}" is none of {", ".join(choices)}{near}'
            self.source.error("BT013", form.start, message)
        if want == "count" and form.kind != "int":
            found = _COUNTS.get(found)
            if found is None:
                wrong(self.source, form, want)
        return Value(form.start, found)

    def _duration(self, form: TreeForm) -> Value:
        seconds = float(str(form.value))
        if form.kind != "duration":
            self.source.warn("BT034", form.start, "a time without a unit is taken as seconds")
        if not 0 <= seconds <= MAX_SECONDS:
            wrong(self.source, form, "duration")
        return Value(form.start, seconds)

    def _expression(self, form: TreeForm) -> Value | None:
        registry, text = self.registry, str(form.value)
        roots = {*self.names, FAILED, *(registry.roots if registry else ())}
        try:
            made = compile_expression(text, roots=roots, open_roots=registry is None)
        except ExpressionInvalid as error:
            is_plain = form.end - form.start == len(text) + 2  # nothing in it is escaped
            at = form.start + 1 + min(error.column, len(text)) if is_plain else form.start
            self.source.error("BT026", at, error.problem)
            return None
        self.reads |= made.roots & self.names.keys()
        return Value(form.start, made.text, made.run)

    def _target(self, form: TreeForm) -> Value | None:
        path = form.value
        if form.head == "blackboard" and len(form.parts) == 2:
            path = (form.parts[1].value,)
        if not isinstance(path, tuple) or len(path) > 1:
            wrong(self.source, form, "target")
            return None
        key = str(path[0])
        if self.known(form.start, key) is None:
            return None
        self.writes.add(key)
        return Value(form.start, key)

    def _keys(self, form: TreeForm) -> Value | None:
        if any(part.kind != "keyword" for part in form.parts):
            wrong(self.source, form, "keys")
            return None
        for part in form.parts:
            self.declared(part.start, str(part.value), UNKNOWN)
            self.writes.add(str(part.value))
        return Value(form.start, [str(part.value) for part in form.parts])

    def known(self, at: int, key: str) -> KeyType | None:
        """The type of a key; None if nobody declared it, which is a problem."""
        if key not in self.names:
            near = meant(key, self.names)
            self.source.error("BT020", at, f'"{short(key)}" is not in :blackboard-schema{near}')
        return self.names.get(key)

    def declared(self, at: int, key: str, kind: KeyType) -> KeyType:
        """The type of a key; declares it here if nobody else did, with a warning."""
        if key not in self.names:
            also = meant(key, self.names)
            message = f":{short(key)} is not in :blackboard-schema and begins as nil{also}"
            self.source.warn("BT024", at, message)
            self.names.maps[-1][key] = kind
        return self.names[key]

    def _reference(self, form: TreeForm, want: str) -> Value | None:
        assert isinstance(form.value, tuple)
        kind = self.known(form.start, form.value[0])
        return self._looked_up(form, want, kind, form.value) if kind else None

    def _looked_up(
        self, form: TreeForm, want: str, kind: KeyType, path: tuple[str, ...]
    ) -> Value | None:
        wanted = WANTS[want].type or ANY
        if len(path) == 1 and not wanted.may_hold(kind):
            message = f"{path[0]} is {kind}, and here belongs {wanted}"
            self.source.error("BT030", form.start, message)
            return None
        self.reads.add(path[0])
        return Value(form.start, None, _looking(path), path[0] if len(path) == 1 else "")

    def _call(self, form: TreeForm, want: str) -> Value | None:
        head, arguments = form.head, form.parts[1:]
        if len(arguments) != 1 or arguments[0].kind not in WANTS["word"].forms:
            self.source.error("BT013", form.start, f"({head} …) takes one name")
            return None
        name = str(arguments[0].value)
        if head == "blackboard":
            kind = self.declared(form.start, name, UNKNOWN)
            return self._looked_up(form, want, kind, (name,))
        known = self.registry.roots.get(_ROOTS[head], ()) if self.registry else None
        if known is not None and name not in known:
            self.source.error("BT025", form.start, f'{head} has no "{name}"{meant(name, known)}')
            return None
        return Value(form.start, None, _looking((_ROOTS[head], name)))

    def _collection(self, form: TreeForm) -> Value:
        is_map = form.kind == "map"
        forms = pairs(form, self.source).items() if is_map else enumerate(form.parts)
        found = {str(key): self.value(part, "any") for key, part in forms}
        made = {key: value for key, value in found.items() if value is not None}

        def run(scope: ExpressionScope) -> object:
            values = {key: value.of(scope) for key, value in made.items()}
            return values if is_map else list(values.values())

        is_plain = all(value.run is None for value in made.values())
        constant = run({}) if is_plain else None
        return Value(form.start, constant, None if is_plain else run, parts=made)

    def literal(self, form: TreeForm, want: str = "any") -> object:
        """A value that looks nothing up."""
        value = self.value(form, want)
        if value is not None and value.run is not None:
            self.source.error("BT013", form.start, "here belongs a plain value")
        return value.constant if value else None

    def check_type(self, value: Value, kind: KeyType) -> None:
        """Whether a key of this type can hold it, as far as that is known now."""
        given = type_of(value.constant) if value.run is None else self.names.get(value.key, ANY)
        is_right = kind.accepts(value.constant) if value.run is None else kind.may_hold(given)
        if not is_right:
            self.source.error("BT030", value.at, f"this is {given}, and here belongs {kind}")


def _looking(path: tuple[str, ...]) -> Callable[[ExpressionScope], object]:
    key, *rest = path
    if not rest:
        return methodcaller("get", key)

    def walk(scope: ExpressionScope) -> object:
        value = scope.get(key)
        for part in rest:
            value = value.get(part) if isinstance(value, dict | Mapping) else None
        return value

    return walk
