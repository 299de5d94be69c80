"""The journal of runs in SQLite: what a new turn is told again after a crash."""

import sqlite3
from collections.abc import Sequence
from functools import partial

from gateway.domain.ids import RunId
from gateway.domain.inbox import JournalNote
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import require_text
from gateway.store.writer import Writer


class SqliteJournal:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def note(self, run_id: RunId, note: JournalNote) -> None:
        """The first of a step and kind stays: a kind names the call that it is the result of."""
        require_text("a journal note", run_id, note.kind, note.payload)
        await self._writer.write(partial(_note, run_id, note), durable=False)

    async def forgive(self, run_id: RunId) -> None:
        await self._writer.write(partial(_forgive, run_id), durable=False)

    async def notes(self, run_id: RunId) -> Sequence[JournalNote]:
        return await self._readers.read(partial(_notes, run_id))


def _forgive(run_id: RunId, pen: Pen) -> None:
    pen.db.execute(_FORGIVE, (run_id,))


def _note(run_id: RunId, note: JournalNote, pen: Pen) -> None:
    pen.db.execute(_ADD, (run_id, note.step, note.kind, note.payload))


def _notes(run_id: RunId, db: sqlite3.Connection) -> Sequence[JournalNote]:
    rows = db.execute(
        "SELECT step, kind, payload FROM journal WHERE run_id = ? ORDER BY step, id", (run_id,)
    ).fetchall()
    return [JournalNote(*row) for row in rows]


_FORGIVE = """
UPDATE run SET forgiven = forgiven + 1
WHERE run_id = ? AND finished_at IS NULL AND forgiven < attempts
"""
_ADD = """
INSERT INTO journal (run_id, step, kind, payload) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
