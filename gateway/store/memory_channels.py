"""What channels keep, in memory."""

from collections.abc import Sequence
from datetime import datetime

from gateway.domain.channel_events import Heard
from gateway.domain.channels import ChannelMemo
from gateway.domain.inbox import NewDelivery
from gateway.domain.pairing import Pairing
from gateway.store.channels import require_heard, require_memos
from gateway.store.memory_pairings import ask
from gateway.store.memory_shelf import Shelf


class MemoryChannels:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def read(self, channel: str, account: str) -> Sequence[ChannelMemo]:
        await self._shelf.ready()
        kept = sorted(self._shelf.memos.items())
        return [memo for name, memo in kept if name[:2] == (channel, account)]

    async def write(self, *memos: ChannelMemo) -> None:
        require_memos(memos)
        await self._shelf.ready()
        self._shelf.keep_memos(memos)

    async def knows(self, channel: str, account: str, platform_id: str) -> bool:
        await self._shelf.ready()
        return self._knows((channel, account, platform_id))

    async def hear(
        self,
        heard: Heard,
        deliveries: Sequence[NewDelivery] = (),
        memos: Sequence[ChannelMemo] = (),
        asked: Pairing | None = None,
    ) -> bool:
        require_heard(heard, deliveries, memos, asked)
        await self._shelf.ready()
        self._shelf.keep_memos(memos)
        name = (heard.channel, heard.account, heard.platform_id)
        if self._knows(name) or (asked is not None and not ask(asked, self._shelf)):
            return False
        self._shelf.told[name] = heard
        for new in deliveries:
            if new.id not in self._shelf.deliveries:
                self._shelf.add_delivery(new, heard.at)
        return True

    async def unread(self, channel: str | None, *, limit: int) -> Sequence[Heard]:
        await self._shelf.ready()
        mine = [
            one
            for one in self._shelf.told.values()
            if one.outcome == "unreadable" and channel in {None, one.channel}
        ]
        return sorted(mine, key=lambda one: one.at, reverse=True)[:limit]

    async def forget(self, *, before: datetime, limit: int) -> int:
        await self._shelf.ready()
        old = sorted(
            (heard.at, name) for name, heard in self._shelf.told.items() if heard.at < before
        )
        for _, name in old[: max(0, limit)]:
            del self._shelf.told[name]
        return min(len(old), max(0, limit))

    def _knows(self, name: tuple[str, str, str]) -> bool:
        return name in self._shelf.told or name in self._shelf.seen
