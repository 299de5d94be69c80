"""Every value that is in force, and where it comes from; secrets stay hidden."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from gateway.config.masking import MASK
from gateway.config.placing import Positions, locate
from gateway.config.problems import KeyPath, dotted
from gateway.config.reading import Loaded
from gateway.domain.secrets import Secret

LISTS = {"tokens", "agents", "bindings"}  # of tables
NOT_OF_FALLBACKS = {"id", "system_prompt", "soul_path", "tools", "limits", "context"}


@dataclass(frozen=True, slots=True)
class Row:
    """One value in force. `value` is plain (for JSON); None: not set."""

    key: str
    value: object
    origin: str


def effective(loaded: Loaded) -> tuple[Row, ...]:
    """In the order of the documentation."""
    positions = locate(loaded.document.source)
    return tuple(
        Row(dotted(path), value, _origin(path, loaded, positions))
        for key, section in _sections(loaded)
        for path, value in _values((key,), section)
    )


def _sections(loaded: Loaded) -> Iterator[tuple[str, object]]:
    config, sections = loaded.config, loaded.sections
    yield "config_version", sections.config_version
    yield from (("gateway", config.gateway), ("tokens", config.tokens), ("store", config.store))
    yield "providers", config.providers
    has_default = config.default_agent is not None
    yield from (("agent", agent) for agent in config.agents[:has_default])
    yield "agents", config.agents[has_default:]
    yield from (("limits", dict(sections.limits)), ("context", dict(sections.context)))
    yield from (("bindings", config.bindings), ("queue", config.queue))
    yield "observability", config.observability


def _values(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, object]]:
    """Each plain value below, with its path."""
    if isinstance(value, Secret) or "headers" in path[:-1]:
        yield path, MASK
    elif items := _items(path, value):
        for name, item in items:
            yield from _values((*path, name), item)
    elif not isinstance(value, Mapping) and path[-1] not in LISTS:
        plain = str(value) if isinstance(value, Path) else value
        yield path, list(plain) if isinstance(plain, tuple) else plain


def _items(path: KeyPath, value: object) -> Iterable[tuple[str | int, object]]:
    """What a value is made of that has keys of its own."""
    if isinstance(value, Mapping):
        return list(value.items())
    if path[-1] in LISTS and isinstance(value, tuple):
        return list(enumerate(value))
    if not is_dataclass(value):
        return ()
    parts = [(field.name, getattr(value, field.name)) for field in fields(value)]
    return [(name, part) for name, part in parts if _is_key(path, name, part)]


def _is_key(path: KeyPath, name: str, value: object) -> bool:
    if path[-1] == "fallback" and name in NOT_OF_FALLBACKS:
        return False
    if path[0] == "providers":
        return name != "name"
    return value is not None or (name != "fallback" and path[0] != "bindings")


def _origin(path: KeyPath, loaded: Loaded, positions: Positions) -> str:
    if path in loaded.origins:
        return loaded.origins[path]
    if path in positions.places:
        line, _ = positions.line_column(positions.span(path, "key").start)
        return f"{loaded.document.name}:{line}"
    match path:
        case ("providers", str(name), "wire" | "base_url"):
            return f"preset {name}"
        case ("agent", "limits" | "context", _):
            return _origin(path[1:], loaded, positions)
        case ("agents", int(), "limits" | "context", _):
            return _origin(path[2:], loaded, positions)
    return "default"
