"""Changes to a config.toml that leave all the rest as it is, comments too; imported only by who edits."""

import difflib
import os
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomlkit

from gateway.config.capabilities import BadCapability, parse_capability
from gateway.config.document import Document, parse, read_document
from gateway.config.lists import line_end, longer, shorter
from gateway.config.placing import Positions, Span, locate, masked, written
from gateway.config.problems import KeyPath
from gateway.config.reading import interpreted
from gateway.config.values import GatewayConfig, Surroundings
from gateway.domain.errors import GatewayError
from gateway.domain.plugins import Capability, HttpGrant
from gateway.domain.text import choose, quoted

_BUDGETS = ("session", "daily", "monthly", "per_agent")
OWNERS_ALONE = 0o600  # the mode of a new file


class CannotEdit(GatewayError):
    """The file is as it was; the text says what is in the way."""

    code = "cannot_edit"


def with_plugin(text: str, plugin: Mapping[str, object]) -> str:
    """Adds it behind the others; the keys of `plugin` are those of `[[plugins]]`."""
    document = _parsed(text)
    plugins = document.setdefault("plugins", [])
    if any(one.get("name") == plugin["name"] for one in plugins):
        raise CannotEdit(f"there is a plugin {quoted(str(plugin['name']))} already")
    plugins.append(dict(plugin))
    source, positions = text.encode(), locate(text.encode())
    whole, others = positions.value(("plugins",)), positions.elements_of(("plugins",))
    if whole is not None:  # plugins = [{...}]: no header may follow it
        return _proved(longer(source, whole, others, _written(dict(plugin))), document)
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    table = f"{gap}{tomlkit.dumps({'plugins': [dict(plugin)]})}".encode()
    return _proved(source + table.replace(b"\n", line_end(source)), document)


def with_channel(text: str, name: str, channel: Mapping[str, object]) -> str:
    """Adds it at the end; the keys of `channel` are those of `[channels.NAME]`."""
    return _with_named(text, "channels", name, channel)


def with_channel_keys(
    text: str, name: str, keys: Mapping[str, str], tables: Mapping[str, Mapping[str, object]]
) -> str:
    """Sets `keys` of `[channels.NAME]`, and those of its tables `config` and `secrets`."""
    for key, text_of_key in keys.items():
        text = _Table.of_channel(text, name).with_value(key, text_of_key)
    for table, values in tables.items():
        for key, value in values.items():
            found = _Table.of_channel(text, name)
            inner = found.table.get(table)
            if inner is None:
                text = found.with_value(table, {key: value})
                continue
            below = replace(found, table=inner, path=(*found.path, table))
            if isinstance(inner.get(key), dict) and isinstance(value, dict):  # a secret with hosts
                inner = replace(below, table=inner[key], path=(*below.path, key))
                text = inner.with_value("value", value["value"])
            else:
                text = below.with_inner_value(found, key, value)
    return text


def plugin_of_channel(text: str, name: str) -> str:
    """The name of its adapter. Raises CannotEdit."""
    return str(_Table.of_channel(text, name).table.get("plugin"))


def bindings_of(text: str, channel: str) -> int:
    """How many bindings only messages of this channel can match."""
    return len(_bindings_of(_parsed(text), channel))


def _bindings_of(document: Mapping[str, Any], channel: str) -> set[int]:
    bindings = _tables(document, "bindings")
    return {
        index
        for index, one in enumerate(bindings)
        if isinstance(one, dict) and one.get("channel") == channel
    }


def without_channel(text: str, name: str) -> str:
    """Removes `[channels.NAME]`, and the bindings that only messages from there could match."""
    found = _Table.of_channel(text, name)
    document = found.document
    bindings, gone = document.get("bindings", []), _bindings_of(document, name)
    del document["channels"][name]
    if gone:
        document["bindings"] = [one for i, one in enumerate(bindings) if i not in gone]
    source = found.source

    def goes(path: KeyPath) -> bool:
        is_binding = path[:1] == ("bindings",) and len(path) > 1 and path[1] in gone
        return path[:2] == ("channels", name) or is_binding

    for span in reversed(written(source, goes)):
        before = source[: span.start]
        if before.endswith((b"\n\n", b"\n\r\n")):  # the empty line goes with what it set apart
            before = before.rstrip(b"\r\n") + line_end(source)
        source = before + source[span.end :]
    left = tomllib.loads(source.decode().removeprefix("\ufeff"))
    for key in ("channels", "bindings"):  # without a header of its own an empty table is none
        if not document.get(key) and key not in left:
            document.pop(key, None)
    return _proved(source, document)


def has_agents(text: str) -> bool:
    document = _parsed(text)
    return "agent" in document or "agents" in document


def has_plugin(text: str, name: str) -> bool:
    return any(one.get("name") == name for one in _parsed(text).get("plugins", []))


def with_agent(text: str, agent: Mapping[str, object]) -> str:
    """Adds `[agent]` at the end, or sets these keys of the one that there is."""
    document = _parsed(text)
    if "agent" in document:
        for key, value in agent.items():
            text = _Table.of_agent(text, None).with_value(key, value)
        return text
    if "agents" in document:
        raise CannotEdit("the file has [[agents]] and no default agent; set its provider by hand")
    document["agent"] = dict(agent)
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    lines = [f"{key} = {_written(value).decode()}" for key, value in agent.items()]
    added = "\n".join(["[agent]", *lines, ""])
    source = text.encode()
    return _proved(source + (gap + added).encode().replace(b"\n", line_end(source)), document)


def with_provider(text: str, name: str, provider: Mapping[str, object]) -> str:
    """Adds it at the end; the keys of `provider` are those of `[providers.NAME]`."""
    return _with_named(text, "providers", name, provider)


def _with_named(text: str, section: str, name: str, table: Mapping[str, object]) -> str:
    document = _parsed(text)
    named = document.setdefault(section, {})
    if not isinstance(named, dict) or name in named:
        raise CannotEdit(f"there is a {section.removesuffix('s')} {quoted(name)} already")
    named[name] = dict(table)
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    lines = [f"{key} = {_written(value).decode()}" for key, value in table.items()]
    added = "\n".join([f"[{section}.{_key(name)}]", *lines, ""])
    source = text.encode()
    return _proved(source + (gap + added).encode().replace(b"\n", line_end(source)), document)


def with_capability(text: str, plugin: str, capability: Capability) -> str:
    """Grants it; the same text if it is granted already."""
    found = _Table.of_plugin(text, plugin)
    if any(_is_same(one, capability) for one in found.table.get("capabilities", [])):
        return text
    return found.with_element("capabilities", str(capability))


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
    document = _parsed(text)
    lost: list[LostHost] = []
    for index, table in enumerate(document.get("plugins", [])):
        if table.get("name") == plugin:
            others = [one for one in table.get("capabilities", []) if not _is_same(one, capability)]
            is_last = not any(str(one).startswith("http:") for one in others)
            where: KeyPath = ("plugins", index)
            lost += _lost(where, table, capability, bare=is_last)
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
    document, written = _parsed(text), tomlkit.parse(text)
    for whole in (document, written):
        table: Any = whole
        for part in lost.path[:-2]:
            table = table[part]
        secrets = table["secrets"]
        if lost.hosts:
            secrets[lost.name]["hosts"] = list(lost.hosts)
        elif len(secrets) > 1:
            del secrets[lost.name]
        else:
            del table["secrets"]
    return _proved(tomlkit.dumps(written).encode(), document)


def without_capability(text: str, plugin: str, capability: Capability) -> str:
    """Revokes it. Secrets that are for its host alone go with it."""
    for lost in lost_hosts(text, plugin, capability):
        text = _without_host(text, lost)
    found = _Table.of_plugin(text, plugin)
    granted: list[object] = found.table.get("capabilities", [])
    kept = [one for one in granted if not _is_same(one, capability)]
    if len(kept) == len(granted):
        has = ", ".join(str(one) for one in granted) or "nothing"
        raise CannotEdit(f"plugin {quoted(plugin)} is not granted {capability}; it has: {has}")
    source = found.source
    for one, element in reversed(list(zip(granted, found.elements("capabilities"), strict=True))):
        if _is_same(one, capability):
            source = shorter(source, element)
    found.table["capabilities"] = kept
    return _proved(source, found.document)


def with_sha256(text: str, plugin: str, sha256: str) -> str:
    """Pins the plugin's file."""
    return _Table.of_plugin(text, plugin).with_value("sha256", sha256)


def with_path(text: str, plugin: str, path: str) -> str:
    """Gives the plugin another file."""
    return _Table.of_plugin(text, plugin).with_value("path", path)


def with_tool(text: str, agent: str | None, plugin: str) -> str:
    """Gives the plugin's tools to an agent (None: to the default one); the same text if it has them
    already, or if the file defines no agent: then the usual one has all."""
    document = _parsed(text)
    if "agent" not in document and "agents" not in document:
        if agent is not None:
            raise CannotEdit("the file defines no agent, and the usual one has every plugin")
        return text
    found = _Table.of_agent(text, agent)
    if plugin in found.table.get("tools", []):
        return text
    return found.with_element("tools", plugin)


def with_budget(text: str, scope: str, tokens: int) -> str:
    """Limits session, daily, monthly, per_agent or agent:ID; a limit in USD stays as it is."""
    found, key = _Table.of_budget(text, scope)
    if isinstance(found.table.get(key), dict):
        below = replace(found, table=found.table[key], path=(*found.path, key))
        return below.with_value("tokens", tokens)
    if "table" in found.positions.places.get(found.path, {}) or found.place(key) is not None:
        with suppress(CannotEdit):  # a header that only passes through, as in [budgets.agent]
            return found.with_value(key, tokens)
    found.table[key] = tokens
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    header, pair = ".".join(map(str, found.path)), _written({key: tokens}).decode().strip("{} ")
    return _proved(f"{text}{gap}[{header}]\n{pair}\n".encode(), found.document)


def difference(before: str, after: str, name: str) -> str:
    """A unified diff to be shown: no secret is in it. Empty if nothing differs."""
    old, new = masked(before.encode()), masked(after.encode())
    return "\n".join(difflib.unified_diff(old, new, name, name, lineterm=""))


def current(path: Path, around: Surroundings) -> str:
    """The text of a file, empty if there is none; raises ConfigInvalid if it is not TOML."""
    if not path.exists():
        return ""
    return read_document(path, around.name(path)).source.decode()


def checked(text: str, path: Path, around: Surroundings) -> GatewayConfig:
    """What a text comes to. Raises ConfigInvalid if the gateway could not start with it."""
    name, source = around.name(path), text.encode()
    status = path.stat() if path.exists() else None
    return interpreted(Document(path, name, source, parse(source, name), status), around).config


def save(path: Path, before: str, after: str, around: Surroundings) -> None:
    """Writes all of it or nothing. Raises ConfigInvalid if the gateway could not start with it,
    CannotEdit if the file is not what it was or cannot be written."""
    name, source = around.name(path), after.encode()
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else OWNERS_ALONE
    checked(after, path, around)
    if current(path, around) != before:
        raise CannotEdit(f"{name} has changed meanwhile; try again")
    try:
        _replace(path.resolve(), source, mode)  # of a link, what it leads to
    except OSError as error:
        raise CannotEdit(f"{name} cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Table:
    """A plugin or an agent of a text, and the document that an edit is to come to."""

    source: bytes
    document: dict[str, Any]
    table: dict[str, Any]  # of the document: what changes here, changes there
    path: KeyPath
    positions: Positions

    @staticmethod
    def of_plugin(text: str, name: str) -> "_Table":
        document, source = _parsed(text), text.encode()
        plugins = document.get("plugins", [])
        for index, table in enumerate(plugins):
            if table.get("name") == name:
                return _Table(source, document, table, ("plugins", index), locate(source))
        names = [str(table.get("name")) for table in plugins]
        message = f"the file has no [[plugins]] named {quoted(name)}"
        raise CannotEdit(f"{message}; {choose(name, names)}")

    @staticmethod
    def of_channel(text: str, name: str) -> "_Table":
        document, source = _parsed(text), text.encode()
        channels = document.get("channels", {})
        table = channels.get(name) if isinstance(channels, dict) else None
        if not isinstance(table, dict) or not all(
            isinstance(table.get(key, {}), dict) for key in ("config", "secrets")
        ):
            message = f"the file has no [channels.{name}]"
            raise CannotEdit(f"{message}; {choose(name, channels)}")
        return _Table(source, document, table, ("channels", name), locate(source))

    @staticmethod
    def of_agent(text: str, id_: str | None) -> "_Table":
        document, source = _parsed(text), text.encode()
        tables: dict[KeyPath, Any] = {("agent",): document["agent"]} if "agent" in document else {}
        tables |= {("agents", index): one for index, one in enumerate(document.get("agents", []))}
        ids = {path: str(table.get("id", "main")) for path, table in tables.items()}
        for path, table in tables.items():
            if ids[path] == id_ or (id_ is None and path == ("agent",)):
                return _Table(source, document, table, path, locate(source))
        if id_ is None:
            raise CannotEdit(f"there is no default agent; say which: {', '.join(ids.values())}")
        raise CannotEdit(f"no agent has id {quoted(id_)}; {choose(id_, ids.values())}")

    @staticmethod
    def of_budget(text: str, scope: str) -> "tuple[_Table, str]":
        """The table of a limit, made if there is none, and its key there."""
        kind, _, agent = scope.partition(":")
        if (kind == "agent") != bool(agent) or kind not in {*_BUDGETS, "agent"}:
            there_are = ", ".join((*_BUDGETS, "agent:ID"))
            raise CannotEdit(f"{quoted(scope)} is no scope; there are: {there_are}")
        path: KeyPath = ("budgets", "agent") if agent else ("budgets",)
        document = _parsed(text)
        table: Any = document
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise CannotEdit(
                    "the file is not as it should be; `exogate config validate` says why"
                )
        source = text.encode()
        return _Table(source, document, table, path, locate(source)), agent or kind

    def place(self, key: str) -> Span | None:
        return self.positions.value((*self.path, key))

    def elements(self, key: str) -> list[Span]:
        return self.positions.elements_of((*self.path, key))

    def spliced(self, place: Span, new: bytes) -> str:
        return _proved(self.source[: place.start] + new + self.source[place.end :], self.document)

    def with_value(self, key: str, value: object) -> str:
        self.table[key] = value
        place = self.place(key)
        return self._with_key(key, value) if place is None else self.spliced(place, _written(value))

    def with_inner_value(self, above: "_Table", key: str, value: object) -> str:
        """Also where the table is only there by dotted keys, `config.scheme = ...`, of the one above."""
        with suppress(CannotEdit):
            return self.with_value(key, value)
        return above._with_pair(f"{self.path[-1]}.{_key(key)}", value)  # noqa: SLF001  # of this class

    def with_element(self, key: str, value: str) -> str:
        """A list of texts with one more."""
        whole = self.place(key)
        if whole is None:
            return self.with_value(key, [value])
        self.table[key] = [*self.table[key], value]
        return _proved(
            longer(self.source, whole, self.elements(key), _written(value)), self.document
        )

    def _with_key(self, key: str, value: object) -> str:
        return self._with_pair(_key(key), value)

    def _with_pair(self, key: str, value: object) -> str:
        """Behind a key that such a table usually has, else behind its header."""
        pair = key.encode() + b" = " + _written(value)
        table = self.positions.places[self.path]["table"]
        places = (
            self.place(other) for other in ("path", "name", "model", "provider", "id", "plugin")
        )
        end = next((place.end for place in places if place), table.end)
        if self.source[table.start : table.start + 1] == b"{":
            ends = [place.end for other in self.table if (place := self.place(other))]
            at = max(ends, default=table.start + 1)
            return self.spliced(Span(at, at), (b", " if ends else b" ") + pair)
        start = self.source.rfind(b"\n", 0, end) + 1
        line = self.source[start:].partition(b"\n")[0].removesuffix(b"\r")
        indent = line[: len(line) - len(line.lstrip())]
        end = start + len(line)
        return self.spliced(Span(end, end), line_end(self.source) + indent + pair)


def _parsed(text: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit("the file is not TOML; `exogate config validate` says why") from error
    agents = [document.get("agent", {}), *_tables(document, "agents")]
    if not all(map(_is_editable, (*_tables(document, "plugins"), *agents))):
        raise CannotEdit("the file is not as it should be; `exogate config validate` says why")
    return document


def _tables(document: Mapping[str, Any], key: str) -> list[object]:
    tables = document.get(key, [])
    return tables if isinstance(tables, list) else [None]


def _is_editable(table: object) -> bool:
    lists = ("capabilities", "tools")
    return isinstance(table, dict) and all(isinstance(table.get(k, []), list) for k in lists)


def _proved(source: bytes, document: Mapping[str, Any]) -> str:
    """The edited text if it says what it was to say, and nothing else."""
    text = source.decode()
    try:
        is_right = tomllib.loads(text.removeprefix("\ufeff")) == document
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise CannotEdit("the file is written in a way that cannot be edited; change it by hand")
    return text


def _key(name: str) -> str:
    return tomlkit.key(name).as_string()


def _written(value: object) -> bytes:
    """As TOML writes it within a line."""
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update(value)
        return table.as_string().encode()
    return tomlkit.item(value).as_string().encode()


def _is_same(text: object, capability: Capability) -> bool:
    try:
        return parse_capability(str(text)) == capability
    except BadCapability:
        return False


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
