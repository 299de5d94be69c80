"""The differences of two resolved configurations: changed keys, and the keys that need a restart."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gateway.config.problems import KeyPath, dotted
from gateway.config.sections import is_section, keys_of
from gateway.config.values import GatewayConfig

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
    if old is None or new is None or (old.keys() == new.keys() and [*old] != [*new]):
        yield path
        return
    for name in {**old, **new}:
        yield from _differences((*path, name), old.get(name, _ABSENT), new.get(name, _ABSENT))


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
