"""A copy of the database as of one moment, made while others write to it."""

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from anyio import to_thread

from gateway.domain.backups import BackupRefused
from gateway.store.faults import lack_of_room
from gateway.store.writer import CopyStore, open_to_read

_SYNC_EVERY_S = 0.02  # a commit waits for dirty pages: less than a tenth of a second of writing
_SPARE_BYTES = 16 << 20
_SIZE = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""


def copier(source: Path) -> CopyStore:
    return lambda into, copies: to_thread.run_sync(_copy_database, source, into, copies)


def _copy_database(source: Path, into: Path, copies: int) -> None:
    """Writes the used part of the database to a new file. Raises BackupRefused, also if there is no
    room for `copies` copies."""
    try:
        with contextlib.closing(open_to_read(source)) as db, _synced(into):
            _require_room(int(db.execute(_SIZE).fetchone()[0]), into.parent, copies)
            db.execute("PRAGMA query_only = 0")  # VACUUM INTO needs it
            db.execute("VACUUM INTO ?", (str(into),))
    except (sqlite3.Error, OSError) as error:
        why = getattr(error, "strerror", None)
        if isinstance(error, sqlite3.Error):
            files = (source, Path(f"{source}-wal"))
            size = sum(one.stat().st_size for one in files if one.exists())
            why = lack_of_room(error, str(into), size)
        why = (why or str(error)).partition(";")[0]
        raise BackupRefused(f"the store cannot be copied to {into.parent}: {why}") from error


def _require_room(size: int, folder: Path, copies: int) -> None:
    free, needed = shutil.disk_usage(folder).free, copies * size + _SPARE_BYTES
    if free < needed:
        raise BackupRefused(
            f"a backup needs {needed:,} bytes while it is made, and {folder} has {free:,} left: "
            "free some space, or name a file on another disk"
        )


@contextlib.contextmanager
def _synced(path: Path) -> Iterator[None]:
    """Fsyncs the file continuously while it is written, so that no fsync of the store waits for
    much of it. The file is new and private."""
    _remove(path)
    is_over = threading.Event()
    with contextlib.ExitStack() as undo:
        undo.callback(_remove, path)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file):
            syncing = threading.Thread(target=_sync, args=(file, is_over), daemon=True)
            syncing.start()
            try:
                yield
            finally:
                is_over.set()
                syncing.join()
            os.fsync(file)
        undo.pop_all()


def _sync(file: int, is_over: threading.Event) -> None:
    while not is_over.wait(_SYNC_EVERY_S):
        with contextlib.suppress(OSError):  # the final fsync reports the error
            os.fdatasync(file)


def _remove(path: Path) -> None:
    """Removes the file and SQLite's journal beside it."""
    for one in (path, path.with_name(f"{path.name}-journal")):
        one.unlink(missing_ok=True)
