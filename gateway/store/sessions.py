"""Sessions in SQLite, as they are listed."""

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.domain.errors import NotFound
from gateway.domain.ids import SessionKey
from gateway.domain.sessions import SessionPage, SessionQuery, SessionRecord
from gateway.store.pen import Pen
from gateway.store.reader import Readers
from gateway.store.rows import require_text, to_micros, to_time
from gateway.store.writer import Writer


class SqliteSessions:
    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer, self._readers = writer, readers

    async def find(self, key: SessionKey) -> SessionRecord | None:
        require_text("the session's key", str(key))
        await self._writer.caught_up()
        return await self._readers.read(partial(_find, key))

    async def list(self, query: SessionQuery) -> SessionPage:
        """`updated_at` is never the same twice, so `before` = the last one's loses nobody."""
        require_text("the query", query.account, query.peer, query.text)
        require_text("the query", *(query.agents or ()), *(query.channels or ()))
        await self._writer.caught_up()
        return await self._readers.read(partial(_list, query))

    async def count(self) -> int:
        return await self._readers.read(_total)

    async def close(self, key: SessionKey) -> None:
        require_text("the session's key", str(key))
        await self._writer.write(partial(_close, key), durable=True)


def _find(key: SessionKey, db: sqlite3.Connection) -> SessionRecord | None:
    row = db.execute(f"{_SESSION} WHERE s.key = ?", (str(key),)).fetchone()
    return None if row is None else _to_record(row)


def _list(query: SessionQuery, db: sqlite3.Connection) -> SessionPage:
    wanted: dict[str, Sequence[object] | None] = {
        _one_of("s.agent", query.agents): query.agents,
        _one_of("s.channel", query.channels): query.channels,
        "s.account = ?": None if query.account is None else [query.account],
        "s.peer = ?": None if query.peer is None else [query.peer],
        "instr(s.key, ?) > 0": None if query.text is None else [query.text],
        "s.updated_at < ?": None if query.before is None else [to_micros(query.before)],
    }
    given = {term: values for term, values in wanted.items() if values is not None}
    where = f"WHERE {' AND '.join(given)}" if given else ""
    limit = max(0, query.limit)
    values = [value for values in given.values() for value in values]
    rows = db.execute(
        f"{_SESSION} {where} ORDER BY s.updated_at DESC LIMIT ?", (*values, limit + 1)
    ).fetchall()
    return SessionPage(tuple(_to_record(row) for row in rows[:limit]), more=len(rows) > limit)


def _one_of(column: str, values: Sequence[str] | None) -> str:
    return f"{column} IN ({', '.join('?' * len(values or ()))})"


def _total(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM session").fetchone()[0])


def _close(key: SessionKey, pen: Pen) -> None:
    closed = pen.db.execute("UPDATE session SET state = 'closed' WHERE key = ?", (str(key),))
    if closed.rowcount == 0:
        raise NotFound(f"session {key}")


def _to_record(row: Sequence[Any]) -> SessionRecord:
    key, created_at, updated_at, *rest = row
    return SessionRecord(SessionKey.parse(key), to_time(created_at), to_time(updated_at), *rest)


_SESSION = """
SELECT s.key, s.created_at, s.updated_at, s.message_count,
       s.input_tokens + coalesce(l.input_tokens, 0),    -- s: from before there was a ledger
       s.output_tokens + coalesce(l.output_tokens, 0),
       CASE WHEN l.priced > 0 THEN coalesce(s.cost_usd, 0.0) + l.nano_usd / 1e9 ELSE s.cost_usd END,
       s.state, (SELECT n.id FROM node n WHERE n.place = s.head)
FROM session s LEFT JOIN spend l ON l.kind = 'session' AND l.name = s.key
"""
