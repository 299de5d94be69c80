"""Changes to a config.toml, each of a subject: plugins and their grants, channels, agents, budgets; and
the file, which is written whole or not at all."""

import difflib
import os
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config.document import Document, masked, read_document
from gateway.config.load import interpreted
from gateway.config.sections import BadCapability, parse_capability
from gateway.config.toml import CannotEdit, parsed, rewritten
from gateway.config.values import GatewayConfig, Surroundings
from gateway.domain.plugins import Capability, HttpGrant
from gateway.domain.text import choose, quoted

OWNERS_ALONE = 0o600  # the mode of a new file
NOT_AS_IT_SHOULD_BE = "the file has errors; run `exogate config validate`"
_BUDGETS = ("session", "daily", "monthly", "per_agent")

Table = dict[str, Any]


def _opened(text: str) -> Table:
    """What a text says, to be changed and written back with `rewritten`."""
    try:
        document = parsed(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit("the file is not valid TOML; run `exogate config validate`") from error
    tables = [document.get("agent", {}), *_tables(document, "plugins")]
    tables += _tables(document, "agents")
    if not all(map(_is_editable, tables)):
        raise CannotEdit(NOT_AS_IT_SHOULD_BE)
    return document


def _is_editable(table: object) -> bool:
    lists = ("capabilities", "tools")
    return isinstance(table, dict) and all(isinstance(table.get(k, []), list) for k in lists)


def _tables(document: Table, key: str) -> list[Any]:
    tables = document.get(key, [])
    return tables if isinstance(tables, list) else [None]


def _named(document: Table, section: str) -> Table:
    """The tables of a section by name; it is there from now on."""
    found = document.setdefault(section, {})
    if not isinstance(found, dict):
        raise CannotEdit(NOT_AS_IT_SHOULD_BE)
    return found


# ------------------------------------------------------------------------------------- plugins


def has_plugin(text: str, name: str) -> bool:
    return any(one.get("name") == name for one in _tables(_opened(text), "plugins"))


def with_plugin(text: str, plugin: Mapping[str, object]) -> str:
    """Adds it behind the others; the keys of `plugin` are those of `[[plugins]]`."""
    document = _opened(text)
    if has_plugin(text, str(plugin["name"])):
        raise CannotEdit(f"there is a plugin {quoted(str(plugin['name']))} already")
    document.setdefault("plugins", []).append(dict(plugin))
    return rewritten(text, document)


def _plugin(document: Table, name: str) -> Table:
    tables = {str(table.get("name")): table for table in reversed(_tables(document, "plugins"))}
    if name not in tables:
        message = f"the file has no [[plugins]] named {quoted(name)}"
        raise CannotEdit(f"{message}; {choose(name, reversed(tables))}")
    found: Table = tables[name]
    return found


def with_plugin_keys(text: str, plugin: str, keys: Mapping[str, str]) -> str:
    """Gives the plugin another file, or pins it."""
    document = _opened(text)
    _plugin(document, plugin).update(keys)
    return rewritten(text, document)


def with_capability(text: str, plugin: str, capability: Capability) -> str:
    """Grants it; the same text if it is granted already."""
    document = _opened(text)
    granted = _plugin(document, plugin).setdefault("capabilities", [])
    if any(_is_same(one, capability) for one in granted):
        return text
    granted.append(str(capability))
    return rewritten(text, document)


def without_capability(text: str, plugin: str, capability: Capability) -> str:
    """Revokes it. Secrets that are for its host alone go with it."""
    document = _opened(text)
    table = _plugin(document, plugin)
    for lost, owner in _lost_hosts(document, plugin, capability):
        if lost.hosts:
            owner["secrets"][lost.name]["hosts"] = list(lost.hosts)
            continue
        del owner["secrets"][lost.name]
        if not owner["secrets"]:
            del owner["secrets"]
    granted = table.get("capabilities", [])
    kept = [one for one in granted if not _is_same(one, capability)]
    if kept == granted:
        has = ", ".join(str(one) for one in granted) or "nothing"
        raise CannotEdit(f"plugin {quoted(plugin)} is not granted {capability}; it has: {has}")
    table["capabilities"] = kept
    return rewritten(text, document)


def _is_same(text: object, capability: Capability) -> bool:
    try:
        return parse_capability(str(text)) == capability
    except BadCapability:
        return False


@dataclass(frozen=True, slots=True)
class LostHost:
    """A secret that names a host which its plugin may reach no longer."""

    name: str
    value: str  # as it is written, mostly a reference
    hosts: tuple[str, ...]  # that it is still for; none: it is removed


def lost_hosts(text: str, plugin: str, capability: Capability) -> tuple[LostHost, ...]:
    """What becomes of secrets if it is revoked: a secret for a host that is not granted is an error."""
    return tuple(lost for lost, _ in _lost_hosts(_opened(text), plugin, capability))


def _lost_hosts(
    document: Table, plugin: str, capability: Capability
) -> list[tuple[LostHost, Table]]:
    """Each with the plugin or channel that has it."""
    if not isinstance(capability, HttpGrant):
        return []
    table = _plugin(document, plugin)
    others = [one for one in table.get("capabilities", []) if not _is_same(one, capability)]
    is_last = not any(str(one).startswith("http:") for one in others)
    lost = [(one, table) for one in _lost(table, capability, bare=is_last)]
    channels = document.get("channels")
    for channel in channels.values() if isinstance(channels, dict) else ():
        if isinstance(channel, dict) and channel.get("plugin") == plugin:
            lost += [(one, channel) for one in _lost(channel, capability, bare=False)]
    return lost


def _lost(table: Table, capability: Capability, *, bare: bool) -> Iterator[LostHost]:
    """`bare`: also those that name no host, which are for the only one."""
    secrets = table.get("secrets", {})
    for name, secret in secrets.items() if isinstance(secrets, dict) else ():
        whole = secret if isinstance(secret, dict) else {"value": secret}
        hosts = whole.get("hosts") or []
        if not isinstance(hosts, list):
            continue
        kept = [str(one) for one in hosts if not _is_same(f"http:{one}", capability)]
        if len(kept) < len(hosts) or (bare and not hosts):
            yield LostHost(name, str(whole.get("value", "")), tuple(kept))


# ---------------------------------------------------------------------- channels and providers


def with_named(text: str, section: str, name: str, table: Mapping[str, object]) -> str:
    """Adds `[SECTION.NAME]` at the end."""
    document = _opened(text)
    named = _named(document, section)
    if name in named:
        raise CannotEdit(f"there is a {section.removesuffix('s')} {quoted(name)} already")
    named[name] = dict(table)
    return rewritten(text, document)


def _channel(document: Table, name: str) -> Table:
    channels = document.get("channels", {})
    table = channels.get(name) if isinstance(channels, dict) else None
    if not isinstance(table, dict) or not all(
        isinstance(table.get(key, {}), dict) for key in ("config", "secrets")
    ):
        raise CannotEdit(f"the file has no [channels.{name}]; {choose(name, channels)}")
    return table


def plugin_of_channel(text: str, name: str) -> str:
    """The name of its adapter. Raises CannotEdit."""
    return str(_channel(_opened(text), name).get("plugin"))


def with_channel_keys(
    text: str, name: str, keys: Mapping[str, str], tables: Mapping[str, Mapping[str, object]]
) -> str:
    """Sets `keys` of `[channels.NAME]`, and those of its tables `config` and `secrets`."""
    document = _opened(text)
    channel = _channel(document, name)
    channel.update(keys)
    for table, values in tables.items():
        inner = channel.setdefault(table, {}) if values else {}
        for key, given in values.items():
            if isinstance(inner.get(key), dict) and isinstance(given, dict):
                inner[key]["value"] = given["value"]  # keeps hosts
            else:
                inner[key] = given
    return rewritten(text, document)


def bindings_of(text: str, channel: str) -> int:
    """How many bindings only messages of this channel can match."""
    return sum(_is_bound(one, channel) for one in _tables(_opened(text), "bindings"))


def _is_bound(binding: object, channel: str) -> bool:
    return isinstance(binding, dict) and binding.get("channel") == channel


def without_channel(text: str, name: str) -> str:
    """Removes `[channels.NAME]`, and the bindings that only messages from there could match."""
    document = _opened(text)
    _channel(document, name)
    del document["channels"][name]
    bindings = _tables(document, "bindings")
    document["bindings"] = [one for one in bindings if not _is_bound(one, name)]
    return rewritten(text, document)


# ---------------------------------------------------------------------------- agents and budgets


def has_agents(text: str) -> bool:
    document = _opened(text)
    return "agent" in document or "agents" in document


def with_agent(text: str, agent: Mapping[str, object]) -> str:
    """Adds `[agent]` at the end, or sets these keys of the one that there is."""
    document = _opened(text)
    if "agents" in document and "agent" not in document:
        raise CannotEdit("the file has [[agents]] and no default agent; set its provider by hand")
    document.setdefault("agent", {}).update(agent)
    return rewritten(text, document)


def with_tool(text: str, agent: str | None, plugin: str) -> str:
    """Gives the plugin's tools to an agent (None: to the default one); the same text if it has them
    already, or if the file defines no agent: then the usual one has all."""
    if not has_agents(text):
        if agent is not None:
            raise CannotEdit("the file defines no agent, and the built-in one has every plugin")
        return text
    document = _opened(text)
    tools = _agent(document, agent).setdefault("tools", [])
    if plugin in tools:
        return text
    tools.append(plugin)
    return rewritten(text, document)


def _agent(document: Table, id_: str | None) -> Table:
    default: Table | None = document.get("agent")
    if id_ is None and default is not None:
        return default
    agents: dict[str, Table] = {}
    for table in (*([] if default is None else [default]), *_tables(document, "agents")):
        agents.setdefault(str(table.get("id", "main")), table)
    if id_ is None:
        raise CannotEdit(f"there is no default agent; say which: {', '.join(agents)}")
    if id_ not in agents:
        raise CannotEdit(f"no agent has id {quoted(id_)}; {choose(id_, agents)}")
    return agents[id_]


def with_budget(text: str, scope: str, tokens: int) -> str:
    """Limits session, daily, monthly, per_agent or agent:ID; a limit in USD stays as it is."""
    kind, _, agent = scope.partition(":")
    if (kind == "agent") != bool(agent) or kind not in {*_BUDGETS, "agent"}:
        there_are = ", ".join((*_BUDGETS, "agent:ID"))
        raise CannotEdit(f"{quoted(scope)} is no scope; there are: {there_are}")
    document = _opened(text)
    table = _named(document, "budgets")
    table, key = (_named(table, "agent"), agent) if agent else (table, kind)
    if isinstance(table.get(key), dict):
        table[key]["tokens"] = tokens
    else:
        table[key] = tokens
    return rewritten(text, document)


# ---------------------------------------------------------------------------------- the file


def difference(before: str, after: str, name: str) -> str:
    """A unified diff to be shown: no secret is in it. Empty if nothing differs."""
    return "\n".join(difflib.unified_diff(masked(before), masked(after), name, name, lineterm=""))


def current(path: Path, around: Surroundings) -> str:
    """The text of a file, empty if there is none; raises ConfigInvalid if it is not TOML."""
    return read_document(path, around.name(path)).text if path.exists() else ""


def checked(text: str, path: Path, around: Surroundings) -> GatewayConfig:
    """What a text comes to. Raises ConfigInvalid if the gateway could not start with it."""
    status = path.stat() if path.exists() else None
    document = Document.parsed(path, around.name(path), text.encode(), status)
    return interpreted(document, around).config


def save(path: Path, before: str, after: str, around: Surroundings) -> None:
    """Writes all of it or nothing. Raises ConfigInvalid if the gateway could not start with it,
    CannotEdit if the file is not what it was or cannot be written."""
    name = around.name(path)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else OWNERS_ALONE
    checked(after, path, around)
    if current(path, around) != before:
        raise CannotEdit(f"{name} changed in the meantime; try again")
    try:
        _replace(path.resolve(), after.encode(), mode)  # of a link, what it leads to
    except OSError as error:
        raise CannotEdit(f"{name} cannot be written: {error.strerror}") from error


def _replace(path: Path, source: bytes, mode: int) -> None:
    """Whoever reads the file finds the old one or the new one, also after a crash."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(opened, "wb") as file:
            os.fchmod(opened, mode)
            file.write(source)
            file.flush()
            os.fsync(opened)
        Path(fresh).replace(path)
    finally:
        Path(fresh).unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
