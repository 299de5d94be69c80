"""What a new configuration changes: the keys whose values differ once everything is resolved, and which of them need
a restart."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gateway.config.problems import KeyPath, dotted
from gateway.config.sections import is_section, keys_of
from gateway.config.values import GatewayConfig

# What is opened once, at the start.
AT_START: tuple[KeyPath, ...] = (
    ("gateway", "bind"),
    ("gateway", "port"),
    ("gateway", "data_dir"),
    ("store",),
    ("cluster",),
    ("sandbox", "workers"),
)
_INHERITED = ("limits", "context")  # by every agent


def changes(before: GatewayConfig, after: GatewayConfig) -> list[str]:
    """In the order of the documentation. Defaults that are written out change nothing."""
    found = list(_differences((), before, after))
    if before.rule_folder != after.rule_folder and ("rules_dir",) not in found:
        found.append(("rules_dir",))
    whole = {path for path in found if path[0] in _INHERITED}
    own = (path for path in found if path in whole or not any(path[i:] in whole for i in (1, 2)))
    return [*dict.fromkeys(map(_told, own))]


def need_restart(booted: GatewayConfig, after: GatewayConfig) -> list[str]:
    """The keys that have another value than at the start, and take effect at the next one."""
    return [_told(path) for path in _differences((), booted, after) if _is_at_start(path)]


def as_started(booted: GatewayConfig, after: GatewayConfig) -> GatewayConfig:
    """The configuration as far as it can take effect now."""
    at = booted.gateway
    gateway = replace(after.gateway, bind=at.bind, port=at.port, data_dir=at.data_dir)
    sandbox = replace(after.sandbox, workers=booted.sandbox.workers)
    after = replace(after, store=booted.store, cluster=booted.cluster)
    return replace(after, gateway=gateway, sandbox=sandbox)


def _is_at_start(path: KeyPath) -> bool:
    return any(path[: len(one)] == one for one in AT_START)


def _told(path: KeyPath) -> str:
    """As the file has it: a limit is one number there."""
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
    old, new = _named(before), _named(after)
    if old is None or new is None or (old.keys() == new.keys() and [*old] != [*new]):
        yield path
    else:
        yield from _of_items(path, old, new)


def _of_items(path: KeyPath, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[KeyPath]:
    for name in {**old, **new}:
        if name in old and name in new:
            yield from _differences((*path, name), old[name], new[name])
        else:
            yield (*path, name)


def _values(field: str, before: Any, after: Any) -> tuple[Any, Any]:
    """The default agent stands in its own section."""
    found = getattr(before, field), getattr(after, field)
    if field == "agents" and isinstance(before, GatewayConfig):
        return found[0][before.agent is not None :], found[1][after.agent is not None :]
    return found


def _named(value: Any) -> Mapping[str, Any] | None:
    """The items of a table, or of a list whose items have names; None for what is neither."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, tuple) or not value:
        return None if not isinstance(value, tuple) else {}
    names = [getattr(one, "id", None) or getattr(one, "name", None) for one in value]
    named = {name: one for name, one in zip(names, value, strict=True) if isinstance(name, str)}
    return named if len(named) == len(value) else None
