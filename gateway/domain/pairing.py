"""Who may talk to an agent in a direct chat: asked for with a code, granted by the operator."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

PairingState = Literal["asked", "paired", "denied"]
MOST_WAITING = 3  # of an account


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

    async def may_ask(self, asked: Pairing) -> bool:
        """A look alone: who asks is written with what the person is told, by ChannelEvents.hear.
        False if the line of that account is full, or the person waits already, is paired or denied."""
        ...

    async def decide(
        self, code_digest: str, state: PairingState, *, is_owner: bool, now: datetime
    ) -> Pairing | None:
        """Durable. None: no such code waits, or it has expired. Who is the first to be paired on an
        account is its owner in any case."""
        ...

    async def remove(
        self, channel: str, account: str, person: str, *, state: PairingState | None = None
    ) -> bool:
        """Durable. What was decided or asked for, if it is that: the person may ask again. False:
        nothing was."""
        ...

    async def block(self, channel: str, account: str, person: str, *, now: datetime) -> Pairing:
        """Durable. Denied, whatever was before."""
        ...

    async def list(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        """Those who wait first, then the newest."""
        ...


class Approvals(Protocol):
    """What an operator, or an owner in the chat, decides about those who wait; `by` is told to the
    audit. Raises StoreUnavailable."""

    async def listed(self, *, channel: str | None = None, limit: int) -> Sequence[Pairing]:
        """Without those whose code has expired."""
        ...

    async def approve(self, code: str, *, by: str, is_owner: bool = False) -> Pairing:
        """Raises NotFound, and Busy after too many wrong codes."""
        ...

    async def deny(self, code: str, *, by: str) -> Pairing:
        """The person is not answered any more. Raises as `approve`."""
        ...

    async def turn_away(
        self, channel: str, account: str, person: str, *, by: str
    ) -> Pairing | None:
        """Who is paired is a stranger again (None); who waits is denied, and whoever is denied
        stays so. Raises NotFound."""
        ...

    async def block(self, channel: str, account: str, person: str, *, by: str) -> Pairing:
        """Never answered in direct chats, known or not, and whatever the policy is."""
        ...

    async def unblock(self, channel: str, account: str, person: str, *, by: str) -> None:
        """A stranger again, who may ask. Raises NotFound if nobody was blocked."""
        ...

    async def revoke(self, channel: str, account: str, person: str, *, by: str) -> None:
        """Who was paired is a stranger again. Raises NotFound, Conflict if the person is blocked."""
        ...
