"""The store without a file: the same promises until the process ends."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime

from anyio.lowlevel import checkpoint

from gateway.domain.errors import Conflict, NotFound
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.outbox import Delivery, DeliveryState
from gateway.domain.ports import PluginSpace, Stores
from gateway.store.memory_aftermath import MemoryNotices, MemoryRuleStates, MemorySettings
from gateway.store.memory_audit import MemoryAudit
from gateway.store.memory_channels import MemoryChannels
from gateway.store.memory_conversations import MemoryConversations, MemoryErasures
from gateway.store.memory_facts import MemoryFacts
from gateway.store.memory_hearing import MemoryHearing
from gateway.store.memory_inbox import MemoryInbox, MemoryJournal, MemoryRuns
from gateway.store.memory_ledger import MemoryLedger, MemorySpending
from gateway.store.memory_pairings import MemoryPairings
from gateway.store.memory_sessions import MemorySessions, MemorySummaries, MemoryTranscript
from gateway.store.memory_shelf import Run, Shelf, Space
from gateway.store.memory_turns import MemoryTurns
from gateway.store.outbox import not_pending, require_settled
from gateway.store.plugins import filled, key_form, require_kept
from gateway.store.rows import require_text


@contextlib.asynccontextmanager
async def open_memory() -> AsyncIterator[Stores]:
    shelf = Shelf()
    turns, facts, channels = MemoryTurns(shelf), MemoryFacts(shelf), MemoryChannels(shelf)
    try:
        yield Stores(
            MemoryInbox(shelf),
            MemoryJournal(shelf),
            MemoryRuns(shelf),
            MemoryTranscript(shelf),
            MemorySessions(shelf),
            MemoryOutbox(shelf),
            MemoryPlugins(shelf),
            MemoryLedger(shelf),
            MemorySpending(shelf),
            MemoryAudit(shelf),
            MemoryCare(shelf),
            MemorySettings(shelf),
            MemoryRuleStates(shelf),
            MemoryNotices(shelf),
            facts,
            MemoryHearing(shelf),
            turns,
            turns,
            MemorySummaries(shelf),
            MemoryConversations(shelf),
            MemoryErasures(shelf, facts, turns),
            channels,
            channels,
            MemoryPairings(shelf),
        )
    finally:
        shelf.is_closed = True


class MemoryOutbox:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def due(self, *, now: datetime, limit: int) -> Sequence[Delivery]:
        await self._shelf.ready()
        first: dict[SessionKey | str, Delivery] = {}  # without a session: each for itself
        for delivery in self._shelf.deliveries.values():
            if delivery.state in {"pending", "sending"}:
                first.setdefault(delivery.session_key or delivery.new.id, delivery)
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


class MemoryPlugins:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def get(self, space: PluginSpace, key: str) -> str | None:
        value = (await self._space(space)).values.get(key_form(key))
        return None if value is None else value.decode()

    async def set(self, space: PluginSpace, key: str, value: str) -> None:
        name, form = require_kept(key, value)
        kept = await self._space(space)
        old = kept.values.get(name)
        held = (len(kept.values), kept.size)
        _, kept.size = filled(held, name, form, None if old is None else len(old))
        kept.values[name] = form
        self._shelf.spaces[space] = kept

    async def delete(self, space: PluginSpace, key: str) -> None:
        kept = await self._space(space)
        name = key_form(key)
        old = kept.values.pop(name, None)
        if old is not None:
            kept.size -= len(name) + len(old)

    async def list(self, space: PluginSpace, prefix: str) -> Sequence[str]:
        keys, start = (await self._space(space)).values, key_form(prefix)
        return [key.decode() for key in sorted(keys) if key.startswith(start)]

    async def _space(self, space: PluginSpace) -> Space:
        await self._shelf.ready()
        return self._shelf.spaces.get(space) or Space()


class MemoryCare:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def probe(self) -> None:
        await self._shelf.ready()

    async def sweep(self, *, before: datetime, limit: int) -> int:
        await self._shelf.ready()
        old = [run for run in self._shelf.runs.values() if _ended_at(run, before) < before]
        old.sort(key=lambda run: _ended_at(run, before))
        for run in old[: max(0, limit)]:
            run.swept = True
            run.record = replace(run.record, log=b"")
            self._shelf.journal.pop(run.record.entry.new.run_id, None)
            self._shelf.tapes.pop(run.record.entry.new.run_id, None)
        return min(len(old), max(0, limit))

    async def expire(self, agent: AgentId, *, before: datetime, limit: int) -> int:
        await self._shelf.ready()
        sessions = self._shelf.sessions.values()
        unused = [one for one in sessions if one.record.key.agent == agent]
        unused = [one for one in unused if one.record.updated_at < before]
        active = [one for one in unused if one.record.state == "active"][: max(0, limit)]
        for one in active:
            one.record = replace(one.record, state="closed")
        return len(active)

    async def close(self) -> None:
        await checkpoint()
        self._shelf.is_closed = True


def _ended_at(run: Run, otherwise: datetime) -> datetime:
    ended = run.record.finished_at
    return otherwise if ended is None or run.swept else ended
