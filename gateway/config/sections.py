"""Reads TOML tables into dataclasses, the sections; the settings of their fields define types, forms and bounds."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from datetime import UTC, date, datetime, time
from functools import cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, NewType, get_args, get_origin, get_type_hints

from gateway.config.problems import At, Code, ConfigFinding, KeyPath, Report, dotted
from gateway.config.secrets import MASK, is_sensitive
from gateway.config.values import ActionKeys, GatewayConfig, Plain, SecretKeys
from gateway.domain.budgets import Limit, TokenBudget
from gateway.domain.errors import GatewayError
from gateway.domain.events import Action
from gateway.domain.ids import Secret
from gateway.domain.model import base_url_problem
from gateway.domain.plugins import (
    USUAL_PORT,
    Capability,
    FunctionGrant,
    HttpGrant,
    Origin,
    PluginSecret,
    StoreGrant,
    canonical_host,
)
from gateway.domain.settings import NEEDED, Setting
from gateway.domain.text import choose, nearest, quoted
from gateway.domain.version import VERSION

MOST = 1_000  # findings about unknown keys; further ones are counted
DEEPEST = 40  # levels of nested tables
PLACEHOLDER = "placeholder"  # replaces a required text that is missing or wrong
ROOT = Setting("The configuration of exogate.")
_PLACEHOLDERS: Mapping[Any, Any] = {
    float: 0.0,
    Secret: Secret(PLACEHOLDER),
    Path: Path(PLACEHOLDER),
    tuple[str, ...]: (),
    tuple[Action, ...]: (),
}
_ADDED = ("project", "subagent")  # kinds whose fix suggests to add a definition
_WRONG = object()  # replaces a value that was reported
# Values whose sections have another type, and the key that a plain text or number sets.
AS_WRITTEN: Mapping[Any, type] = {PluginSecret: SecretKeys, Action: ActionKeys}
SHORT: Mapping[type, str] = {Limit: "tokens", SecretKeys: "value", TokenBudget: "daily"}

PLUGIN_NAME = r"^[a-z0-9][a-z0-9-]*(_[a-z0-9-]+)*$"  # a tool is called PLUGIN__TOOL
PATTERNS: Mapping[str, str] = {
    "text": r"^[\s\S]+$",
    "any": r"^[\s\S]*$",
    "path": r"^[^\x00-\x1f\x7f]+$",
    "id": r"^[A-Za-z0-9-]{1,64}$",
    "subagent": r"^[A-Za-z0-9-]{1,55}$",  # the tool delegate_NAME has at most 64 characters
    "plugin": rf"^(?=.{{1,32}}$){PLUGIN_NAME}",
    "provider": r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
    "token": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    "header": r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
    "secret": r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$",
    "state": r"^[a-z][a-z0-9_]{0,63}$",
    "sha256": r"^[0-9A-Fa-f]{64}$",
    "store": r"^(embedded|memory|wss?://[^\s/?#@]+/?)$",
}
FORMS: Mapping[str, str] = {  # the fix for a text or a name of the wrong form
    "path": "write a path without control characters",
    "id": "write letters, digits and hyphens, 64 at most",
    "subagent": "write letters, digits and hyphens, 55 at most",
    "plugin": "write lower-case letters, digits and hyphens, 32 at most",
    "provider": "write letters, digits, hyphens and underscores, 64 at most",
    "token": "write letters, digits, dots, hyphens and underscores, 64 at most",
    "header": "write the name of an HTTP header",
    "secret": "write letters, digits, hyphens and underscores, 64 at most",
    "state": "write lower-case letters, digits and underscores, 64 at most",
    "sha256": "write 64 hexadecimal digits",
    "host": "write an IP address or a host name",
    "origin": "write scheme://host or scheme://host:port",
    "network": "write an IP address or a network like 10.0.0.0/8",
    "url": "write an https:// address; http:// is only for this machine",
    "collector": "write http://HOST:PORT or https://HOST",
}
_HOST = r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*"
_ORIGIN = r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?"


def _host(text: str) -> str:
    if not re.fullmatch(_HOST, text) or text.replace(".", "").isdigit():
        ip_address(text)
    return text


def origin(text: str) -> str:
    """Returns an origin as browsers send it. Raises ValueError."""
    found = re.fullmatch(_ORIGIN, text.lower())
    if found is None or int(found[3] or 0) > 65_535:
        raise ValueError("this is not scheme://host[:port]")
    scheme, host, port = found.groups()
    is_usual = port in {None, {"http": "80", "https": "443"}[scheme]}
    return f"{scheme}://{host}" if is_usual else f"{scheme}://{host}:{port}"


def _url(text: str) -> str:
    problem = base_url_problem(text) if text.isprintable() else "holds a control character"
    if problem:
        raise ValueError(f"this address {problem}")
    return text.rstrip("/")


def _collector(text: str) -> str:
    found = re.fullmatch(r"https?://([^/?#@\s\[\]]+|\[[0-9A-Fa-f:.]+\](:\d+)?)(/[^?#\s]*)?", text)
    if found is None:
        raise ValueError("this is not http://HOST:PORT or https://HOST")
    return text.rstrip("/")


_STORES = ("embedded", "memory", "ws://HOST:PORT", "wss://HOST:PORT")
_SERVER = re.compile(r"(wss?)://([^/?#@:\[\]]+|\[[^\]]*\])(?::([0-9]{1,5}))?/?")


def _store(text: str) -> str:
    found = _SERVER.fullmatch(text)
    if found is None or int(found[3] or 0) > 65_535:
        raise ValueError("this is not ws://HOST:PORT or wss://HOST:PORT")
    _host(found[2].strip("[]"))
    return text.rstrip("/")


# Functions that normalize a text of each form; they raise ValueError for a text that is not valid.
_NORMAL: Mapping[str, Callable[[str], str]] = {
    "host": _host,
    "origin": origin,
    "network": lambda text: str(ip_network(text, strict=False)),
    "url": _url,
    "collector": _collector,
    "store": _store,
    "sha256": str.lower,
}


_GRANT = r"[a-z0-9][a-z0-9._-]{0,63}"
_STORE = re.compile(rf"({_GRANT})(:shared)?(:ro)?")
_ADDRESS = re.compile(r"(?:(https?)://)?(\[[^\]]*\]|[^:/]+)(?::([0-9]{1,5}))?")
CAPABILITY_FORMS = (
    "http:HOST, http:SCHEME://HOST:PORT, store:NAME[:shared][:ro] or host_function:NAME"
)


class BadCapability(GatewayError):
    code = "bad_capability"

    def __init__(self, text: str, problem: str, form: str = CAPABILITY_FORMS) -> None:
        super().__init__(f"capability {text[:100]!r} {problem}; write {form}")
        self.problem, self.fix = problem, f"write {form[:200]}"


def parse_capability(text: str) -> Capability:
    """Parses a capability, `type:value`. Raises BadCapability."""
    kind, colon, value = text.partition(":")
    match kind if colon else None:
        case None:
            raise BadCapability(text, "does not have the form type:value")
        case "http":
            return HttpGrant(_granted_origin(text, value))
        case "store":
            if (found := _STORE.fullmatch(value)) is None:
                raise BadCapability(text, "is not store:NAME[:shared][:ro]")
            return StoreGrant(found[1], is_shared=bool(found[2]), is_read_only=bool(found[3]))
        case "host_function":
            if not re.fullmatch(_GRANT, value):
                raise BadCapability(text, "names no host function", "host_function:NAME")
            return FunctionGrant(value)
    raise BadCapability(text, "has no known type")


def _granted_origin(text: str, value: str) -> Origin:
    parts = _ADDRESS.fullmatch(value.lower()) if value.isascii() else None
    if parts is None:
        raise BadCapability(text, "names no host", "http:HOST or http:SCHEME://HOST:PORT")
    if parts[1] is None and parts[3] is not None:
        raise BadCapability(text, "needs its scheme", f"http:https://{value}")
    scheme = parts[1] or "https"
    host, port = canonical_host(parts[2]), int(parts[3] or USUAL_PORT[scheme])
    if host is None:
        raise BadCapability(text, "needs an exact host, not a wildcard or a short address")
    if not 0 < port < 65_536:
        raise BadCapability(text, "has a port beyond 1 to 65535")
    return Origin(scheme, host, port)


def _has_form(text: str, form: str) -> bool:
    is_of_lines = form in {"any", "text"}
    return bool(re.match(PATTERNS.get(form, ""), text)) and (is_of_lines or not text.endswith("\n"))


@dataclass(frozen=True, slots=True)
class SectionKey:
    """A key of a section with its field. `kind` is the type of the field without None."""

    name: str
    field: str
    kind: Any
    setting: Setting
    default: Any

    @property
    def is_needed(self) -> bool:
        return self.default is NEEDED


@cache
def keys_of(section: type) -> Mapping[str, SectionKey]:
    """Returns the keys of a section by name, in order."""
    hints = get_type_hints(section, include_extras=True)
    found: dict[str, SectionKey] = {}
    for one in fields(section):
        hint, setting = hints[one.name], one.metadata.get("setting")
        if get_origin(hint) is Annotated:
            hint, setting = get_args(hint)
        if setting is None:
            continue
        default = setting.usual
        if default is NEEDED and one.default_factory is not MISSING:
            default = one.default_factory()
        elif default is NEEDED and one.default is not MISSING:
            default = one.default
        name = setting.key or one.name
        found[name] = SectionKey(name, one.name, _plain_kind(hint), setting, default)
    return MappingProxyType(found)


def _plain_kind(hint: Any) -> Any:
    inner = [one for one in get_args(hint) if one is not NoneType]
    if NoneType in get_args(hint) and len(inner) == 1:
        hint = inner[0]
    hint = hint.__supertype__ if isinstance(hint, NewType) else hint
    return AS_WRITTEN.get(hint, hint)


def element_of(kind: Any) -> Any:
    """Returns the type of the items of a list or of a table with free names; None for other types."""
    if get_origin(kind) not in {tuple, frozenset, Mapping}:
        return None
    return _plain_kind(get_args(kind)[1 if get_origin(kind) is Mapping else 0])


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind) and kind is not Secret


@cache
def blank(section: Any) -> Any:
    """Returns a section with defaults; required keys have placeholders."""
    keys = keys_of(section).values()
    values = {
        key.field: _PLACEHOLDERS.get(key.kind, PLACEHOLDER) if key.is_needed else key.default
        for key in keys
    }
    return section(**({"name": ""} if _is_named(section) else {}), **values)


def _is_named(section: type) -> bool:
    """True if the name of the table is the section's name."""
    return "name" in section.__annotations__ and "name" not in keys_of(section)


def keys_here(section: type, about: Setting) -> dict[str, SectionKey]:
    """Returns the keys that a section has where a key with this setting holds it."""
    only = about.only
    return {name: key for name, key in keys_of(section).items() if not only or name in only}


def _begin(kind: Any, base: Any, path: KeyPath) -> Any:
    """Returns the section that absent keys leave as it is."""
    made = blank(kind) if base is None else base
    return replace(made, name=str(path[-1])) if _is_named(kind) else made


class SectionReader:
    """Reads sections. It collects wrong keys and values in `findings` and omits them from the sections."""

    def __init__(self, report: Report) -> None:
        self.report = report  # gets findings about well-formed values that cannot be used
        self.findings: list[ConfigFinding] = []
        self.left_out = 0
        self.usual: dict[type, Any] = {}  # defaults of sections that depend on the file

    def wrong(self, code: Code, path: KeyPath, message: str, fix: str, at: At = "value") -> object:
        self.findings.append(ConfigFinding(code, path, message[:200], fix, at))
        return _WRONG

    def section(
        self, kind: Any, table: object, path: KeyPath, base: Any = None, about: Setting = ROOT
    ) -> Any:
        """Returns a section with the values of a table; absent keys have the values of `base`. `about` is the
        setting of the key that holds the section."""
        base = self.usual.get(kind, base)
        made = _begin(kind, base, path)
        if not isinstance(table, dict):
            self._wrong_type(path, table, "a table", about)
            return made
        if len(path) > DEEPEST:
            self.wrong(Code.MALFORMED, path[:8], "this is nested too deeply", "flatten it")
            return made
        keys = keys_here(kind, about)
        self._check_keys(table, path, keys)
        values: dict[str, Any] = {}
        for name, key in keys.items():
            where = (*path, name)
            if name in table:
                default = getattr(made, key.field)
                value = self.value(key.kind, table[name], where, key.setting, default)
                values[key.field] = value
            elif name in about.needs or (key.is_needed and base is None):
                message, fix = f'"{name}" is missing', f"add {name} = ..."
                self.wrong(Code.MISSING, where, message, fix)
        return replace(made, **{name: one for name, one in values.items() if one is not _WRONG})

    def value(
        self, kind: Any, raw: object, path: KeyPath, about: Setting, default: object = None
    ) -> Any:
        """Returns the value of a key, or `_WRONG` after a problem is reported."""
        if is_section(kind):
            if kind in SHORT and not isinstance(raw, dict):
                key = keys_of(kind)[SHORT[kind]]
                value = self.value(key.kind, raw, path, key.setting)
                whole = self.section(kind, {}, path, blank(kind))
                return value if value is _WRONG else replace(whole, **{key.field: value})
            base = default if isinstance(default, kind) else None
            return self.section(kind, raw, path, base, about)
        if about.by_name or get_origin(kind) is Mapping:
            return self._by_name(kind, raw, path, about)
        if get_origin(kind) in {tuple, frozenset}:
            return self._list(kind, raw, path, about)
        return raw if kind is object else self._leaf(kind, raw, path, about)

    def _list(self, kind: Any, raw: object, path: KeyPath, about: Setting) -> Any:
        if not isinstance(raw, list):
            return self._wrong_type(path, raw, "a list", about)
        if about.least is not None and len(raw) < about.least:
            return self.wrong(Code.MALFORMED, path, "this list is empty", about.help)
        element = element_of(kind)
        values = [self.value(element, one, (*path, at), about) for at, one in enumerate(raw)]
        if any(one is _WRONG for one in values):
            return _WRONG
        if about.unique is not None:
            self._check_unique(values, path, about.unique)
        return get_origin(kind)(values)

    def _check_unique(self, values: Iterable[Any], path: KeyPath, key: str) -> None:
        """Reports duplicates: of tables by `key`, of plain values if `key` is empty."""
        seen = set[object]()
        for index, value in enumerate(values):
            mark = getattr(value, key) if key else value
            if mark in seen and key:
                message, where = f"another one has the {key} {quoted(mark)}", (*path, index, key)
                self.report.wrong(Code.DUPLICATE, where, message, f"choose another {key}")
            elif mark in seen:
                message = f"{quoted(str(mark))} is listed twice"
                self.report.wrong(Code.DUPLICATE, (*path, index), message, "remove one")
            seen.add(mark)

    def _by_name(self, kind: Any, raw: object, path: KeyPath, about: Setting) -> Any:
        if not isinstance(raw, dict):
            return self._wrong_type(path, raw, "a table", about)
        element, found = element_of(kind), {}
        for name, one in raw.items():
            where = (*path, name)
            if not _has_form(name, about.names) or name.endswith("\n"):
                message = f"{quoted(name)} is not a valid name here"
                fix = FORMS.get(about.names, about.help)
                self.wrong(Code.MALFORMED, where, message, fix, "key")
            elif (value := self.value(element, one, where, about)) is not _WRONG:
                found[name] = value
        return tuple(found.values()) if about.by_name else found

    def _leaf(self, kind: Any, raw: object, path: KeyPath, about: Setting) -> Any:
        if choices := _choices(kind, raw, about):
            return self._choice(choices, raw, path, about)
        if kind == Plain:
            kind = type(raw) if isinstance(raw, Plain) else str
        if kind in {int, float}:
            return self._number(kind, raw, path, about)
        if kind is datetime:
            return self._moment(raw, path, about)
        if kind is not bool:
            return self._text(kind, raw, path, about)
        if isinstance(raw, bool):
            return raw
        return self._wrong_type(path, raw, "true or false", about)

    def _choice(
        self, choices: Collection[object], raw: object, path: KeyPath, about: Setting
    ) -> Any:
        if raw in choices and not isinstance(raw, bool):
            return about.words.get(str(raw), raw)
        message = f"{show(path, raw)} is not allowed here"
        fix = choose(raw if isinstance(raw, str) else "", [str(one) for one in choices])
        if path == ("config_version",):
            message = f"exogate {VERSION} does not read version {show(path, raw)} of this file"
            fix = f"write {dotted(path)} = 1, or install a newer exogate"
        return self.wrong(Code.NOT_A_CHOICE, path, message, fix)

    def _number(self, kind: Any, raw: object, path: KeyPath, about: Setting) -> Any:
        is_whole = kind is int and about.scale == 1
        if isinstance(raw, bool) or not isinstance(raw, int if is_whole else int | float):
            return self._wrong_type(path, raw, "a whole number" if is_whole else "a number", about)
        if isinstance(raw, float) and not math.isfinite(raw):
            return self._wrong_type(path, raw, "a finite number", about)
        if allowed := _exceeded_bound(raw, about):
            message = f"{show(path, raw)} is out of range: it should be {allowed}"
            return self.wrong(Code.OUT_OF_RANGE, path, message, f"write a number: {allowed}")
        return round(raw * about.scale) if about.scale > 1 else kind(raw)

    def _moment(self, raw: object, path: KeyPath, about: Setting) -> Any:
        """Returns a time; a date becomes its first moment, and a time without an offset is UTC."""
        if not isinstance(raw, str | date):
            return self._wrong_type(path, raw, "a date like 2026-12-31", about)
        try:
            moment = datetime.fromisoformat(raw if isinstance(raw, str) else raw.isoformat())
        except ValueError:
            message = f"{show(path, raw)} is not a date or time"
            return self.wrong(Code.MALFORMED, path, message, "write a date like 2026-12-31")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def _text(self, kind: Any, raw: object, path: KeyPath, about: Setting) -> Any:
        if not isinstance(raw, str):
            return self._wrong_type(path, raw, "a text", about)
        if kind == Capability:
            try:
                return parse_capability(raw)
            except BadCapability as error:
                message = f"capability {quoted(raw)} {error.problem}"
                return self.wrong(Code.MALFORMED, path, message, error.fix)
        fix = FORMS.get(about.form, about.help)
        if raw == "" and about.form != "any":
            return self.wrong(Code.MALFORMED, path, "this text is empty", fix)
        if not _has_form(raw, about.form):
            message = f"{show(path, raw)} has the wrong form"
            return self.wrong(Code.MALFORMED, path, message, fix)
        try:
            text = _NORMAL.get(about.form, str)(raw)
        except ValueError as error:
            return self.wrong(Code.MALFORMED, path, str(error), fix)
        if about.refers is not None:
            or_else = f"; or add it as [[{about.refers}s]]" if about.refers in _ADDED else ""
            self.report.refers(path, about.refers, text, or_else=or_else)
        return kind(text)

    def _check_keys(
        self, table: Mapping[str, object], path: KeyPath, known: Collection[str]
    ) -> None:
        """Reports unknown keys of a table."""
        for key in [key for key in table if key not in known]:
            if len(self.findings) >= MOST:
                self.left_out += 1
                continue
            fix = f"remove it; known here: {', '.join(known)}"
            if near := nearest(key, known):
                fix = f'did you mean "{near}"?'
            elif elsewhere := sections_with(key):
                fix = f"it belongs in {' or '.join(elsewhere)}"
            self.wrong(Code.UNKNOWN_KEY, (*path, key), f"unknown key {quoted(key)}", fix, "key")

    def _wrong_type(self, path: KeyPath, raw: object, wanted: str, about: Setting) -> object:
        fix = f"write {wanted} for: {about.help}" if about.help else f"write {wanted}"
        section = dotted(tuple(part for part in path if isinstance(part, str)))
        match wanted, raw:
            case "a list", dict():
                fix = f"write [[{section}]] with two brackets, once for each item"
            case "a table", list():
                fix = f"write [{section}] with one bracket, once"
            case "a text", bool() | int() | float() | date() | time():
                fix = f"put it in quotes: {quoted('...' if is_sensitive(path) else _to_toml(raw))}"
            case "a whole number" | "a number" | "true or false", str():
                fix = f"write {wanted}, without quotes"
        return self.wrong(Code.WRONG_TYPE, path, f"{show(path, raw)} should be {wanted}", fix)


def _choices(kind: Any, raw: object, about: Setting) -> Sequence[object]:
    """Returns the allowed words of a key; empty if it is not limited to words."""
    if about.form == "store" and not str(raw).startswith(("ws:", "wss:")):
        return _STORES
    is_word = get_origin(kind) is Literal or (about.words and isinstance(raw, str))
    return get_args(kind) or tuple(about.words) if is_word else ()


def _exceeded_bound(number: float, about: Setting) -> str:
    """Returns the bound that a number exceeds, as text; empty if it is within its bounds."""
    most = 1e300 if about.most is None else about.most
    if about.least is not None and number < about.least:
        return f"at least {about.least}"
    if about.above is not None and number <= about.above:
        return f"more than {about.above}"
    return f"at most {most}" if number > most else ""


@cache
def sections_with(key: str) -> tuple[str, ...]:
    """Returns the top-level sections with this key, to suggest the right place for a misplaced key."""
    found = []
    for name, one in keys_of(GatewayConfig).items():
        element = element_of(one.kind)
        section = one.kind if element is None else element
        is_by_name = one.setting.by_name or get_origin(one.kind) is Mapping
        if is_section(section) and key in keys_of(section) and not is_by_name:
            found.append(f"[{name}]" if element is None else f"[[{name}]]")
    return tuple(sorted(found, key=lambda text: text.startswith("[[")))


def show(path: KeyPath, value: object) -> str:
    """Returns a value for a message, cut short, with secrets masked."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if is_sensitive(path):
        return MASK
    return quoted(value) if isinstance(value, str) else _to_toml(value)


def _to_toml(value: object) -> str:
    """Returns a value in TOML syntax; a number with more than 200 bits is only described."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 200:
        return "a very large number"
    return str(value)[:60]
