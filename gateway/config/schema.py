"""The keys of a configuration: a list of all of them, a JSON Schema for editors, and the keys that differ
between two configurations."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from gateway.config.problems import KeyPath, dotted
from gateway.config.sections import (
    PATTERNS,
    ROOT,
    SHORT,
    SectionKey,
    element_of,
    is_section,
    keys_here,
    keys_of,
)
from gateway.config.values import GatewayConfig, Plain
from gateway.domain.ids import Secret
from gateway.domain.settings import NEEDED, Setting

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ANY = "*"  # the part of a pattern for any index of a list or name of a table

Pattern = tuple[str, ...]


@cache
def patterns() -> Mapping[Pattern, SectionKey]:
    """Returns every key and section once, in order; the keys of nested fallbacks are listed once."""
    return MappingProxyType(dict(_walk(GatewayConfig, (), ROOT)))


def _walk(section: type, above: Pattern, about: Setting) -> Iterator[tuple[Pattern, SectionKey]]:
    for name, key in keys_here(section, about).items():
        path = (*above, name)
        yield path, replace(key, default=NEEDED) if name in about.needs else key
        element = element_of(key.kind)
        inner = key.kind if element is None else element
        if is_section(inner) and path[-2:] != ("fallback", "fallback"):
            below = path if element is None else (*path, ANY)
            yield from _walk(inner, below, key.setting)


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of the file."""
    defs: dict[str, Any] = {}
    root = _section(GatewayConfig, ROOT, defs)
    title = "config.toml of exogate"
    return {"$schema": DIALECT, "title": title, **root, "$defs": defs}


def _section(kind: type, about: Setting, defs: dict[str, Any]) -> dict[str, Any]:
    keys = keys_here(kind, about)
    properties = {
        name: {**_schema(key.kind, key.setting, defs), "description": key.setting.help}
        for name, key in keys.items()
    }
    needed = [name for name, key in keys.items() if key.is_needed or name in about.needs]
    made = {"type": "object", "description": " ".join((kind.__doc__ or "").split())}
    required = {"required": needed} if needed else {}
    return {**made, "properties": properties, **required, "additionalProperties": False}


def _schema(kind: Any, about: Setting, defs: dict[str, Any]) -> dict[str, Any]:
    if is_section(kind):
        return _reference(kind, about, defs)
    if (element := element_of(kind)) is not None:
        return _collection(kind, _schema(element, about, defs), about)
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if kind is object:
        return {}
    if kind == Plain:
        return {"type": ["string", "boolean", "number"]}
    if kind in {bool, int, float}:
        return _number(kind, about)
    if kind is datetime:
        return {"type": "string", "format": "date-time"}
    secret = {"format": "password"} if kind is Secret else {}
    return {"type": "string", "pattern": PATTERNS.get(about.form, PATTERNS["text"]), **secret}


def _collection(kind: Any, inner: dict[str, Any], about: Setting) -> dict[str, Any]:
    """Returns the schema of a table with free names, or of a list; `inner` is the schema of its items."""
    if about.by_name or get_origin(kind) is Mapping:
        names = {"pattern": PATTERNS[about.names]}
        return {"type": "object", "additionalProperties": inner, "propertyNames": names}
    least = {} if about.least is None else {"minItems": about.least}
    return {"type": "array", "items": inner, **least}


def _number(kind: Any, about: Setting) -> dict[str, Any]:
    if kind is bool:
        return {"type": "boolean"}
    named = {"minimum": about.least, "maximum": about.most, "exclusiveMinimum": about.above}
    bounds = {name: bound for name, bound in named.items() if bound is not None}
    number = {"type": "integer" if kind is int and about.scale == 1 else "number", **bounds}
    return {"anyOf": [number, {"enum": list(about.words)}]} if about.words else number


def _reference(kind: type, about: Setting, defs: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__ + "".join(part.capitalize() for part in about.needs)
    if name not in defs:
        defs[name] = {}  # a section may hold itself
        defs[name] = _section(kind, about, defs)
    reference = {"$ref": f"#/$defs/{name}"}
    if kind not in SHORT:
        return reference
    key = keys_here(kind, about)[SHORT[kind]]
    return {"anyOf": [_schema(key.kind, key.setting, defs), reference]}


def default_of(key: SectionKey) -> Any:
    """Returns the default as the file writes it; None if the key has none."""
    if key.default is NEEDED or is_section(key.kind):
        return None
    words = {number: word for word, number in key.setting.words.items()}
    return words.get(key.default, key.default) if words else key.default


# --- changes -------------------------------------------------------------------------------------
# Keys that the gateway reads only at the start.
AT_START: tuple[KeyPath, ...] = (
    ("gateway", "bind"),
    ("gateway", "port"),
    ("gateway", "data_dir"),
    ("store",),
    ("cluster",),
    ("sandbox", "workers"),
)
_ABSENT = object()
_INHERITED = ("limits", "context")  # sections that every agent inherits


def changes(before: GatewayConfig, after: GatewayConfig) -> list[str]:
    """Returns the keys whose values differ, in the order of the documentation."""
    found = list(_differences((), before, after))
    if before.rule_folder != after.rule_folder and ("rules_dir",) not in found:
        found.append(("rules_dir",))
    whole = {path for path in found if path[0] in _INHERITED}
    own = (path for path in found if path in whole or not any(path[i:] in whole for i in (1, 2)))
    return [*dict.fromkeys(map(_key, own))]


def need_restart(booted: GatewayConfig, after: GatewayConfig) -> list[str]:
    """Returns the keys that differ from the start and take effect at the next one."""
    differing = _differences((), booted, after)
    return [_key(path) for path in differing if any(path[: len(one)] == one for one in AT_START)]


def with_start_values(booted: GatewayConfig, after: GatewayConfig) -> GatewayConfig:
    """Returns the new configuration with the values of the start for keys that need a restart."""
    at = booted.gateway
    gateway = replace(after.gateway, bind=at.bind, port=at.port, data_dir=at.data_dir)
    sandbox = replace(after.sandbox, workers=booted.sandbox.workers)
    after = replace(after, store=booted.store, cluster=booted.cluster)
    return replace(after, gateway=gateway, sandbox=sandbox)


def _key(path: KeyPath) -> str:
    """Returns the key as the file has it, where a limit of tokens is one number."""
    is_limit = path[0] == "budgets" and path[-1] == "tokens"
    return dotted(path[:-1] if is_limit else path)


def _differences(path: KeyPath, before: Any, after: Any) -> Iterator[KeyPath]:
    kind: Any = type(before)
    keys = keys_of(kind) if is_section(kind) else {}
    if before == after:
        return
    if keys and kind is type(after):
        for name, key in keys.items():
            yield from _differences((*path, name), *_values(key.field, before, after))
        return
    old, new = _by_name(before), _by_name(after)
    if old is None or new is None or _is_reordered(old, new):
        yield path
        return
    for name in {**old, **new}:
        yield from _differences((*path, name), old.get(name, _ABSENT), new.get(name, _ABSENT))


def _is_reordered(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return old.keys() == new.keys() and [*old] != [*new]


def _values(field: str, before: Any, after: Any) -> tuple[Any, Any]:
    """Returns both values of a field, with the agents without the default one, which has a section of its own."""
    if field == "agents" and isinstance(before, GatewayConfig):
        return before.further_agents, after.further_agents
    return getattr(before, field), getattr(after, field)


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """Returns the items of a table, or of a list whose items have names; None for other values."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, tuple) or not value:
        return None if not isinstance(value, tuple) else {}
    names = [getattr(one, "id", None) or getattr(one, "name", None) for one in value]
    named = {name: one for name, one in zip(names, value, strict=True) if isinstance(name, str)}
    return named if len(named) == len(value) else None
