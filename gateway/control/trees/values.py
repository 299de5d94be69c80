"""What stands behind options: literals, references into the blackboard, expressions; checked against keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.control.expressions import (
    FUNCTIONS,
    Expression,
    ExpressionInvalid,
    Scope,
    compile_expression,
)
from gateway.control.trees.kinds import CALLS, Want
from gateway.control.trees.literals import count, pairs, plain, word, wrong
from gateway.control.trees.plan import FAILED, Value
from gateway.control.trees.problems import Source
from gateway.control.trees.reader import Form
from gateway.control.trees.registry import Registry
from gateway.control.trees.types import ANY, UNKNOWN, KeyType, type_of
from gateway.control.words import meant, short

_WANTED: Mapping[Want, KeyType] = {
    "text": KeyType("string"),
    "int": KeyType("int"),
    "duration": KeyType("float"),
    "list": KeyType("list"),
    "map": KeyType("map"),
}


@dataclass(slots=True)
class Names:
    """The keys that can be seen from a place: those of the tree, and those of loops around it."""

    keys: dict[str, KeyType]
    local: Mapping[str, KeyType] = field(default_factory=dict)

    def find(self, name: str) -> KeyType | None:
        return self.local.get(name) or self.keys.get(name)

    def all(self) -> dict[str, KeyType]:
        return {**self.keys, **self.local}


def unknown_key(source: Source, at: int, key: str, names: Names) -> None:
    near = meant(key, names.all())
    source.error("BT020", at, f'"{short(key)}" is not in :blackboard-schema{near}')


@dataclass(slots=True)
class Values:
    """Reads values for one node after the other; notes which keys they touch."""

    source: Source
    registry: Registry | None
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def value(self, form: Form, want: Want, names: Names, option: str = "") -> Value | None:
        """None if it is wrong, which is then in the source's problems."""
        match want:
            case "expression":
                return self._condition(form, names)
            case "word":
                return word(form, self.source, option)
            case "count":
                return count(form, self.source)
            case "target":
                return self._target(form, names)
            case "keys":
                return self._keys(form, names)
        return self._dynamic(form, want, names)

    def expression(self, form: Form, names: Names) -> Expression | None:
        if form.kind != "string":
            wrong(self.source, form, "expression")
            return None
        registry, text = self.registry, str(form.value)
        known = names.all()
        try:
            made = compile_expression(
                text,
                roots={*known, FAILED, *(registry.roots if registry else ())},
                functions=registry.expression_functions if registry else FUNCTIONS,
                open_roots=registry is None,
            )
        except ExpressionInvalid as error:
            is_plain = form.end - form.start == len(text) + 2  # nothing in it is escaped
            at = form.start + 1 + min(error.column, len(text)) if is_plain else form.start
            self.source.error("BT026", at, error.problem)
            return None
        self.reads |= made.roots & known.keys()
        return made

    def _condition(self, form: Form, names: Names) -> Value | None:
        made = self.expression(form, names)
        return Value(form.start, made.text, made.run, made) if made else None

    def _target(self, form: Form, names: Names) -> Value | None:
        key = form.value[0] if isinstance(form.value, tuple) and form.kind == "ref" else None
        if form.head == "blackboard" and len(form.parts) == 2:
            key = form.parts[1].value
        if key is None or (isinstance(form.value, tuple) and len(form.value) > 1):
            wrong(self.source, form, "target")
            return None
        if names.find(str(key)) is None:
            unknown_key(self.source, form.start, str(key), names)
            return None
        self.writes.add(str(key))
        return Value(form.start, str(key))

    def _keys(self, form: Form, names: Names) -> Value | None:
        if form.kind != "vector" or any(part.kind != "keyword" for part in form.parts):
            wrong(self.source, form, "keys")
            return None
        for part in form.parts:
            self.undeclared(part.start, str(part.value), UNKNOWN, names)
            self.writes.add(str(part.value))
        return Value(form.start, [str(part.value) for part in form.parts])

    def undeclared(self, at: int, key: str, kind: KeyType, names: Names) -> None:
        """Declares it here if nobody else did, with a warning."""
        if names.find(key) is None:
            also = meant(key, names.all())
            message = f":{short(key)} is not in :blackboard-schema and begins as nil{also}"
            self.source.warn("BT024", at, message)
            names.keys[key] = kind

    def _dynamic(self, form: Form, want: Want, names: Names) -> Value | None:
        if form.kind == "ref":
            return self._reference(form, want, names)
        if form.head in CALLS:
            return self._call(form, want, names)
        if form.kind in {"vector", "map"} and want in {"any", form.kind.replace("vector", "list")}:
            return self._collection(form, names)
        return plain(form, want, self.source)

    def _reference(self, form: Form, want: Want, names: Names) -> Value | None:
        assert isinstance(form.value, tuple)
        key, *rest = form.value
        kind = names.find(key)
        if kind is None:
            unknown_key(self.source, form.start, key, names)
            return None
        return self._looked_up(form, want, kind if not rest else ANY, (key, *rest))

    def _looked_up(
        self, form: Form, want: Want, kind: KeyType, path: tuple[str, ...]
    ) -> Value | None:
        wanted = _WANTED.get(want, ANY)
        if not wanted.may_hold(kind):
            self.source.error(
                "BT030", form.start, f"{path[0]} is {kind}, and here belongs {wanted}"
            )
            return None
        self.reads.add(path[0])
        return Value(form.start, None, _looking(path))

    def _call(self, form: Form, want: Want, names: Names) -> Value | None:
        head, arguments = form.head, form.parts[1:]
        if len(arguments) != 1 or arguments[0].kind not in {"keyword", "symbol", "string"}:
            self.source.error("BT013", form.start, f"({head} …) takes one name")
            return None
        name = str(arguments[0].value)
        if head == "blackboard":
            self.undeclared(form.start, name, UNKNOWN, names)
            return self._looked_up(form, want, names.find(name) or UNKNOWN, (name,))
        root = {"config": "config", "env-flag": "flags"}[head]
        known = self.registry.roots.get(root, ()) if self.registry else None
        if known is not None and name not in known:
            self.source.error("BT025", form.start, f'{head} has no "{name}"{meant(name, known)}')
            return None
        return Value(form.start, None, _looking((root, name)))

    def _collection(self, form: Form, names: Names) -> Value | None:
        if form.kind == "vector":
            return self._list(form, names)
        found = {k: self._dynamic(v, "any", names) for k, v in pairs(form, self.source).items()}
        made = {key: value for key, value in found.items() if value is not None}
        if all(value.run is None for value in made.values()):
            return Value(form.start, {key: value.constant for key, value in made.items()})
        return Value(
            form.start, None, lambda scope: {key: value.of(scope) for key, value in made.items()}
        )

    def _list(self, form: Form, names: Names) -> Value:
        found = [self._dynamic(part, "any", names) for part in form.parts]
        made = [value for value in found if value is not None]
        if all(value.run is None for value in made):
            return Value(form.start, [value.constant for value in made])
        return Value(form.start, None, lambda scope: [value.of(scope) for value in made])

    def literal(self, form: Form) -> object:
        """A default: a value that looks nothing up."""
        value = self._dynamic(form, "any", Names({}))
        if value is not None and value.run is not None:
            self.source.error("BT013", form.start, "a default is a plain value")
        return value.constant if value else None

    def check_type(self, value: Value, form: Form, kind: KeyType, names: Names) -> None:
        """Whether a key of this type can hold it, as far as that is known now."""
        path = form.value if isinstance(form.value, tuple) and form.kind == "ref" else ()
        if value.run is None:
            is_right, given = kind.accepts(value.constant), type_of(value.constant)
        else:
            given = (names.find(path[0]) or ANY) if len(path) == 1 else ANY
            is_right = kind.may_hold(given)
        if not is_right:
            self.source.error("BT030", form.start, f"this is {given}, and here belongs {kind}")


def _looking(path: tuple[str, ...]) -> Callable[[Scope], object]:
    key, *rest = path
    if not rest:
        return lambda scope: scope.get(key)

    def walk(scope: Scope) -> object:
        value = scope.get(key)
        for part in rest:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    return walk
