"""The outbox at work for the channels that are open."""

import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from gateway.app.channels import ChannelRoom
from gateway.channels.delivery import Courier, Post
from gateway.control.bus import Bus
from gateway.domain.outbox import Deliver, Outbox
from gateway.domain.ports import Clock
from gateway.sessions.deliveries import Deliveries


@asynccontextmanager
async def deliveries_of(
    room: ChannelRoom, known: Collection[str], outbox: Outbox, clock: Clock, bus: Bus
) -> AsyncIterator[Deliveries]:
    """`known` are all that are configured: what waits for one that is refused goes on waiting."""
    from gateway.outbound.guard import open_guarded  # noqa: PLC0415  # the HTTP client is slow to import

    async with open_guarded() as fetch:
        couriers: dict[str, Deliver] = {}
        for one in room.open:
            way = one.way_in
            post = Post(way.channel, way.adapter, fetch, clock)
            couriers[way.channel.name] = Courier(post, one.health)
        deliveries = Deliveries(
            outbox, couriers, frozenset(known), clock, bus.publish, random.random
        )
        room.intake.nudge = deliveries.nudge
        room.deliveries = deliveries
        stop = bus.subscribe(lambda _: deliveries.nudge(), types=frozenset({"session.end"}))
        yield deliveries
        stop()
