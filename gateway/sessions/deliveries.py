"""The outbox at work: `sending` is written before the network, and every answer reaches one end."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import anyio

from gateway.domain.errors import StoreUnavailable
from gateway.domain.outbox import Delivery
from gateway.domain.ports import Clock, Deliver, Outbox, Receipt

log = logging.getLogger(__name__)

OnUnknown = Literal["resend", "hold"]

MOST_TRIES = 8
AT_ONCE = 64
REST_S = 1.0


@dataclass(slots=True)
class Deliveries:
    """One loop brings out what is due, one answer of a session at a time."""

    outbox: Outbox
    channels: Mapping[str, Deliver]
    clock: Clock
    on_unknown: OnUnknown = "resend"
    _news: anyio.Event = field(default_factory=anyio.Event)

    def nudge(self) -> None:
        """An answer was committed."""
        self._news.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._judge_interrupted()
        while True:
            self._news = anyio.Event()
            try:
                worked = await self._bring_out()
            except StoreUnavailable as error:
                log.warning("the outbox cannot be written", extra={"why": str(error)})
                worked = False
            if not worked:
                with anyio.move_on_after(REST_S):
                    await self._news.wait()

    async def _judge_interrupted(self) -> None:
        """Nobody knows whether these arrived: the operator's choice decides, and is recorded."""
        for delivery in await self.outbox.interrupted():
            why = "the gateway stopped while it was being sent"
            if self.on_unknown == "resend":
                now = self.clock.now()
                await self.outbox.settle(delivery.new.id, "pending", why=why, due_at=now)
            else:
                await self.outbox.settle(delivery.new.id, "unknown", why=why)

    async def _bring_out(self) -> bool:
        due = await self.outbox.due(now=self.clock.now(), limit=AT_ONCE)
        async with anyio.create_task_group() as group:
            for delivery in due:
                group.start_soon(self._one, delivery)
        return bool(due)

    async def _one(self, delivery: Delivery) -> None:
        channel = self.channels.get(delivery.new.channel)
        if channel is None:
            why = f"there is no channel {delivery.new.channel!r}"
            await self.outbox.settle(delivery.new.id, "failed", why=why)
            return
        await self.outbox.sending(delivery.new.id)
        await self._settle(delivery, await channel.deliver(delivery))

    async def _settle(self, delivery: Delivery, receipt: Receipt) -> None:
        state, due_at, why = receipt.state, None, receipt.why
        if state == "pending":
            tries = delivery.attempts + 1
            wait_s = max(receipt.retry_after_s or 0.0, min(60.0, 2.0**tries))
            due_at = self.clock.now() + timedelta(seconds=wait_s)
            if tries >= MOST_TRIES:
                state, due_at, why = "failed", None, f"gave up after {tries} tries: {why}"
        await self.outbox.settle(
            delivery.new.id, state, receipt=receipt.receipt, why=why, due_at=due_at
        )
