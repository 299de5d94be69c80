"""What users have set, in SQLite: one JSON object each."""

import sqlite3
from functools import partial

from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import require_text
from gateway.store.writer import Writer


class SqliteSettings:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def read(self, user: str) -> str | None:
        require_text("the user's name", user)
        return await self._readers.read(partial(_read, user))

    async def write(self, user: str, record: str, *, expected: str | None) -> bool:
        require_text("a user's settings", user, record)
        write = partial(_write, user, record, expected)
        return await self._writer.write(write, durable=True)


def _read(user: str, db: sqlite3.Connection) -> str | None:
    row = db.execute("SELECT json FROM settings WHERE user = ?", (user,)).fetchone()
    return None if row is None else str(row[0])


def _write(user: str, record: str, expected: str | None, pen: Pen) -> bool:
    if expected is None:
        return pen.db.execute(_ADD, (user, record)).rowcount == 1
    return pen.db.execute(_CHANGE, (record, user, expected)).rowcount == 1


_ADD = "INSERT INTO settings (user, json) VALUES (?, ?) ON CONFLICT DO NOTHING"
_CHANGE = "UPDATE settings SET json = ? WHERE user = ? AND json = ?"
