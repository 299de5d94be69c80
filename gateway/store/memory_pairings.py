"""Who may talk in direct chats, in memory."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from gateway.domain.pairing import Pairing, PairingState
from gateway.store.memory_shelf import Shelf
from gateway.store.rows import require_text


class MemoryPairings:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def find(self, channel: str, account: str, person: str) -> Pairing | None:
        await self._shelf.ready()
        return self._shelf.pairings.get((channel, account, person))

    async def ask(self, asked: Pairing, *, most: int, now: datetime) -> bool:
        require_text("whoever asks", asked.channel, asked.account, asked.person, asked.name)
        await self._shelf.ready()
        held = self._shelf.pairings
        for who, one in tuple(held.items()):
            if one.state == "asked" and one.expires_at <= now:
                del held[who]
        who = (asked.channel, asked.account, asked.person)
        waiting = [one for one in held.values() if one.state == "asked" and _is_beside(one, asked)]
        if who in held or len(waiting) >= most:
            return False
        held[who] = asked
        return True

    async def decide(
        self, code_digest: str, state: PairingState, *, is_owner: bool, now: datetime
    ) -> Pairing | None:
        await self._shelf.ready()
        held = self._shelf.pairings
        for who, one in held.items():
            if (one.code_digest, one.state) == (code_digest, "asked") and one.expires_at > now:
                others = (other for other in held.values() if _is_beside(other, one))
                is_first = all(other.state != "paired" for other in others)
                is_owner = state == "paired" and (is_owner or is_first)
                held[who] = replace(one, state=state, is_owner=is_owner)
                return held[who]
        return None

    async def remove(self, channel: str, account: str, person: str) -> bool:
        await self._shelf.ready()
        return self._shelf.pairings.pop((channel, account, person), None) is not None

    async def list(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        await self._shelf.ready()
        found = [one for one in self._shelf.pairings.values() if channel in {None, one.channel}]
        found.sort(key=lambda one: (one.channel, one.account, one.person))
        found.sort(key=lambda one: (one.state == "asked", one.asked_at), reverse=True)
        return found[: max(0, limit)]


def _is_beside(one: Pairing, other: Pairing) -> bool:
    return (one.channel, one.account) == (other.channel, other.account)
