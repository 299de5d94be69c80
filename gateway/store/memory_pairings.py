"""Who may talk in direct chats, in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.domain.pairing import MOST_WAITING, Pairing, PairingState
from gateway.store.memory_shelf import Shelf

Held = Mapping[tuple[str, str, str], Pairing]


class MemoryPairings:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def find(self, channel: str, account: str, person: str) -> Pairing | None:
        await self._shelf.ready()
        return self._shelf.pairings.get((channel, account, person))

    async def may_ask(self, asked: Pairing) -> bool:
        await self._shelf.ready()
        return _may_ask(asked, _waiting_at(asked.asked_at, self._shelf))

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


def ask(asked: Pairing, shelf: Shelf) -> bool:
    held = _waiting_at(asked.asked_at, shelf)
    if not _may_ask(asked, held):
        return False
    shelf.pairings = {**held, (asked.channel, asked.account, asked.person): asked}
    return True


def _may_ask(asked: Pairing, held: Held) -> bool:
    waiting = [one for one in held.values() if one.state == "asked" and _is_beside(one, asked)]
    is_known = (asked.channel, asked.account, asked.person) in held
    return not is_known and len(waiting) < MOST_WAITING


def _waiting_at(now: datetime, shelf: Shelf) -> Held:
    """Without those whose code has expired."""
    return {
        who: one
        for who, one in shelf.pairings.items()
        if one.state != "asked" or one.expires_at > now
    }


def _is_beside(one: Pairing, other: Pairing) -> bool:
    return (one.channel, one.account) == (other.channel, other.account)
