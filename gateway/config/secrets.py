"""Secrets by reference: `${env:NAME}` and `${file:name}`, followed once, at the border."""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.config.environment import value_of
from gateway.config.problems import Code, Finding, KeyPath, Report

FOLDER = Path(".config/exogate/secrets")  # below the home directory
LARGEST = 65_536

REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretProblem(Exception):
    """Why a secret cannot be had; says nothing of the secret itself."""

    def __init__(self, code: Code, message: str, fix: str) -> None:
        super().__init__(message)
        self.code, self.message, self.fix = code, message, fix


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Where references lead to, and whom their problems are told."""

    environment: Mapping[str, str]
    home: Path
    report: Report

    @property
    def folder(self) -> Path:
        return self.home / FOLDER

    def follow(
        self, path: KeyPath, text: str, *, is_needed: bool = True, is_open: bool = False
    ) -> str | None:
        """What the key's text leads to; None once its problem is reported.

        What nothing needs may be missing; a text that is no secret (`is_open`) may be literal.
        """
        if "${" not in text and not is_open:
            fix = 'write "${env:NAME}" or "${file:name}" instead'
            self.report.note("literal-secret", path, "a secret stands in the configuration", fix)
        try:
            return self.resolve(text)
        except SecretProblem as problem:
            if is_needed or problem.code == Code.MALFORMED:
                self.report.wrong(problem.code, path, problem.message, problem.fix)
            else:
                self.report.note("unused-secret", path, problem.message, problem.fix)
            return None

    def variable(self, path: KeyPath, name: str) -> str | None:
        """What a variable holds that stands for a key; None once its problem is reported."""
        value = self.environment[name]
        if is_sendable(value):
            return value
        message, fix = "a header cannot carry it", "use plain characters, on one line"
        self.report.findings.append(Finding(Code.MALFORMED, path, message, fix, variable=name))
        return None

    def resolve(self, text: str) -> str:
        """The text with its references replaced; raises SecretProblem."""
        if "${" in REFERENCE.sub("", text):
            message = "this is not a reference that can be followed"
            raise SecretProblem(Code.MALFORMED, message, "write ${env:NAME} or ${file:name}")
        value = REFERENCE.sub(lambda found: self._referred(found[1], found[2]), text)
        if not is_sendable(value):
            message = "a header cannot carry it: it holds a control character, or one beyond ASCII"
            fix = "store it as one line of plain characters"
            raise SecretProblem(Code.MALFORMED, message, fix)
        return value

    def _referred(self, kind: str, name: str) -> str:
        if kind == "file":
            return read_secret(self._file(name))
        if not _VARIABLE.fullmatch(name):
            message = "this is not the name of a variable"
            raise SecretProblem(Code.MALFORMED, message, "write ${env:NAME}")
        value = value_of(self.environment, name)
        if value is None:
            message, fix = f"the variable {name} is not set", f"export {name}=... before the start"
            raise SecretProblem(Code.UNSET_VARIABLE, message, fix)
        return value

    def _file(self, name: str) -> Path:
        if not name.startswith("/") and not _FILE_NAME.fullmatch(name):
            fix = f"write a plain name (a file in {self.folder}) or an absolute path"
            raise SecretProblem(Code.MALFORMED, "this is not the name of a secret file", fix)
        return self.folder / name


def is_sendable(text: str) -> bool:
    """A secret travels in a header: a line break in it would be another header."""
    return text.isprintable() and text.isascii()


def read_secret(path: Path) -> str:
    """A regular file of the owner's alone, read without following a link at its end."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such path"
        reason = "it is a link" if path.is_symlink() else reason
        raise _bad(f"{path} cannot be read: {reason}", f"put the secret into {path}") from None
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise _bad(f"{path} is not a regular file", "put the secret into a file there")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise _bad(f"{path} is open to others (mode {mode:04o})", f"chmod 600 {path}")
        raw = os.read(opened, LARGEST + 1)
    finally:
        os.close(opened)
    text = raw.strip(b"\r\n")
    if not text.strip() or not text.isascii() or len(raw) > LARGEST:
        message = f"{path} holds no secret: it is empty, too large or not plain text"
        raise _bad(message, f"write the secret into {path}")
    return text.decode()


def _bad(message: str, fix: str) -> SecretProblem:
    return SecretProblem(Code.BAD_SECRET_FILE, message, fix)
