"""Erases a conversation in SQLite: every table that holds something of what was said in it."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from gateway.domain.conversations import Erased
from gateway.domain.errors import Busy, NotFound
from gateway.domain.facts import Erasure, tombstone_of
from gateway.domain.ids import SessionKey
from gateway.store import fact_writing
from gateway.store.originals import forget_originals
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import place_of, require_text
from gateway.store.turns import forget_turns, rewrite_index
from gateway.store.writer import Writer


class SqliteErasures:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def erase(self, key: SessionKey, *, by: str, dry_run: bool, now: datetime) -> Erased:
        """Told only when the index of what was said is written anew as well: after a crash before
        that it is to be asked again."""
        require_text("the session's key or who erases it", str(key), by)
        what = Erasure(session_key=key, by=by)
        if dry_run:
            return await self._readers.read(partial(_count, key, what))
        erased = await self._writer.write(partial(_erase, key, what, now), durable=True)
        await rewrite_index(self._writer)
        return erased


def busy(key: SessionKey) -> Busy:
    return Busy(
        f"session {key} has a message that is not answered yet: nothing was erased; wait for its "
        "end or abort it first"
    )


def _count(key: SessionKey, what: Erasure, db: sqlite3.Connection) -> Erased:
    row = db.execute("SELECT id FROM session WHERE key = ?", (str(key),)).fetchone()
    if row is None:
        raise NotFound(f"session {key}")
    return Erased(len(_ids(row[0], db)), fact_writing.count_of(what, db))


def _ids(session: int, db: sqlite3.Connection) -> Sequence[str]:
    bounds = (place_of(session, 0), place_of(session + 1, 0))
    return [row[0] for row in db.execute(_MESSAGES, bounds)]


def _erase(key: SessionKey, what: Erasure, now: datetime, pen: Pen) -> Erased:
    session = pen.session(key)
    if session is None:
        raise NotFound(f"session {key}")
    if pen.db.execute(_AT_WORK, (session.id,)).fetchone() is not None:
        raise busy(key)
    ids = _ids(session.id, pen.db)
    forget_turns(key, ids, pen)  # as long as their texts can be told to the index
    facts = fact_writing.erase(what, now, pen)
    pen.db.execute(_NODES, (place_of(session.id, 0), place_of(session.id + 1, 0)))
    for statement in _OF_SESSION:
        pen.db.execute(statement, (session.id,))
    forget_originals(key, pen)
    session.head = session.head_id = None
    return Erased(len(ids), facts, tombstone_of(what, now))


_AT_WORK = "SELECT 1 FROM run INDEXED BY run_unfinished WHERE session = ? AND finished_at IS NULL"
_MESSAGES = "SELECT id FROM node WHERE place > ? AND place < ? AND standing < 2"
_NODES = """
UPDATE node SET text = '', packed = NULL, label = NULL, summary = NULL, checkpoint = 0, standing = 2
WHERE place > ? AND place < ? AND standing < 2
"""
# The rest, each with what its row would otherwise still hold; ids stay, so that a message that is
# sent again is known, and accounts still add up.
_OF_SESSION = (
    "DELETE FROM journal WHERE run_id IN (SELECT run_id FROM run WHERE session = ?)",
    """
    UPDATE run SET content = '', digest = '', summary = '', log = NULL, tape = NULL, whence = NULL
    WHERE session = ?
    """,
    """
    UPDATE delivery SET text = '', whence = NULL, receipt = NULL, why = 'erased',
        state = CASE state WHEN 'pending' THEN 'failed' ELSE state END
    WHERE session = ?
    """,
    "DELETE FROM rule_state WHERE session = ?",
    "DELETE FROM notice WHERE session = ?",
    "UPDATE session SET head = NULL, message_count = 0, state = 'closed' WHERE id = ?",
)
