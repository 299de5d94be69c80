"""Changes to a config.toml, each of a subject: plugins and their grants, channels, agents, budgets; of a value by its
path; and the file, which is written whole or not at all."""

import difflib
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_origin

from gateway.config.document import Document, masked, read_document
from gateway.config.load import interpreted
from gateway.config.problems import ConfigInvalid, dotted
from gateway.config.schema import ANY, patterns
from gateway.config.secrets import replace_file
from gateway.config.sections import BadCapability, SectionKey, parse_capability
from gateway.config.toml import CannotEdit, parsed, rewritten
from gateway.config.values import GatewayConfig, Surroundings
from gateway.domain.ids import Secret
from gateway.domain.plugins import Capability, HttpGrant
from gateway.domain.text import choose, quoted

OWNERS_ALONE = 0o600  # the mode of a new file
NOT_AS_IT_SHOULD_BE = "the file has errors; run `exogate config validate`"
_BUDGETS = ("session", "daily", "monthly", "per_agent")

Table = dict[str, Any]


def _opened(text: str) -> Table:
    """What a text says, to be changed and written back with `rewritten`."""
    document = _parsed(text)
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
    """Limits session, daily, monthly, per_agent or agent:ID; a limit in USD stays as it is, for an agent
    without a limit of its own that of per_agent."""
    kind, _, agent = scope.partition(":")
    if kind == "token":
        raise CannotEdit(
            "the budget of a token is given with `exogate token create` or in its [[tokens]]; raise it for "
            f"today with `exogate budget raise {scope} +N --today`"
        )
    if (kind == "agent") != bool(agent) or kind not in {*_BUDGETS, "agent"}:
        there_are = ", ".join((*_BUDGETS, "agent:ID"))
        raise CannotEdit(f"{quoted(scope)} is no scope; there are: {there_are}")
    document = _opened(text)
    budgets = _named(document, "budgets")
    table, key = (_named(budgets, "agent"), agent) if agent else (budgets, kind)
    usual = budgets.get("per_agent")
    if agent and key not in table and isinstance(usual, dict) and "usd" in usual:
        table[key] = {"tokens": tokens, "usd": usual["usd"]}
    elif isinstance(table.get(key), dict):
        table[key]["tokens"] = tokens
    else:
        table[key] = tokens
    return rewritten(text, document)


# ---------------------------------------------------------------------------------- the file


def difference(before: str, after: str, name: str) -> str:
    """A unified diff to be shown: no secret is in it, only where one is another now. Empty if nothing differs."""
    old, new, known = masked(before), masked(after), {*before.split("\n")}
    for number, raw in enumerate(after.split("\n")):
        if new[number] in old and raw not in known:
            new[number] += "   (changed, not shown)"
    return "\n".join(difflib.unified_diff(old, new, name, name, lineterm=""))


def current(path: Path, around: Surroundings) -> str:
    """The text of a file, empty if there is none; raises ConfigInvalid if it is not TOML."""
    return read_document(path, around.name(path)).text if path.exists() else ""


def checked(text: str, path: Path, around: Surroundings) -> GatewayConfig:
    """What a text comes to. Raises ConfigInvalid if the gateway could not start with it."""
    status = path.stat() if path.exists() else None
    document = Document.parsed(path, around.name(path), text.encode(), status)
    return interpreted(document, around).config


def require_better(before: str, after: str, path: Path, around: Surroundings) -> None:
    """Raises ConfigInvalid for a text that could not be used, unless it has fewer errors than the one before, and no
    other."""
    try:
        checked(after, path, around)
    except ConfigInvalid as error:
        if not _errors(error) < _errors_of(before, path, around):
            raise


def _errors_of(text: str, path: Path, around: Surroundings) -> set[tuple[str, str, str]]:
    try:
        checked(text, path, around)
    except ConfigInvalid as error:
        return _errors(error)
    return set()


def _errors(error: ConfigInvalid) -> set[tuple[str, str, str]]:
    return {(one.code, one.key, one.message) for one in error.problems}


def save(path: Path, before: str, after: str, around: Surroundings) -> None:
    """Writes all of it or nothing. Raises ConfigInvalid if the gateway could not start with it,
    CannotEdit if the file is not what it was or cannot be written."""
    name = around.name(path)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else OWNERS_ALONE
    require_better(before, after, path, around)
    if current(path, around) != before:
        raise CannotEdit(f"{name} changed in the meantime; try again")
    try:
        replace_file(path.resolve(), after.encode(), mode)  # of a link, what it leads to
    except OSError as error:
        raise CannotEdit(f"{name} cannot be written: {error.strerror}") from error


def restore(path: Path, before: str | None) -> None:
    """Writes back what a file was; None: there was none."""
    if before is None:
        path.unlink(missing_ok=True)
        return
    replace_file(path.resolve(), before.encode(), stat.S_IMODE(path.stat().st_mode))


# -- a value by its path; an item of a list is named by its id, its name or its place

NAMED_BY = ("id", "name")  # an item of a list
_TEXTS = (str, Secret, Path)
_LONGEST = 1_000  # characters of a path


def parse_path(text: str) -> tuple[str, ...]:
    """A dotted path as TOML writes keys: agents.main.model, providers."my.own".base_url. Raises CannotEdit."""
    try:
        if len(text) > _LONGEST or "\n" in text or "=" in text:
            raise ValueError
        inside: Any = tomllib.loads(f"{text} = 0")
    except (ValueError, RecursionError):
        example = 'gateway.port, agents.main.model, providers."my.own".base_url'
        raise CannotEdit(f"{quoted(text)} is no path; write one like {example}") from None
    path: list[str] = []
    while inside != 0:
        ((key, inside),) = inside.items()
        path.append(key)
    return tuple(path)


def read_value(path: Sequence[str], text: str) -> object:
    """A value as somebody types it: TOML, or plain text without quotes."""
    try:
        found = tomllib.loads(f"value = {text}")
        value = found["value"] if len(found) == 1 else text
    except (ValueError, RecursionError):
        return text
    return text if _is_text(path) and not isinstance(value, str) else value


def _is_text(path: Sequence[str]) -> bool:
    key = _key_at(path)
    kind = getattr(key.kind, "__supertype__", key.kind) if key else None
    return kind in _TEXTS or get_origin(kind) is Literal


def _key_at(path: Sequence[str]) -> SectionKey | None:
    """What is known of a path, whatever its items and names are called."""
    for pattern, key in patterns().items():
        if len(pattern) == len(path) and all(map(_fits, pattern, path)):
            return key
    return None


def _fits(known: str, part: str) -> bool:
    return known in {ANY, part}


def _empty(path: Sequence[str]) -> dict[str, Any] | list[Any]:
    """A section that is not there yet: a table, or a list of tables."""
    key = _key_at(path)
    is_list = key and get_origin(key.kind) in {tuple, list} and not key.setting.by_name
    return [] if is_list else {}


def with_patch(text: str, patch: Mapping[str, object]) -> str:
    """The text with these values. A key at the top is a path; a table goes on into the one that there is, and None
    removes. Raises CannotEdit."""
    document = _parsed(text)
    _merge(document, (), patch)
    return rewritten(text, document)


def with_value(text: str, path: Sequence[str], value: object) -> str:
    """The text with this value in place of what is there; None removes it. Raises CannotEdit."""
    document = _parsed(text)
    _put(document, path, value)
    return rewritten(text, document)


def value_at(text: str, path: Sequence[str]) -> object:
    """What the text says there; None if nothing."""
    return _found(_parsed(text), path)


def _parsed(text: str) -> Table:
    try:
        return parsed(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit("the file is not valid TOML; run `exogate config validate`") from error


def _merge(document: dict[str, Any], above: tuple[str, ...], patch: Mapping[str, object]) -> None:
    for key, value in patch.items():
        path = (*above, key) if above else parse_path(key)
        if isinstance(value, Mapping) and isinstance(_found(document, path), dict | list):
            _merge(document, path, value)
        else:
            _put(document, path, _without_none(value))


def _without_none(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_none(one) for key, one in value.items() if one is not None}


def _found(here: Any, path: Sequence[str]) -> Any:
    """What stands at a path; None if nothing does."""
    for part in path:
        if isinstance(here, list):
            place = place_of(here, part)
            here = None if place is None else here[place]
        else:
            here = here.get(part) if isinstance(here, dict) else None
    return here


def _put(document: dict[str, Any], path: Sequence[str], value: object) -> None:
    if value is None and _found(document, path) is None:
        return
    here: Any = document
    for depth, part in enumerate(path[:-1]):
        key = _key_in(here, part, path[:depth])
        is_missing = isinstance(here, dict) and key not in here
        here = here.setdefault(key, _empty(path[: depth + 1])) if is_missing else here[key]
    last = path[-1]
    if isinstance(here, list) and place_of(here, last) is None:
        here.append(_new_item(here, path, value))
    elif value is None:
        del here[_key_in(here, last, path[:-1])]
    else:
        here[_key_in(here, last, path[:-1])] = value


def _new_item(items: list[Any], path: Sequence[str], value: object) -> object:
    """An item is new behind the last one, or as a table under a name of its own."""
    if path[-1] == str(len(items)):
        return value
    named_by = next((name for name in NAMED_BY if _key_at((*path, name))), None)
    if named_by is None or not isinstance(value, dict):
        _key_in(items, path[-1], path[:-1])  # raises
    return {named_by: path[-1], **value} if isinstance(value, dict) else value


def _key_in(here: Any, part: str, above: Sequence[str]) -> Any:
    """Where a part of a path leads to: a key of a table, or the place of an item. Raises CannotEdit."""
    if isinstance(here, dict):
        return part
    if not isinstance(here, list):
        told = f"{dotted(tuple(above))} is a value, not a section"
        raise CannotEdit(f"{told}; it has no key {quoted(part)}")
    place = place_of(here, part)
    if place is None:
        names = [str(name) for name in map(_name, here) if name is not None]
        count = f"it has {len(here)}, counted from 0" if here else "the file has none"
        told = choose(part, names) if names else count
        raise CannotEdit(f"{dotted(tuple(above))} has no item {quoted(part)}; {told}")
    return place


def place_of(items: Sequence[object], part: str) -> int | None:
    """The place of the item that is called so, or else of the one at this place."""
    called = next((place for place, one in enumerate(items) if _name(one) == part), None)
    is_place = called is None and part.isdecimal() and int(part) < len(items)
    return int(part) if is_place else called


def _name(item: object) -> str | None:
    if isinstance(item, dict):
        return next((str(item[key]) for key in NAMED_BY if key in item), None)
    return item if isinstance(item, str) else None
