"""The bytes of a config.toml as a plain document, or the one problem that prevents it."""

import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from gateway.config.masking import guarded_line, looks_secret
from gateway.config.problems import MISSING_FILE, SYNTAX, ConfigInvalid, Problem

LARGEST = 1_048_576  # bytes: a thousand times what a configuration needs
_AT = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_ENDLESS_NUMBER = re.compile(rb"[0-9][0-9_]{4000,}")
_DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Document:
    """A file that is valid TOML; `name` is how messages call it. Without a file: empty."""

    path: Path | None = None
    name: str = ""
    source: bytes = b""
    content: dict[str, object] = field(default_factory=dict)
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
    return ConfigInvalid((Problem(MISSING_FILE, name, 1, 1, "", f"the file {message}", fix),))


def parse(source: bytes, name: str) -> dict[str, object]:
    """Raises ConfigInvalid at the place where the file stops being TOML."""
    try:
        return tomllib.loads(source.decode().removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        fix = "save the file as UTF-8"
        raise _syntax(source, name, error.start, "this byte is not UTF-8", fix) from error
    except RecursionError:
        offset, fix = _too_deep(source), "no key of ours nests deeper than five tables"
        raise _syntax(source, name, offset, "nested too deeply", fix) from None
    except tomllib.TOMLDecodeError as error:
        message, offset = _understood(str(error), source)
        raise _syntax(source, name, offset, message, _fix(message)) from None
    except ValueError as error:  # a number of more digits than Python converts
        found = _ENDLESS_NUMBER.search(source)
        offset = found.start() if found else 0
        raise _syntax(source, name, offset, "this number is too long", "write a number") from error


def _understood(text: str, source: bytes) -> tuple[str, int]:
    """The parser's words and the offset that they name."""
    found = _AT.search(text)
    message = _AT.sub("", text)
    message = message[:1].lower() + message[1:120]
    if found is None or found[1] is None:
        return message, len(source.rstrip())
    return message, _offset(source, int(found[1]), int(found[2]))


def _offset(source: bytes, line: int, column: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = source.find(b"\n", start) + 1
    end = source.find(b"\n", start)
    text = source[start : len(source) if end < 0 else end].decode()
    if start == 0 and text.startswith("\ufeff"):
        column += 1
    return start + len(text[: column - 1].encode())


def _fix(message: str) -> str:
    known = {
        "invalid value": 'write a value: "text", 42, true, [ ... ] or { ... }',
        "unterminated string": "close the quotes",
        "cannot overwrite": "this key or table is there twice: keep one",
        "cannot declare": "this table is there twice: put its keys together",
        "duplicate inline": "this key is there twice: keep one",
        "expected '='": "write: key = value",
        "expected newline": 'one key a line, and texts in quotes: key = "value"',
        "invalid statement": "write: key = value, or [section]",
        "illegal character": "remove the control character",
        "unescaped '\\'": "write \\\\ for a backslash, or use 'single quotes'",
    }
    return next((fix for start, fix in known.items() if message.startswith(start)), "correct it")


def _too_deep(source: bytes) -> int:
    """Where nesting passes what a parser should be asked to follow."""
    depth = 0
    for found in re.finditer(rb"[\[{\]}]", source):
        depth += 1 if found[0] in b"[{" else -1
        if depth > _DEEPEST:
            return found.start()
    return 0


def _harmless() -> frozenset[str]:
    """Names of keys whose values are no secrets."""
    # only errors need it
    from gateway.config.keys import every_key  # noqa: PLC0415

    names = (name for path, _, _ in every_key() for name in re.split(r"[.\[\]]+", path))
    return frozenset(name for name in names if not looks_secret(name))


def _syntax(source: bytes, name: str, offset: int, message: str, fix: str) -> ConfigInvalid:
    offset = min(offset, len(source))
    start = source.rfind(b"\n", 0, offset) + 1
    column = len(source[start:offset].decode(errors="replace").removeprefix("\ufeff")) + 1
    text, caret = guarded_line(source, offset, _harmless())
    line = source.count(b"\n", 0, offset) + 1
    return ConfigInvalid((Problem(SYNTAX, name, line, column, "", message, fix, text, caret),))
