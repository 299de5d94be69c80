"""JSON Schemas of tools: compiled once, checked fast, and bounded in cost, as their authors are not trusted."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
from pydantic_core import from_json, to_json

SCHEMA_CAP = 64 * 1024
UNFOLDED_CAP = 20_000
_TEXT_CAP = 300
# Bounds the cost of a `pattern` for a character; the engine is linear in the text.
_PATTERN_CAP = 16 * 1024
_PATTERN_CACHE = 1024 * 1024
_PATTERN_WEIGHT = 100
# Schema and arguments are not trusted, and a check runs on the event loop: for about ten milliseconds at most. A
# message costs far more than a check, because the library describes every branch that failed.
_MOST_STEPS, _MOST_STEPS_TO_EXPLAIN = 10_000_000, 200_000
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
        weight = _weigh(parsed)
        return partial(_problem, _validator(parsed), weight)


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(
            schema,
            offline=True,  # a reference to another document is refused, never fetched
            pattern_options=jsonschema_rs.RegexOptions(
                size_limit=_PATTERN_CAP, dfa_size_limit=_PATTERN_CACHE
            ),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        why = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
        raise ValueError(f"the schema cannot be used: {_short(why)}") from error


@dataclass(frozen=True, slots=True)
class _Weight:
    """The number of parts of a schema, and how often it refers to itself for the same value."""

    parts: int = 0
    returns: int = 0

    def __add__(self, other: "_Weight") -> "_Weight":
        return _Weight(self.parts + other.parts, self.returns + other.returns)

    def steps(self, value: object, size: int) -> int:
        """Estimates how many steps a check takes at most."""
        if self.returns < 2:
            return self.parts * size
        most_levels = _MOST_STEPS.bit_length()  # two ways at each level are too many steps then
        ways: int = self.returns ** _depth(value, most_levels)
        return self.parts * size * ways


def _weigh(schema: dict[str, Any]) -> _Weight:
    """Raises ValueError for a schema that unfolds too far: a few hundred bytes of references to references can stand
    for billions of checks."""
    try:
        weight = _Scales(schema).weigh(schema)
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


class _Scales:
    """Weighs a schema with each local reference replaced by its target."""

    __slots__ = ("_known", "_root")

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[str, _Weight] = {}

    def weigh(self, node: Any) -> _Weight:
        if isinstance(node, list):
            return sum(map(self.weigh, node), _Weight())
        if not isinstance(node, dict):
            return _Weight()
        return sum((self._weigh_member(*member) for member in node.items()), _Weight(1))

    def _weigh_member(self, key: str, value: Any) -> _Weight:
        if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str):
            return self._weigh_reference(value)
        if key == "properties" and isinstance(value, dict):
            return self._weigh_properties(value)
        inner = self.weigh(value)
        if key in ("$defs", "definitions"):  # the references to them count
            return _Weight(inner.parts)
        if key == "pattern":
            return _Weight(_PATTERN_WEIGHT) + inner
        if key == "patternProperties" and isinstance(value, dict):
            return _Weight(_PATTERN_WEIGHT * len(value)) + inner
        return inner

    def _weigh_properties(self, properties: dict[str, Any]) -> _Weight:
        each = [self.weigh(one) for one in properties.values()]
        returns = max((one.returns for one in each), default=0)  # each property has another value
        return _Weight(1 + sum(one.parts for one in each), returns)

    def _weigh_reference(self, reference: str) -> _Weight:
        if reference != "#" and not reference.startswith("#/"):
            raise ValueError(
                f"the schema cannot be used: only references like #/$defs/name are followed, "
                f"not {_short(reference)!r}"
            )
        if reference not in self._known:
            self._known[reference] = _Weight(1, 1)  # a reference to itself counts once
            self._known[reference] = self.weigh(self._target(reference))
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


def _problem(validator: jsonschema_rs.Validator, weight: _Weight, value: object) -> str | None:
    """Returns the first error with the field's name; None if the value is valid."""
    try:
        size = len(to_json(value))
        steps = weight.steps(value, size)
        if size > _MOST_ARGUMENTS or steps > _MOST_STEPS:
            return "arguments: too large or nested too deep to check"
        if validator.is_valid(value):
            return None
        if steps > _MOST_STEPS_TO_EXPLAIN:
            return "arguments: do not fit the schema"
        error = next(iter(validator.iter_errors(value)))
    except (ValueError, StopIteration):
        return "arguments: not plain JSON"
    path = error.instance_path
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{place.lstrip('.') or 'arguments'}: {_short(error.message)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_CAP else line[: _TEXT_CAP - 1] + "…"
