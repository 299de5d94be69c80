"""The outbox at work for the channels that are open."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio

from gateway.app.channels import ChannelRoom
from gateway.channels.delivery import Courier, Post
from gateway.channels.streaming import Streaming
from gateway.control.bus import Bus
from gateway.domain.channels import ChannelDef
from gateway.domain.inbound import Inbound
from gateway.domain.inbox import Accepted
from gateway.domain.outbox import Deliver, Outbox
from gateway.domain.supervision import supervise
from gateway.sessions.deliveries import Deliveries
from gateway.sessions.front import Front


@asynccontextmanager
async def delivering(
    room: ChannelRoom, known: Collection[ChannelDef], outbox: Outbox, front: Front, bus: Bus
) -> AsyncIterator[None]:
    """`known` are all that are configured: what waits for one that is refused goes on waiting."""
    if not known:
        await outbox.strand((), at=front.clock.now())
        yield
        return
    from gateway.outbound.guard import open_guarded  # noqa: PLC0415  # the HTTP client is slow to import

    clock = front.clock
    async with open_guarded() as fetch, anyio.create_task_group() as group:
        couriers: dict[str, Deliver] = {}
        streams: dict[str, Streaming] = {}
        for one in room.open:
            way, name = one.way_in, one.way_in.channel.name
            post = Post(way.channel, way.adapter, fetch, clock)
            streams[name] = Streaming(post, front.live.find, group)
            couriers[name] = Courier(post, one.health, streams[name].draft_of)
        accounts = frozenset((one.name, one.account) for one in known)
        deliveries = Deliveries(outbox, couriers, accounts, clock, bus.publish, random.random)
        room.intake.nudge, room.deliveries = deliveries.nudge, deliveries
        room.intake.accept = partial(_accept, room.intake.accept, streams)
        stop = bus.subscribe(lambda _: deliveries.nudge(), types=frozenset({"session.end"}))
        group.start_soon(partial(supervise, "deliveries", deliveries.run, clock, may_end=True))
        try:
            yield
        finally:
            stop()
            group.cancel_scope.cancel()


async def _accept(
    accept: Callable[[Inbound], Awaitable[Accepted]],
    streams: Mapping[str, Streaming],
    inbound: Inbound,
) -> Accepted:
    """Whoever waits for an answer is shown that it is coming."""
    accepted = await accept(inbound)
    stream = streams.get(inbound.address.channel)
    if stream is not None and inbound.whence is not None and not accepted.duplicate:
        stream.follow(accepted.run_id, inbound.whence)
    return accepted
