"""The bytes of a config.toml as a plain document, or the one problem that prevents it."""

import grp
import os
import pwd
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.config.masking import fitted, is_sensitive
from gateway.config.problems import Code, ConfigInvalid, Problem

LARGEST = 1_048_576  # bytes: a thousand times what a configuration needs
LONGEST_PATH = 8_192
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
    status: os.stat_result | None = None

    @property
    def can_others_read(self) -> bool:
        return self.status is not None and bool(self.status.st_mode & 0o044)

    def why_untrusted(self) -> str | None:
        """Who besides this user may have written the file, in words."""
        status = self.status
        if status is None or self.path is None:
            return None
        # A link is as good as its owner: another user's may lead anywhere.
        for uid in (status.st_uid, self.path.lstat().st_uid):
            if uid != os.geteuid():
                return f"it belongs to another user ({_user(uid)})"
        return self.why_writable()

    def why_writable(self) -> str | None:
        """Who else can write the file, in words."""
        if self.status is None:
            return None
        if self.status.st_mode & stat.S_IWOTH:
            return "every user of this machine can write it"
        group = self.status.st_gid
        if self.status.st_mode & stat.S_IWGRP and _is_shared(group, self.status.st_uid):
            return f"the group {_group(group)} can write it"
        return None


def _is_shared(gid: int, owner: int) -> bool:
    """Whether anybody but the owner is in the group; many users have one of their own."""
    users = pwd.getpwall()
    try:
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        return True  # nobody knows who is in it
    members |= {user.pw_name for user in users if user.pw_gid == gid}
    return bool(members - {user.pw_name for user in users if user.pw_uid == owner})


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def read_document(path: Path, name: str) -> Document:
    """Raises ConfigInvalid for a file that cannot be read or is not TOML."""
    source, status = _read(path, name)
    return Document(path, name, source, parse(source, name), status)


def written_data_dir(path: Path, name: str) -> str | None:
    """What a file says of `[gateway] data_dir`, whatever else in it is wrong; None if nothing usable.

    Raises ConfigInvalid for a file that cannot be read.
    """
    source, _ = _read(path, name)
    text = source.decode(errors="replace").removeprefix("\ufeff")
    try:
        return _data_dir(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return _sought_data_dir(text)


def _sought_data_dir(text: str) -> str | None:
    """In what is not TOML: the line that says it, if that line is."""
    section = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            section = f"[{header[1].strip()}]\n"
        elif "data_dir" in line and len(line) < LONGEST_PATH:
            try:
                found = _data_dir(tomllib.loads(section + line))
            except tomllib.TOMLDecodeError:
                continue
            if found is not None:
                return found
    return None


def _data_dir(content: dict[str, Any]) -> str | None:
    gateway = content.get("gateway")
    value = gateway.get("data_dir") if isinstance(gateway, dict) else None
    return value if isinstance(value, str) and value and "\0" not in value else None


def _read(path: Path, name: str) -> tuple[bytes, os.stat_result]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its writer
            raise _unreadable(name, "is not a regular file", "name a config.toml")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())  # of what is read, whatever the path leads to next
            source = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fix = "check the path and its permissions"
        raise _unreadable(name, f"cannot be read: {reason}", fix) from error
    if len(source) > LARGEST:
        fix = f"a configuration has at most {LARGEST} bytes"
        raise _unreadable(name, "is too large for a configuration", fix)
    return source, status


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
