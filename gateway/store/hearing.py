"""How far facts were looked for in what people said, in SQLite."""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial

from gateway.domain.hearing import Heard, Said
from gateway.domain.ids import NodeId, SessionKey
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import place_of, require_text, to_time
from gateway.store.writer import Writer


class SqliteHearing:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def behind(self) -> Sequence[SessionKey]:
        return await self._readers.read(partial(_keys, _BEHIND))

    async def next(self, key: SessionKey, *, limit: int) -> Heard:
        return await self._next("heard", key, limit)

    async def looked(self, upto: Mapping[SessionKey, NodeId]) -> None:
        require_text("a message's id", *upto.values())
        rows = [(node,) for node in upto.values()]
        await self._writer.write(partial(_looked, rows), durable=False)

    async def owe(self, key: SessionKey, since: NodeId) -> None:
        require_text("a message's id", since)
        await self._writer.write(partial(_owe, since), durable=False)

    async def owed(self) -> Sequence[SessionKey]:
        return await self._readers.read(partial(_keys, _OWED))

    async def next_owed(self, key: SessionKey, *, limit: int) -> Heard:
        return await self._next("unread", key, limit)

    async def read(self, key: SessionKey, upto: NodeId) -> bool:
        require_text("a message's id", upto)
        return await self._writer.write(partial(_read, key, upto), durable=False)

    async def _next(self, table: str, key: SessionKey, limit: int) -> Heard:
        require_text("the session's key", str(key))
        return await self._readers.read(partial(_next, table, str(key), limit))


def _keys(query: str, db: sqlite3.Connection) -> Sequence[SessionKey]:
    return [SessionKey.parse(row[0]) for row in db.execute(query)]


def _next(table: str, key: str, limit: int, db: sqlite3.Connection) -> Heard:
    """`table` is `heard`, where no row means that nothing was looked at, or `unread`."""
    found = db.execute(_PLACE[table], (key,)).fetchone()
    if found is None:
        return Heard()
    session, seq = found
    bounds = (place_of(session, seq), place_of(session + 1, 0), max(0, limit))
    rows = db.execute(_NODES, bounds).fetchall()
    said = tuple(
        Said(node, run, sender, text, to_time(at))
        for node, run, role, message, sender, text, at in rows
        # Of what stands there as a user's, only that was said which was accepted or imported.
        if role == "user" and message in {None, node}
    )
    return Heard(said, rows[-1][0] if rows else None)


def _looked(rows: Sequence[tuple[NodeId]], pen: Pen) -> None:
    pen.db.executemany(_LOOKED, rows)


def _owe(since: NodeId, pen: Pen) -> None:
    pen.db.execute(_OWE, (since,))


def _read(key: SessionKey, upto: NodeId, pen: Pen) -> bool:
    session = pen.session(key)
    place = pen.place(session, upto) if session else None
    if session is None or place is None:
        return False
    bounds = (place_of(session.id, 0), place_of(session.id, session.last_seq), session.id)
    row = pen.db.execute(_READ, (place, *bounds)).fetchone()
    return bool(row and row[0])


_BEHIND = """
SELECT s.key FROM session s LEFT JOIN heard h ON h.session = s.id
WHERE s.last_seq > coalesce(h.seq, 0) ORDER BY s.updated_at DESC
"""
_OWED = "SELECT s.key FROM unread u JOIN session s ON s.id = u.session WHERE u.is_owed"
_PLACE = {
    "heard": """
        SELECT s.id, coalesce(h.seq, 0) FROM session s LEFT JOIN heard h ON h.session = s.id
        WHERE s.key = ?
    """,
    "unread": """
        SELECT s.id, u.seq FROM session s JOIN unread u ON u.session = s.id
        WHERE s.key = ? AND u.is_owed
    """,
}
_NODES = """
SELECT n.id, n.run_id, n.role, r.message_id, r.sender,
       CASE n.role WHEN 'user' THEN n.text END, n.created_at
FROM node n LEFT JOIN run r ON n.role = 'user' AND r.run_id = n.run_id
WHERE n.place > ? AND n.place < ? ORDER BY n.place LIMIT ?
"""
_SEQ = "n.place & 0xffffffff"
_LOOKED = f"""
INSERT INTO heard (session, seq) SELECT n.place >> 32, {_SEQ} FROM node n WHERE n.id = ?
ON CONFLICT (session) DO UPDATE SET seq = max(seq, excluded.seq)
"""
_OWE = f"""
INSERT INTO unread (session, seq, is_owed) SELECT n.place >> 32, ({_SEQ}) - 1, 1 FROM node n
WHERE n.id = ?
ON CONFLICT (session) DO UPDATE
SET seq = CASE WHEN is_owed THEN seq ELSE max(seq, excluded.seq) END, is_owed = 1
"""
_READ = """
UPDATE unread SET seq = max(seq, ?1 - ?2), is_owed = ?1 < ?3 WHERE session = ?4
RETURNING is_owed
"""
