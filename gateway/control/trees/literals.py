"""Values that look nothing up: numbers, times, words, maps."""

from collections.abc import Mapping

from gateway.control.trees.kinds import CHOICES, Want
from gateway.control.trees.plan import Value
from gateway.control.trees.problems import Source
from gateway.control.trees.reader import MAX_SECONDS, Form, FormKind
from gateway.control.words import meant, short

_SHAPES: Mapping[Want, str] = {
    "any": "a value",
    "text": 'a "string"',
    "int": "a whole number",
    "duration": "a time such as 500ms, 30s or 2m",
    "list": "a [vector] or a $key",
    "map": "a {:key value} map",
    "expression": 'an expression in a "string"',
    "word": "a name",
    "count": "a whole number, all or one",
    "target": "a $key to write",
    "keys": "a [:key …] vector",
}
_ATOMS: frozenset[FormKind] = frozenset({"string", "int", "float", "bool", "nil", "duration"})
_PLAIN: Mapping[Want, frozenset[FormKind]] = {
    "any": _ATOMS | {"symbol", "keyword"},
    "text": frozenset({"string", "symbol"}),
    "int": frozenset({"int"}),
    "duration": frozenset({"duration"}),
}


def wrong(source: Source, form: Form, want: Want) -> None:
    source.error("BT013", form.start, f"here belongs {_SHAPES[want]}")


def plain(form: Form, want: Want, source: Source) -> Value | None:
    if want == "duration" and form.kind in {"int", "float"}:
        source.warn("BT034", form.start, "a time without a unit is taken as seconds")
        seconds = float(str(form.value))
        if 0 <= seconds <= MAX_SECONDS:
            return Value(form.start, seconds)
    if form.kind not in _PLAIN.get(want, frozenset()):
        wrong(source, form, want)
        return None
    return Value(form.start, form.value)


def word(form: Form, source: Source, option: str) -> Value | None:
    """A name; where an option has a choice of them, one of these."""
    if form.kind not in {"symbol", "keyword", "string"}:
        wrong(source, form, "word")
        return None
    name, choices = str(form.value), CHOICES.get(option)
    if choices and name not in choices:
        message = f'"{short(name)}" is none of {", ".join(choices)}{meant(name, choices)}'
        source.error("BT013", form.start, message)
        return None
    return Value(form.start, name)


def count(form: Form, source: Source) -> Value | None:
    named = {"all": -1, "one": 1}.get(str(form.value))
    if named is not None and form.kind in {"symbol", "keyword"}:
        return Value(form.start, named)
    if form.kind != "int":
        wrong(source, form, "count")
        return None
    return Value(form.start, form.value)


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
