"""The audit: a chain of entries that are never changed (SQLite enforces it by triggers)."""

import logging
from collections.abc import Sequence
from functools import partial

import anyio

from gateway.domain.events import AuditEntry, AuditEvent, AuditKind, entry_after
from gateway.store.tables import TABLES
from gateway.store.transaction import Transaction, without_none
from gateway.store.writer import Engine, StorePart, reading

log = logging.getLogger(__name__)


def append_event(tx: Transaction, event: AuditEvent) -> None:
    last = _newest(tx)
    tx.insert("audit", TABLES["audit"].row_of(entry_after(last[0] if last else None, event)))


def _newest(
    tx: Transaction,
    *,
    kind: AuditKind | None = None,
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

    async def append(self, event: AuditEvent) -> None:
        async with self._turn:  # each entry contains the hash of the previous one
            await self._writer.write(partial(append_event, event=event), durable=False)

    newest = reading(_newest, caught_up=True)
    after = reading(_after, caught_up=True)

    def append_soon(self, event: AuditEvent) -> None:
        self._writer.write_soon(partial(append_event, event=event), partial(_note_missing, event))


def _note_missing(event: AuditEvent, error: Exception) -> None:
    facts = {"kind": event.kind, "actor": event.actor, "why": str(error)}
    log.error("audit_entry_not_written", extra=facts)
