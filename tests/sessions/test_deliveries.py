"""Answers leave through the outbox: `sending` before the network, and one end for each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.domain.outbox import Delivery
from gateway.domain.ports import Receipt, Stores
from gateway.sessions.deliveries import MOST_TRIES, Deliveries, OnUnknown
from gateway.store.memory import open_memory
from tests.fakes.clock import FakeClock
from tests.fakes.model import ScriptedModel, says
from tests.sessions.stage import staged


class FakeChannel:
    """Answers from a script, and keeps the state in which the outbox held each delivery."""

    def __init__(self, stores: Stores, *script: Receipt) -> None:
        self.script = list(script)
        self.stores = stores
        self.got: list[Delivery] = []
        self.interrupted: list[Sequence[Delivery]] = []
        self.called = anyio.Event()

    async def deliver(self, delivery: Delivery) -> Receipt:
        self.got.append(delivery)
        self.interrupted.append(await self.stores.outbox.interrupted())
        self.called.set()
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


async def answer(stores: Stores, clock: FakeClock) -> None:
    channels = frozenset({"websocket"})
    async with staged(ScriptedModel(says("ok")), stores, channels=channels) as stage:
        await stage.say("hi")
    clock.set_wall(stage.clock.now())


@asynccontextmanager
async def running(
    stores: Stores,
    channel: FakeChannel | None,
    clock: FakeClock,
    *,
    on_unknown: OnUnknown = "resend",
) -> AsyncIterator[Deliveries]:
    channels = {"websocket": channel} if channel else {}
    deliveries = Deliveries(stores.outbox, channels, clock, on_unknown)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(deliveries.run)
            yield deliveries
            group.cancel_scope.cancel()


async def settled(stores: Stores, clock: FakeClock) -> bool:
    """Nothing is on its way any more."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
        open_ones = await stores.outbox.due(now=clock.now(), limit=9)
        if not open_ones and not await stores.outbox.interrupted():
            return True
    return False


async def test_an_answer_is_marked_as_sending_before_the_network_and_sent_after() -> None:
    async with open_memory() as stores:
        clock = FakeClock()
        await answer(stores, clock)
        channel = FakeChannel(stores, Receipt("sent", "42"))
        async with running(stores, channel, clock):
            await channel.called.wait()
            assert await settled(stores, clock)

    assert [delivery.new.text for delivery in channel.got] == ["ok"]
    assert len(channel.interrupted[0]) == 1


async def test_what_may_be_tried_again_waits_as_told_and_is_given_up_in_the_end() -> None:
    async with open_memory() as stores:
        clock = FakeClock()
        await answer(stores, clock)
        channel = FakeChannel(stores, Receipt("pending", why="429", retry_after_s=600))
        async with running(stores, channel, clock) as deliveries:
            for n in range(MOST_TRIES):
                await channel.called.wait()
                channel.called = anyio.Event()
                assert await settled(stores, clock) or n == MOST_TRIES - 1
                clock.move(599)
                deliveries.nudge()
                await settled(stores, clock)
                assert len(channel.got) == n + 1
                clock.move(2)
                deliveries.nudge()
            assert await settled(stores, clock)

    assert len(channel.got) == MOST_TRIES


@pytest.mark.parametrize(("on_unknown", "sent"), [("resend", 1), ("hold", 0)])
async def test_what_was_being_sent_when_the_gateway_died_follows_the_operators_choice(
    on_unknown: OnUnknown, sent: int
) -> None:
    async with open_memory() as stores:
        clock = FakeClock()
        await answer(stores, clock)
        (delivery,) = await stores.outbox.due(now=clock.now(), limit=1)
        await stores.outbox.sending(delivery.new.id)
        channel = FakeChannel(stores, Receipt("sent"))
        async with running(stores, channel, clock, on_unknown=on_unknown):
            if sent:
                await channel.called.wait()
            assert await settled(stores, clock)

    assert len(channel.got) == sent


async def test_an_answer_for_a_channel_that_is_gone_fails_with_a_reason() -> None:
    async with open_memory() as stores:
        clock = FakeClock()
        await answer(stores, clock)
        async with running(stores, None, clock):
            assert await settled(stores, clock)
