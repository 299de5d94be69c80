"""Answers on their way out through a channel."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import NewDelivery, RunRecord

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


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of it: `sent`, `failed` for good, `pending` (again, `retry_after_s` from now at the
    earliest if the platform named it), or `unknown` (it may have arrived)."""

    state: DeliveryState
    receipt: str | None = None
    why: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunHistory:
    """All that the store has of one run: its message and end, its journal, and the answer on its way out."""

    record: RunRecord
    parts: Sequence[bytes]
    delivery: Delivery | None


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
