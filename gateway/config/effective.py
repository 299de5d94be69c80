"""Every value that is in force, and where it comes from; secrets stay hidden."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.config.load import Loaded
from gateway.config.plugins import as_host
from gateway.config.problems import KeyPath, dotted
from gateway.config.secrets import MASK, is_sensitive, struck_arguments, struck_value
from gateway.config.sections import ROOT, Key, element_of, is_section, keys_here, keys_of
from gateway.config.values import GatewayConfig
from gateway.domain.budgets import Limit
from gateway.domain.events import Action
from gateway.domain.ids import Secret
from gateway.domain.mcp import McpServerDef
from gateway.domain.plugins import PluginSecret
from gateway.domain.settings import Setting

_SHORTEST = 6  # a shorter value stands in unrelated words by chance
_WITHOUT_NONE = {"bindings", "rules"}  # what is not set there has no row


@dataclass(frozen=True, slots=True)
class Row:
    """One value in force. `value` is plain (for JSON); None: not set."""

    key: str
    value: object
    origin: str


def effective(loaded: Loaded) -> tuple[Row, ...]:
    """In the order of the documentation."""
    return tuple(
        Row(dotted(path), value, _origin(path, loaded))
        for key in keys_of(GatewayConfig).values()
        for path, value in _values((key.name,), _of_file(key, loaded), key.kind, key.setting)
    )


def _of_file(key: Key, loaded: Loaded) -> object:
    """Lists without what is told elsewhere."""
    config = loaded.config
    if key.name == "agents":
        return config.agents[config.agent is not None :]
    if key.name == "rules":
        name = loaded.document.name
        return tuple(one for one in config.rules if one.source.partition(":")[0] == name)
    if key.name == "rules_dir":
        return config.rule_folder.path if config.rule_folder else None
    return getattr(config, key.field)


def _values(
    path: KeyPath, value: Any, kind: Any, about: Setting = ROOT
) -> Iterator[tuple[KeyPath, object]]:
    """Each plain value below, with its path."""
    element = element_of(kind)
    if isinstance(value, Secret) or "headers" in path[:-1]:
        yield path, MASK
    elif isinstance(value, Action | PluginSecret):
        yield from _as_given(path, _written(value))
    elif is_section(kind) and value is not None:
        yield from _of_section(path, value, about)
    elif is_section(element) or (isinstance(value, Mapping) and element is not object):
        for part, item in _items(value, about):
            yield from _values((*path, part), item, element, about)
    else:
        yield from _as_given(path, value)


def _items(value: Any, about: Setting) -> Iterable[tuple[str | int, object]]:
    """The items of a table or a list, each with its part of the path."""
    if isinstance(value, Mapping):
        return value.items()
    return ((item.name, item) for item in value) if about.by_name else enumerate(value)


def _of_section(path: KeyPath, section: Any, about: Setting) -> Iterator[tuple[KeyPath, object]]:
    for name, key in keys_here(section.__class__, about).items():
        value = _shown(section, key)
        if value is not None or not (name == "fallback" or path[0] in _WITHOUT_NONE):
            yield from _values((*path, name), value, key.kind, key.setting)


def _written(value: Action | PluginSecret) -> Mapping[str, object]:
    """The table of a value that the file has in another way."""
    if isinstance(value, Action):
        return {value.kind: value.value, **value.options}
    return {"value": MASK, "hosts": sorted(map(as_host, value.origins))}


def _shown(section: object, key: Key) -> object:
    """A value as the file would have it."""
    value, words = getattr(section, key.field), key.setting.words
    if isinstance(section, McpServerDef) and key.name == "args":
        values = [one.reveal() for one in (*section.env.values(), *section.headers.values())]
        return struck_arguments(section.args, [one for one in values if len(one) >= _SHORTEST])
    if key.setting.scale > 1 and value is not None:
        return value / key.setting.scale
    if words:
        return next((word for word, number in words.items() if number == value), value)
    return None if value == Limit() else value


def _as_given(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, object]]:
    """What has no section: nobody here knows its keys, which may look like those of secrets."""
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        items = enumerate(value)
    elif path[2:3] == ("config",) and is_sensitive(path[3:]):
        yield path, MASK
    else:
        yield path, _plain(value)
    for name, item in items:
        yield from _as_given((*path, name), item)


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        return struck_value(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _origin(path: KeyPath, loaded: Loaded) -> str:
    if path in loaded.origins:
        return loaded.origins[path]
    positions = loaded.document.positions
    if path in positions.places:
        line, _ = loaded.document.line_column(positions.span(path, "key").start)
        return f"{loaded.document.name}:{line}"
    elsewhere: KeyPath = ()
    match path:
        case ("providers", str(name), "wire" | "base_url"):
            return f"preset {name}"
        case ("plugins" | "channels", _, "secrets", str(), "value") | ("budgets", _, *_, "tokens"):
            elsewhere = path[:-1]
        case ("agent", "limits" | "context", _):
            elsewhere = path[1:]
        case ("agents", int(), "limits" | "context", _):
            elsewhere = path[2:]
    return _origin(elsewhere, loaded) if elsewhere else "default"
