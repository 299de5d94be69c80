"""Whole results of tools in SQLite, packed by the threads that write and read them."""

import sqlite3
import zlib
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from gateway.domain.agents import Original
from gateway.domain.errors import Busy, NotFound
from gateway.domain.facts import Erasure, tombstone_of
from gateway.domain.ids import RunId, SessionKey, to_micros, to_time
from gateway.domain.sessions import Erased
from gateway.store import facts as fact_writing
from gateway.store.rows import place_of
from gateway.store.turns import forget_turns, rewrite_index
from gateway.store.writer import Pen, SqliteStore, reading, writing

_FAST = 1  # of zlib's levels
_ANY = "surrogatepass"  # a tool may say what is no text


def forget_originals(pen: Pen, key: SessionKey) -> None:
    pen.db.execute("DELETE FROM original WHERE session = ?", (str(key),))


def sweep_originals(pen: Pen, before: int, limit: int) -> int:
    """Deletes the oldest that were kept before that time. Returns how many."""
    return pen.db.execute(_SWEEP, (before, max(0, limit))).rowcount


def _keep(pen: Pen, original: Original) -> None:
    one = original
    packed = zlib.compress(one.content.encode("utf-8", _ANY), _FAST)
    at = to_micros(one.at)
    pen.db.execute(_KEEP, (one.reference, str(one.session_key), one.run_id, one.tool, packed, at))


def _read(db: sqlite3.Connection, session_key: SessionKey, reference: str) -> Original | None:
    row = db.execute(_READ, (reference, str(session_key))).fetchone()
    if row is None:
        return None
    run_id, tool, packed, at = row
    content = zlib.decompress(packed).decode("utf-8", _ANY)
    return Original(reference, session_key, RunId(run_id), tool, content, to_time(at))


class SqliteOriginals(SqliteStore):
    keep_original = writing(_keep, durable=False)
    read_original = reading(_read)
    forget_originals = writing(forget_originals, durable=False)


_KEEP = """
INSERT INTO original (reference, session, run_id, tool, content, at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_READ = "SELECT run_id, tool, content, at FROM original WHERE reference = ? AND session = ?"
_SWEEP = """
DELETE FROM original WHERE id IN (SELECT id FROM original WHERE at < ? ORDER BY at LIMIT ?)
"""


class SqliteErasures(SqliteStore):
    async def erase(self, key: SessionKey, *, by: str, dry_run: bool, now: datetime) -> Erased:
        """Returns only when the index of words is written anew as well: after a crash before that it
        has to be asked again."""
        what = Erasure(session_key=key, by=by)
        if dry_run:
            return await self._readers.read(partial(_count, key=key, what=what))
        erase = partial(_erase, key=key, what=what, now=now)
        erased = await self._writer.write(erase, durable=True)
        await rewrite_index(self._writer)
        return erased


def _count(db: sqlite3.Connection, key: SessionKey, what: Erasure) -> Erased:
    row = db.execute("SELECT id FROM session WHERE key = ?", (str(key),)).fetchone()
    if row is None:
        raise NotFound(f"session {key}")
    return Erased(len(_ids(row[0], db)), fact_writing.count_of(db, what))


def _ids(session: int, db: sqlite3.Connection) -> Sequence[str]:
    bounds = (place_of(session, 0), place_of(session + 1, 0))
    return [row[0] for row in db.execute(_MESSAGES, bounds)]


def _erase(pen: Pen, key: SessionKey, what: Erasure, now: datetime) -> Erased:
    session = pen.session(key)
    if session is None:
        raise NotFound(f"session {key}")
    if pen.db.execute(_AT_WORK, (session.id,)).fetchone() is not None:
        raise Busy(
            f"session {key} has a message that is not answered yet: nothing was erased; wait for its "
            "end or abort it first"
        )
    ids = _ids(session.id, pen.db)
    forget_turns(pen, session.id)  # as long as their texts can be told to the index
    facts = fact_writing.erase(pen, what, now)
    pen.db.execute(_NODES, (place_of(session.id, 0), place_of(session.id + 1, 0)))
    for statement in _OF_SESSION:
        pen.db.execute(statement, (session.id,))
    forget_originals(pen, key)
    session.head, session.head_id, session.is_closed = None, None, True
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
    UPDATE run SET content = '', digest = '', summary = '', has_journal = 0, log = NULL, tape = NULL,
        whence = NULL
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
