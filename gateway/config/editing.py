"""Changes to a config.toml that leave all the rest as it is, comments too: keys set, tables and elements
added and removed. Each change is proved: the new text says what it was to say, and nothing else."""

import difflib
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gateway.config.capabilities import BadCapability, parse_capability
from gateway.config.document import BOM, Document, Positions, Span, masked, read_document
from gateway.config.load import interpreted
from gateway.config.problems import KeyPath
from gateway.config.values import GatewayConfig, Surroundings
from gateway.domain.errors import GatewayError
from gateway.domain.plugins import Capability, HttpGrant
from gateway.domain.text import choose, quoted

OWNERS_ALONE = 0o600  # the mode of a new file
NOT_AS_IT_SHOULD_BE = "the file has errors; run `exogate config validate`"
_BUDGETS = ("session", "daily", "monthly", "per_agent")
_FIRST_KEYS = ("path", "name", "model", "provider", "id", "plugin")  # new keys stand behind them
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_UP_TO_COMMA = re.compile(r"((?:\s|#[^\n]*\n)*),")
_REST_OF_LINE = re.compile(r"[ \t]*(#[^\n]*)?\r?\n")
_INDENT = re.compile(r"[ \t]*")


class CannotEdit(GatewayError):
    """The file is as it was; the text says what is in the way."""

    code = "cannot_edit"


@dataclass(frozen=True)
class _Edit:
    """A text, and what it is to say once it is edited."""

    text: str
    wanted: dict[str, Any]  # a change is made here first

    @staticmethod
    def of(text: str) -> "_Edit":
        try:
            wanted = tomllib.loads(text.removeprefix(BOM))
        except tomllib.TOMLDecodeError as error:
            raise CannotEdit("the file is not valid TOML; run `exogate config validate`") from error
        tables = [wanted.get("agent", {}), *_tables(wanted, "plugins"), *_tables(wanted, "agents")]
        if not all(map(_is_editable, tables)):
            raise CannotEdit(NOT_AS_IT_SHOULD_BE)
        return _Edit(text, wanted)

    @cached_property
    def positions(self) -> Positions:
        return Positions(self.text)

    @property
    def line_end(self) -> str:
        """How the lines of the file end: as its first one does."""
        return "\r\n" if self.text.partition("\n")[0].endswith("\r") else "\n"

    def at(self, path: KeyPath) -> Any:
        here: Any = self.wanted
        for part in path:
            here = here[part]
        return here

    def proved(self, text: str) -> str:
        try:
            is_right = tomllib.loads(text.removeprefix(BOM)) == self.wanted
        except tomllib.TOMLDecodeError:
            is_right = False
        if not is_right:
            raise CannotEdit("this file cannot be edited automatically; change it by hand")
        return text

    def spliced(self, place: Span, new: str) -> str:
        return self.proved(self.text[: place.start] + new + self.text[place.end :])

    def appended(self, lines: Sequence[str]) -> str:
        """With these lines at the end, behind an empty one."""
        gap = "" if not self.text else "\n" if self.text.endswith("\n") else "\n\n"
        added = gap + "".join(f"{line}\n" for line in lines)
        return self.proved(self.text + added.replace("\n", self.line_end))

    def with_value(self, path: KeyPath, value: object) -> str:
        """Sets a key of a table that there is."""
        *above, key = path
        self.at(tuple(above))[key] = value
        place = self.positions.value(path)
        if place is not None:
            return self.spliced(place, written(value))
        return self._with_pair(tuple(above), written_key(str(key)), value)

    def _with_pair(self, table: KeyPath, key: str, value: object) -> str:
        """Behind a key that such a table usually has, else behind its header."""
        pair, positions = f"{key} = {written(value)}", self.positions
        opening = positions.places[table]["table"]
        if self.text[opening.start] == "{":
            places = [positions.value((*table, other)) for other in self.at(table)]
            ends = [place.end for place in places if place]
            at = max(ends, default=opening.start + 1)
            return self.spliced(Span(at, at), (", " if ends else " ") + pair)
        places = [positions.value((*table, other)) for other in _FIRST_KEYS]
        end = next((place.end for place in places if place), opening.end)
        start = self.text.rfind("\n", 0, end) + 1
        line = self.text[start:].partition("\n")[0].removesuffix("\r")
        indent = line[: len(line) - len(line.lstrip())]
        end = start + len(line)
        return self.spliced(Span(end, end), self.line_end + indent + pair)

    def with_inner_value(self, above: KeyPath, table: str, key: str, value: object) -> str:
        """Also where the table is only there by dotted keys of the one above, `config.scheme = ...`."""
        with suppress(CannotEdit):
            return self.with_value((*above, table, key), value)
        return self._with_pair(above, f"{table}.{written_key(key)}", value)

    def with_element(self, path: KeyPath, value: object) -> str:
        """A list with one more element at its end, on a line of its own if others are."""
        whole, elements = self.positions.value(path), self.positions.elements_of(path)
        if whole is None:
            return self.with_value(path, [value])
        self.at(path).append(value)
        text, new = self.text, written(value)
        end = elements[-1].end if elements else whole.start + 1
        if "\n" not in text[whole.start : whole.end]:
            return self.proved(text[:end] + (", " if elements else "") + new + text[end:])
        rest = text[end : whole.end - 1]
        kept = rest.rstrip()
        closing = rest[len(kept) :]
        closing = closing if "\n" in closing else self.line_end
        comma = "" if not elements or _UP_TO_COMMA.match(rest) else ","
        indent = self._indent(elements[-1].start if elements else end)
        line = f"{self.line_end}{indent}{new},"
        return self.proved(text[:end] + comma + kept + line + closing + text[whole.end - 1 :])

    def _indent(self, offset: int) -> str:
        """Of the line that this begins, else the usual one."""
        start = self.text.rfind("\n", 0, offset) + 1
        found = _INDENT.match(self.text, start, offset)
        return found[0] if found and found.end() == offset else "    "

    def without_elements(self, path: KeyPath, gone: Sequence[int]) -> str:
        places, text = self.positions.elements_of(path), self.text
        for index in sorted(gone, reverse=True):
            del self.at(path)[index]
            text = _without(text, places[index])
        return self.proved(text)

    def without(self, goes: Callable[[KeyPath], bool]) -> str:
        """Without the lines of these tables and keys; comments behind a table's last key belong to what
        follows."""
        spans: list[Span] = []
        is_gone = False
        for path, span, is_header in self.positions.statements:
            is_gone = goes(path) if is_header else is_gone
            if is_gone and not is_header:
                spans[-1] = Span(spans[-1].start, span.end)
            elif goes(path):
                spans.append(span)
        text = self.text
        for span in reversed(spans):
            start, end = text.rfind("\n", 0, span.start) + 1, text.find("\n", span.end - 1)
            before = text[:start]
            if before.endswith(("\n\n", "\n\r\n")):  # the empty line goes with what it set apart
                before = before.rstrip("\r\n") + self.line_end
            text = before + ("" if end < 0 else text[end + 1 :])
        return text


def _without(text: str, element: Span) -> str:
    """Without an element of a list; a line that it had for itself goes with its comment."""
    before, after = text[: element.start], text[element.end :]
    comma = _UP_TO_COMMA.match(after)
    if comma:
        after = comma[1] + after[comma.end() :]
    start = before.rfind("\n") + 1
    line = _REST_OF_LINE.match(after)
    if line and not before[start:].strip():
        return before[:start] + after[line.end() :]
    # "a", "b" without "b" is "a"; without "a" it is "b"
    return before + after.lstrip(" \t") if comma else re.sub(r",[ \t]*\Z", "", before) + after


def written(value: object) -> str:
    """As TOML writes it within a line."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{written_key(str(key))} = {written(one)}" for key, one in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)


def written_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else written(name)


def _pairs(table: Mapping[str, object]) -> list[str]:
    return [f"{written_key(key)} = {written(value)}" for key, value in table.items()]


def _tables(document: Mapping[str, Any], key: str) -> list[Any]:
    tables = document.get(key, [])
    return tables if isinstance(tables, list) else [None]


def _is_editable(table: object) -> bool:
    lists = ("capabilities", "tools")
    return isinstance(table, dict) and all(isinstance(table.get(k, []), list) for k in lists)


# ------------------------------------------------------------------------------------- plugins


def has_plugin(text: str, name: str) -> bool:
    return any(one.get("name") == name for one in _tables(_Edit.of(text).wanted, "plugins"))


def with_plugin(text: str, plugin: Mapping[str, object]) -> str:
    """Adds it behind the others; the keys of `plugin` are those of `[[plugins]]`."""
    edit = _Edit.of(text)
    if has_plugin(text, str(plugin["name"])):
        raise CannotEdit(f"there is a plugin {quoted(str(plugin['name']))} already")
    if edit.positions.value(("plugins",)) is not None:  # plugins = [{...}]: no header may follow it
        return edit.with_element(("plugins",), dict(plugin))
    edit.wanted.setdefault("plugins", []).append(dict(plugin))
    return edit.appended(["[[plugins]]", *_pairs(plugin)])


def _plugin(edit: _Edit, name: str) -> KeyPath:
    names = [str(table.get("name")) for table in _tables(edit.wanted, "plugins")]
    if name not in names:
        message = f"the file has no [[plugins]] named {quoted(name)}"
        raise CannotEdit(f"{message}; {choose(name, names)}")
    return ("plugins", names.index(name))


def with_sha256(text: str, plugin: str, sha256: str) -> str:
    """Pins the plugin's file."""
    edit = _Edit.of(text)
    return edit.with_value((*_plugin(edit, plugin), "sha256"), sha256)


def with_path(text: str, plugin: str, path: str) -> str:
    """Gives the plugin another file."""
    edit = _Edit.of(text)
    return edit.with_value((*_plugin(edit, plugin), "path"), path)


def with_capability(text: str, plugin: str, capability: Capability) -> str:
    """Grants it; the same text if it is granted already."""
    edit = _Edit.of(text)
    path = _plugin(edit, plugin)
    if any(_is_same(one, capability) for one in edit.at(path).get("capabilities", [])):
        return text
    return edit.with_element((*path, "capabilities"), str(capability))


def without_capability(text: str, plugin: str, capability: Capability) -> str:
    """Revokes it. Secrets that are for its host alone go with it."""
    for lost in lost_hosts(text, plugin, capability):
        text = _without_host(text, lost)
    edit = _Edit.of(text)
    path = (*_plugin(edit, plugin), "capabilities")
    granted = edit.at(path[:-1]).get("capabilities", [])
    gone = [index for index, one in enumerate(granted) if _is_same(one, capability)]
    if not gone:
        has = ", ".join(str(one) for one in granted) or "nothing"
        raise CannotEdit(f"plugin {quoted(plugin)} is not granted {capability}; it has: {has}")
    return edit.without_elements(path, gone)


def _is_same(text: object, capability: Capability) -> bool:
    try:
        return parse_capability(str(text)) == capability
    except BadCapability:
        return False


@dataclass(frozen=True, slots=True)
class LostHost:
    """A secret that names a host which its plugin may reach no longer."""

    path: KeyPath  # of the secret
    value: str  # as it is written, mostly a reference
    hosts: tuple[str, ...]  # that it is still for; none: it is removed

    @property
    def name(self) -> str:
        return str(self.path[-1])


def lost_hosts(text: str, plugin: str, capability: Capability) -> tuple[LostHost, ...]:
    """What becomes of secrets if it is revoked: a secret for a host that is not granted is an error."""
    if not isinstance(capability, HttpGrant):
        return ()
    document = _Edit.of(text).wanted
    lost: list[LostHost] = []
    for index, table in enumerate(_tables(document, "plugins")):
        if table.get("name") == plugin:
            others = [one for one in table.get("capabilities", []) if not _is_same(one, capability)]
            is_last = not any(str(one).startswith("http:") for one in others)
            lost += _lost(("plugins", index), table, capability, bare=is_last)
    channels = document.get("channels", {})
    for name, table in channels.items() if isinstance(channels, dict) else ():
        if isinstance(table, dict) and table.get("plugin") == plugin:
            lost += _lost(("channels", name), table, capability, bare=False)
    return tuple(lost)


def _lost(
    path: KeyPath, table: Mapping[str, Any], capability: Capability, *, bare: bool
) -> Iterator[LostHost]:
    """`bare`: also those that name no host, which are for the only one."""
    secrets = table.get("secrets", {})
    for name, secret in secrets.items() if isinstance(secrets, dict) else ():
        whole = secret if isinstance(secret, dict) else {"value": secret}
        hosts = whole.get("hosts") or []
        if not isinstance(hosts, list):
            continue
        kept = [str(one) for one in hosts if not _is_same(f"http:{one}", capability)]
        if len(kept) < len(hosts) or (bare and not hosts):
            yield LostHost((*path, "secrets", name), str(whole.get("value", "")), tuple(kept))


def _without_host(text: str, lost: LostHost) -> str:
    edit = _Edit.of(text)
    if lost.hosts:
        hosts = edit.at(lost.path)["hosts"]
        gone = [index for index, host in enumerate(hosts) if host not in lost.hosts]
        return edit.without_elements((*lost.path, "hosts"), gone)
    return _without_key(edit, lost.path)


def _without_key(edit: _Edit, path: KeyPath) -> str:
    """Without a key, and without its table if that holds no other."""
    table = edit.at(path[:-1])
    del table[path[-1]]
    if not table:
        path = path[:-1]
        del edit.at(path[:-1])[path[-1]]

    def goes(other: KeyPath) -> bool:
        return other[: len(path)] == path

    if any(goes(one.path) for one in edit.positions.statements):
        return edit.proved(edit.without(goes))
    place = edit.positions.places[path]
    return edit.proved(_without(edit.text, Span(place["key"].start, place["value"].end)))


# ------------------------------------------------------------------------------------ channels


def with_channel(text: str, name: str, channel: Mapping[str, object]) -> str:
    """Adds it at the end; the keys of `channel` are those of `[channels.NAME]`."""
    return _with_named(text, "channels", name, channel)


def with_provider(text: str, name: str, provider: Mapping[str, object]) -> str:
    """Adds it at the end; the keys of `provider` are those of `[providers.NAME]`."""
    return _with_named(text, "providers", name, provider)


def _with_named(text: str, section: str, name: str, table: Mapping[str, object]) -> str:
    edit = _Edit.of(text)
    named = edit.wanted.setdefault(section, {})
    if not isinstance(named, dict) or name in named:
        raise CannotEdit(f"there is a {section.removesuffix('s')} {quoted(name)} already")
    named[name] = dict(table)
    return edit.appended([f"[{section}.{written_key(name)}]", *_pairs(table)])


def _channel(edit: _Edit, name: str) -> KeyPath:
    channels = edit.wanted.get("channels", {})
    table = channels.get(name) if isinstance(channels, dict) else None
    if not isinstance(table, dict) or not all(
        isinstance(table.get(key, {}), dict) for key in ("config", "secrets")
    ):
        raise CannotEdit(f"the file has no [channels.{name}]; {choose(name, channels)}")
    return ("channels", name)


def plugin_of_channel(text: str, name: str) -> str:
    """The name of its adapter. Raises CannotEdit."""
    edit = _Edit.of(text)
    return str(edit.at(_channel(edit, name)).get("plugin"))


def with_channel_keys(
    text: str, name: str, keys: Mapping[str, str], tables: Mapping[str, Mapping[str, object]]
) -> str:
    """Sets `keys` of `[channels.NAME]`, and those of its tables `config` and `secrets`."""
    for key, value in keys.items():
        edit = _Edit.of(text)
        text = edit.with_value((*_channel(edit, name), key), value)
    for table, values in tables.items():
        for key, given in values.items():
            edit = _Edit.of(text)
            path = _channel(edit, name)
            inner = edit.at(path).get(table)
            if inner is None:
                text = edit.with_value((*path, table), {key: given})
            elif isinstance(inner.get(key), dict) and isinstance(given, dict):
                text = edit.with_value((*path, table, key, "value"), given["value"])  # keeps hosts
            else:
                text = edit.with_inner_value(path, table, key, given)
    return text


def bindings_of(text: str, channel: str) -> int:
    """How many bindings only messages of this channel can match."""
    return len(_bindings_of(_Edit.of(text).wanted, channel))


def _bindings_of(document: Mapping[str, Any], channel: str) -> set[int]:
    return {
        index
        for index, one in enumerate(_tables(document, "bindings"))
        if isinstance(one, dict) and one.get("channel") == channel
    }


def without_channel(text: str, name: str) -> str:
    """Removes `[channels.NAME]`, and the bindings that only messages from there could match."""
    edit = _Edit.of(text)
    _channel(edit, name)
    wanted, gone = edit.wanted, _bindings_of(edit.wanted, name)
    del wanted["channels"][name]
    if gone:
        wanted["bindings"] = [one for i, one in enumerate(wanted["bindings"]) if i not in gone]

    def goes(path: KeyPath) -> bool:
        is_binding = path[:1] == ("bindings",) and len(path) > 1 and path[1] in gone
        return path[:2] == ("channels", name) or is_binding

    found = edit.without(goes)
    left = tomllib.loads(found.removeprefix(BOM))
    for key in ("channels", "bindings"):  # without a header of its own an empty table is none
        if not wanted.get(key) and key not in left:
            wanted.pop(key, None)
    return edit.proved(found)


# ---------------------------------------------------------------------------- agents and budgets


def has_agents(text: str) -> bool:
    document = _Edit.of(text).wanted
    return "agent" in document or "agents" in document


def with_agent(text: str, agent: Mapping[str, object]) -> str:
    """Adds `[agent]` at the end, or sets these keys of the one that there is."""
    edit = _Edit.of(text)
    if "agent" in edit.wanted:
        for key, value in agent.items():
            text = _Edit.of(text).with_value(("agent", key), value)
        return text
    if "agents" in edit.wanted:
        raise CannotEdit("the file has [[agents]] and no default agent; set its provider by hand")
    edit.wanted["agent"] = dict(agent)
    return edit.appended(["[agent]", *_pairs(agent)])


def with_tool(text: str, agent: str | None, plugin: str) -> str:
    """Gives the plugin's tools to an agent (None: to the default one); the same text if it has them
    already, or if the file defines no agent: then the usual one has all."""
    if not has_agents(text):
        if agent is not None:
            raise CannotEdit("the file defines no agent, and the built-in one has every plugin")
        return text
    edit = _Edit.of(text)
    path = _agent(edit, agent)
    if plugin in edit.at(path).get("tools", []):
        return text
    return edit.with_element((*path, "tools"), plugin)


def _agent(edit: _Edit, id_: str | None) -> KeyPath:
    paths: list[KeyPath] = [("agent",)] if "agent" in edit.wanted else []
    paths += [("agents", index) for index in range(len(_tables(edit.wanted, "agents")))]
    ids = {path: str(edit.at(path).get("id", "main")) for path in paths}
    for path in paths:
        if ids[path] == id_ or (id_ is None and path == ("agent",)):
            return path
    if id_ is None:
        raise CannotEdit(f"there is no default agent; say which: {', '.join(ids.values())}")
    raise CannotEdit(f"no agent has id {quoted(id_)}; {choose(id_, ids.values())}")


def with_budget(text: str, scope: str, tokens: int) -> str:
    """Limits session, daily, monthly, per_agent or agent:ID; a limit in USD stays as it is."""
    kind, _, agent = scope.partition(":")
    if (kind == "agent") != bool(agent) or kind not in {*_BUDGETS, "agent"}:
        there_are = ", ".join((*_BUDGETS, "agent:ID"))
        raise CannotEdit(f"{quoted(scope)} is no scope; there are: {there_are}")
    path: tuple[str, ...] = ("budgets", "agent") if agent else ("budgets",)
    key, edit = agent or kind, _Edit.of(text)
    table: Any = edit.wanted
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise CannotEdit(NOT_AS_IT_SHOULD_BE)
    if isinstance(table.get(key), dict):
        return edit.with_value((*path, key, "tokens"), tokens)
    if path in edit.positions.places:
        with suppress(CannotEdit):  # a header that only passes through, as in [budgets.agent]
            return edit.with_value((*path, key), tokens)
    table[key] = tokens
    return edit.appended([f"[{'.'.join(path)}]", *_pairs({key: tokens})])


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
