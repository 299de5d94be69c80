"""Who may talk to an agent in a direct chat: asked for with a code, granted by the operator."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

PairingState = Literal["asked", "paired", "denied"]


@dataclass(frozen=True, slots=True)
class Pairing:
    """One person on one channel. The code itself is never kept, only its digest."""

    channel: str
    account: str
    person: str
    name: str | None
    state: PairingState
    code_digest: str
    asked_at: datetime
    expires_at: datetime
    is_owner: bool = False  # may answer `/pair` in the chat


class Pairings(Protocol):
    """Durable; of direct chats alone: nothing here opens a room. Raises StoreUnavailable."""

    async def find(self, channel: str, account: str, person: str) -> Pairing | None: ...

    async def ask(self, asked: Pairing, *, most: int, now: datetime) -> bool:
        """Puts one in the line, instead of an expired one of the same person. False if `most` are
        waiting on that account, or the person is paired or denied."""
        ...

    async def decide(
        self, code_digest: str, state: PairingState, *, is_owner: bool, now: datetime
    ) -> Pairing | None:
        """None: no such code waits, or it has expired."""
        ...

    async def remove(self, channel: str, account: str, person: str) -> bool: ...

    async def list(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        """Those who wait first, then the newest."""
        ...
