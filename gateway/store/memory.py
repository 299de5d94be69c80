"""The store without a file: the same promises until the process ends."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime

from anyio.lowlevel import checkpoint

from gateway.domain.errors import Conflict, NotFound
from gateway.domain.ids import SessionKey
from gateway.domain.outbox import Delivery, DeliveryState
from gateway.domain.ports import Stores
from gateway.store.memory_inbox import MemoryInbox, MemoryJournal, MemoryRuns
from gateway.store.memory_sessions import MemorySessions, MemoryTranscript
from gateway.store.memory_shelf import Run, Shelf
from gateway.store.outbox import not_pending, require_settled
from gateway.store.rows import require_text, to_micros


@contextlib.asynccontextmanager
async def open_memory() -> AsyncIterator[Stores]:
    shelf = Shelf()
    try:
        yield Stores(
            MemoryInbox(shelf),
            MemoryJournal(shelf),
            MemoryRuns(shelf),
            MemoryTranscript(shelf),
            MemorySessions(shelf),
            MemoryOutbox(shelf),
            MemoryCare(shelf),
        )
    finally:
        shelf.is_closed = True


class MemoryOutbox:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def due(self, *, now: datetime, limit: int) -> Sequence[Delivery]:
        await self._shelf.ready()
        first: dict[SessionKey, Delivery] = {}
        for delivery in self._shelf.deliveries.values():
            if delivery.state in {"pending", "sending"}:
                first.setdefault(delivery.session_key, delivery)
        due = [one for one in first.values() if one.state == "pending" and one.due_at <= now]
        return due[: max(0, limit)]

    async def sending(self, delivery_id: str) -> None:
        await self._shelf.ready()
        delivery = self._delivery(delivery_id)
        if delivery.state != "pending":
            raise Conflict(not_pending(delivery_id, delivery.state))
        self._shelf.deliveries[delivery_id] = replace(
            delivery, state="sending", attempts=delivery.attempts + 1
        )

    async def settle(
        self,
        delivery_id: str,
        state: DeliveryState,
        *,
        receipt: str | None = None,
        why: str | None = None,
        due_at: datetime | None = None,
    ) -> None:
        require_settled(state)
        require_text("the receipt", receipt, why)
        await self._shelf.ready()
        delivery = self._delivery(delivery_id)
        if delivery.state in {"sent", "failed"}:
            return
        self._shelf.deliveries[delivery_id] = replace(
            delivery,
            state=state,
            receipt=delivery.receipt if receipt is None else receipt,
            why=delivery.why if why is None else why,
            due_at=delivery.due_at if due_at is None else due_at,
        )

    def _delivery(self, delivery_id: str) -> Delivery:
        delivery = self._shelf.deliveries.get(delivery_id)
        if delivery is None:
            raise NotFound(f"delivery {delivery_id}")
        return delivery

    async def interrupted(self) -> Sequence[Delivery]:
        await self._shelf.ready()
        return [one for one in self._shelf.deliveries.values() if one.state == "sending"]


class MemoryCare:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def probe(self) -> None:
        await self._shelf.ready()

    async def sweep(self, *, before: datetime, limit: int) -> int:
        await self._shelf.ready()
        ended = [run for run in self._shelf.runs.values() if _ended_at(run) is not None]
        old = [run for run in ended if not run.swept and _is_before(run, before)]
        old.sort(key=lambda run: to_micros(_ended_at(run) or before))
        for run in old[: max(0, limit)]:
            run.swept = True
            run.record = replace(run.record, log=b"")
            self._shelf.journal.pop(run.record.entry.new.run_id, None)
        return min(len(old), max(0, limit))

    async def close(self) -> None:
        await checkpoint()
        self._shelf.is_closed = True


def _ended_at(run: Run) -> datetime | None:
    return run.record.finished_at


def _is_before(run: Run, before: datetime) -> bool:
    ended = _ended_at(run)
    return ended is not None and ended < before
