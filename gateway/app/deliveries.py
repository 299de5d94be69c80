"""The outbox at work for the channels that are open."""

import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import anyio

from gateway.app.channels import ChannelRoom
from gateway.channels.delivery import Courier, Post
from gateway.control.bus import Bus
from gateway.domain.outbox import Deliver, Outbox
from gateway.domain.ports import Clock
from gateway.sessions.deliveries import Deliveries


@asynccontextmanager
async def delivering(
    room: ChannelRoom, known: Collection[str], outbox: Outbox, clock: Clock, bus: Bus
) -> AsyncIterator[None]:
    """`known` are all that are configured: what waits for one that is refused goes on waiting."""
    if not known:
        yield
        return
    from gateway.outbound.guard import open_guarded  # noqa: PLC0415  # the HTTP client is slow to import

    async with open_guarded() as fetch, anyio.create_task_group() as group:
        couriers: dict[str, Deliver] = {}
        for one in room.open:
            way = one.way_in
            post = Post(way.channel, way.adapter, fetch, clock)
            couriers[way.channel.name] = Courier(post, one.health)
        names, draw = frozenset(known), random.random
        deliveries = Deliveries(outbox, couriers, names, clock, bus.publish, draw)
        room.intake.nudge, room.deliveries = deliveries.nudge, deliveries
        stop = bus.subscribe(lambda _: deliveries.nudge(), types=frozenset({"session.end"}))
        group.start_soon(deliveries.run)
        try:
            yield
        finally:
            stop()
            group.cancel_scope.cancel()
