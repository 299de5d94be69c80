"""Files outside the store: texts that people edit, the operator's key, and shipped folders."""

import hashlib
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from anyio import to_thread

import gateway
from gateway.domain.errors import SoulUnreadable

MOST_BYTES = 256 * 1024


class FileTexts:
    """Reads texts from files."""

    async def read(self, path: str) -> str:
        """Reads a text. Raises SoulUnreadable."""
        return await to_thread.run_sync(_read, path)


Stamps = Mapping[Path, tuple[int, int, int] | None]  # inode, time of change in ns, size
Digests = Mapping[Path, str]


def stamps_of(paths: Iterable[Path]) -> Stamps:
    """Returns a stamp for each path, None if it does not exist. The stamp changes if the file is changed or replaced,
    or if a folder gains or loses a file."""
    stamps = dict[Path, tuple[int, int, int] | None]()
    for path in paths:
        stamps[path] = None
        with suppress(OSError):
            found = path.stat()
            stamps[path] = found.st_ino, found.st_mtime_ns, found.st_size
    return stamps


def digests_of(paths: Iterable[Path]) -> Digests:
    """Returns the SHA-256 of each file, empty if it cannot be read."""
    return {path: _digest(path) for path in paths}


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise SoulUnreadable(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MOST_BYTES:
        raise SoulUnreadable(f"{path} is larger than {MOST_BYTES // 1024} KiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SoulUnreadable(f"{path} is not UTF-8 (byte {error.start})") from error
    if "\0" in text:
        raise SoulUnreadable(f"{path} contains a NUL character")
    if not text.strip():
        raise SoulUnreadable(f"{path} is empty")
    return text


KEY = "operator.key"  # the file whose key authenticates the command line


def make_key(data_dir: Path) -> str:
    """Writes a new key to a file that only its owner can read; the key of an earlier start becomes invalid."""
    key = secrets.token_urlsafe(32)
    fresh = data_dir / f"{KEY}.new"
    fresh.unlink(missing_ok=True)
    opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        file.write(key)
    fresh.replace(data_dir / KEY)
    return key


def read_key(data_dir: Path) -> str | None:
    """Returns the key of the running gateway; None if this user cannot read it."""
    try:
        return (data_dir / KEY).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def shipped_folder(name: str) -> Path:
    """Returns a shipped folder: inside the installed package, or beside it in a checkout."""
    package = Path(gateway.__file__).parent
    return package / name if (package / name).is_dir() else package.parent / name
