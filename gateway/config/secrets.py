"""Secrets: resolves references, writes secret files, and removes secrets from texts for people."""

import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import chain
from pathlib import Path

from gateway.config.environment import CREDENTIALS, value_of
from gateway.config.problems import Code, KeyPath
from gateway.domain.ids import Secret
from gateway.domain.mcp import McpServerDef
from gateway.domain.model import ProviderDef
from gateway.domain.text import printable

FOLDER = Path(".config/exogate/secrets")  # below the home directory
LARGEST = 65_536

REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretProblem(Exception):
    """A secret cannot be resolved. The message never contains the secret."""

    def __init__(self, code: Code, message: str, fix: str) -> None:
        super().__init__(message)
        self.code, self.message, self.fix = code, message, fix


def secret_files(text: str) -> tuple[str, ...]:
    """Returns the names of the secret files that a configuration refers to, without absolute paths."""
    found = dict.fromkeys(name for kind, name in REFERENCE.findall(text) if kind == "file")
    return tuple(name for name in found if _FILE_NAME.fullmatch(name))


def is_file_name(text: str) -> bool:
    return bool(_FILE_NAME.fullmatch(text))


def replace_file(path: Path, source: bytes, mode: int) -> None:
    """Replaces a file atomically: readers see the old or the new content, also after a crash."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(opened, "wb") as file:
            with suppress(OSError):  # there is no old file, or only root may change owners
                before = path.stat()
                os.fchown(opened, before.st_uid, before.st_gid)
            os.fchmod(opened, mode)
            file.write(source)
            file.flush()
            os.fsync(opened)
        Path(fresh).replace(path)
    finally:
        Path(fresh).unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def secret_name(path: KeyPath) -> str:
    """Returns the file name for the secret of a key; providers.openai.api_key becomes openai_api_key."""
    parts = path[1:] if path[0] == "providers" else path
    return re.sub(r"[^A-Za-z0-9]+", "_", "_".join(map(str, parts))).strip("_") or "secret"


def write_secret(home: Path, name: str, value: str) -> Callable[[], None]:
    """Writes a secret file atomically, and returns a function that restores the old one. Raises OSError."""
    path = home / FOLDER / name
    before = path.read_bytes() if path.is_file() else None
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, value.encode(), 0o600)

    def restore() -> None:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, before, 0o600)

    return restore


NO_FILES: Mapping[str, str] = {}


def resolve(
    text: str, environment: Mapping[str, str], home: Path, pending: Mapping[str, str] = NO_FILES
) -> str:
    """Returns the text with its references replaced; `pending` holds files not yet written. Raises SecretProblem."""
    if "${" in REFERENCE.sub("", text):
        message = "this is not a valid reference"
        raise SecretProblem(Code.MALFORMED, message, "write ${env:NAME} or ${file:name}")

    def referred(found: re.Match[str]) -> str:
        if found[1] == "env":
            return _variable(environment, found[2])
        if found[2] in pending:
            return pending[found[2]]
        given = value_of(environment, CREDENTIALS)
        path = _file(Path(given or ""), found[2])
        if given is not None and path.parent == Path(given) and path.is_file():
            return _plain_secret(path, path.read_bytes())  # the service manager decides on its mode
        try:
            return read_secret(_file(home / FOLDER, found[2]))
        except SecretProblem as problem:
            if given is not None and problem.code == Code.BAD_SECRET_FILE:
                problem.fix += f", or have the service manager put it into {given}, and restart"
            raise

    value = REFERENCE.sub(referred, text)
    if not is_sendable(value):
        message = "a header cannot carry this secret: it has a control or non-ASCII character"
        fix = "store the secret as one line of ASCII characters"
        raise SecretProblem(Code.MALFORMED, message, fix)
    return value


def secret_folders(environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Returns the folders of secret files; the first folder with a named file wins."""
    given = value_of(environment, CREDENTIALS)
    return (home / FOLDER,) if given is None else (Path(given), home / FOLDER)


def absolute_files(text: str) -> tuple[Path, ...]:
    """Returns the secret files that a configuration names by absolute path."""
    named = (Path(found[2]) for found in REFERENCE.finditer(text) if found[1] == "file")
    return tuple(path for path in named if path.is_absolute())


def _variable(environment: Mapping[str, str], name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        message = "this is not the name of a variable"
        raise SecretProblem(Code.MALFORMED, message, "write ${env:NAME}")
    value = value_of(environment, name)
    if value is None:
        message, fix = f"the variable {name} is not set", f"export {name}=... before the start"
        raise SecretProblem(Code.UNSET_VARIABLE, message, fix)
    return value


def _file(folder: Path, name: str) -> Path:
    if not name.startswith("/") and not _FILE_NAME.fullmatch(name):
        fix = f"write a plain name (a file in {folder}) or an absolute path"
        raise SecretProblem(Code.MALFORMED, "this is not the name of a secret file", fix)
    return folder / name


def is_sendable(text: str) -> bool:
    """True if a header can carry the text: a line break would start another header."""
    return text.isprintable() and text.isascii()


def read_secret(path: Path) -> str:
    """Reads a regular file that only its owner can access, without following a link. Raises SecretProblem."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such path"
        reason = "it is a link" if path.is_symlink() else reason
        raise _bad(f"{path} cannot be read: {reason}", f"put the secret into {path}") from None
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise _bad(f"{path} is not a regular file", f"put the secret into a file {path}")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise _bad(
                f"{path} is accessible to other users (mode {mode:04o})", f"chmod 600 {path}"
            )
        raw = os.read(opened, LARGEST + 1)
    finally:
        os.close(opened)
    return _plain_secret(path, raw)


def _plain_secret(path: Path, raw: bytes) -> str:
    text = raw.strip(b"\r\n")
    if not text.strip() or not text.isascii() or len(raw) > LARGEST:
        message = f"{path} is empty, too large or not ASCII text"
        raise _bad(message, f"write the secret into {path}")
    return text.decode()


def _bad(message: str, fix: str) -> SecretProblem:
    return SecretProblem(Code.BAD_SECRET_FILE, message, fix)


_AFTER_SCHEME = re.compile(r"(?:\A|:)\s*(?:Bearer|Basic|Token)\s+(\S+)", re.IGNORECASE)
_LONG_WORD = re.compile(r"(?<!\S)[\w.=+/-]{40,}(?!\S)")  # a key inside a longer text


def secrets_in(value: object) -> Iterator[str]:
    """Yields every resolved secret of a configuration, for the log to strike out."""
    inside: Iterable[object] = ()
    match value:
        case Secret():
            text = value.reveal()
            yield from (text, *_AFTER_SCHEME.findall(text), *_LONG_WORD.findall(text))
        case McpServerDef():
            inside = value.hidden
        case ProviderDef():
            inside = (value.api_key, *map(Secret, value.headers.values()))
        case Mapping():
            inside = value.values()
        case tuple():
            inside = value
        case _ if is_dataclass(value):
            inside = (getattr(value, field.name) for field in fields(value))
    yield from chain.from_iterable(map(secrets_in, inside))


MASK = "***"
WIDTH = 120  # characters of a source line in a message

_SECRET_NAME = re.compile(
    r"(^|_)(token|api_?key|secrets?|pass(word|wd|phrase)?|credentials?|auth(orization)?|cookie"
    r"|(private|access|secret|signing)_key)$|^(key|pat)$"
)
_NEW_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # before the T of accessToken
_SECRET_TEXT = re.compile(
    r"\b(?:sk|pk|rk)[-_][\w-]{6,}|\bgh[pousr]_\w{8,}|\bxox[a-z]-[\w-]{6,}|\bAIza[\w-]{10,}"
    r"|\bBearer +[^\s\"'$]{4,}",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """True if a key of this name is likely to hold a secret, in any schema."""
    words = _NEW_WORD.sub("_", name).lower().replace("-", "_")
    return _SECRET_NAME.search(words) is not None


def is_sensitive(path: KeyPath) -> bool:
    """True if the value at a path may be a secret."""
    match path:
        case ("plugins", int(), "secrets", _, "hosts", *_):
            return False
        case ("channels", str(), "secrets", _, "hosts", *_):
            return False
        case ("mcp", "servers", _, "env", *_):
            return True
    return "headers" in path or any(isinstance(p, str) and looks_secret(p) for p in path)


_ADDRESS_SECRET = re.compile(r"(?<=://)[^\s/@\"']*@|(?<=[?&])[^\s\"']+")
_USER_OF_ADDRESS = re.compile(r"(?<=://)[^\s/@\"']*@")
_HEADER_FLAGS = frozenset({"-H", "--header", "--headers"})
_PAIR = re.compile(r"""(?<![\w-])([\w-]++)(["']?\s*[:=]\s*["']?)([^"',}]+)""")
_RANDOM = re.compile(r"(?<![\w./@-])(?=[A-Za-z_]*\d)(?=[\d_]*[A-Za-z])\w{20,}(?![\w./@-])")


def strike(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns the text without these secrets, keys of well-known services, and users and queries of addresses."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _ADDRESS_SECRET.sub(MASK, _SECRET_TEXT.sub(MASK, text))


def strike_value(text: str) -> str:
    """Returns a value for `config show`: like `strike`, but the queries of addresses stay."""
    return _USER_OF_ADDRESS.sub(MASK, _SECRET_TEXT.sub(MASK, text))


def strike_arguments(arguments: Iterable[str], secrets: Iterable[str] = ()) -> list[str]:
    """Returns the arguments of a program without secrets: values after names that look secret, headers, and long
    words that look random."""
    known, shown, is_next = tuple(secrets), list[str](), False
    for argument in arguments:
        name, sign, _ = argument.partition("=")
        is_named = name in _HEADER_FLAGS or looks_secret(name.lstrip("-"))
        if is_next:
            shown.append(MASK)
        elif is_named:
            shown.append(f"{name}={MASK}" if sign else name)
        else:
            pairs = _PAIR.sub(_strike_pair, strike(argument, known))
            shown.append(_RANDOM.sub(MASK, pairs))
        is_next = is_named and not sign and not is_next
    return shown


def _strike_pair(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{MASK}" if looks_secret(found[1]) else found[0]


def fit_line(before: str, after: str, secrets: Iterable[str] = ()) -> tuple[str, int]:
    """Returns a line, cut around its caret if it is long, and the column of the caret."""
    before = printable(strike(before.removeprefix("\ufeff"), secrets))
    after = printable(strike(after.rstrip("\r"), secrets))
    if len(before) > WIDTH - 20:
        before = f"...{before[-(WIDTH // 2) :]}"
    room = WIDTH - len(before)
    after = after.rstrip() if len(after) <= room else f"{after[:room]}..."
    return before + after, len(before)
