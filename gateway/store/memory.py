"""The store without a file: the same promises until the process ends."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime

from anyio.lowlevel import checkpoint

from gateway.domain.ids import AgentId
from gateway.domain.ports import PluginSpace, Stores
from gateway.store.memory_aftermath import MemoryNotices, MemoryRuleStates, MemorySettings
from gateway.store.memory_audit import MemoryAudit
from gateway.store.memory_channels import MemoryChannels
from gateway.store.memory_conversations import MemoryConversations, MemoryErasures
from gateway.store.memory_facts import MemoryFacts
from gateway.store.memory_hearing import MemoryHearing
from gateway.store.memory_inbox import MemoryInbox, MemoryJournal, MemoryRuns
from gateway.store.memory_ledger import MemoryLedger, MemorySpending
from gateway.store.memory_originals import MemoryOriginals
from gateway.store.memory_outbox import MemoryOutbox
from gateway.store.memory_pairings import MemoryPairings
from gateway.store.memory_sessions import MemorySessions, MemorySummaries, MemoryTranscript
from gateway.store.memory_shelf import Run, Shelf, Space
from gateway.store.memory_turns import MemoryTurns
from gateway.store.plugins import filled, key_form, require_kept


@contextlib.asynccontextmanager
async def open_memory() -> AsyncIterator[Stores]:
    shelf = Shelf()
    turns, facts, channels = MemoryTurns(shelf), MemoryFacts(shelf), MemoryChannels(shelf)
    outbox = MemoryOutbox(shelf)
    try:
        yield Stores(
            MemoryInbox(shelf),
            MemoryJournal(shelf),
            MemoryRuns(shelf),
            MemoryTranscript(shelf),
            MemorySessions(shelf),
            outbox,
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
            outbox,
            MemoryOriginals(shelf),
        )
    finally:
        shelf.is_closed = True


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
        originals = self._shelf.originals
        outdated = [name for name, one in originals.items() if one.at < before][: max(0, limit)]
        for name in outdated:
            del originals[name]
        return max(min(len(old), max(0, limit)), len(outdated))

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
