"""The text of a config.toml: its content, the position of each key, and problems at their positions."""

import grp
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from gateway.config.problems import (
    SHOWN,
    Code,
    ConfigFinding,
    ConfigInvalid,
    ConfigProblem,
    KeyPath,
    dotted,
)
from gateway.config.schema import patterns
from gateway.config.secrets import MASK, REFERENCE, fit_line, is_sensitive, strike, strike_arguments
from gateway.config.toml import BOM, CannotEdit, Positions, Span, parse, rewrite
from gateway.domain.text import printable

LARGEST = 1_048_576  # bytes; a configuration has about a thousand
LONGEST_PATH = 8_192
_LISTS_OF_NAMES = ("capabilities", "rules", "scopes", "subagents", "tools")
_AT = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_HEADER = re.compile(r"^\s*\[+\s*([^\]\n]+)", re.MULTILINE)
_WORD = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class Document:
    """A valid TOML text; empty without a file. `name` is the file's name in messages."""

    path: Path | None = None
    name: str = ""
    text: str = ""
    content: dict[str, Any] = field(default_factory=dict)
    status: os.stat_result | None = None

    @staticmethod
    def parse(
        path: Path, name: str, source: bytes, status: os.stat_result | None = None
    ) -> "Document":
        """Parses a file. Raises ConfigInvalid with the position of the first error."""
        text = source.decode(errors="replace").removeprefix(BOM)
        try:
            whole = source.decode()
            return Document(path, name, whole, tomllib.loads(whole.removeprefix(BOM)), status)
        except UnicodeDecodeError as error:
            message = "this byte is not UTF-8; save the file as UTF-8"
            line, column = position_after(source[: error.start].decode().removeprefix(BOM))
        except tomllib.TOMLDecodeError as error:
            message, found = _AT.sub("", str(error))[:120], _AT.search(str(error))
            line, column = position_after(text.rstrip())
            if found and found[1]:
                line, column = int(found[1]), int(found[2])
        except (RecursionError, ValueError):
            message, line, column = "a value is nested too deeply, or a number is too long", 1, 1
        lines = text.split("\n")
        shown = _harmless_line(lines[line - 1], "\n".join(lines[: line - 1]))
        excerpt, caret = fit_line(shown[: column - 1], shown[column - 1 :])
        message, fix = _explain_syntax(message[:1].lower() + message[1:], lines[:line])
        problem = ConfigProblem(Code.SYNTAX, name, line, column, "", message, fix, excerpt, caret)
        raise ConfigInvalid((problem,)) from None

    @cached_property
    def positions(self) -> Positions:
        return Positions(self.text)

    def line_column(self, offset: int) -> tuple[int, int]:
        return position_after(self.text[:offset].removeprefix(BOM))

    @property
    def can_others_read(self) -> bool:
        return self.status is not None and bool(self.status.st_mode & 0o044)

    def why_untrusted(self) -> str | None:
        """Returns why another user may have written the file; None if none can."""
        if self.status is None or self.path is None:
            return None
        # The owner of a link decides where it leads.
        for uid in (self.status.st_uid, self.path.lstat().st_uid):
            if uid != os.geteuid():
                names = {user.pw_uid: user.pw_name for user in pwd.getpwall()}
                return f"it belongs to another user ({names.get(uid, uid)})"
        return self.why_writable()

    def why_writable(self) -> str | None:
        """Returns who else can write the file; None if only its owner can."""
        if self.status is None:
            return None
        if self.status.st_mode & stat.S_IWOTH:
            return "every user of this machine can write it"
        group = self.status.st_gid
        if self.status.st_mode & stat.S_IWGRP and _is_shared(group, self.status.st_uid):
            names = {one.gr_gid: one.gr_name for one in grp.getgrall()}
            return f"the group {names.get(group, group)} can write it"
        return None


def _is_shared(gid: int, owner: int) -> bool:
    """True if the group has other members than the owner; many users have a private group."""
    users = pwd.getpwall()
    try:
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        return True  # the group is not defined, so its members are unknown
    members |= {user.pw_name for user in users if user.pw_gid == gid}
    return bool(members - {user.pw_name for user in users if user.pw_uid == owner})


def read_document(path: Path, name: str) -> Document:
    """Reads a file. Raises ConfigInvalid if it cannot be read or is not TOML."""
    source, status = _read(path, name)
    return Document.parse(path, name, source, status)


def read_data_dir(path: Path, name: str) -> str | None:
    """Returns `[gateway] data_dir` of a file, even if the file has errors; None if it is absent or unusable.

    Raises ConfigInvalid if the file cannot be read.
    """
    source, _ = _read(path, name)
    text = source.decode(errors="replace").removeprefix(BOM)
    for candidate in (text, *_lines_about_data_dir(text)):
        with suppress(RecursionError, ValueError):
            found = _data_dir(tomllib.loads(candidate))
            if found is not None or candidate is text:
                return found
    return None


def _lines_about_data_dir(text: str) -> Iterator[str]:
    """Yields each line of an invalid text that may set data_dir, with its section header."""
    section = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            section = f"[{header[1].strip()}]\n"
        elif "data_dir" in line and len(line) < LONGEST_PATH:
            yield section + line


def _data_dir(content: dict[str, Any]) -> str | None:
    gateway = content.get("gateway")
    value = gateway.get("data_dir") if isinstance(gateway, dict) else None
    return value if isinstance(value, str) and value and "\0" not in value else None


def _read(path: Path, name: str) -> tuple[bytes, os.stat_result]:
    def unreadable(message: str, fix: str) -> ConfigInvalid:
        problem = ConfigProblem(Code.MISSING_FILE, name, 1, 1, "", f"the file {message}", fix)
        return ConfigInvalid((problem,))

    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise unreadable("is not a regular file", "name a config.toml")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())  # the path may lead to another file by now
            source = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise unreadable(
            f"cannot be read: {reason}", "check the path and its permissions"
        ) from error
    if len(source) > LARGEST:
        raise unreadable(f"has more than {LARGEST} bytes", "check that it is a configuration")
    return source, status


def position_after(text: str) -> tuple[int, int]:
    """Returns the line and column after a text, counted from 1."""
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _harmless_line(line: str, above: str) -> str:
    """Returns the line of an invalid text if it cannot contain a secret, else an empty text: the line consists of
    known words, or sets only a known key that is not secret."""
    harmless = {str(path[-1]) for path in patterns() if not is_sensitive(path)}
    words, section = _WORD.findall(line), _WORD.findall((_HEADER.findall(above) or [""])[-1])
    key = line.partition("=")[0].strip().rpartition(".")[2]
    is_ours = key in harmless and line.count("=") == 1
    is_inside_text = any(above.count(quote) % 2 for quote in ('"""', "'''"))
    is_sure = not is_inside_text and not is_sensitive((*words, *section))
    return line if is_sure and (is_ours or all(word in harmless for word in words)) else ""


def build_error(
    findings: Sequence[ConfigFinding],
    document: Document,
    *,
    left_out: int = 0,
    notices: Sequence[ConfigFinding] = (),
) -> ConfigInvalid:
    """Returns the error for these findings, in the order of the file; findings about variables come first."""
    unknown = {finding.path for finding in findings if finding.code == Code.UNKNOWN_KEY}
    problems = _problems(findings, document, "error", unknown)
    more = left_out + len(findings) - len(problems)
    return ConfigInvalid(problems, left_out=more, warnings=locate(notices, document))


def locate(notices: Sequence[ConfigFinding], document: Document) -> tuple[ConfigProblem, ...]:
    """Returns notices as problems with positions, in the order of the file."""
    return _problems(notices, document, "warning")


def _problems(
    findings: Sequence[ConfigFinding],
    document: Document,
    severity: Literal["error", "warning"],
    unknown: Set[KeyPath] = frozenset(),
) -> tuple[ConfigProblem, ...]:
    """Returns the problems with positions. The values of `unknown` keys are masked: they may be secrets."""
    positions = document.positions
    hidden, secrets = _find_secrets(positions, unknown)

    def start(finding: ConfigFinding) -> int:
        if finding.variable:
            return -1
        span = positions.span(finding.path, finding.at)
        return span.start + _offset_in_string(document.text[span.start : span.end], finding.column)

    found: list[ConfigProblem] = []
    for one in sorted(findings, key=start)[:SHOWN]:
        line, column, text, caret = 0, 0, "", 0
        if not one.variable and document.path:
            line, column = document.line_column(start(one))
            text, caret = fit_line(*_excerpt(document.text, start(one), hidden), secrets)
        source = one.variable or document.name or "configuration"
        key, message, fix = (strike(part, secrets) for part in (one.key, one.message, one.fix))
        found.append(
            ConfigProblem(one.code, source, line, column, key, message, fix, text, caret, severity)
        )
    return tuple(found)


def _offset_in_string(text: str, column: int | None) -> int:
    """Returns the offset of a character in a TOML string; 0 if escapes make it uncertain."""
    if column is None or text[:1] not in {"'", '"'} or "\\" in text or "\r" in text:
        return 0
    quotes = 3 if text[:3] in {"'''", '"""'} and len(text) >= 6 else 1
    return quotes + (text[quotes : quotes + 1] == "\n") + column  # TOML drops this line break


def _find_secrets(
    positions: Positions, unknown: Set[KeyPath] = frozenset()
) -> tuple[list[Span], list[str]]:
    """Returns the spans to mask and the secrets to strike from every text. The spans are the values of sensitive keys
    and the texts of unknown keys; secrets with fewer than four characters are not struck elsewhere."""
    hidden: list[Span] = []
    secrets: set[str] = set()
    shown = {path for path in unknown if _misspells_a_list(str(path[-1]))}
    for path, span in positions.leaves():
        value = positions.text[span.start : span.end]
        if is_sensitive(path):
            hidden.append(span)
            secrets.add(_unquote(value))
        elif path[:-1] in shown and isinstance(path[-1], int):
            continue
        elif value[0] in "'\"[{" and any(path[:n] in unknown for n in range(1, len(path) + 1)):
            hidden.append(span)
    return sorted(hidden), sorted((s for s in secrets if len(s) >= 4), key=len, reverse=True)


def _misspells_a_list(name: str) -> bool:
    """True if the name differs by about one letter from a list of names; other lists may hold secrets."""
    return bool(get_close_matches(name[:80].lower(), _LISTS_OF_NAMES, n=1, cutoff=0.8))


def _explain_syntax(message: str, lines: Sequence[str]) -> tuple[str, str]:
    """Returns a message and a fix for an error that tomllib found in the last of these lines."""
    if not message.startswith(("cannot declare", "cannot overwrite")):
        return message, 'write one key = value per line, under a [section]; text in quotes: "text"'
    header = _HEADER.match(lines[-1])
    if header is None:
        return "this key is already defined in this section", "remove one of the two"
    name = header[1].strip()
    headers = [_HEADER.match(line) for line in lines[:-1]]
    found = [at for at, one in enumerate(headers, 1) if one and one[1].strip() == name]
    table, many = f"[{printable(name[:60])}]", f"[[{printable(name[:60])}]]"
    if not found:
        return f"{table} is already defined", "write its keys in one place"
    is_list = [line.lstrip().startswith("[[") for line in (lines[found[0] - 1], lines[-1])]
    if is_list[0] == is_list[1]:
        message = f"{table} is already defined on line {found[0]}"
        return message, f"write all its keys under one {table}"
    message = f"line {found[0]} has {many if is_list[0] else table}, this line does not"
    return message, f"write {many} on both lines to define several, or one {table}"


def _unquote(value: str) -> str:
    return value.strip("\"'\r\n")


def mask_lines(text: str) -> list[str]:
    """Returns the lines of a valid text with secrets masked and references kept."""
    spans, values = _find_secrets(Positions(text))
    hidden = [one for one in spans if not REFERENCE.fullmatch(_unquote(text[one.start : one.end]))]
    secrets = [value for value in values if not REFERENCE.fullmatch(value)]
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    lines = ["".join(_excerpt(text, start, hidden)) for start in starts]
    return [printable(strike(line.removeprefix(BOM), secrets)) for line in lines]


def _excerpt(text: str, offset: int, hidden: Sequence[Span]) -> tuple[str, str]:
    """Returns the line before and after an offset, with hidden spans masked.

    A comment beside a hidden span is omitted. A line that begins inside a hidden span is empty.
    """
    start, end = text.rfind("\n", 0, offset) + 1, text.find("\n", offset)
    end = len(text) if end < 0 else end
    spans = [span for span in hidden if span.start < end and span.end > start]
    if spans and spans[0].start < start:
        return "", ""
    if spans:
        comment = text.find("#", max(offset, spans[-1].end), end)
        end = end if comment < 0 else comment
    before, after = text[start:offset], text[offset:end]
    for span in reversed(spans):
        if span.start < offset:
            before = before[: span.start - start] + MASK + before[span.end - start :]
        else:
            after = after[: span.start - offset] + MASK + after[span.end - offset :]
    return before, after


# -- a copy without secrets

_COMMENT = re.compile(r"#[^\n]*")
_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_SCHEMES = frozenset({"", "bearer", "basic", "token"})  # words that may precede a reference


def without_secrets(text: str) -> str:
    """Returns the text with each literal secret replaced by a file reference and struck from comments.

    Raises CannotEdit, tomllib.TOMLDecodeError.
    """
    found: list[str] = []
    wanted = _without_literals((), parse(text), found)
    hidden = rewrite(text, wanted)
    values = sorted(Positions(hidden).leaves(), key=itemgetter(1))
    beside = {hidden.count("\n", 0, span.end) for path, span in values if is_sensitive(path)}
    parts, at, line = list[str](), 0, 0
    for _, span in [*values, ((), Span(len(hidden), len(hidden)))]:
        for between in hidden[at : span.start].splitlines(keepends=True):
            parts.append(_without_hints(between, found, is_beside=line in beside))
            line += between.endswith("\n")
        parts.append(hidden[span.start : span.end])
        at, line = span.end, line + parts[-1].count("\n")
    result = "".join(parts)
    if parse(result) != parse(hidden):
        raise CannotEdit("the file cannot be copied without secrets: a comment looks like a value")
    return result


def _without_literals(path: KeyPath, value: Any, found: list[str]) -> Any:
    """Returns a value with references in place of literal secrets, which are added to `found`."""
    if isinstance(value, dict):
        return {name: _without_literals((*path, name), one, found) for name, one in value.items()}
    if isinstance(value, list):
        shown = [_without_literals((*path, place), one, found) for place, one in enumerate(value)]
        return strike_arguments(map(str, shown)) if path[3:] == ("args",) else shown
    if is_sensitive(path) and not isinstance(value, bool):
        if REFERENCE.sub("", str(value)).strip().lower() in _SCHEMES:
            return value
        found.append(str(value))
        return f"${{file:{_NO_FILE_NAME.sub('-', dotted(path)).strip('-.')}}}"
    return strike(value) if isinstance(value, str) else value


def _without_hints(between: str, secrets: Sequence[str], *, is_beside: bool) -> str:
    """Returns the text between two values with secrets struck from its comment; a comment beside a secret goes."""
    long = [one for one in secrets if len(one) >= 4]

    def cleaned(comment: re.Match[str]) -> str:
        return "" if is_beside else " ".join(strike_arguments([comment[0]], long))

    return _COMMENT.sub(cleaned, between)
