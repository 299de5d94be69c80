"""Writes the tables of keys in docs/reference/configuration.md from the fields of the sections of config.toml."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from gateway.config.schema import ANY, Pattern, default_of, patterns
from gateway.config.sections import SectionKey, element_of, is_section
from gateway.domain.ids import Secret
from gateway.domain.settings import Setting

FILE = Path(__file__).parent.parent / "docs" / "reference" / "configuration.md"
HEAD = "| key | default | value | what it is |\n|---|---|---|---|\n"
# [[agents]] has the keys of [agent]; the limits and context of an agent have the keys of the global ones.
SAID_ELSEWHERE = ("agents[].", "agent.limits.", "agent.context.", "agent.fallback.fallback")
CALLED = {
    "prices": "MODEL",
    "agent": "ID",
    "groups": "ROOM",
}  # by the section whose names they are; else NAME
_TYPES = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    Secret: "secret",
    Path: "path",
}
_TABLE = re.compile(r"(<!-- keys: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def keys() -> Mapping[str, SectionKey]:
    """Returns every key with a value, by its name in the documentation."""
    known = patterns()
    sections = {path[:length] for path in known for length in range(1, len(path))}
    found = {path: key for path, key in known.items() if path not in sections}
    return {_written(path): _described(path, key) for path, key in found.items()}


def _described(path: Pattern, key: SectionKey) -> SectionKey:
    """Returns the key; the help of a budget's limit starts with that of the budget."""
    above = path[:-2] if path[-2:-1] == (ANY,) else path[:-1]
    if path[0] != "budgets":
        return key
    help_text = f"{patterns()[above].setting.help} {key.setting.help}"
    return replace(key, setting=replace(key.setting, help=help_text))


def page(text: str) -> str:
    """Returns the text with each table between markers regenerated. A marker names the prefix of its keys; `top`
    has the keys without a section."""
    told = {name: key for name, key in keys().items() if not name.startswith(SAID_ELSEWHERE)}
    prefixes = {marker[2] for marker in _TABLE.finditer(text)}

    def table(marker: re.Match[str]) -> str:
        rows = [_row(name, key) for name, key in told.items() if _home(name, prefixes) == marker[2]]
        return f"{marker[1]}{HEAD}{''.join(rows)}{marker[3]}"

    return _TABLE.sub(table, text)


def homeless(text: str) -> list[str]:
    """Returns the keys that no table of a text contains."""
    prefixes = {marker[2] for marker in _TABLE.finditer(text)}
    told = (name for name in keys() if not name.startswith(SAID_ELSEWHERE))
    return [name for name in told if _home(name, prefixes) is None]


def _home(name: str, prefixes: set[str]) -> str | None:
    """Returns the longest prefix of a key."""
    fitting = [one for one in prefixes if name.startswith(one)]
    return max(fitting, key=len) if fitting else "top" if "." not in name else None


def _written(path: Pattern) -> str:
    parts: list[str] = []
    for depth, part in enumerate(path):
        if part != ANY:
            parts.append(part)
        elif _is_list(path[:depth]):
            parts[-1] += "[]"
        else:
            parts.append(CALLED.get(parts[-1], "NAME"))
    return ".".join(parts)


def _is_list(path: Pattern) -> bool:
    key = patterns()[path]
    return get_origin(key.kind) is not Mapping and not key.setting.by_name


def _row(name: str, key: SectionKey) -> str:
    default = default_of(key)
    default = [*default] if isinstance(default, tuple | frozenset) else default
    default = str(default) if isinstance(default, Path) else default
    shown = "" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"
    given = "needed" if key.is_needed else shown
    return f"| `{name}` | {given} | {_value(key.kind, key)} | {key.setting.help} |\n"


def _value(kind: Any, key: SectionKey) -> str:
    """Describes the allowed values."""
    about, element = key.setting, element_of(kind)
    if element is not None and not is_section(element):
        collection = "table" if get_origin(kind) is Mapping else "list"
        return collection if element is object else f"{collection} of {_value(element, key)}"
    if get_origin(kind) is Literal:
        return " or ".join(f"`{json.dumps(one)}`" for one in get_args(kind))
    words = [_TYPES.get(kind, "text")]
    if kind is int and about.scale > 1:
        words = ["number"]
    if about.above is not None:
        words.append(f"more than {about.above:,}, at most {about.most:,}")
    elif about.least is not None and kind in {int, float}:
        words.append(f"{about.least:,} or more" if about.most is None else _range(about))
    words += [f"or `{json.dumps(word)}`" for word in about.words]
    return ", ".join(words)


def _range(about: Setting) -> str:
    return f"{about.least:,} to {about.most:,}"


if __name__ == "__main__":
    FILE.write_text(page(FILE.read_text(encoding="utf-8")), encoding="utf-8")
