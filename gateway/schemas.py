"""JSON Schema of tools: compiled once, checked fast, and harmless whoever wrote it."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
from pydantic_core import from_json

SCHEMA_CAP = 64 * 1024
UNFOLDED_CAP = 20_000
_TEXT_CAP = 300
# Bounds what one `pattern` may cost; the engine itself is linear in the text.
_PATTERN_CAP = 1024 * 1024


class SchemaChecks:
    """Implements the SchemaCheck port."""

    def compile(self, schema: str) -> Callable[[object], str | None]:
        size = len(schema.encode("utf-8", "surrogatepass"))
        if size > SCHEMA_CAP:
            raise ValueError(f"the schema has {size} bytes; at most {SCHEMA_CAP} are allowed")
        try:
            parsed = from_json(schema)
        except ValueError as error:
            raise ValueError(f"the schema is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise ValueError("the schema is not a JSON object")
        _refuse_bomb(parsed)
        return _Check(_validator(parsed)).problem


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(
            schema,
            offline=True,  # a reference to elsewhere is refused, never fetched
            pattern_options=jsonschema_rs.RegexOptions(
                size_limit=_PATTERN_CAP, dfa_size_limit=_PATTERN_CAP
            ),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        why = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
        raise ValueError(f"the schema cannot be used: {_short(why)}") from error


def _refuse_bomb(schema: dict[str, Any]) -> None:
    """A few hundred bytes of references to references can unfold to billions of checks."""
    try:
        weight = _Weigh(schema).of(schema)
    except RecursionError as error:
        raise ValueError("the schema cannot be used: its references nest too deep") from error
    if weight > UNFOLDED_CAP:
        raise ValueError(f"the schema cannot be used: it unfolds to over {UNFOLDED_CAP} parts")


class _Weigh:
    """Counts a schema's parts with each local reference replaced by what it means."""

    __slots__ = ("_known", "_root")

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {}

    def of(self, node: Any) -> int:
        if isinstance(node, list):
            return sum(map(self.of, node))
        if not isinstance(node, dict):
            return 0
        weight = 1 + sum(map(self.of, node.values()))
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(node.get(key), str):
                weight += self._of_reference(node[key])
        return weight

    def _of_reference(self, reference: str) -> int:
        if reference != "#" and not reference.startswith("#/"):
            raise ValueError(
                f"the schema cannot be used: only references like #/$defs/name are followed, "
                f"not {_short(reference)!r}"
            )
        if reference not in self._known:
            self._known[reference] = 1  # what refers to itself counts once
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
    __slots__ = ("_validator",)

    def __init__(self, validator: jsonschema_rs.Validator) -> None:
        self._validator = validator

    def problem(self, value: object) -> str | None:
        """The first thing that is wrong, with the field's name; None if nothing is."""
        try:
            if self._validator.is_valid(value):
                return None
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
