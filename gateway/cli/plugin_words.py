"""Plugins in words for a terminal: what others wrote is escaped, what they ask for is type_text out."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gateway.domain.model import ToolSpec
from gateway.domain.plugins import Capability, FunctionGrant, HttpGrant, StoreGrant

_FUNCTIONS = {"clock": "may look at the clock", "random": "may draw random bytes"}
ALWAYS = "log"  # the interface that needs no grant


def shown(text: str) -> str:
    """On one line, and nothing in it moves a cursor or changes a colour."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def in_words(capability: Capability) -> str:
    match capability:
        case HttpGrant(origin):
            return f"may send requests to {origin}"
        case StoreGrant(namespace, is_shared=is_shared, is_read_only=is_read_only):
            what = "read" if is_read_only else "keep texts in"
            whose = "one for all persons" if is_shared else "each person has another"
            return f"may {what} a store of its own, {namespace} ({whose})"
        case FunctionGrant(name):
            return _FUNCTIONS.get(name, f"may call the operator's host function {name}")


def asked_lines(asked: Iterable[Capability], new: Iterable[Capability] = ()) -> Iterator[str]:
    fresh = set(new)
    for capability in asked:
        mark = "   NEW" if capability in fresh else ""
        yield f"{capability} — {in_words(capability)}{mark}"


def import_lines(imports: Mapping[str, str | None]) -> Iterator[str]:
    wide = max((len(shown(name)) for name in imports), default=0)
    for name, need in imports.items():
        yield f"{shown(name):{wide}}   {need or _unneeded(name)}"


def _unneeded(name: str) -> str:
    if name.startswith("wasi"):
        return "served here: no files, no network; clock and random if granted"
    return "always allowed"


def tool_line(tool: ToolSpec) -> str:
    """As a signature; `?` marks what may be left out."""
    schema = json.loads(tool.parameters)
    fields, needed = schema.get("properties"), schema.get("required")
    needed = needed if isinstance(needed, list) else []
    names = fields if isinstance(fields, dict) else {}
    given = ", ".join(f"{name}{'' if name in needed else '?'}" for name in names)
    return f"{shown(tool.name)}({shown(given)})   {shown(tool.description)}"


def block(title: str, lines: Sequence[str]) -> Iterator[str]:
    """A title in the first column, what belongs to it in the second."""
    for number, line in enumerate(lines or ["none"]):
        yield f"  {title if number == 0 else '':12} {line}"
