"""Reads the text of a tree file into forms with their positions, and collects problems of the text."""

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

from gateway.domain.errors import GatewayError
from gateway.domain.text import quoted

Severity = Literal["error", "warning"]
MAX_PROBLEMS = 100  # reported for one file
MARGIN = 70  # characters of the line that are shown on each side of a problem


@dataclass(frozen=True, slots=True)
class TreeProblem:
    """A problem of a tree. Codes: BT00x text, BT01x structure, BT02x references, BT03x types, BT04x
    lint."""

    code: str
    severity: Severity
    file: str
    line: int
    column: int
    message: str
    text: str = ""  # an excerpt of the line
    caret: int = 0  # index of the problem in `text`

    def render(self) -> str:
        head = f"{self.file}:{self.line}:{self.column}: {self.severity} {self.code}: {self.message}"
        return f"{head}\n  {self.text}\n  {' ' * self.caret}^" if self.text else head


class TreeInvalid(GatewayError):
    """The tree is invalid. `problems` has at least one error, and the warnings."""

    code = "tree_invalid"

    def __init__(self, problems: tuple[TreeProblem, ...], left_out: int = 0) -> None:
        super().__init__("\n".join(problem.render() for problem in problems))
        self.problems, self.left_out = problems, left_out


@dataclass(slots=True)
class TreeSource:
    """The text of a tree file and the problems found so far."""

    name: str
    text: str
    found: dict[tuple[int, str, str], TreeProblem] = field(default_factory=dict)
    left_out: int = 0
    has_errors: bool = False
    _starts: list[int] = field(default_factory=list)

    def place(self, at: int) -> tuple[int, int]:
        """Returns line and column, both counted from 1."""
        if not self._starts:
            self._starts = [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1

    def problems(self) -> tuple[TreeProblem, ...]:
        """Returns the problems in text order."""
        return tuple(self.found[key] for key in sorted(self.found))

    def warn(self, code: str, at: int, message: str) -> None:
        self.error(code, at, message, "warning")

    def error(self, code: str, at: int, message: str, severity: Severity = "error") -> None:
        self.has_errors = self.has_errors or severity == "error"
        key = (at, code, message)
        if key in self.found:
            return
        if len(self.found) >= MAX_PROBLEMS:
            self.left_out += 1
            return
        line, column = self.place(at)
        whole = self.text[at - column + 1 :].partition("\n")[0]
        cut = max(column - 1 - MARGIN, 0)
        part = whole[cut : column + MARGIN]
        shown = "".join(c if c.isprintable() else " " for c in part).rstrip()
        self.found[key] = TreeProblem(
            code, severity, self.name, line, column, message, shown, column - 1 - cut
        )


MAX_BYTES, MAX_DEPTH, MAX_SECONDS = 262_144, 64, 366 * 86_400
# A comment is `; …`, `#| … |#` or `#; datum`, with the text that it hides.
FormKind = (
    Literal["list", "vector", "map", "string", "int", "float", "bool", "nil"]
    | Literal["duration", "symbol", "keyword", "ref", "comment"]
)
CLOSERS = {"(": ")", "[": "]", "{": "}"}
BRACKETS: dict[str, FormKind] = {"(": "list", "[": "vector", "{": "map"}
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n,]+)
  | (?P<line>;[^\n]*)
  | (?P<block>\#\|)
  | (?P<discard>\#;)
  | (?P<open>[(\[{])
  | (?P<close>[)\]}])
  | (?P<string>"[^"\\]*(?:\\.[^"\\]*)*")
  | (?P<unclosed>")
  | (?P<atom>[^\s()\[\]{}";,]+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_BLOCK = re.compile(r"#\||\|#")
_IDENT = r"[A-Za-z_][A-Za-z0-9_\-?!.]*"
_KEYWORD = re.compile(f":({_IDENT})")
_REF = re.compile(r"\$([A-Za-z_][A-Za-z0-9_\-?!]*(?:\.[A-Za-z_][A-Za-z0-9_\-?!]*)*)")
_SYMBOL = re.compile(rf"{_IDENT}(?::[A-Za-z_][A-Za-z0-9_]*)?")
_NUMBER = re.compile(r"([+-]?\d+)(\.\d+)?([eE][+-]?\d+)?(ms|s|m|h)?")
_WORDS: dict[str, tuple[FormKind, object]] = {
    "true": ("bool", True),
    "false": ("bool", False),
    "nil": ("nil", None),
}


@dataclass(frozen=True, slots=True)
class TreeForm:
    """A syntax element with its position. Atoms have a `value`; lists, vectors and maps have `items`."""

    kind: FormKind
    start: int
    end: int
    value: object = None
    items: tuple["TreeForm", ...] = ()
    parts: tuple["TreeForm", ...] = ()  # the items without comments

    @property
    def head(self) -> str:
        """Returns the first symbol of a list, or ""."""
        if self.kind == "list" and self.parts and self.parts[0].kind == "symbol":
            return str(self.parts[0].value)
        return ""


def decode_file(data: bytes, name: str) -> str:
    """Decodes the bytes of a file. Raises TreeInvalid if they are too many or not UTF-8."""
    source = TreeSource(name, "")
    if len(data) > MAX_BYTES:
        source.error("BT006", 0, f"the file is larger than {MAX_BYTES // 1024} kB")
        raise TreeInvalid(source.problems())
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        source.text = data[: error.start].decode("utf-8")
        source.error("BT007", len(source.text), "this is not UTF-8")
        raise TreeInvalid(source.problems()) from None


@dataclass(slots=True)
class _Level:
    """An open bracket; an empty bracket stands for the whole file."""

    bracket: str
    start: int
    items: list[TreeForm] = field(default_factory=list)
    discards: list[int] = field(default_factory=list)  # start of each `#;`


def read(source: TreeSource) -> tuple[TreeForm, ...]:
    """Returns all forms of the file, with comments. Adds problems to `source`."""
    if len(source.text.encode(errors="replace")) > MAX_BYTES:
        source.error("BT006", 0, f"the text is larger than {MAX_BYTES // 1024} kB")
        return ()
    return _Reader(source).read()


class _Reader:
    def __init__(self, source: TreeSource) -> None:
        self._source = source
        self._levels = [_Level("", 0)]

    def read(self) -> tuple[TreeForm, ...]:
        text = self._source.text
        at = 1 if text.startswith("\ufeff") else 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match is not None  # the last alternative matches any character
            at = self._read_token(str(match.lastgroup), match[0], at)
            if len(self._levels) > MAX_DEPTH + 1:
                message = f"brackets are nested more than {MAX_DEPTH} deep"
                self._source.error("BT006", self._levels[-1].start, message)
                return ()
        while len(self._levels) > 1:
            self._source.error("BT005", self._levels[-1].start, "this bracket is never closed")
            self._close(len(text))
        self._check_discards(self._levels[0])
        return tuple(self._levels[0].items)

    def _read_token(self, kind: str, token: str, at: int) -> int:
        """Returns the start of the next token."""
        end, error = at + len(token), self._source.error
        match kind:
            case "atom" | "string":
                form, value = (self._atom if kind == "atom" else self._string)(token, at)
                self._put(TreeForm(form, at, end, value))
            case "open":
                self._levels.append(_Level(token, at))
            case "close":
                self._close_with(token, at)
            case "line":
                self._put(self._comment(at, end))
            case "block":
                return self._block(at)
            case "discard":
                self._levels[-1].discards.append(at)
            case "unclosed":
                error("BT002", at, "this string is never closed")
                return len(self._source.text)
            case "other":
                error("BT001", at, f"U+{ord(token):04X} is not allowed outside of strings")
        return end

    def _close_with(self, closer: str, at: int) -> None:
        if closer not in [CLOSERS.get(level.bracket) for level in self._levels]:
            self._source.error("BT005", at, f'"{closer}" closes nothing')
            return
        while CLOSERS[self._levels[-1].bracket] != closer:
            level = self._levels[-1]
            line, column = self._source.place(level.start)
            should = f'"{CLOSERS[level.bracket]}" should close "{level.bracket}"'
            self._source.error("BT005", at, f'"{closer}" where {should} of {line}:{column}')
            self._close(at)
        self._close(at + 1)

    def _close(self, end: int) -> None:
        level = self._levels.pop()
        self._check_discards(level)
        parts = tuple(item for item in level.items if item.kind != "comment")
        kind, items = BRACKETS[level.bracket], tuple(level.items)
        self._put(TreeForm(kind, level.start, end, None, items, parts))

    def _check_discards(self, level: _Level) -> None:
        if level.discards:
            self._source.error("BT005", level.discards[0], '"#;" has no form to hide')

    def _put(self, form: TreeForm) -> None:
        level = self._levels[-1]
        if not level.discards:
            level.items.append(form)
        elif form.kind != "comment":
            start = level.discards.pop()
            if not level.discards:
                level.items.append(self._comment(start, form.end))

    def _comment(self, start: int, end: int) -> TreeForm:
        text = self._source.text[start:end].replace("\r\n", "\n").rstrip()
        return TreeForm("comment", start, end, text)

    def _block(self, at: int) -> int:
        depth = 0
        for match in _BLOCK.finditer(self._source.text, at):
            depth += 1 if match[0] == "#|" else -1
            if depth == 0:
                self._put(self._comment(at, match.end()))
                return match.end()
        self._source.error("BT002", at, "this comment is never closed")
        return len(self._source.text)

    def _string(self, token: str, at: int) -> tuple[FormKind, object]:
        value, error = "", self._source.error
        try:
            value = str(json.loads(token, strict=False))
            value.encode()
        except json.JSONDecodeError as problem:
            error("BT004", at + problem.pos, f"{problem.msg.lower()} in a string")
        except UnicodeEncodeError:
            error("BT004", at, "a string has half a surrogate pair")
            value = ""
        if "\0" in value:
            error("BT004", at, "a string has a NUL character")
        return "string", value

    def _atom(self, token: str, at: int) -> tuple[FormKind, object]:
        if token in _WORDS:
            return _WORDS[token]
        if _SYMBOL.fullmatch(token):
            return "symbol", token
        if match := _KEYWORD.fullmatch(token):
            return "keyword", match[1]
        if match := _REF.fullmatch(token):
            return "ref", tuple(match[1].split("."))
        if match := _NUMBER.fullmatch(token):
            return self._number(match, at)
        self._source.error("BT001", at, f"{quoted(token)} is not a word, number, :key or $ref")
        return "symbol", "unreadable"

    def _number(self, match: "re.Match[str]", at: int) -> tuple[FormKind, object]:
        whole, fraction, exponent, unit = match.groups()
        is_int = unit is None and fraction is None and exponent is None
        number = float(match[0].removesuffix(unit or ""))
        if abs(number) == float("inf") or (is_int and len(whole) > 18):
            self._source.error("BT003", at, "this number is too large")
            return "int", 0
        if unit is None:
            return ("int", int(whole)) if is_int else ("float", number)
        seconds = number * UNITS[unit]
        if not 0 <= seconds <= MAX_SECONDS:
            self._source.error("BT003", at, "a time is between 0 and 366 days")
        return "duration", seconds
