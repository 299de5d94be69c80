"""The audit in SQLite: a chain of entries that triggers keep from being changed."""

import logging
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.domain.events import AuditEntry, Deed, DeedKind, entry_after
from gateway.domain.ids import to_micros, to_time
from gateway.store.tables import insert, where
from gateway.store.writer import Pen, SqliteStore, reading, writing

log = logging.getLogger(__name__)


def append_deed(deed: Deed, pen: Pen) -> None:
    last = _newest(pen.db)
    entry = entry_after(last[0] if last else None, deed)
    row = (entry.seq, to_micros(entry.at), entry.kind, entry.actor, entry.detail, entry.hash)
    pen.db.execute(_APPEND, row)


def _newest(
    db: sqlite3.Connection,
    *,
    kind: DeedKind | None = None,
    before: int | None = None,
    limit: int = 1,
) -> Sequence[AuditEntry]:
    condition, values = where({"kind = ?": kind, "seq < ?": before})
    return _select(f"{condition} ORDER BY seq DESC", (*values, limit), db)


def _after(db: sqlite3.Connection, seq: int, *, limit: int) -> Sequence[AuditEntry]:
    return _select("WHERE seq > ? ORDER BY seq", (seq, limit), db)


def _select(terms: str, values: tuple[Any, ...], db: sqlite3.Connection) -> Sequence[AuditEntry]:
    """The last value is the limit."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM audit {terms} LIMIT max(0, ?)", values)
    return [AuditEntry(seq, to_time(at), *rest) for seq, at, *rest in rows.fetchall()]


class SqliteAudit(SqliteStore):
    """Implements the port Audit."""

    append = writing(lambda pen, deed: append_deed(deed, pen), durable=False)
    newest = reading(_newest, caught_up=True)
    after = reading(_after, caught_up=True)

    def append_soon(self, deed: Deed) -> None:
        self._writer.write_soon(partial(append_deed, deed), partial(_note_missing, deed))


def _note_missing(deed: Deed, error: Exception) -> None:
    told = {"kind": deed.kind, "actor": deed.actor, "why": str(error)}
    log.error("an entry of the audit could not be written", extra=told)


_COLUMNS = "seq, at, kind, actor, detail, hash"
_APPEND = insert("audit", _COLUMNS)
