"""The audit in memory."""

from collections.abc import Sequence

from gateway.domain.audit import AuditEntry, Deed, DeedKind, entry_after
from gateway.domain.errors import StoreUnavailable
from gateway.store.audit import note_missing
from gateway.store.memory_shelf import Shelf
from gateway.store.rows import require_text


class MemoryAudit:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def append(self, deed: Deed) -> None:
        require_text("an audit entry", deed.actor)
        await self._shelf.ready()
        self._append(deed)

    def append_soon(self, deed: Deed) -> None:
        require_text("an audit entry", deed.actor)
        if self._shelf.is_closed:
            note_missing(deed, StoreUnavailable("the store is closed"))
        else:
            self._append(deed)

    def _append(self, deed: Deed) -> None:
        entries = self._shelf.audit
        entries.append(entry_after(entries[-1] if entries else None, deed))

    async def newest(
        self, *, kind: DeedKind | None = None, before: int | None = None, limit: int = 1
    ) -> Sequence[AuditEntry]:
        await self._shelf.ready()
        entries = self._shelf.audit[: None if before is None else max(0, before - 1)]
        found = [entry for entry in entries if kind in {None, entry.kind}]
        return found[::-1][: max(0, limit)]

    async def after(self, seq: int, *, limit: int) -> Sequence[AuditEntry]:
        await self._shelf.ready()
        return self._shelf.audit[seq : seq + max(0, limit)]
