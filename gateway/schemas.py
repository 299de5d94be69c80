"""JSON Schema of tools: compiled once, checked fast, and harmless whoever wrote it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
from pydantic_core import from_json, to_json

SCHEMA_CAP = 64 * 1024
UNFOLDED_CAP = 20_000
_TEXT_CAP = 300
# Bounds what one `pattern` may cost for a character; the engine itself is linear in the text.
_PATTERN_CAP = 16 * 1024
_PATTERN_CACHE = 1024 * 1024
_PATTERN_WEIGHT = 100
# Schema and arguments are others' words, and a check runs where everybody waits: about ten
# milliseconds. To say what is wrong costs far more, for every branch that failed is put into words.
_MOST_STEPS, _MOST_STEPS_TO_SAY = 10_000_000, 200_000
_MOST_ARGUMENTS = 1024 * 1024


class SchemaChecks:
    """Implements the SchemaCheck port."""

    def compile(self, schema: str) -> Callable[[object], str | None]:
        size = len(schema.encode("utf-8", "surrogatepass"))
        if size > SCHEMA_CAP:
            raise ValueError(f"the schema has {size} bytes; at most {SCHEMA_CAP} are allowed")
        try:
            parsed = from_json(schema, allow_inf_nan=False)
        except ValueError as error:
            raise ValueError(f"the schema is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise ValueError("the schema is not a JSON object")
        weight = _weighed(parsed)
        return _Check(_validator(parsed), weight).problem


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(
            schema,
            offline=True,  # a reference to elsewhere is refused, never fetched
            pattern_options=jsonschema_rs.RegexOptions(
                size_limit=_PATTERN_CAP, dfa_size_limit=_PATTERN_CACHE
            ),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        why = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
        raise ValueError(f"the schema cannot be used: {_short(why)}") from error


@dataclass(frozen=True, slots=True)
class _Weight:
    """`parts` of a schema, and how often it leads back to itself for one and the same value."""

    parts: int = 0
    returns: int = 0

    def __add__(self, other: "_Weight") -> "_Weight":
        return _Weight(self.parts + other.parts, self.returns + other.returns)

    def steps(self, value: object, size: int) -> int:
        """About how many a check takes at most."""
        if self.returns < 2:
            return self.parts * size
        most_levels = _MOST_STEPS.bit_length()  # with two ways at each, that is too much already
        ways: int = self.returns ** _depth(value, most_levels)
        return self.parts * size * ways


def _weighed(schema: dict[str, Any]) -> _Weight:
    """A few hundred bytes of references to references can unfold to billions of checks."""
    try:
        weight = _Weigh(schema).of(schema)
    except RecursionError as error:
        raise ValueError("the schema cannot be used: its references nest too deep") from error
    if weight.parts > UNFOLDED_CAP:
        raise ValueError(f"the schema cannot be used: it unfolds to over {UNFOLDED_CAP} parts")
    return weight


def _depth(value: object, most: int) -> int:
    inside: Iterable[object] = ()
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(one, most - 1) for one in inside), default=0) if most > 0 else 0


class _Weigh:
    """Weighs a schema with each local reference replaced by what it means."""

    __slots__ = ("_known", "_root")

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[str, _Weight] = {}

    def of(self, node: Any) -> _Weight:
        if isinstance(node, list):
            return sum(map(self.of, node), _Weight())
        if not isinstance(node, dict):
            return _Weight()
        weight = _Weight(1)
        for key, value in node.items():
            weight += self._of_member(key, value)
        return weight

    def _of_member(self, key: str, value: Any) -> _Weight:
        if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str):
            return self._of_reference(value)
        if key == "pattern":
            return _Weight(_PATTERN_WEIGHT) + self.of(value)
        if key == "patternProperties" and isinstance(value, dict):
            return _Weight(_PATTERN_WEIGHT * len(value)) + self.of(value)
        if key == "properties" and isinstance(value, dict):  # each is about another value
            return self._of_properties(value)
        inner = self.of(value)
        if key in ("$defs", "definitions"):  # what leads there counts
            return _Weight(inner.parts)
        return inner

    def _of_properties(self, properties: dict[str, Any]) -> _Weight:
        each = [self.of(one) for one in properties.values()]  # once: they may be nested deeply
        returns = max((one.returns for one in each), default=0)
        return _Weight(1 + sum(one.parts for one in each), returns)

    def _of_reference(self, reference: str) -> _Weight:
        if reference != "#" and not reference.startswith("#/"):
            raise ValueError(
                f"the schema cannot be used: only references like #/$defs/name are followed, "
                f"not {_short(reference)!r}"
            )
        if reference not in self._known:
            self._known[reference] = _Weight(1, 1)  # what refers to itself counts once
            self._known[reference] = self.of(self._target(reference))
        return self._known[reference]

    def _target(self, reference: str) -> Any:
        node: Any = self._root
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and name.isdecimal():
                node = node[int(name)] if int(name) < len(node) else None
            else:
                node = node.get(name) if isinstance(node, dict) else None
        return node


class _Check:
    __slots__ = ("_validator", "_weight")

    def __init__(self, validator: jsonschema_rs.Validator, weight: _Weight) -> None:
        self._validator, self._weight = validator, weight

    def problem(self, value: object) -> str | None:
        """The first thing that is wrong, with the field's name; None if nothing is."""
        try:
            size = len(to_json(value))
            steps = self._weight.steps(value, size)
            if size > _MOST_ARGUMENTS or steps > _MOST_STEPS:
                return "arguments: they are too large, or nested too deep, to be checked"
            if self._validator.is_valid(value):
                return None
            if steps > _MOST_STEPS_TO_SAY:
                return "arguments: they do not fit the schema"
            error = next(iter(self._validator.iter_errors(value)))
        except (ValueError, StopIteration):
            return "arguments: this is not plain JSON"
        return f"{_place(error.instance_path)}: {_short(error.message)}"


def _place(path: list[str | int]) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return place.lstrip(".") or "arguments"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_CAP else line[: _TEXT_CAP - 1] + "…"
