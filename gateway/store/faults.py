"""Faults of SQLite, of files and of texts, as errors with a sentence for the operator."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from gateway.domain.errors import GatewayError, StoreRefused, StoreUnavailable

_FULL = "the disk that holds {where} is full: free some space; nothing was acknowledged"
_LIMITED = (
    "{where} may not grow: free some space or raise the limit on the size of files or the quota "
    "(ulimit -f, LimitFSIZE=, quota); nothing was acknowledged"
)
_READ_ONLY = "{where} cannot be written (read-only): check its owner, mode and mount"
_INPUT_OUTPUT = "writing {where} failed ({name}): check the disk; nothing was acknowledged"
_LOCKED = "{where} is locked by another program: close it (a database shell, a backup)"
_NO_ACCESS = "{where} cannot be opened ({name}): check that it exists, its owner and its mode"
_DAMAGED = (
    "{where} is damaged ({detail}): stop, keep a copy of the directory, and restore a backup "
    "or move the file away to start empty"
)
_OTHER = "{where}: {detail}"

_SENTENCES = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_IOERR: _INPUT_OUTPUT,
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CANTOPEN: _NO_ACCESS,
    sqlite3.SQLITE_PERM: _NO_ACCESS,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}

_PAGE = 4_096
_LIMITS = frozenset({errno.EFBIG, errno.EDQUOT})
# A failed sync is excluded: it leaves unknown which pages are on the disk.
_OF_A_WRITE = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE})


def code_of(error: sqlite3.Error) -> int:
    """Returns the primary result code; 0 for an error of the Python module."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _is_full(error: sqlite3.Error) -> bool:
    # SQLite has its own code for the index of the log, which is a separate file.
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE


def is_io_error(error: sqlite3.Error) -> bool:
    return code_of(error) == sqlite3.SQLITE_IOERR and not _is_full(error)


def lack_of_room(error: sqlite3.Error, where: str, size: int = 0) -> str | None:
    """Returns the sentence for a write that failed because the disk or a limit is full; None for
    other failures. SQLite reports a limit as an I/O error, so this writes a probe of at least
    `size` bytes beside the database."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code_of(error) != sqlite3.SQLITE_FULL and not _is_full(error) and code not in _OF_A_WRITE:
        return None
    number = _fault_of_growing(Path(where), size)
    if number in _LIMITS:
        return _LIMITED.format(where=where)
    if code in _OF_A_WRITE and number != errno.ENOSPC:
        return None
    return _FULL.format(where=where)


def _fault_of_growing(path: Path, size: int) -> int | None:
    """Returns the error number of a write behind the end of the database or its log; None if it
    succeeds."""
    probe = path.with_name("store.probe")
    try:
        sizes = [one.stat().st_size for one in (path, Path(f"{path}-wal")) if one.exists()]
        file = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            end = max((*sizes, size))
            written = os.pwrite(file, bytes(_PAGE), end)
            if written < _PAGE:  # the next write reports the limit that cut this one
                os.pwrite(file, bytes(_PAGE - written), end + written)
        finally:
            os.close(file)
            probe.unlink()
    except OSError as error:
        return error.errno
    return None


def sentence(error: sqlite3.Error, where: str) -> str:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    form = _FULL if _is_full(error) else _SENTENCES.get(code_of(error), _OTHER)
    return form.format(where=where, name=name, detail=error)


def unavailable(error: sqlite3.Error, where: str) -> StoreUnavailable:
    return StoreUnavailable(lack_of_room(error, where) or sentence(error, where))


def opening_error(error: sqlite3.Error, where: str) -> GatewayError:
    """Returns StoreRefused for damage and old libraries, StoreUnavailable for faults that an
    operator can fix."""
    if code_of(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}:
        return StoreRefused(damaged(where, error))
    return unavailable(error, where)


def damaged(where: str, detail: object) -> str:
    return _DAMAGED.format(where=where, detail=detail)


@contextlib.contextmanager
def file_faults(where: str) -> Iterator[None]:
    """Turns a failed call on a file of the data directory into StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise file_fault(error, where) from error


def file_fault(error: OSError, where: str) -> StoreUnavailable:
    form = _OTHER
    if error.errno == errno.ENOSPC:
        form = _FULL
    elif error.errno in _LIMITS:
        form = _LIMITED
    elif error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        form = _READ_ONLY
    return StoreUnavailable(form.format(where=where, detail=error.strerror or error))


class TextRefused(GatewayError):
    """A text without a UTF-8 form can be neither stored nor sent."""

    code = "bad_text"

    def __init__(self, what: str = "a text") -> None:
        super().__init__(
            f"{what} holds half of a surrogate pair, which no text may hold: "
            "nothing was stored; send it again as valid Unicode"
        )


def has_no_utf8(error: Exception) -> bool:
    """True if a text could not be stored because it has no UTF-8 form."""
    return isinstance(error, ValueError) and "surrogates not allowed" in str(error)


def require_text(what: str, *texts: str | None) -> None:
    """Raises TextRefused before anything is written."""
    try:
        "".join(filter(None, texts)).encode()
    except UnicodeEncodeError as error:
        raise TextRefused(what) from error
