"""Answers on their way out through a channel."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import NewDelivery

# pending -> sending (written before the network) -> sent | pending | unknown | failed
DeliveryState = Literal["pending", "sending", "sent", "unknown", "failed"]
# The end of `why`, once a part was sent again of which nobody knows whether it had arrived.
TWICE = "it may have arrived twice"


@dataclass(frozen=True, slots=True)
class Delivery:
    """`attempts` are those of the part that is next: what has `arrived` is never sent again.

    `receipt` is the platform's id of its first message: from before that is sent if it takes the
    place of a draft. `is_safe`: the requests that were made last can be made again without harm.
    """

    new: NewDelivery
    run_id: RunId | None  # None: no turn made it
    session_key: SessionKey | None
    state: DeliveryState
    attempts: int
    due_at: datetime
    receipt: str | None = None
    why: str | None = None
    arrived: int = 0  # characters of the text that the platform has
    settled_at: datetime | None = None  # when its first attempt ended
    place: int = 0  # grows with each delivery that is made
    is_safe: bool = False


class Outbox(Protocol):
    async def due(self, channel: str, *, now: datetime, limit: int) -> Sequence[Delivery]:
        """Pending ones whose time has come, oldest first; one a session at most, and none of one
        whose oldest open delivery is being sent or waits. Without a session each is for itself."""

    async def sending(
        self, delivery_id: str, arrived: int, *, is_safe: bool = False, receipt: str | None = None
    ) -> None:
        """Durable, before the network is touched; counts the attempt. Once more with more that has
        arrived: the next part; or without the receipt that it had: not as an edit, but anew. Raises
        Conflict, so that no two senders take the same one."""

    async def arrived(self, delivery_id: str, arrived: int, *, receipt: str | None) -> None:
        """The next part waits, and is `pending`. Not fsynced. Raises as `sending`."""

    async def settle(
        self,
        delivery_id: str,
        state: DeliveryState,
        *,
        at: datetime,
        receipt: str | None = None,
        why: str | None = None,
        due_at: datetime | None = None,
    ) -> None:
        """`pending` with `due_at` tries again later; what was sent or has failed stays so, and what
        was erased meanwhile is not tried again. Not fsynced: after a power loss it is found in
        `sending`, which is what `interrupted` is for."""

    async def interrupted(self) -> Sequence[Delivery]:
        """Left in `sending` by a process that died: nobody knows whether they arrived."""

    async def strand(self, accounts: Collection[tuple[str, str]], *, at: datetime) -> int:
        """Fails what waits for others than these, each a channel and its account: no other account
        may answer for it. Gives how many."""


class DeadLetters(Protocol):
    """What did not arrive, or may not have: kept until an operator says what becomes of it."""

    async def list(
        self, channel: str | None, *, before: int | None, limit: int
    ) -> Sequence[Delivery]:
        """Newest first; `before` a place."""

    async def resubmit(self, delivery_id: str, *, now: datetime) -> None:
        """Durable: from the part on that has not arrived; that of one that may have is told by `why`. Raises NotFound if it is no dead letter,
        Conflict if what it said is erased."""

    async def drop(self, delivery_id: str) -> None:
        """Durable, for good. Raises NotFound if it is no dead letter."""

    async def tally(self) -> Mapping[tuple[str, DeliveryState], int]:
        """How many there are by channel and state, of those that were not sent."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of it: `sent`, `failed` for good, `pending` (again, `retry_after_s` from now at the
    earliest if the platform named it), or `unknown` (it may have arrived)."""

    state: DeliveryState
    receipt: str | None = None
    why: str | None = None
    retry_after_s: float | None = None


class Sending(Protocol):
    """`Outbox.sending` of the delivery, before each part. With `waits` that is not sent yet, and what
    has arrived is known whatever happens meanwhile."""

    async def __call__(
        self,
        arrived: int,
        *,
        is_safe: bool = False,
        receipt: str | None = None,
        waits: bool = False,
    ) -> None: ...


class Deliver(Protocol):
    """What brings the answers of one channel to its platform."""

    async def deliver(self, delivery: Delivery, sending: Sending) -> Receipt: ...

    def unsure(self, delivery: Delivery) -> Receipt:
        """What becomes of it if nobody knows whether the part that was sent arrived."""
