"""Every value that is in force, and where it comes from; secrets stay hidden."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.config.load import Loaded
from gateway.config.plugins import as_host
from gateway.config.problems import KeyPath, dotted
from gateway.config.schema import default_of
from gateway.config.secrets import MASK, is_sensitive, struck_arguments, struck_value
from gateway.config.sections import Key, is_section, keys_of
from gateway.config.values import GatewayConfig
from gateway.domain.budgets import Limit
from gateway.domain.events import Action
from gateway.domain.ids import Secret
from gateway.domain.mcp import McpServerDef
from gateway.domain.plugins import PluginSecret

_SHORTEST = 6  # a shorter value stands in unrelated words by chance
# Lists of tables have no row of their own if they are empty.
_LISTS = {"tokens", "agents", "projects", "plugins", "bindings", "rules", "subagents"}


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
        for path, value in _values((key.name,), _of_file(key, loaded), key)
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
    path: KeyPath, value: object, key: Key | None = None
) -> Iterator[tuple[KeyPath, object]]:
    """Each plain value below, with its path."""
    if isinstance(value, Secret) or "headers" in path[:-1] or _is_hidden(path, value):
        yield path, MASK
    elif isinstance(value, Action):
        yield from _values(path, {value.kind: value.value, **value.options})
    elif isinstance(value, PluginSecret):
        yield (*path, "value"), MASK
        yield (*path, "hosts"), sorted(map(as_host, value.origins))
    elif is_section(type(value)):
        yield from _of_section(path, value, key)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _values((*path, name), item)
    elif isinstance(value, list | tuple) and any(_has_keys(item) for item in value):
        for number, item in enumerate(value):
            name = item.name if key and key.setting.by_name else number
            yield from _values((*path, name), item)
    elif not (path[-1] in _LISTS and len(path) == 1) and not (key and key.setting.by_name):
        yield path, _plain(value)


def _has_keys(item: object) -> bool:
    is_leaf = isinstance(item, Secret) or not is_section(type(item))
    return isinstance(item, dict | list | PluginSecret | Action) or not (
        is_leaf or str(item) != repr(item)
    )


def _of_section(path: KeyPath, section: Any, above: Key | None) -> Iterator[tuple[KeyPath, object]]:
    only = above.setting.only if above else ()
    for name, key in keys_of(section.__class__).items():
        value = getattr(section, key.field)
        if isinstance(section, McpServerDef) and name == "args":
            values = (*section.env.values(), *section.headers.values())
            secrets = [one.reveal() for one in values if len(one.reveal()) >= _SHORTEST]
            value = struck_arguments(section.args, secrets)
        if value is not None and key.setting.scale > 1:
            value = value / key.setting.scale
        is_absent = value is None and (key.name == "fallback" or path[0] in {"bindings", "rules"})
        if (only and name not in only) or is_absent:
            continue
        if value == Limit() and default_of(key) is None and path[0] == "budgets":
            value = None
        words = {number: word for word, number in key.setting.words.items()}
        yield from _values((*path, name), words.get(value, value) if words else value, key)


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        return struck_value(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _is_hidden(path: KeyPath, value: object) -> bool:
    """What looks like a secret among what a plugin is given, whose keys nobody here knows."""
    is_list = isinstance(value, list) and not any(isinstance(one, dict | list) for one in value)
    is_leaf = is_list or not isinstance(value, dict | list)
    return is_leaf and path[2:3] == ("config",) and is_sensitive(path[3:])


def _origin(path: KeyPath, loaded: Loaded) -> str:
    if path in loaded.origins:
        return loaded.origins[path]
    positions = loaded.document.positions
    if path in positions.places:
        line, _ = positions.line_column(positions.span(path, "key").start)
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
