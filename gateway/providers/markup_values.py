"""Values that a model wrote as text, typed as the tool's schema wants them and never by guessing."""

from collections.abc import Iterable, Mapping
from html import unescape
from typing import Any

from pydantic_core import from_json, to_json

from gateway.domain.model import ToolSpec

_ENTITIES = ("&lt;", "&gt;", "&amp;", "&quot;", "&apos;")
_TYPES: dict[type, set[str]] = {
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    str: {"string"},
    type(None): {"null"},
    list: {"array"},
    dict: {"object"},
}
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def arguments_of(tool: ToolSpec | None, pairs: Iterable[tuple[str, str, bool]]) -> str:
    """The JSON text of arguments: key, value, and whether it is JSON where the schema is silent."""
    schema: Mapping[str, Any] = from_json(tool.parameters) if tool else {}
    known = schema.get("properties") or {}
    typed = {}
    for key, value, is_json in pairs:
        typed[key] = _typed(value, _types(known.get(key), schema, set()), is_json=is_json)
    return to_json(typed).decode()


def unescaped(value: str) -> str:
    """Entities of a value that is well-formed XML; one with a bare `<` or `&` was written as is."""
    if "<" in value or value.count("&") != sum(map(value.count, _ENTITIES)):
        return value
    return unescape(value)


def _typed(value: str, types: set[str], *, is_json: bool) -> object:
    if "string" in types:
        return None if "null" in types and value.strip() == "null" else value
    if not types and not is_json:
        return value
    stripped = value.strip()
    try:
        parsed = from_json(_PYTHON.get(stripped, stripped), allow_inf_nan=False)
    except ValueError:
        return value  # the check of the arguments tells the model what is wrong
    return parsed if not types or _type_of(parsed) & types else value


def _types(schema: object, root: Mapping[str, Any], seen: set[int]) -> set[str]:
    """The JSON types that a schema allows; none where it does not say."""
    if not isinstance(schema, dict) or id(schema) in seen:
        return set()
    seen.add(id(schema))
    told = schema.get("type")
    if told:
        return {told} if isinstance(told, str) else set(told)
    inner = [one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())]
    inner.append(_target(schema.get("$ref", "#"), root))
    types = [_types(one, root, seen) for one in inner]
    fixed = schema.get("enum", ()) if "const" not in schema else (schema["const"],)
    return set().union(*types, *map(_type_of, fixed))


def _target(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference within the schema leads to; None where it leads nowhere."""
    target: Any = None if reference == "#" else root
    for name in reference.removeprefix("#/").split("/"):
        target = target.get(name) if isinstance(target, dict) else None
    return target


def _type_of(value: object) -> set[str]:
    if isinstance(value, float) and value.is_integer():
        return {"number", "integer"}
    return _TYPES[type(value)]
