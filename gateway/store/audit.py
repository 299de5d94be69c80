"""The audit in SQLite: a chain of entries that triggers keep from being changed."""

import logging
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.domain.events import AuditEntry, Deed, DeedKind, entry_after
from gateway.domain.ids import to_micros, to_time
from gateway.store.reader import SqliteStore
from gateway.store.rows import require_text
from gateway.store.writer import Pen

log = logging.getLogger(__name__)


class SqliteAudit(SqliteStore):
    async def append(self, deed: Deed) -> None:
        require_text("an audit entry", deed.actor)
        await self._writer.write(partial(append_deed, deed), durable=False)

    def append_soon(self, deed: Deed) -> None:
        require_text("an audit entry", deed.actor)
        self._writer.write_soon(partial(append_deed, deed), partial(_note_missing, deed))

    async def newest(
        self, *, kind: DeedKind | None = None, before: int | None = None, limit: int = 1
    ) -> Sequence[AuditEntry]:
        await self._writer.caught_up()
        return await self._readers.read(partial(_newest, kind, before, limit))

    async def after(self, seq: int, *, limit: int) -> Sequence[AuditEntry]:
        await self._writer.caught_up()
        return await self._readers.read(partial(_after, seq, limit))


def _note_missing(deed: Deed, error: Exception) -> None:
    told = {"kind": deed.kind, "actor": deed.actor, "why": str(error)}
    log.error("an entry of the audit could not be written", extra=told)


def append_deed(deed: Deed, pen: Pen) -> None:
    last = _newest(None, None, 1, pen.db)
    entry = entry_after(last[0] if last else None, deed)
    at = to_micros(entry.at)
    row = (entry.seq, at, entry.kind, entry.actor, entry.detail, entry.hash)
    pen.db.execute(f"INSERT INTO audit ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", row)


def _newest(
    kind: DeedKind | None, before: int | None, limit: int, db: sqlite3.Connection
) -> Sequence[AuditEntry]:
    terms = {"kind = ?": kind, "seq < ?": before}
    given = {term: value for term, value in terms.items() if value is not None}
    where = f"WHERE {' AND '.join(given)}" if given else ""
    order = "ORDER BY seq DESC LIMIT ?"
    values = (*given.values(), max(0, limit))
    rows = db.execute(f"SELECT {_COLUMNS} FROM audit {where} {order}", values)
    return [_to_entry(row) for row in rows.fetchall()]


def _after(seq: int, limit: int, db: sqlite3.Connection) -> Sequence[AuditEntry]:
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM audit WHERE seq > ? ORDER BY seq LIMIT ?", (seq, max(0, limit))
    )
    return [_to_entry(row) for row in rows.fetchall()]


def _to_entry(row: Sequence[Any]) -> AuditEntry:
    seq, at, *rest = row
    return AuditEntry(seq, to_time(at), *rest)


_COLUMNS = "seq, at, kind, actor, detail, hash"
