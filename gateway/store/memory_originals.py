"""Whole results of tools, in memory."""

from gateway.domain.ids import SessionKey
from gateway.domain.subagents import Original
from gateway.store.memory_shelf import Shelf


class MemoryOriginals:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def keep(self, original: Original) -> None:
        await self._shelf.ready()
        self._shelf.originals.setdefault(original.reference, original)

    async def read(self, session_key: SessionKey, reference: str) -> Original | None:
        await self._shelf.ready()
        found = self._shelf.originals.get(reference)
        return found if found is not None and found.session_key == session_key else None

    async def forget(self, session_key: SessionKey) -> None:
        await self._shelf.ready()
        self._shelf.forget_originals(session_key)
