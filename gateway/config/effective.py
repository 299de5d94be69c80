"""Every value that is in force, and where it comes from; secrets stay hidden."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from gateway.config.given import as_host
from gateway.config.masking import MASK, is_sensitive, struck_arguments, struck_value
from gateway.config.placing import Positions, locate
from gateway.config.problems import KeyPath, dotted
from gateway.config.reading import Loaded
from gateway.domain.channels import ChannelDef
from gateway.domain.ids import Secret
from gateway.domain.mcp import McpServerDef
from gateway.domain.plugins import PluginDef, PluginSecret

LISTS = {"tokens", "agents", "projects", "plugins", "bindings", "rules"}  # of tables
_LISTS = {(name,) for name in LISTS}
_SHORTEST = 6  # a shorter value stands in unrelated words by chance
NOT_OF_FALLBACKS = {"id", "system_prompt", "soul_path", "tools", "project", "rules", "limits"}
NOT_OF_FALLBACKS |= {"context", "prompt_template"}


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
    yield "projects", config.projects
    yield "subagents", tuple(section.model_dump() for section in sections.subagents)
    yield "delegation", sections.delegation.model_dump()
    yield from (("limits", dict(sections.limits)), ("context", dict(sections.context)))
    yield "budgets", sections.budgets.model_dump()
    yield "plugins", tuple(_plugin(plugin) for plugin in config.plugins)
    yield "sandbox", config.sandbox
    servers = {one.name: _server(one) for one in config.mcp_servers}
    yield "mcp", {"servers": servers, "serve": sections.mcp.serve.model_dump()}
    yield "channels", {one.name: _channel(one) for one in config.channels}
    yield "bindings", config.bindings
    yield "rules", tuple(rule.model_dump(exclude_none=True) for rule in sections.rules)
    yield "rules_dir", config.rule_folder.path if config.rule_folder else None
    yield from (("queue", config.queue), ("observability", config.observability))


def _plugin(plugin: PluginDef) -> dict[str, object]:
    """As a configuration has it."""
    return {
        "name": plugin.name,
        "path": plugin.path,
        "capabilities": tuple(str(capability) for capability in plugin.capabilities),
        "sha256": plugin.sha256,
        "config": plugin.config,
        "secrets": _secrets(plugin.secrets),
        "limits": plugin.limits,
        "enabled": plugin.is_enabled,
        "deny_unused": plugin.deny_unused,
    }


def _server(server: McpServerDef) -> dict[str, object]:
    """As a configuration has it."""
    own = (one.name for one in fields(server) if one.name not in {"name", "hidden"})
    secrets = [one.reveal() for one in (*server.env.values(), *server.headers.values())]
    args = tuple(struck_arguments(server.args, [one for one in secrets if len(one) >= _SHORTEST]))
    return {**{name: getattr(server, name) for name in own}, "args": args}


def _channel(channel: ChannelDef) -> dict[str, object]:
    """As a configuration has it."""
    keys = {one.name: getattr(channel, one.name) for one in fields(channel) if one.name != "name"}
    groups = {
        room: {"allow_from": sorted(rule.allow_from), "require_mention": rule.require_mention}
        for room, rule in channel.groups.items()
    }
    own = {"allow_from": sorted(channel.allow_from), "secrets": _secrets(channel.secrets)}
    return {**keys, **own, "groups": groups}


def _secrets(secrets: Iterable[PluginSecret]) -> dict[str, object]:
    return {
        secret.name: {
            "value": secret.value,
            "hosts": tuple(sorted(map(as_host, secret.origins))),
        }
        for secret in secrets
    }


def _values(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, object]]:
    """Each plain value below, with its path."""
    if isinstance(value, Secret) or "headers" in path[:-1] or _is_hidden(path, value):
        yield path, MASK
    elif items := _items(path, value):
        for name, item in items:
            yield from _values((*path, name), item)
    elif not isinstance(value, Mapping) and path not in _LISTS:
        yield path, _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return struck_value(value) if isinstance(value, str) else _text_of(value)


def _text_of(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _is_hidden(path: KeyPath, value: object) -> bool:
    """What looks like a secret among what a plugin is given, whose keys nobody here knows."""
    is_list = isinstance(value, list) and not any(isinstance(one, dict | list) for one in value)
    is_leaf = is_list or not isinstance(value, dict | list)
    return is_leaf and path[2:3] == ("config",) and is_sensitive(path[3:])


def _items(path: KeyPath, value: object) -> Iterable[tuple[str | int, object]]:
    """What a value is made of that has keys of its own."""
    if isinstance(value, Mapping):
        return list(value.items())
    if path[-1] in LISTS and isinstance(value, tuple):
        return list(enumerate(value))
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
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
    return _origin(elsewhere, loaded, positions) if elsewhere else "default"
