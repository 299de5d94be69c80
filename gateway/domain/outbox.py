"""Deliveries: answers on their way to a platform."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import NewDelivery, RunRecord

# pending -> sending (written before the network) -> sent | pending | unknown | failed
DeliveryState = Literal["pending", "sending", "sent", "unknown", "failed"]
# The end of `why` once a part was sent again that may have arrived.
TWICE = "it may have arrived twice"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery in the store. `attempts` counts attempts of the next part; the part that has
    `arrived` is never sent again.

    `receipt` is the platform's id of the first message. Before that message is sent, it is the id
    of the draft that the message replaces. `is_safe`: the last requests can be repeated without
    harm.
    """

    new: NewDelivery
    run_id: RunId | None  # None: not made by a turn
    session_key: SessionKey | None
    state: DeliveryState
    attempts: int
    due_at: datetime
    receipt: str | None = None
    why: str | None = None
    arrived: int = 0  # characters of the text that the platform has
    settled_at: datetime | None = None  # the end of the first attempt
    place: int = 0  # grows with each new delivery
    is_safe: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of an attempt: `sent`, `failed` permanently, `pending` (retry, at the earliest
    after `retry_after_s` if the platform named it), or `unknown` (it may have arrived)."""

    state: DeliveryState
    receipt: str | None = None
    why: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunHistory:
    """All data of one run in the store: message and end, journal parts, and the delivery of its
    answer."""

    record: RunRecord
    parts: Sequence[bytes]
    delivery: Delivery | None


class Sending(Protocol):
    """Marks the next part of a delivery as `sending`, as `Outbox.sending` does. With `waits` it
    records only the arrived part, because the next part is not sent yet."""

    async def __call__(
        self,
        arrived: int,
        *,
        is_safe: bool = False,
        receipt: str | None = None,
        waits: bool = False,
    ) -> None: ...


class Deliver(Protocol):
    """Delivers the answers of one channel to its platform."""

    async def deliver(self, delivery: Delivery, sending: Sending) -> Receipt: ...

    def unsure(self, delivery: Delivery) -> Receipt:
        """Returns the outcome of a delivery whose last part may or may not have arrived."""
