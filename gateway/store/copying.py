"""Copies of whole stores: between engines, with the rows of one moment counted and digested on both
sides; and of one SQLite file while others write to it."""

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from anyio import to_thread
from pydantic_core import to_json

from gateway.domain.backups import BackupRefused, CopiedTable, CopyRefused
from gateway.store.facts import list_all
from gateway.store.faults import lack_of_room
from gateway.store.tables import TABLES, Table, migrate
from gateway.store.transaction import Row, Transaction
from gateway.store.writer import CopyStore, open_to_read

# Omits a counter of this machine and the progress of its index of words, which is rebuilt.
COPIED = tuple(one for name, one in TABLES.items() if name not in {"pulse", "turn_cursor"})
FIRST_ROWS, _MOST_ROWS, _PAGE_BYTES = 50, 500, 4 << 20


class RowSource(Protocol):
    """All rows of one moment, with the values that SQLite has."""

    def rows(self, table: Table) -> AsyncIterator[Sequence[Row]]: ...
    async def last_numbers(self) -> Mapping[str, int]:
        """Returns the largest number that was ever assigned to a row of each table."""


class RowTarget(RowSource, Protocol):
    async def put(self, table: Table, rows: Sequence[Row]) -> None: ...
    async def finish(self, numbers: Mapping[str, int]) -> None:
        """Writes derived data once all rows are there, and fsyncs."""


async def copy_rows(source: RowSource, target: RowTarget) -> Sequence[CopiedTable]:
    """Raises CopyRefused if the target does not return the rows that it received."""
    copied = []
    for table in COPIED:
        seen = _Seen(table)
        async for rows in source.rows(table):
            seen.add(rows)
            await target.put(table, rows)
        copied.append(seen.table)
    await target.finish(await source.last_numbers())
    for table, sent in zip(COPIED, copied, strict=True):
        seen = _Seen(table)
        async for rows in target.rows(table):
            seen.add(rows)
        if (found := seen.table) != sent:
            raise CopyRefused(
                f"the copy of table {table.name} differs ({sent.rows:,} rows sent, {found.rows:,} found): "
                "run the command again"
            )
    return copied


class _Seen:
    """Counts rows and adds up their digests; the sum does not depend on their order."""

    def __init__(self, table: Table) -> None:
        self._table, self._rows, self._sum = table, 0, 0

    def add(self, rows: Sequence[Row]) -> None:
        self._rows += len(rows)
        for row in rows:
            values = [
                int(one) if one is True or one is False else one
                for one in map(row.get, self._table.types)
            ]
            digest = sha256(to_json(values, bytes_mode="hex")).digest()
            self._sum += int.from_bytes(digest)

    @property
    def table(self) -> CopiedTable:
        return CopiedTable(self._table.name, self._rows, f"{self._sum % (1 << 256):064x}")


def next_page(size: int, rows: Sequence[Row]) -> int:
    """Returns the number of rows to read next, so that a page stays small whatever the rows hold."""
    held = sum(len(one) for row in rows for one in row.values() if isinstance(one, str | bytes))
    return max(1, min(_MOST_ROWS, 2 * size, len(rows) * _PAGE_BYTES // max(1, held)))


class SqliteRows:
    """The rows of a database that no other process writes."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db, self._path = db, path

    async def rows(self, table: Table) -> AsyncIterator[Sequence[Row]]:
        """Yields rows with the marks of their partial indexes."""
        select = ", ".join([*table.types, *(f"({one})" for one in table.marks.values())])
        names, size = [*table.types, *table.marks], FIRST_ROWS
        cursor = await to_thread.run_sync(self._db.execute, f"SELECT {select} FROM {table.name}")
        while found := await to_thread.run_sync(cursor.fetchmany, size):
            rows = [dict(zip(names, row, strict=True)) for row in found]
            size = next_page(size, rows)
            yield rows

    async def last_numbers(self) -> Mapping[str, int]:
        return await to_thread.run_sync(self._last_numbers)

    def _last_numbers(self) -> Mapping[str, int]:
        found = dict[str, int]()
        for table in COPIED:
            if table.number:
                select = f"SELECT coalesce(max({table.number}), 0) FROM {table.name}"
                found[table.name] = int(self._db.execute(select).fetchone()[0])
        for name, last in self._db.execute("SELECT name, seq FROM sqlite_sequence").fetchall():
            found[name] = max(found[name], last)
        return found

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        names = [*table.types]
        marks = ", ".join(f":{name}" for name in names)
        insert = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})"
        await to_thread.run_sync(self._db.executemany, insert, rows)

    async def finish(self, numbers: Mapping[str, int]) -> None:
        await to_thread.run_sync(self._finish, numbers)

    def _finish(self, numbers: Mapping[str, int]) -> None:
        list_all(Transaction(self._db))
        for name in [row[0] for row in self._db.execute("SELECT name FROM sqlite_sequence")]:
            last = (numbers.get(name, 0), name)
            self._db.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", last)
        self._db.execute("COMMIT")
        with self._path.open("rb") as file:
            os.fsync(file.fileno())


@contextlib.asynccontextmanager
async def reading_sqlite(path: Path) -> AsyncIterator[SqliteRows]:
    db = await to_thread.run_sync(partial(open_to_read, path, any_thread=True))
    with contextlib.closing(db):
        yield SqliteRows(db, path)


@contextlib.asynccontextmanager
async def writing_sqlite(path: Path) -> AsyncIterator[SqliteRows]:
    """Yields a database in a new file, which is complete only at the end."""
    try:
        with contextlib.closing(await to_thread.run_sync(_new_database, path)) as db:
            yield SqliteRows(db, path)
    except (sqlite3.Error, OSError) as error:
        raise CopyRefused(f"{path} cannot be written: {error}") from error


def _new_database(path: Path) -> sqlite3.Connection:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    migrate(db)
    db.execute("BEGIN")
    return db


# --- a copy of the database file as of one moment, made while others write to it -----------------
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
