"""TOML as text: the position of each key and value, and edits that keep all other text.

An edit is a new value of the whole document. Each difference becomes a small edit of the text; then the new text is
parsed and compared with the new value."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from gateway.config.problems import At, KeyPath
from gateway.domain.errors import GatewayError

DEEPEST = 32  # parts of a path; deeper values have no positions of their own
BOM = "\ufeff"
_GAP = re.compile(r"(?:[\s\ufeff]|#[^\n]*)*+")  # blanks, line breaks, comments
_NAME = re.compile(r"""'[^'\n]*'|"(?:[^"\\\n]++|\\.)*+"|[\w-]+""")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_PLAIN = re.compile(  # a value that is no list or table, in a valid text
    r'''"""(?:\\.|"{1,2}(?!")|[^"\\]++)*+"{3,5}'''
    r"""|'''(?:'{1,2}(?!')|[^']++)*+'{3,5}"""
    r"""|"(?:[^"\\]++|\\.)*+"|'[^']*'|\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]+|[^\s,\]}#]+""",
    re.DOTALL,
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_UP_TO_COMMA = re.compile(r"((?:\s|#[^\n]*\n)*),")
_REST_OF_LINE = re.compile(r"[ \t]*(#[^\n]*)?\r?\n")
# New keys follow the first of these.
_FIRST_KEYS = ("path", "name", "model", "provider", "id", "plugin")


class CannotEdit(GatewayError):
    """The file cannot be edited and is unchanged; the message has the reason."""

    code = "cannot_edit"


class Span(NamedTuple):
    """A range of characters."""

    start: int
    end: int


class Statement(NamedTuple):
    """A header with the path of its table, or a pair of key and value in `table`."""

    path: KeyPath
    span: Span
    table: KeyPath

    @property
    def is_header(self) -> bool:
        return self.path == self.table


class Positions:
    """The positions of all keys and values of a valid TOML text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.places: dict[KeyPath, dict[At, Span]] = {}
        self.statements: list[Statement] = []
        self._last: dict[KeyPath, int] = {}  # the last index of each array of tables
        table: KeyPath = ()
        at = self._skip(0)
        while at < len(text):
            start = at
            if text[at] == "[":
                table, at = self._header(at)
                path = table
            else:
                path, at = self._pair(table, at)
            self.statements.append(Statement(path, Span(start, at), table))
            at = self._skip(at)

    def span(self, path: KeyPath, at: At) -> Span:
        """Returns the span of a path, or of the nearest path above it."""
        for length in range(len(path), 0, -1):
            place = self.places.get(path[:length], {})
            kinds: tuple[At, ...] = (at, "value", "key", "table")
            for kind in kinds:
                if kind in place:
                    return place[kind]
            at = "table"  # a missing key is reported at the table that lacks it
        return Span(0, 0)

    def value(self, path: KeyPath) -> Span | None:
        return self.places.get(path, {}).get("value")

    def leaves(self) -> Iterator[tuple[KeyPath, Span]]:
        """Yields every value that is not a table or list, and those at the greatest depth."""
        for path, place in self.places.items():
            span = place.get("value")
            if span and (len(path) >= DEEPEST or self.text[span.start] not in "[{"):
                yield path, span

    def _skip(self, at: int) -> int:
        found = _GAP.match(self.text, at)
        return found.end() if found else at

    def _header(self, at: int) -> tuple[KeyPath, int]:
        is_array, opening = self.text.startswith("[[", at), Span(at, at + 1)
        parts, end = self._parts(self._skip(at + 1 + is_array))
        path: KeyPath = ()
        for number, (name, span) in enumerate(parts, start=1):
            path = self._add((*path, name), {"key": span, "table": opening})
            if number == len(parts) and is_array:
                self._last[path] = self._last.get(path, -1) + 1
            if path in self._last:
                path = self._add((*path, self._last[path]), {"key": span, "table": opening})
        self.places[path]["table"] = opening  # replaces the span of a header of a table below
        return path, self.text.index("]", end) + 1 + is_array

    def _pair(self, table: KeyPath, at: int) -> tuple[KeyPath, int]:
        parts, end = self._parts(at)
        path = table
        for name, span in parts:
            path = self._add((*path, name), {"key": span, "table": parts[0][1]})
        return path, self._value(path, self._skip(self.text.index("=", end) + 1))

    def _value(self, path: KeyPath, start: int) -> int:
        """Adds the positions of a value, and returns its end."""
        opening, end = self.text[start], start
        if opening in "[{":
            end, number = self._skip(start + 1), 0
            while self.text[end] not in "]}":
                if opening == "[":
                    end = self._value((*path, number), end)
                else:
                    _, end = self._pair(path, end)
                end, number = self._skip(end), number + 1
                end = self._skip(end + 1) if self.text[end] == "," else end
            end += 1
        elif found := _PLAIN.match(self.text, start):
            end = found.end()
        self._add(path, {"value": Span(start, end), "table": Span(start, end)})
        return end

    def _parts(self, at: int) -> tuple[list[tuple[str, Span]], int]:
        """Returns the parts of a dotted key with their spans, and the end of the key."""
        parts: list[tuple[str, Span]] = []
        while found := _NAME.match(self.text, at):
            name, at = found[0], found.end()
            if name[0] in "\"'":
                name = next(iter(tomllib.loads(f"{name} = 0")))
            parts.append((name, Span(*found.span())))
            dot = _DOT.match(self.text, at)
            if dot is None:
                break
            at = dot.end()
        return parts[:DEEPEST], at

    def _add(self, path: KeyPath, spans: dict[At, Span]) -> KeyPath:
        """Adds spans to a path, and returns the path; the first span of each kind stays."""
        if len(path) <= DEEPEST:
            self.places[path] = {**spans, **self.places.get(path, {})}
        return path


def parse(text: str) -> dict[str, Any]:
    """Parses a text that may start with a byte order mark. Raises tomllib.TOMLDecodeError."""
    return tomllib.loads(text.removeprefix(BOM))


def rewrite(text: str, wanted: Mapping[str, Any]) -> str:
    """Returns the text edited to have these values, with all other text kept. Raises CannotEdit."""
    before = parse(text)
    try:
        for path, old, new in _differences((), before, wanted):
            text = _apply(text, path, old, new)
        is_right = _without_empty(parse(text)) == _without_empty(wanted)
    except (tomllib.TOMLDecodeError, LookupError):
        is_right = False
    if not is_right:
        raise CannotEdit("this file cannot be edited automatically; edit it by hand")
    return text


def _without_empty(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document without empty sections: an edit may keep or remove their headers."""
    return {key: value for key, value in document.items() if value not in ({}, [])}


def _differences(path: KeyPath, old: Any, new: Any) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Yields the paths that differ, with the value before and after (None: absent), in an order in which no change
    invalidates the next path."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _differences((*path, key), old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list):
        old = list(old)
        for index in _removed(old, new):
            yield (*path, index), old.pop(index), None
        for index, (one, other) in enumerate(zip_longest(old, new)):
            yield from _differences((*path, index), one, other)
    elif old != new:
        yield path, old, new


def _removed(old: list[Any], new: list[Any]) -> list[int]:
    """Returns the indexes of the items that a shorter list lacks, the last first."""
    removed: list[int] = []
    left = list(new if len(new) < len(old) else old)
    for index, one in enumerate(old):
        if left and one == left[0]:
            del left[0]
        else:
            removed.insert(0, index)
    return removed


def _apply(text: str, path: KeyPath, old: Any, new: Any) -> str:
    """Returns the text with one difference applied. Raises LookupError if the text has no place for it."""
    positions = Positions(text)
    if new is None:
        return _remove(positions, path)
    if old is not None:
        return _splice(text, positions.places[path]["value"], to_toml(new))
    if positions.value(path[:-1]) is not None:
        add = _append_item if isinstance(path[-1], int) else _insert_inline_pair
        return add(positions, path, new)
    is_section = isinstance(path[-1], int) or (isinstance(new, dict) and len(path) <= 2)
    host = None if is_section else _host_of(positions, path[:-1])
    if host is not None:
        return _insert_pair(positions, host, path, new)
    for header, table in _new_sections(path, new):
        text = _append_section(text, header, table)
    return text


def _new_sections(path: KeyPath, value: Any) -> list[tuple[str, Mapping[str, object]]]:
    """Returns new sections for a value, each with its header."""
    if isinstance(path[-1], int):
        return [(f"[[{_dotted(path[:-1])}]]", value)]
    if isinstance(value, list) and len(path) == 1:
        return [(f"[[{_dotted(path)}]]", one) for one in value]
    if not isinstance(value, dict):
        return [(f"[{_dotted(path[:-1])}]", {str(path[-1]): value})]
    while len(path) < 2 and [dict] == [type(one) for one in value.values()]:
        ((key, value),) = value.items()  # [budgets.agent] needs no [budgets]
        path = (*path, key)
    return [(f"[{_dotted(path)}]", value)]


def _splice(text: str, place: Span, new: str) -> str:
    return text[: place.start] + new + text[place.end :]


def _line_end(text: str) -> str:
    """Returns the line ending of the first line, which the whole file uses."""
    return "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"


def _append_section(text: str, header: str, table: Mapping[str, object]) -> str:
    """Appends a section after an empty line."""
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    pairs = [f"{to_toml_key(key)} = {to_toml(value)}" for key, value in table.items()]
    added = gap + "".join(f"{line}\n" for line in (header, *pairs))
    return text + added.replace("\n", _line_end(text))


def _host_of(positions: Positions, table: KeyPath) -> Statement | None:
    """Returns the header of a table, or the last pair whose dotted key defines the table; None if absent."""
    found: Statement | None = None
    for one in positions.statements:
        if one.path == one.table == table:
            return one
        if one.path[: len(table)] == table and len(one.table) < len(table):
            found = one
    return found


def _insert_pair(positions: Positions, host: Statement, path: KeyPath, value: object) -> str:
    """Inserts a pair after one of the usual first keys of the table, else after its header; in a table of dotted
    keys, after the last of them."""
    text, end = positions.text, host.span.end
    if host.is_header:
        places = [positions.value((*path[:-1], other)) for other in _FIRST_KEYS]
        end = next((place.end for place in places if place), end)
    start = text.rfind("\n", 0, end) + 1
    line = text[start:].partition("\n")[0].removesuffix("\r")
    indent, end = line[: len(line) - len(line.lstrip())], start + len(line)
    pair = f"{_line_end(text)}{indent}{_dotted(path[len(host.table) :])} = {to_toml(value)}"
    return _splice(text, Span(end, end), pair)


def _insert_inline_pair(positions: Positions, path: KeyPath, value: object) -> str:
    """Inserts a pair at the end of an inline table."""
    start = positions.places[path[:-1]]["value"].start + 1
    inner = [key for key in positions.places if key[:-1] == path[:-1]]
    end = max((positions.places[key]["value"].end for key in inner), default=start)
    pair = f"{', ' if inner else ' '}{to_toml_key(str(path[-1]))} = {to_toml(value)}"
    return _splice(positions.text, Span(end, end), pair)


def _append_item(positions: Positions, path: KeyPath, value: object) -> str:
    """Appends an item to a list, on its own line if the list has several lines."""
    *above, index = path
    text, whole = positions.text, positions.places[tuple(above)]["value"]
    last = positions.value((*above, int(index) - 1))
    begin, end = last or (whole.start + 1, whole.start + 1)
    if "\n" not in text[whole.start : whole.end]:
        return _splice(text, Span(end, end), (", " if last else "") + to_toml(value))
    rest, line_end = text[end : whole.end - 1], _line_end(text)
    kept = rest.rstrip()
    closing = rest[len(kept) :]
    closing = closing if "\n" in closing else line_end
    comma = "" if not last or _UP_TO_COMMA.match(rest) else ","
    before = text[text.rfind("\n", 0, begin) + 1 : begin]
    indent = "    " if before.strip(" \t") or not last else before
    line = f"{comma}{kept}{line_end}{indent}{to_toml(value)},{closing}"
    return _splice(text, Span(end, whole.end - 1), line)


def _remove(positions: Positions, path: KeyPath) -> str:
    """Removes the lines of a table or key, or an item of an inline list or table. Comments after the last key of a
    table stay: they belong to the next table."""
    spans: list[Span] = []
    text, is_removed = positions.text, False
    for one in positions.statements:
        is_inside = one.path[: len(path)] == path
        is_removed = is_inside if one.is_header else is_removed
        if is_removed and not one.is_header:
            spans[-1] = Span(spans[-1].start, one.span.end)
        elif is_inside:
            spans.append(one.span)
    if not spans:
        place = positions.places[path]
        return _remove_item(text, Span(place.get("key", place["value"])[0], place["value"].end))
    for span in reversed(spans):
        start, end = text.rfind("\n", 0, span.start) + 1, text.find("\n", span.end - 1)
        before = text[:start]
        if before.endswith(("\n\n", "\n\r\n")):  # the separating empty line goes too
            before = before.rstrip("\r\n") + _line_end(text)
        text = before + ("" if end < 0 else text[end + 1 :])
    return text


def _remove_item(text: str, element: Span) -> str:
    """Removes an item with its comma; an item on its own line goes with the line and its comment."""
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


def to_toml(value: object) -> str:
    """Returns a value in TOML syntax, on one line."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{to_toml_key(str(key))} = {to_toml(one)}" for key, one in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else to_toml(name)


def _dotted(path: KeyPath) -> str:
    return ".".join(to_toml_key(str(part)) for part in path)
