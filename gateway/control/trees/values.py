"""What stands behind options: literals, references into the blackboard, expressions; checked against keys."""

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.control.expressions import ExpressionInvalid, Scope, compile_expression
from gateway.control.trees.kinds import CALLS, CHOICES, WANTS
from gateway.control.trees.plan import FAILED, Value
from gateway.control.trees.problems import Source
from gateway.control.trees.reader import MAX_SECONDS, Form
from gateway.control.trees.registry import Registry
from gateway.control.trees.types import ANY, UNKNOWN, KeyType, type_of
from gateway.control.words import meant, short

# The keys that can be seen from a place: those of loops around it, and last those of the tree.
Names = ChainMap[str, KeyType]
_COUNTS: Mapping[object, int] = {"all": -1, "one": 1}
_COLLECTIONS = {"vector": "list", "map": "map"}
_COLLECTED = {"any": ("list", "map"), "list": ("list",), "map": ("map",)}
_ROOTS = {"config": "config", "env-flag": "flags"}


def wrong(source: Source, form: Form, want: str) -> None:
    source.error("BT013", form.start, f"here belongs {WANTS[want].shape}")


def pairs(form: Form, source: Source) -> dict[str, Form]:
    """Of a map: key to form."""
    if form.kind != "map":
        wrong(source, form, "map")
        return {}
    found: dict[str, Form] = {}
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
class Values:
    """Reads the values of one node; notes which keys they touch."""

    source: Source
    registry: Registry | None
    names: Names
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def value(self, form: Form, want: str, option: str = "") -> Value | None:
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

    def _literal(self, form: Form, want: str, option: str) -> Value:
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

    def _duration(self, form: Form) -> Value:
        seconds = float(str(form.value))
        if form.kind != "duration":
            self.source.warn("BT034", form.start, "a time without a unit is taken as seconds")
        if not 0 <= seconds <= MAX_SECONDS:
            wrong(self.source, form, "duration")
        return Value(form.start, seconds)

    def _expression(self, form: Form) -> Value | None:
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

    def _target(self, form: Form) -> Value | None:
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

    def _keys(self, form: Form) -> Value | None:
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

    def _reference(self, form: Form, want: str) -> Value | None:
        assert isinstance(form.value, tuple)
        kind = self.known(form.start, form.value[0])
        return self._looked_up(form, want, kind, form.value) if kind else None

    def _looked_up(
        self, form: Form, want: str, kind: KeyType, path: tuple[str, ...]
    ) -> Value | None:
        wanted = WANTS[want].type or ANY
        if len(path) == 1 and not wanted.may_hold(kind):
            message = f"{path[0]} is {kind}, and here belongs {wanted}"
            self.source.error("BT030", form.start, message)
            return None
        self.reads.add(path[0])
        return Value(form.start, None, _looking(path), path[0] if len(path) == 1 else "")

    def _call(self, form: Form, want: str) -> Value | None:
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

    def _collection(self, form: Form) -> Value:
        is_map = form.kind == "map"
        forms = pairs(form, self.source).items() if is_map else enumerate(form.parts)
        found = {str(key): self.value(part, "any") for key, part in forms}
        made = {key: value for key, value in found.items() if value is not None}

        def run(scope: Scope) -> object:
            values = {key: value.of(scope) for key, value in made.items()}
            return values if is_map else list(values.values())

        is_plain = all(value.run is None for value in made.values())
        constant = run({}) if is_plain else None
        return Value(form.start, constant, None if is_plain else run, parts=made)

    def literal(self, form: Form, want: str = "any") -> object:
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
