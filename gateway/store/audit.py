"""The audit: a chain of entries that are never changed (SQLite enforces it by triggers)."""

import logging
from collections.abc import Sequence
from functools import partial

import anyio

from gateway.domain.events import AuditEntry, Deed, DeedKind, entry_after
from gateway.store.tables import TABLES
from gateway.store.transaction import Transaction, without_none
from gateway.store.writer import Engine, StorePart, reading

log = logging.getLogger(__name__)


def append_deed(tx: Transaction, deed: Deed) -> None:
    last = _newest(tx)
    tx.insert("audit", TABLES["audit"].row_of(entry_after(last[0] if last else None, deed)))


def _newest(
    tx: Transaction,
    *,
    kind: DeedKind | None = None,
    before: int | None = None,
    limit: int = 1,
) -> Sequence[AuditEntry]:
    terms = without_none({"kind": kind, "seq <": before})
    return [AuditEntry(**row) for row in tx.find("audit", terms, order="-seq", limit=limit)]


def _after(tx: Transaction, seq: int, *, limit: int) -> Sequence[AuditEntry]:
    rows = tx.find("audit", {"seq >": seq}, order="seq", limit=limit)
    return [AuditEntry(**row) for row in rows]


class StoredAudit(StorePart):
    """Implements the port Audit."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._turn = anyio.Lock()

    async def append(self, deed: Deed) -> None:
        async with self._turn:  # each entry contains the hash of the previous one
            await self._writer.write(partial(append_deed, deed=deed), durable=False)

    newest = reading(_newest, caught_up=True)
    after = reading(_after, caught_up=True)

    def append_soon(self, deed: Deed) -> None:
        self._writer.write_soon(partial(append_deed, deed=deed), partial(_note_missing, deed))


def _note_missing(deed: Deed, error: Exception) -> None:
    facts = {"kind": deed.kind, "actor": deed.actor, "why": str(error)}
    log.error("audit_entry_not_written", extra=facts)
