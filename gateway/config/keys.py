"""Which keys there are and where: the schema as a list, and as JSON Schema for editors."""

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.problems import KeyPath
from gateway.config.schema import ConfigFile, FallbackSection

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAMED = {"providers", "channels"}  # tables by a name of the operator's own
# Tables whose keys the operator chooses.
_NAMED = {
    ("providers",),
    ("budgets", "agent"),
    ("channels",),
    ("mcp", "servers"),
    ("delegation", "items"),
}
ANY = "*"  # in a pattern: a position in a list, or a name of the operator's own


@cache
def patterns() -> Mapping[KeyPath, FieldInfo]:
    """Every key and section once, in order; a fallback's fallback has the keys of a fallback."""
    return MappingProxyType(dict(_walk(ConfigFile, ())))


def _walk(model: type[BaseModel], above: KeyPath) -> Iterator[tuple[KeyPath, FieldInfo]]:
    for name, field in model.model_fields.items():
        path = (*above, name)
        yield path, field
        section, wraps = _section(field.annotation)
        if section is not None and not (section is model is FallbackSection):
            yield from _walk(section, (*path, ANY) if wraps & {list, dict} else path)


def _section(annotation: object) -> tuple[type[BaseModel] | None, set[object]]:
    """The model inside an annotation, and what it is wrapped in."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, set()
    for inner in get_args(annotation):
        found, wraps = _section(inner)
        if found is not None:
            return found, {get_origin(annotation), *wraps}
    return None, set()


def pattern_of(path: KeyPath) -> KeyPath:
    """A path without what differs from file to file."""
    named = [
        ANY if isinstance(p, int) or _has_own_names(path[:n]) else p for n, p in enumerate(path)
    ]
    return tuple(p for n, p in enumerate(named) if p != "fallback" or named[n - 1] != "fallback")


def _has_own_names(path: KeyPath) -> bool:
    """Whether the operator chooses what the keys below are called."""
    if path in _NAMED:
        return True
    if path[:2] == ("mcp", "servers"):
        return path[3:] in {("env",), ("headers",)}
    return (*path[:1], *path[2:]) in {
        ("plugins", "secrets"),
        ("providers", "prices"),
        ("channels", "secrets"),
        ("channels", "groups"),
    }


def field_at(path: KeyPath) -> FieldInfo | None:
    return patterns().get(pattern_of(path))


def described(path: KeyPath) -> str:
    """What a key is for, or the section that it stands in."""
    above = (field_at(path[:length]) for length in range(len(path), 0, -1))
    return next((field.description or "" for field in above if field), "")


def keys_at(path: KeyPath) -> tuple[str, ...]:
    """The keys of the section that a path leads to."""
    above = pattern_of(path)
    depth = len(above)
    return tuple(
        str(key[-1]) for key in patterns() if len(key) == depth + 1 and key[:depth] == above
    )


def sections_with(key: str) -> tuple[str, ...]:
    """Sections at the top that have this key: it may only stand at the wrong place."""
    places = [path[:-1] for path in patterns() if path[-1] == key and path[0] not in NAMED]
    single = [f"[{place[0]}]" for place in places if len(place) == 1]
    return (*single, *(f"[[{place[0]}]]" for place in places if place[1:] == (ANY,)))


def json_schema() -> dict[str, Any]:
    """Draft 2020-12, generated from the models."""
    return {"$schema": DIALECT, **ConfigFile.model_json_schema(), "title": "config.toml of exogate"}
