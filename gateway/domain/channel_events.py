"""Messages of channels that are answered without a turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from gateway.domain.channels import ChannelMemo
from gateway.domain.inbox import NewDelivery
from gateway.domain.pairing import Pairing

HeardAs = Literal["command", "told", "expired", "unrouted", "unreadable"]


@dataclass(frozen=True, slots=True)
class Heard:
    channel: str
    account: str
    platform_id: str
    outcome: HeardAs
    at: datetime
    detail: str = ""  # of what nobody could read: as it came, for the operator
    why: str = ""  # it could not be read
    again: str = ""  # JSON of what has to be taken in to try it again; empty: nothing helps


class ChannelEvents(Protocol):
    """A message is heard once: what is told twice is told by nobody."""

    async def knows(self, channel: str, account: str, platform_id: str) -> bool:
        """Whether that message was heard or accepted before; one that could not be read was not.
        Raises StoreUnavailable."""
        ...

    async def hear(
        self,
        heard: Heard,
        deliveries: Sequence[NewDelivery] = (),
        memos: Sequence[ChannelMemo] = (),
        asked: Pairing | None = None,
    ) -> bool:
        """ONE durable commit, which puts whoever has `asked` in the line, where expired ones are
        gone. False, and nothing but the memos is written, if that message was heard or accepted
        before, or its sender may not ask. A delivery whose id is there already is not made again. Raises
        StoreUnavailable."""
        ...

    async def unread(self, channel: str | None, *, limit: int) -> Sequence[Heard]:
        """What no adapter could read, newest first."""
        ...

    async def find_unread(self, platform_id: str, channel: str | None) -> Sequence[Heard]:
        """Of all accounts, and of all channels where none is named."""
        ...

    async def drop_unread(self, one: Heard) -> None:
        """Durable."""
        ...

    async def count_unread(self) -> Mapping[str, int]:
        """By channel."""
        ...

    async def forget(self, *, before: datetime, limit: int) -> int:
        """Those that no platform sends again; gives how many."""
        ...
