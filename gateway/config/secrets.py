"""Secrets by reference: `${env:NAME}` and `${file:name}`, resolved once, at the border."""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.config.environment import value_of
from gateway.config.problems import BAD_SECRET_FILE, MALFORMED, UNSET_VARIABLE

FOLDER = Path(".config/exogate/secrets")  # below the home directory
LARGEST = 65_536

_REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretProblem(Exception):
    """Why a secret cannot be had; says nothing of the secret itself."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.code, self.message, self.fix = code, message, fix


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Where references lead to."""

    environment: Mapping[str, str]
    home: Path

    @property
    def folder(self) -> Path:
        return self.home / FOLDER

    def resolve(self, text: str) -> str:
        """The text with its references replaced; raises SecretProblem."""
        if "${" in _REFERENCE.sub("", text):
            raise SecretProblem(
                MALFORMED,
                "this is not a reference that can be followed",
                "write ${env:NAME} or ${file:name}",
            )
        return _sendable(_REFERENCE.sub(lambda found: self._follow(found[1], found[2]), text))

    def _follow(self, kind: str, name: str) -> str:
        return self.variable(name) if kind == "env" else self.file(name)

    def variable(self, name: str) -> str:
        if not _VARIABLE.fullmatch(name):
            message = "this is not the name of a variable"
            raise SecretProblem(MALFORMED, message, "write ${env:NAME}")
        value = value_of(self.environment, name)
        if value is None:
            message = f"the environment variable {name} is not set"
            raise SecretProblem(UNSET_VARIABLE, message, f"export {name}=... before the start")
        return value

    def file(self, name: str) -> str:
        if not name.startswith("/") and not _FILE_NAME.fullmatch(name):
            fix = f"write a plain name (a file in {self.folder}) or an absolute path"
            raise SecretProblem(MALFORMED, "this is not the name of a secret file", fix)
        return read_secret(Path(name) if name.startswith("/") else self.folder / name)

    def has_file(self, name: str) -> bool:
        return os.path.lexists(self.folder / name)


def read_secret(path: Path) -> str:
    """A regular file of the owner's alone, read without following a link at its end."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unopened(path, error) from None
    try:
        _check_private(path, os.fstat(opened))
        raw = os.read(opened, LARGEST + 1)
    finally:
        os.close(opened)
    return _text_of(path, raw)


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        fix = "put the secret itself into a file there"
        raise SecretProblem(BAD_SECRET_FILE, f"{path} is not a regular file", fix)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        message = f"{path} may be read by others (mode {mode:04o})"
        raise SecretProblem(BAD_SECRET_FILE, message, f"chmod 600 {path}")


def _unopened(path: Path, error: OSError | ValueError) -> SecretProblem:
    if path.is_symlink():
        fix = "put the secret itself into a file there"
        return SecretProblem(BAD_SECRET_FILE, f"{path} is a link", fix)
    reason = error.strerror if isinstance(error, OSError) else "no such path"
    message = f"{path} cannot be read: {reason}"
    return SecretProblem(BAD_SECRET_FILE, message, f"write the secret into {path}, chmod 600")


def _text_of(path: Path, raw: bytes) -> str:
    try:
        text = raw.decode().strip("\r\n")
    except UnicodeDecodeError:
        text = ""
    if not text or len(raw) > LARGEST:
        message = f"{path} holds no secret (empty, too large, or not text)"
        raise SecretProblem(BAD_SECRET_FILE, message, f"write the secret into {path}")
    return text


def _sendable(text: str) -> str:
    """A secret travels in a header: a line break in it would be another header."""
    if not (text.isprintable() and text.isascii()):
        message = "a header cannot carry it: it holds a control character, or one beyond ASCII"
        raise SecretProblem(MALFORMED, message, "store it as one line of plain characters")
    return text
