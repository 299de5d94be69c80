"""The data directory: private, locked for one process, with a mark of what was acknowledged."""

import contextlib
import errno
import fcntl
import json
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.domain.errors import DataDirInUse, StoreRefused
from gateway.store.rows import file_fault, file_faults

LOCK = "lock"
MARK = "store.mark"
_TRIES, _BETWEEN_S = 4, 0.05  # a command that asks for the owner holds the lock for a moment


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds the data directory. `url` is set once its gateway listens."""

    pid: int
    url: str | None = None


def make_private(path: Path) -> None:
    """Raises StoreUnavailable if the directory cannot be made or entered."""
    with file_faults(str(path)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Locks the directory until the end. Raises DataDirInUse with the owner."""
    path = data_dir / LOCK
    with file_faults(str(path)):
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _taken(lock):
            raise DataDirInUse(str(data_dir), _described(_parsed(path)))
        _write_owner(lock, Owner(os.getpid()), str(path))
        yield
    finally:
        os.close(lock)


def _taken(lock: int) -> bool:
    for attempt in range(_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < _TRIES:
                time.sleep(_BETWEEN_S)
        else:
            return True
    return False


def _write_owner(lock: int, owner: Owner, where: str) -> None:
    text = json.dumps({"pid": owner.pid, "url": owner.url}).encode()
    with file_faults(where):
        os.pwrite(lock, text.ljust(os.fstat(lock).st_size), 0)
        os.ftruncate(lock, len(text))


def _described(owner: Owner | None) -> str:
    if owner is None:
        return "another process"
    return f"process {owner.pid}" + (f" ({owner.url})" if owner.url else "")


def _parsed(path: Path) -> Owner | None:
    try:
        said = json.loads(path.read_bytes())
        return Owner(int(said["pid"]), said["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_owner(data_dir: Path) -> Owner | None:
    """The process that holds the directory now; None if it is not locked."""
    path = data_dir / LOCK
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _parsed(path)
    else:
        return None
    finally:
        os.close(lock)


def write_address(data_dir: Path, url: str) -> None:
    """Only for the process that holds the lock."""
    path = data_dir / LOCK
    with file_faults(str(path)):
        lock = os.open(path, os.O_RDWR)
    try:
        _write_owner(lock, Owner(os.getpid(), url), str(path))
    finally:
        os.close(lock)


@dataclass(frozen=True, slots=True)
class Held:
    """How far a database had come: messages accepted and durable commits."""

    accepted: int = 0
    commits: int = 0


class Mark:
    """What was acknowledged, kept beside the database: SQLite drops a damaged end of its log
    without a word, and only an account kept elsewhere can tell."""

    _FORM = struct.Struct(">QQ")

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / MARK
        with file_faults(str(self.path)):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def read(self) -> Held:
        """Raises StoreRefused if the file is not one of ours."""
        text = os.pread(self._file, self._FORM.size + 1, 0)
        if not text:
            return Held()
        if len(text) != self._FORM.size:
            raise StoreRefused(
                f"{self.path} is damaged: check the disk and the database, then move the file away"
            )
        return Held(*self._FORM.unpack(text))

    def write(self, accepted: int, commits: int) -> None:
        """Raises StoreUnavailable; a byte range within one block is written whole or not at all."""
        try:
            written = os.pwrite(self._file, self._FORM.pack(accepted, commits), 0)
            if written < self._FORM.size:  # a limit cut the write
                if os.fstat(self._file).st_size < self._FORM.size:
                    os.ftruncate(self._file, 0)
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        except OSError as error:
            raise file_fault(error, str(self.path)) from error

    def close(self) -> None:
        os.close(self._file)


def require_all(held: Held, mark: Held, where: str) -> None:
    """Raises StoreRefused if the database is behind what was acknowledged."""
    if held.accepted >= mark.accepted and held.commits >= mark.commits:
        return
    messages = max(0, mark.accepted - held.accepted)
    commits = max(0, mark.commits - held.commits)
    raise StoreRefused(
        f"{where} misses {messages} accepted messages and {commits} commits that were "
        "acknowledged: restore the newest backup, or start with --accept-loss to go on without them"
    )
