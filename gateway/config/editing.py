"""Edits of a config.toml: plugins and their grants, channels, agents, budgets, any value by its path; and saving, which
writes the whole file or nothing."""

import difflib
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_origin

from gateway.config.document import Document, mask_lines, read_document
from gateway.config.load import interpret
from gateway.config.problems import ConfigInvalid, dotted
from gateway.config.schema import ANY, patterns
from gateway.config.secrets import replace_file
from gateway.config.sections import BadCapability, SectionKey, parse_capability
from gateway.config.toml import CannotEdit, parse, rewrite
from gateway.config.values import GatewayConfig, Inputs
from gateway.domain.ids import Secret
from gateway.domain.plugins import Capability, HttpGrant
from gateway.domain.text import choose, quoted

NEW_FILE_MODE = 0o600
HAS_ERRORS = "the file has errors; run `exogate config validate`"
_LISTS = ("capabilities", "tools")
_BUDGETS = ("session", "daily", "monthly", "per_agent")

Table = dict[str, Any]


def _parse_editable(text: str) -> Table:
    """Parses a text for editing. Raises CannotEdit if sections that edits rely on have the wrong type."""
    document = _parse(text)
    tables = [*_tables(document, "plugins"), *_tables(document, "agents")]
    for table in (document.get("agent", {}), *tables):
        lists = [table.get(key, []) for key in _LISTS] if isinstance(table, dict) else [None]
        if not all(isinstance(one, list) for one in lists):
            raise CannotEdit(HAS_ERRORS)
    return document


def _tables(document: Table, key: str) -> list[Any]:
    tables = document.get(key, [])
    return tables if isinstance(tables, list) else [None]


def _named(document: Table, section: str) -> Table:
    """Returns the tables of a section by name; adds the section if it is absent."""
    found = document.setdefault(section, {})
    if not isinstance(found, dict):
        raise CannotEdit(HAS_ERRORS)
    return found


# -- plugins


def has_plugin(text: str, name: str) -> bool:
    return any(one.get("name") == name for one in _tables(_parse_editable(text), "plugins"))


def with_plugin(text: str, plugin: Mapping[str, object]) -> str:
    """Adds a plugin after the others; the keys of `plugin` are those of `[[plugins]]`."""
    document = _parse_editable(text)
    if has_plugin(text, str(plugin["name"])):
        raise CannotEdit(f"the file already has a plugin {quoted(str(plugin['name']))}")
    document.setdefault("plugins", []).append(dict(plugin))
    return rewrite(text, document)


def _plugin(document: Table, name: str) -> Table:
    tables = {str(table.get("name")): table for table in reversed(_tables(document, "plugins"))}
    if name not in tables:
        message = f"the file has no [[plugins]] named {quoted(name)}"
        raise CannotEdit(f"{message}; {choose(name, reversed(tables))}")
    found: Table = tables[name]
    return found


def with_plugin_keys(text: str, plugin: str, keys: Mapping[str, str]) -> str:
    """Sets keys of a plugin, such as its path or its sha256."""
    document = _parse_editable(text)
    _plugin(document, plugin).update(keys)
    return rewrite(text, document)


def with_capability(text: str, plugin: str, capability: Capability) -> str:
    """Grants a capability to a plugin; returns the same text if the plugin has it."""
    document = _parse_editable(text)
    granted = _plugin(document, plugin).setdefault("capabilities", [])
    if any(_is_same(one, capability) for one in granted):
        return text
    granted.append(str(capability))
    return rewrite(text, document)


def without_capability(text: str, plugin: str, capability: Capability) -> str:
    """Revokes a capability of a plugin, and removes secrets that are only for its host."""
    document = _parse_editable(text)
    table = _plugin(document, plugin)
    for lost in _lost_hosts(document, plugin, capability):
        secrets = lost.owner["secrets"]
        if lost.hosts:
            secrets[lost.name]["hosts"] = list(lost.hosts)
            continue
        del secrets[lost.name]
        if not secrets:
            del lost.owner["secrets"]
    granted = table.get("capabilities", [])
    kept = [one for one in granted if not _is_same(one, capability)]
    if kept == granted:
        has = ", ".join(map(str, granted)) or "nothing"
        raise CannotEdit(f"plugin {quoted(plugin)} is not granted {capability}; it has: {has}")
    table["capabilities"] = kept
    return rewrite(text, document)


def _is_same(text: object, capability: Capability) -> bool:
    try:
        return parse_capability(str(text)) == capability
    except BadCapability:
        return False


@dataclass(frozen=True, slots=True)
class LostHost:
    """A secret that names a host that its plugin may no longer reach."""

    name: str
    value: str  # as written, mostly a reference
    hosts: tuple[str, ...]  # the remaining hosts; empty: the secret is removed
    owner: Table  # the plugin or channel that has the secret


def lost_hosts(text: str, plugin: str, capability: Capability) -> tuple[LostHost, ...]:
    """Returns the secrets that revoking the capability changes: a secret for a host that is not granted is an error."""
    return _lost_hosts(_parse_editable(text), plugin, capability)


def _lost_hosts(document: Table, plugin: str, capability: Capability) -> tuple[LostHost, ...]:
    if not isinstance(capability, HttpGrant):
        return ()
    table = _plugin(document, plugin)
    others = [one for one in table.get("capabilities", []) if not _is_same(one, capability)]
    is_last = not any(str(one).startswith("http:") for one in others)
    lost = [*_lost(table, capability, bare=is_last)]
    channels = document.get("channels")
    for channel in channels.values() if isinstance(channels, dict) else ():
        if isinstance(channel, dict) and channel.get("plugin") == plugin:
            lost += _lost(channel, capability, bare=False)
    return tuple(lost)


def _lost(table: Table, capability: Capability, *, bare: bool) -> Iterator[LostHost]:
    """Yields the secrets of a table for the host; `bare`: also secrets without hosts, which are for the only host."""
    secrets = table.get("secrets", {})
    for name, secret in secrets.items() if isinstance(secrets, dict) else ():
        whole = secret if isinstance(secret, dict) else {"value": secret}
        hosts = whole.get("hosts") or []
        if not isinstance(hosts, list):
            continue
        kept = [str(one) for one in hosts if not _is_same(f"http:{one}", capability)]
        if len(kept) < len(hosts) or (bare and not hosts):
            yield LostHost(name, str(whole.get("value", "")), tuple(kept), table)


# -- channels and providers


def with_named(text: str, section: str, name: str, table: Mapping[str, object]) -> str:
    """Adds `[SECTION.NAME]` at the end."""
    document = _parse_editable(text)
    named = _named(document, section)
    if name in named:
        raise CannotEdit(f"the file already has a {section.removesuffix('s')} {quoted(name)}")
    named[name] = dict(table)
    return rewrite(text, document)


def _channel(document: Table, name: str) -> Table:
    channels = document.get("channels", {})
    table = channels.get(name) if isinstance(channels, dict) else None
    if not isinstance(table, dict) or not all(
        isinstance(table.get(key, {}), dict) for key in ("config", "secrets")
    ):
        raise CannotEdit(f"the file has no [channels.{name}]; {choose(name, channels)}")
    return table


def plugin_of_channel(text: str, name: str) -> str:
    """Returns the name of the channel's adapter. Raises CannotEdit."""
    return str(_channel(_parse_editable(text), name).get("plugin"))


def with_channel_keys(
    text: str, name: str, keys: Mapping[str, str], tables: Mapping[str, Mapping[str, object]]
) -> str:
    """Sets `keys` of `[channels.NAME]`, and keys of its tables `config` and `secrets`."""
    document = _parse_editable(text)
    channel = _channel(document, name)
    channel.update(keys)
    for table, values in tables.items():
        inner = channel.setdefault(table, {}) if values else {}
        for key, given in values.items():
            if isinstance(inner.get(key), dict) and isinstance(given, dict):
                inner[key]["value"] = given["value"]  # its hosts stay
            else:
                inner[key] = given
    return rewrite(text, document)


def bindings_of(text: str, channel: str) -> int:
    """Returns the number of bindings that name this channel."""
    return sum(_is_bound(one, channel) for one in _tables(_parse_editable(text), "bindings"))


def _is_bound(binding: object, channel: str) -> bool:
    return isinstance(binding, dict) and binding.get("channel") == channel


def without_channel(text: str, name: str) -> str:
    """Removes `[channels.NAME]` and the bindings that name it."""
    document = _parse_editable(text)
    _channel(document, name)
    del document["channels"][name]
    bindings = _tables(document, "bindings")
    document["bindings"] = [one for one in bindings if not _is_bound(one, name)]
    return rewrite(text, document)


# -- agents and budgets


def has_agents(text: str) -> bool:
    document = _parse_editable(text)
    return "agent" in document or "agents" in document


def with_agent(text: str, agent: Mapping[str, object]) -> str:
    """Adds `[agent]` at the end, or sets these keys of an existing one."""
    document = _parse_editable(text)
    if "agents" in document and "agent" not in document:
        raise CannotEdit("the file has [[agents]] and no default agent; set its provider by hand")
    document.setdefault("agent", {}).update(agent)
    return rewrite(text, document)


def with_tool(text: str, agent: str | None, plugin: str) -> str:
    """Adds the plugin's tools to an agent (None: the default one). Returns the same text if the agent has them, or if
    the file defines no agent: the built-in agent has all plugins."""
    if not has_agents(text):
        if agent is not None:
            raise CannotEdit("the file defines no agent, and the built-in one has every plugin")
        return text
    document = _parse_editable(text)
    tools = _agent(document, agent).setdefault("tools", [])
    if plugin in tools:
        return text
    tools.append(plugin)
    return rewrite(text, document)


def _agent(document: Table, id_: str | None) -> Table:
    default: Table | None = document.get("agent")
    if id_ is None and default is not None:
        return default
    agents: dict[str, Table] = {}
    for table in (*([] if default is None else [default]), *_tables(document, "agents")):
        agents.setdefault(str(table.get("id", "main")), table)
    if id_ is None:
        raise CannotEdit(f"the file has no default agent; name one of: {', '.join(agents)}")
    if id_ not in agents:
        raise CannotEdit(f"no agent has id {quoted(id_)}; {choose(id_, agents)}")
    return agents[id_]


def with_budget(text: str, scope: str, tokens: int) -> str:
    """Limits session, daily, monthly, per_agent or agent:ID to this number of tokens. A limit in USD stays; an agent
    without its own limit keeps that of per_agent."""
    kind, _, agent = scope.partition(":")
    if kind == "token":
        raise CannotEdit(
            "set the budget of a token with `exogate token create` or in its [[tokens]], or raise it for "
            f"today: `exogate budget raise {scope} +N --today`"
        )
    if (kind == "agent") != bool(agent) or kind not in {*_BUDGETS, "agent"}:
        scopes = ", ".join((*_BUDGETS, "agent:ID"))
        raise CannotEdit(f"{quoted(scope)} is not a scope; write one of: {scopes}")
    document = _parse_editable(text)
    budgets = _named(document, "budgets")
    table, key = (_named(budgets, "agent"), agent) if agent else (budgets, kind)
    usual = budgets.get("per_agent")
    if agent and key not in table and isinstance(usual, dict) and "usd" in usual:
        table[key] = {"tokens": tokens, "usd": usual["usd"]}
    elif isinstance(table.get(key), dict):
        table[key]["tokens"] = tokens
    else:
        table[key] = tokens
    return rewrite(text, document)


# -- the file


def difference(before: str, after: str, name: str) -> str:
    """Returns a unified diff without secrets, which marks changed secrets; empty if nothing differs."""
    old, new, known = mask_lines(before), mask_lines(after), {*before.split("\n")}
    for number, raw in enumerate(after.split("\n")):
        if new[number] in old and raw not in known:
            new[number] += "   (changed, not shown)"
    return "\n".join(difflib.unified_diff(old, new, name, name, lineterm=""))


def read_text(path: Path, inputs: Inputs) -> str:
    """Returns the text of a file, empty if it does not exist. Raises ConfigInvalid if it is not TOML."""
    return read_document(path, inputs.name(path)).text if path.exists() else ""


def check_text(text: str, path: Path, inputs: Inputs) -> GatewayConfig:
    """Returns the configuration of a text. Raises ConfigInvalid if the gateway could not start with it."""
    status = path.stat() if path.exists() else None
    document = Document.parse(path, inputs.name(path), text.encode(), status)
    return interpret(document, inputs).config


def require_better(before: str, after: str, path: Path, inputs: Inputs) -> None:
    """Raises ConfigInvalid for a text with errors, unless its errors are fewer and all in the text before."""
    if (error := _refusal(after, path, inputs)) is None:
        return
    errors = [
        {(one.code, one.key, one.message) for one in (refused.problems if refused else ())}
        for refused in (error, _refusal(before, path, inputs))
    ]
    if not errors[0] < errors[1]:
        raise error


def _refusal(text: str, path: Path, inputs: Inputs) -> ConfigInvalid | None:
    try:
        check_text(text, path, inputs)
    except ConfigInvalid as error:
        return error
    return None


def save(path: Path, before: str, after: str, inputs: Inputs) -> None:
    """Writes the whole text or nothing. Raises ConfigInvalid if the gateway could not start with it, and CannotEdit
    if the file changed or cannot be written."""
    name = inputs.name(path)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else NEW_FILE_MODE
    require_better(before, after, path, inputs)
    if read_text(path, inputs) != before:
        raise CannotEdit(f"{name} changed in the meantime; try again")
    try:
        replace_file(path.resolve(), after.encode(), mode)  # a link stays a link
    except OSError as error:
        raise CannotEdit(f"{name} cannot be written: {error.strerror}") from error


def restore(path: Path, before: str | None) -> None:
    """Restores the previous text of a file; None removes the file."""
    if before is None:
        path.unlink(missing_ok=True)
        return
    replace_file(path.resolve(), before.encode(), stat.S_IMODE(path.stat().st_mode))


# -- values by path; a path names an item of a list by its id, its name or its index

NAMED_BY = ("id", "name")  # keys that name an item of a list
_TEXTS = (str, Secret, Path)
_LONGEST = 1_000  # characters of a path


def parse_path(text: str) -> tuple[str, ...]:
    """Parses a dotted path in TOML syntax: agents.main.model, providers."my.own".base_url. Raises CannotEdit."""
    try:
        if len(text) > _LONGEST or "\n" in text or "=" in text:
            raise ValueError
        inside: Any = tomllib.loads(f"{text} = 0")
    except (ValueError, RecursionError):
        example = 'gateway.port, agents.main.model, providers."my.own".base_url'
        raise CannotEdit(f"{quoted(text)} is not a path; write one like {example}") from None
    path: list[str] = []
    while inside != 0:
        ((key, inside),) = inside.items()
        path.append(key)
    return tuple(path)


def read_value(path: Sequence[str], text: str) -> object:
    """Parses a typed value: TOML, or plain text without quotes."""
    try:
        found = tomllib.loads(f"value = {text}")
        value = found["value"] if len(found) == 1 else text
    except (ValueError, RecursionError):
        return text
    key = _key_at(path)
    is_text = key and (key.kind in _TEXTS or get_origin(key.kind) is Literal)
    return text if is_text and not isinstance(value, str) else value


def _key_at(path: Sequence[str]) -> SectionKey | None:
    """Returns the key of the schema at a path; None if the schema has none."""
    for pattern, key in patterns().items():
        is_as_long = len(pattern) == len(path)
        if is_as_long and all(
            known in {ANY, part} for known, part in zip(pattern, path, strict=True)
        ):
            return key
    return None


def with_patch(text: str, patch: Mapping[str, object]) -> str:
    """Returns the text with these values. A key at the top is a path; a table is merged into an existing one; None
    removes. Raises CannotEdit."""
    document = _parse(text)
    _merge(document, (), patch)
    return rewrite(text, document)


def with_value(text: str, path: Sequence[str], value: object) -> str:
    """Returns the text with this value at a path; None removes it. Raises CannotEdit."""
    document = _parse(text)
    _put(document, path, value)
    return rewrite(text, document)


def value_at(text: str, path: Sequence[str]) -> object:
    """Returns the value at a path of a text; None if it is absent."""
    return _value_at(_parse(text), path)


def _parse(text: str) -> Table:
    try:
        return parse(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit("the file is not valid TOML; run `exogate config validate`") from error


def _merge(document: dict[str, Any], above: tuple[str, ...], patch: Mapping[str, object]) -> None:
    for key, value in patch.items():
        path = (*above, key) if above else parse_path(key)
        if isinstance(value, Mapping) and isinstance(_value_at(document, path), dict | list):
            _merge(document, path, value)
        else:
            _put(document, path, _without_none(value))


def _without_none(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_none(one) for key, one in value.items() if one is not None}


def _value_at(here: Any, path: Sequence[str]) -> Any:
    """Returns the value at a path; None if it is absent."""
    for part in path:
        if isinstance(here, list):
            index = index_of(here, part)
            here = None if index is None else here[index]
        else:
            here = here.get(part) if isinstance(here, dict) else None
    return here


def _put(document: dict[str, Any], path: Sequence[str], value: object) -> None:
    if value is None and _value_at(document, path) is None:
        return
    here: Any = document
    for depth, part in enumerate(path[:-1]):
        key = _key_in(here, part, path[:depth])
        if isinstance(here, dict) and key not in here:
            here[key] = _empty_at(path[: depth + 1])
        here = here[key]
    last = path[-1]
    if isinstance(here, list) and index_of(here, last) is None:
        here.append(_new_item(here, path, value))
    elif value is None:
        del here[_key_in(here, last, path[:-1])]
    else:
        here[_key_in(here, last, path[:-1])] = value


def _empty_at(path: Sequence[str]) -> Any:
    """Returns an empty list or table, as the key at the path needs it."""
    known = _key_at(path)
    return [] if known and get_origin(known.kind) is tuple and not known.setting.by_name else {}


def _new_item(items: list[Any], path: Sequence[str], value: object) -> object:
    """Returns a new item for the end of a list; its table gets the name in the path. Raises CannotEdit."""
    if path[-1] == str(len(items)):
        return value
    named_by = next((name for name in NAMED_BY if _key_at((*path, name))), None)
    if named_by is None or not isinstance(value, dict):
        _key_in(items, path[-1], path[:-1])  # raises: the list has no such item
    return {named_by: path[-1], **value} if isinstance(value, dict) else value


def _key_in(here: Any, part: str, above: Sequence[str]) -> Any:
    """Returns the key of a table or the index in a list for a part of a path. Raises CannotEdit."""
    if isinstance(here, dict):
        return part
    if not isinstance(here, list):
        section = f"{dotted(tuple(above))} is a value, not a section"
        raise CannotEdit(f"{section}; it has no key {quoted(part)}")
    index = index_of(here, part)
    if index is None:
        names = [str(name) for name in map(_name, here) if name is not None]
        count = f"it has {len(here)}, counted from 0" if here else "the file has none"
        fix = choose(part, names) if names else count
        raise CannotEdit(f"{dotted(tuple(above))} has no item {quoted(part)}; {fix}")
    return index


def index_of(items: Sequence[object], part: str) -> int | None:
    """Returns the index of the item with this name or, if no item has it, with this index; None if absent."""
    named = next((index for index, one in enumerate(items) if _name(one) == part), None)
    is_index = named is None and part.isdecimal() and int(part) < len(items)
    return int(part) if is_index else named


def _name(item: object) -> str | None:
    if isinstance(item, dict):
        return next((str(item[key]) for key in NAMED_BY if key in item), None)
    return item if isinstance(item, str) else None
