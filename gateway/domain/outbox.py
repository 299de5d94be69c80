"""Answers on their way out through a channel."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import NewDelivery

# pending -> sending (written before the network) -> sent | unknown | failed
DeliveryState = Literal["pending", "sending", "sent", "unknown", "failed"]


@dataclass(frozen=True, slots=True)
class Delivery:
    new: NewDelivery
    run_id: RunId | None  # None: no turn made it
    session_key: SessionKey | None
    state: DeliveryState
    attempts: int
    due_at: datetime
    receipt: str | None = None
    why: str | None = None
