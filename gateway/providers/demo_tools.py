"""What the demo model uses tools for: which one a question is for, and its result as a sentence."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from hashlib import sha256

from pydantic_core import from_json, to_json

from gateway.domain.messages import ToolResult

NO_CLOCK = "I have no clock here, so I cannot tell you that."
NO_CALCULATOR = "I have no calculator here, so I cannot work that out."
NO_NOTES = "I have no notes here, so I cannot do that."
NO_MEMORY = "I have no memory here that goes back so far, so I cannot tell you that."

_TITLE_WORDS = 8
_LONGEST_TITLE = 80
_LONGEST_SUM = 200
_LONGEST_QUESTION = 1_000
_CALL = re.compile(
    r"(?:please )?(?:call|use) (?:the )?(?P<name>[\w-]+)(?: tool)?(?: with)?\s*"
    r"(?P<arguments>\{.*\})?$",
    re.DOTALL | re.IGNORECASE,
)
_ECHO = re.compile(r"(?:echo|repeat|say)[:\s]+(?P<text>\S.*)", re.IGNORECASE | re.DOTALL)
_WRITE = re.compile(
    r"(?:please )?(?:note\s*:|(?:write|take|make|add|save) (?:me )?a note\b(?: that\b| saying\b)?"
    r"[:,]?)\s*(?P<note>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_LIST = re.compile(
    r"(?:please )?(?:(?:list|show)(?: me)?(?: all)?(?: my| the)? notes"
    r"|(?:what|which) notes (?:do i have|are there))[\s?.!]*$",
    re.IGNORECASE,
)
_READ = re.compile(
    r"(?:please )?(?:read|open|show)(?: me)?(?: my| the)? note[:\s]\s*(?P<name>\S.{0,200})$",
    re.IGNORECASE,
)
_FIND = re.compile(
    r"(?:please )?(?:find|search)(?: in)?(?: all)?(?: my| the)? notes? (?:about |for |on |with )?"
    r"(?P<query>\S.{0,200})$",
    re.IGNORECASE,
)
_ASKS_TIME = re.compile(
    r"\bwhat(?:'s| is)? (?:the )?(?:current )?(?:time|date|day)\b|\btime is it\b|\bwhat day\b"
    r"|\b(?:current|tell me the) (?:time|date)\b|\btoday'?s date\b|^\s*(?:time|date)\s*\??\s*$",
    re.IGNORECASE,
)
_ASKS_SUM = re.compile(
    r"(?:please )?(?:what(?:'s| is| are)|how much (?:is|are)|(?P<told>calculate|compute))\s+",
    re.IGNORECASE,
)
_SUM = re.compile(r"[0-9\s.+\-*/()^%]+")
_ASKS_BEFORE = re.compile(
    r"\bwhere (?:did i|have i) (?:live|lived|work|worked)\b.{0,40}\b(?:before|earlier|previously)\b",
    re.IGNORECASE,
)
_OPERATION = re.compile(r"[0-9][\s)]*[-+*/^%][-+*/\s(]*[.0-9]")
_SPOKEN = (
    (re.compile(r"\bplus\b", re.IGNORECASE), "+"),
    (re.compile(r"\bminus\b|\u2212", re.IGNORECASE), "-"),
    (re.compile(r"\b(?:times|multiplied by)\b|\u00d7|(?<=\d) ?x ?(?=\d)", re.IGNORECASE), "*"),
    (re.compile(r"\bdivided by\b|\u00f7", re.IGNORECASE), "/"),
)


@dataclass(frozen=True, slots=True)
class Wish:
    """A call that would answer a question; `saying` comes before it, `without` instead of it."""

    tool: str
    arguments: str
    saying: str
    without: str


def wished(text: str, offered: Set[str]) -> Wish | None:
    """The tool that a question is for, offered or not, by the first pattern that fits."""
    text = text.strip()
    asked = _CALL.match(text)
    if asked and (asked["name"] in offered or asked["arguments"]):
        name = asked["name"]
        return Wish(name, asked["arguments"] or "{}", f"I call {name}.\n", _lacking(name, offered))
    if asked := _ECHO.match(text):
        return _wish("echo", {"text": asked["text"]}, "", asked["text"])
    if asked := _WRITE.match(text):
        arguments = {"path": _path(asked["note"]), "content": asked["note"]}
        return _wish("vault_write", arguments, "I take a note.\n", NO_NOTES)
    return _questioned(text) if len(text) <= _LONGEST_QUESTION else None


def _questioned(text: str) -> Wish | None:
    if note := _of_notes(text):
        return note
    if asked := _ASKS_BEFORE.search(text):
        predicate = "location" if "live" in asked[0].lower() else "employer"
        arguments = {"operation": "history", "predicate": predicate}
        return _wish("memory", arguments, "Let me look back.\n", NO_MEMORY)
    if expression := _expression(text):
        return _wish("calc", {"expression": expression}, "Let me calculate.\n", NO_CALCULATOR)
    if _ASKS_TIME.search(text):
        return _wish("time", {}, "Let me look at the clock.\n", NO_CLOCK)
    return None


def told(result: ToolResult, asked: Mapping[str, object]) -> str:
    """A result as a sentence; `asked` are the arguments of its call."""
    if result.is_error:
        return f"The tool {result.name} could not do it: {result.content}"
    value = _read(result.content)
    plain, names = _plain(value), _names(value)
    is_exact = not isinstance(value, dict) or value.get("exact", True)
    said = {
        "echo": plain,
        "calc": f"{asked.get('expression', 'It')} {'=' if is_exact else 'is about'} {plain}",
        "time": f"The clock says: {plain}",
        "vault_write": f"I wrote that down in {asked.get('path', 'your notes')}.",
        "vault_read": plain,
        "vault_list": f"Your notes: {names}." if names else "You have no notes yet.",
        "memory": _history(value),
        "vault_search": f"I found: {names}." if names else "Your notes say nothing of it.",
    }
    return said.get(result.name, f"The tool {result.name} says: {plain}")


def arguments_of(text: str) -> Mapping[str, object]:
    value = _read(text)
    return value if isinstance(value, dict) else {}


def _wish(tool: str, arguments: Mapping[str, object], saying: str, without: str) -> Wish:
    return Wish(tool, to_json(arguments).decode(), saying, without)


def _lacking(name: str, offered: Set[str]) -> str:
    known = ", ".join(sorted(offered)) or "none"
    return (
        f"I have no tool {name}. Those that I have: {known}. "
        "`exogate plugin list` says which plugins are there, and why one is refused."
    )


def _of_notes(text: str) -> Wish | None:
    if _LIST.match(text):
        return _wish("vault_list", {}, "Let me see.\n", NO_NOTES)
    if asked := _READ.match(text):
        name = asked["name"].strip(" \t\"'?")
        path = name if name.endswith(".md") else _path(name)
        return _wish("vault_read", {"path": path}, "Let me read it.\n", NO_NOTES)
    if asked := _FIND.match(text):
        query = {"query": asked["query"].strip(" \t\"'?.")}
        return _wish("vault_search", query, "Let me look through your notes.\n", NO_NOTES)
    return None


def _path(note: str) -> str:
    """By its words, so that it is found again; two notes share one only if they say the same."""
    words = re.findall(r"[a-z0-9]+", note.lower())
    title = "-".join(words[:_TITLE_WORDS])[:_LONGEST_TITLE]
    if title and title == "-".join(words) and note.isascii():
        return f"{title}.md"
    digest = sha256(note.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{title}-{digest}.md".removeprefix("-")


def _expression(text: str) -> str | None:
    """The sum in a question, if it is one."""
    said = text.rstrip("=?!. \t\n")
    if len(said) > _LONGEST_SUM:
        return None
    asked = _ASKS_SUM.match(said)
    rest = said[asked.end() :] if asked else said
    for spoken, sign in _SPOKEN:
        rest = spoken.sub(sign, rest)
    if asked and asked["told"]:
        return rest
    return rest if _SUM.fullmatch(rest) and _OPERATION.search(rest) else None


def _read(text: str) -> object:
    """What a text means as JSON; itself if it is none."""
    try:
        value: object = from_json(text)
    except ValueError:
        return text
    return value


def _plain(value: object) -> str:
    match value:
        case str():
            return value
        case list():
            return "; ".join(map(_plain, value))
        case dict():
            for main in ("text", "result", "now", "value", "content"):
                if main in value:
                    return _plain(value[main])
            return "; ".join(f"{name}: {_plain(one)}" for name, one in value.items())
    return to_json(value).decode()


def _history(value: object) -> str:
    """Facts of which each ended, oldest first; what holds now is no history."""
    found = value.get("facts") if isinstance(value, dict) else None
    if not isinstance(found, list):
        return f"My memory says: {_plain(value)}"
    past = [one for one in found if isinstance(one, dict) and "until" in one]
    told = "; ".join(f"{one['object']}, {_dates(one['since'], one['until'])}" for one in past)
    return f"You told me: {told}." if told else "You have not told me that."


def _dates(since: str, until: str) -> str:
    return f"{since} to {until}" if since != until else f"until {until}"


def _names(value: object) -> str:
    """The things in a list, or in the first list of an object, by their paths."""
    if isinstance(value, dict):
        value = next((one for one in value.values() if isinstance(one, list)), None)
    found = value if isinstance(value, list) else []
    return ", ".join(
        _plain(one.get("path", one) if isinstance(one, dict) else one) for one in found
    )
