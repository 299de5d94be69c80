"""What a run leaves to later ones, in SQLite: the state of rules, and notices for other sessions."""

import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import Any

from pydantic_core import from_json, to_json

from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import Ending
from gateway.domain.notices import Batching, Notice
from gateway.store.pen import Pen, SessionRow
from gateway.store.reader import Readers
from gateway.store.rows import TextRefused, require_text, to_micros, to_time
from gateway.store.writer import Writer

MOST_POSTED = 100  # of an agent and a person, unclaimed; beyond it the oldest go

_PLAIN = tuple(one.name for one in fields(Notice) if one.name not in {"data", "expires_at"})


class SqliteRuleStates:
    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def of(self, key: SessionKey) -> str | None:
        require_text("the session's key", str(key))
        return await self._readers.read(partial(_rule_state, str(key)))


class SqliteNotices:
    def __init__(self, writer: Writer, readers: Readers, pen: Pen) -> None:
        self._writer, self._readers, self._pen = writer, readers, pen

    async def claim(
        self, person: str, session_key: SessionKey, run_id: RunId, *, now: datetime
    ) -> Sequence[Notice]:
        """Nearly always there is nothing, and then nothing is written, and mostly not even read."""
        require_text("the person or the run", person, str(session_key), run_id)
        if not self._pen.may_hold_notices:
            return ()
        where = (session_key.agent, person, str(session_key), run_id, to_micros(now))
        if not await self._readers.read(partial(_has_some, where)):
            return ()
        rows = await self._writer.write(partial(_claim, run_id, where), durable=False)
        return [unpack_notice(expires_at, packed) for _, expires_at, packed in sorted(rows)]


def pack_notice(notice: Notice) -> str:
    """All of it but its end of life. Raises TextRefused."""
    plain = {name: getattr(notice, name) for name in _PLAIN}
    try:
        return to_json({**plain, "data": dict(notice.data)}, fallback=str).decode()
    except ValueError as error:
        raise TextRefused("a notice") from error


def unpack_notice(expires_at: int | None, packed: str) -> Notice:
    until = None if expires_at is None else to_time(expires_at)
    kept = from_json(packed)
    return Notice(**{**kept, "batching": Batching(**kept["batching"])}, expires_at=until)


def leave(ending: Ending, session: SessionRow, pen: Pen) -> None:
    """Its share of the commit that ends a run."""
    db = pen.db
    if pen.may_hold_notices:
        db.execute(_RELEASE if ending.leaves_claimed else _FORGET, (ending.run_id,))
    if ending.rule_state is not None:
        db.execute(_KEEP_STATE, (session.id, ending.rule_state))
    if not ending.posts:
        return
    pen.may_hold_notices = True
    who = (ending.session_key.agent, ending.person)
    for notice in ending.posts:
        until = None if notice.expires_at is None else to_micros(notice.expires_at)
        db.execute(_POST, (*who, session.id, until, pack_notice(notice)))
    db.execute(_TRIM, (*who, *who, MOST_POSTED))


def _rule_state(key: str, db: sqlite3.Connection) -> str | None:
    row = db.execute(_STATE, (key,)).fetchone()
    return None if row is None else str(row[0])


def _has_some(where: tuple[object, ...], db: sqlite3.Connection) -> bool:
    row = db.execute(f"SELECT EXISTS (SELECT 1 FROM notice {_FREE})", where).fetchone()
    return bool(row[0])


def _claim(run_id: RunId, where: tuple[object, ...], pen: Pen) -> list[tuple[Any, ...]]:
    return pen.db.execute(
        f"{_MARK} {_FREE} RETURNING id, expires_at, json", (run_id, *where)
    ).fetchall()


_STATE = """
SELECT r.json FROM rule_state r JOIN session s ON s.id = r.session WHERE s.key = ?
"""
_KEEP_STATE = """
INSERT INTO rule_state (session, json) VALUES (?, ?)
ON CONFLICT (session) DO UPDATE SET json = excluded.json
"""
_FORGET = "DELETE FROM notice WHERE claimed_by = ?"
_RELEASE = "UPDATE notice SET claimed_by = NULL WHERE claimed_by = ?"
_POST = "INSERT INTO notice (agent, person, session, expires_at, json) VALUES (?, ?, ?, ?, ?)"
_TRIM = """
DELETE FROM notice WHERE agent = ? AND person = ? AND claimed_by IS NULL AND id <= (
    SELECT id FROM notice WHERE agent = ? AND person = ? AND claimed_by IS NULL
    ORDER BY id DESC LIMIT 1 OFFSET ?)
"""
_MARK = "UPDATE notice SET claimed_by = ?"
_FREE = """
WHERE agent = ? AND person = ? AND session IS NOT (SELECT id FROM session WHERE key = ?)
  AND (claimed_by IS NULL OR claimed_by = ?) AND (expires_at IS NULL OR expires_at > ?)
"""
