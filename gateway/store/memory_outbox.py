"""The outbox in memory."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.domain.errors import Conflict, NotFound
from gateway.domain.ids import SessionKey
from gateway.domain.outbox import TWICE, Delivery, DeliveryState
from gateway.store.memory_shelf import Shelf
from gateway.store.outbox import NO_CHANNEL, erased, not_dead, not_pending, require_settled
from gateway.store.rows import require_text

_OPEN = frozenset({"pending", "sending"})
_DEAD = frozenset({"unknown", "failed"})


class MemoryOutbox:
    """Implements Outbox and DeadLetters."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def due(self, channel: str, *, now: datetime, limit: int) -> Sequence[Delivery]:
        await self._shelf.ready()
        first: dict[SessionKey | str, Delivery] = {}
        for one in self._shelf.deliveries.values():
            if one.state in _OPEN:
                first.setdefault(one.session_key or one.new.id, one)
        due = [
            one
            for one in first.values()
            if one.state == "pending" and one.new.channel == channel and one.due_at <= now
        ]
        return due[: max(0, limit)]

    async def sending(
        self,
        delivery_id: str,
        arrived: int,
        *,
        is_safe: bool = False,
        receipt: str | None = None,
    ) -> None:
        require_text("the receipt", receipt)
        await self._shelf.ready()
        one = self._delivery(delivery_id)
        is_next = one.arrived < arrived
        is_anew = one.arrived == arrived and one.receipt is not None and receipt is None
        is_pending = one.state == "pending"
        if not is_pending and not (one.state == "sending" and (is_next or is_anew)):
            raise Conflict(not_pending(delivery_id, one.state))
        attempts = 1 if is_next else one.attempts + is_pending
        part = replace(one, arrived=arrived, is_safe=is_safe, receipt=receipt)
        self._put(replace(part, state="sending", attempts=attempts))

    async def arrived(self, delivery_id: str, arrived: int, *, receipt: str | None) -> None:
        require_text("the receipt", receipt)
        await self._shelf.ready()
        one = self._delivery(delivery_id)
        if one.state not in _OPEN or one.arrived >= arrived or one.why == "erased":
            raise Conflict(not_pending(delivery_id, one.state))
        self._put(replace(one, state="pending", arrived=arrived, receipt=receipt, attempts=0))

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
        require_settled(state)
        require_text("the receipt", receipt, why)
        await self._shelf.ready()
        one = self._delivery(delivery_id)
        if one.state in {"sent", "failed"}:
            return
        is_erased = one.why == "erased"
        settled = replace(
            one,
            state="failed" if is_erased and state == "pending" else state,
            receipt=one.receipt if receipt is None else receipt,
            why=one.why if is_erased or why is None else why,
            due_at=one.due_at if due_at is None else due_at,
            settled_at=one.settled_at or at,
        )
        self._put(settled)

    async def interrupted(self) -> Sequence[Delivery]:
        await self._shelf.ready()
        return [one for one in self._shelf.deliveries.values() if one.state == "sending"]

    async def strand(self, accounts: Collection[tuple[str, str]], *, at: datetime) -> int:
        await self._shelf.ready()
        waiting = [one for one in self._shelf.deliveries.values() if one.state == "pending"]
        lost = [one for one in waiting if (one.new.channel, one.new.account) not in accounts]
        for one in lost:
            settled_at = one.settled_at or at
            self._put(replace(one, state="failed", why=NO_CHANNEL, settled_at=settled_at))
        return len(lost)

    async def list(
        self, channel: str | None, *, before: int | None, limit: int
    ) -> Sequence[Delivery]:
        await self._shelf.ready()
        dead = [
            one
            for one in self._shelf.deliveries.values()
            if one.state in _DEAD
            and (channel is None or one.new.channel == channel)
            and (before is None or one.place < before)
        ]
        return sorted(dead, key=lambda one: -one.place)[: max(0, limit)]

    async def resubmit(self, delivery_id: str, *, now: datetime) -> None:
        one = await self._dead(delivery_id)
        if one.why == "erased":
            raise erased(delivery_id)
        is_unsure = one.state == "unknown" or (one.why or "").endswith(TWICE)
        again = replace(one, state="pending", attempts=0, due_at=now, settled_at=None)
        self._put(replace(again, why=TWICE if is_unsure else None))

    async def drop(self, delivery_id: str) -> None:
        await self._dead(delivery_id)
        del self._shelf.deliveries[delivery_id]

    async def tally(self) -> Mapping[tuple[str, DeliveryState], int]:
        await self._shelf.ready()
        every = self._shelf.deliveries.values()
        return Counter((one.new.channel, one.state) for one in every if one.state != "sent")

    async def _dead(self, delivery_id: str) -> Delivery:
        await self._shelf.ready()
        one = self._shelf.deliveries.get(delivery_id)
        if one is None or one.state not in _DEAD:
            raise not_dead(delivery_id)
        return one

    def _delivery(self, delivery_id: str) -> Delivery:
        if delivery_id not in self._shelf.deliveries:
            raise NotFound(f"delivery {delivery_id}")
        return self._shelf.deliveries[delivery_id]

    def _put(self, delivery: Delivery) -> None:
        self._shelf.deliveries[delivery.new.id] = delivery
