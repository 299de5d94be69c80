"""The bytes of a config.toml as a plain document, or the one problem that prevents it."""

import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.config.masking import fitted, is_sensitive
from gateway.config.problems import Code, ConfigInvalid, Problem

LARGEST = 1_048_576  # bytes: a thousand times what a configuration needs
_AT = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_HEADER = re.compile(r"^\s*\[+\s*([^\]\n]+)", re.MULTILINE)
_WORD = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True)
class Document:
    """A file that is valid TOML; `name` is how messages call it. Without a file: empty."""

    path: Path | None = None
    name: str = ""
    source: bytes = b""
    content: dict[str, Any] = field(default_factory=dict)
    mode: int = 0o600


def read_document(path: Path, name: str) -> Document:
    """Raises ConfigInvalid for a file that cannot be read or is not TOML."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _unreadable(name, "is not a regular file", "name a config.toml")
        with path.open("rb") as file:
            source = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fix = "check the path and its permissions"
        raise _unreadable(name, f"cannot be read: {reason}", fix) from error
    if len(source) > LARGEST:
        fix = f"a configuration has at most {LARGEST} bytes"
        raise _unreadable(name, "is too large for a configuration", fix)
    return Document(path, name, source, parse(source, name), stat.S_IMODE(status.st_mode))


def _unreadable(name: str, message: str, fix: str) -> ConfigInvalid:
    return ConfigInvalid((Problem(Code.MISSING_FILE, name, 1, 1, "", f"the file {message}", fix),))


def parse(source: bytes, name: str) -> dict[str, Any]:
    """Raises ConfigInvalid at the place where the file stops being TOML."""
    text = source.decode(errors="replace").removeprefix("\ufeff")
    try:
        return tomllib.loads(source.decode().removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        before = source[: error.start].decode().removeprefix("\ufeff")
        message, (line, column) = "this byte is not UTF-8: save the file as UTF-8", _end(before)
    except tomllib.TOMLDecodeError as error:
        message, found = _AT.sub("", str(error))[:120], _AT.search(str(error))
        line, column = _end(text.rstrip())
        if found and found[1]:
            line, column = int(found[1]), int(found[2])
    except (RecursionError, ValueError):
        message, line, column = "nested too deeply, or a number is far too long", 1, 1
    lines = text.split("\n")
    shown = _shown(lines[line - 1], "\n".join(lines[: line - 1]))
    excerpt, caret = fitted(shown[: column - 1], shown[column - 1 :])
    message = message[:1].lower() + message[1:]
    fix = 'TOML wants key = value, one a line, under a [section]; texts in quotes: "text"'
    problem = Problem(Code.SYNTAX, name, line, column, "", message, fix, excerpt, caret)
    raise ConfigInvalid((problem,)) from None


def _end(text: str) -> tuple[int, int]:
    """Line and column behind a text."""
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _shown(line: str, above: str) -> str:
    """In what is not TOML nothing can be told for sure: a line is only shown if it is made of
    words of ours, or sets, alone, a key of ours that holds no secret."""
    # only errors need it
    from gateway.config.keys import patterns  # noqa: PLC0415  # pydantic is slow to import

    harmless = {str(path[-1]) for path in patterns() if not is_sensitive(path)}
    words, section = _WORD.findall(line), _WORD.findall((_HEADER.findall(above) or [""])[-1])
    key = line.partition("=")[0].strip().rpartition(".")[2]
    is_ours = key in harmless and line.count("=") == 1
    is_inside_text = any(above.count(quote) % 2 for quote in ('"""', "'''"))
    is_sure = not is_inside_text and not is_sensitive((*words, *section))
    return line if is_sure and (is_ours or all(word in harmless for word in words)) else ""
