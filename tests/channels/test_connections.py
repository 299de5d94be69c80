"""One task a channel: it comes back for ever, later and later, and says what is wrong."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from gateway.channels.adapters import CallRecipe, Transport, Webhook
from gateway.channels.connections import keep_connected
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import Fetched, FetchRequest, HttpFailed, SocketRequest
from tests.channels.described import discord, telegram
from tests.channels.living import World, answer
from tests.channels.test_sockets import HELLO, READY
from tests.fakes.fetch import FakeFetch
from tests.fakes.sockets import FakeSockets


@asynccontextmanager
async def supervised(world: World, transport: Transport | None = None) -> AsyncIterator[None]:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            live = world.live
            if transport is not None:
                live = replace(live, channel=replace(live.channel, transport=transport))
            group.start_soon(keep_connected, live)
            await anyio.wait_all_tasks_blocked()
            yield
            group.cancel_scope.cancel()


def unreachable(request: SocketRequest) -> Exception:
    return HttpFailed("network", "gateway.discord.gg cannot be reached", sent=False)


async def test_a_line_that_cannot_be_opened_is_tried_later_and_later() -> None:
    world = World(discord(), sockets=FakeSockets(unreachable))
    async with supervised(world):
        for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
            await world.pass_(seconds)

    assert world.clock.slept[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(world.sockets.connected) == 9
    assert world.told == [("channel.failing", "gateway.discord.gg cannot be reached")]


async def test_many_gateways_do_not_come_back_at_once() -> None:
    world = World(discord(), sockets=FakeSockets(unreachable), jitter=lambda: 0.25)
    async with supervised(world):
        pass

    assert world.clock.slept == [0.25]


async def test_a_line_that_worked_for_a_minute_begins_with_the_shortest_wait() -> None:
    world = World(discord())
    async with supervised(world):
        for _ in range(3):
            await begin_and_break_off(world, after_s=1)
        await begin_and_break_off(world, after_s=60)

    waits = [slept for slept in world.clock.slept if slept not in (30.0, 41.25)]
    assert waits == [1, 2, 4, 1]


async def begin_and_break_off(world: World, after_s: float) -> None:
    line = world.sockets.opened[-1]
    line.say(HELLO, READY, {"op": 11})
    await anyio.wait_all_tasks_blocked()
    await world.pass_(after_s)
    line.say({"op": 11})
    line.break_off()
    await anyio.wait_all_tasks_blocked()
    await world.pass_(4)


async def test_a_channel_is_connected_once_something_came_in_and_failing_until_it_does_again() -> (
    None
):
    world = World(discord())
    states = []
    async with supervised(world):
        states.append(world.health.status.state)
        world.sockets.opened[0].say(HELLO, READY)
        await anyio.wait_all_tasks_blocked()
        states.append(world.health.status.state)
        world.sockets.opened[0].break_off()
        await anyio.wait_all_tasks_blocked()
        states.append(world.health.status.state)
        await world.pass_(1)
        states.append(world.health.status.state)
        world.sockets.opened[1].say(HELLO, {"op": 0, "t": "RESUMED", "s": 2, "d": {}})
        await anyio.wait_all_tasks_blocked()
        states.append(world.health.status.state)

    assert states == ["starting", "connected", "failing", "failing", "connected"]
    assert [kind for kind, _ in world.told] == [
        "channel.connected",
        "channel.failing",
        "channel.connected",
    ]


async def test_asked_to_reconnect_a_channel_stays_connected() -> None:
    world = World(discord())
    async with supervised(world):
        world.sockets.opened[0].say(HELLO, READY, {"op": 7})
        await anyio.wait_all_tasks_blocked()
        await world.pass_(1)

        assert world.health.status.state == "connected"

    assert world.sockets.connected[1].startswith("wss://again.discord.gg")
    assert world.told == [("channel.connected", None)]


async def test_a_fatal_code_stops_the_channel_and_tells_the_operator() -> None:
    world = World(discord())
    async with supervised(world):
        world.sockets.opened[0].hang_up(4_004)
        await anyio.wait_all_tasks_blocked()
        await world.pass_(3_600)

    assert len(world.sockets.connected) == 1
    assert world.told == [("channel.failing", "the platform closed the connection (code 4004)")]
    assert world.health.status.state == "failing"


async def test_what_a_recipe_lacks_refuses_the_channel() -> None:
    world = World(discord("wss://{config.host}/"))
    async with supervised(world):
        await world.pass_(3_600)

    assert world.sockets.connected == []
    assert world.health.status.state == "refused"
    assert "config.host" in str(world.health.status.why)


async def test_a_store_that_is_back_is_read_again() -> None:
    world = World(discord())
    world.shelf.refusal = StoreUnavailable("locked")
    async with supervised(world):
        world.shelf.refusal = None
        await world.pass_(1)

    assert len(world.sockets.opened) == 1


async def test_an_error_of_our_own_is_logged_whole_and_not_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(ask: FetchRequest) -> Fetched:
        raise ZeroDivisionError("of our own")

    world = World(telegram(), fetch=FakeFetch(broken))
    async with supervised(world):
        await world.pass_(1)

    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in failures] == ["channel_failed"] * 2
    assert failures[0].exc_info is not None
    assert (
        world.health.status.why == "internal error (ZeroDivisionError); see the log of the gateway"
    )


SET_UP = CallRecipe("{api_base}/setWebhook?url={webhook_url}")


def webhook_world(answers: Callable[[FetchRequest], Fetched], **config: str) -> World:
    return World(telegram(), config=config, fetch=FakeFetch(answers))


async def test_a_webhook_is_set_up_and_then_connected_though_nothing_came() -> None:
    world = webhook_world(lambda _: answer({"ok": True}), public_url="https://me.example/")
    async with supervised(world, Webhook("webhook", setup=SET_UP)):
        status = world.health.status

    assert isinstance(world.fetch, FakeFetch)
    [(ask, _)] = world.fetch.asked
    assert ask.url == "https://api.example/setWebhook?url=https://me.example/webhooks/chat"
    assert (status.state, status.receiving.last_at) == ("connected", None)


async def test_a_webhook_whose_address_nobody_knows_is_set_up_by_its_operator() -> None:
    world = webhook_world(lambda _: answer({"ok": True}))
    async with supervised(world, Webhook("webhook", setup=SET_UP)):
        assert world.health.status.state == "connected"

    assert isinstance(world.fetch, FakeFetch)
    assert world.fetch.asked == []


async def test_a_webhook_that_cannot_be_set_up_is_set_up_later() -> None:
    said = [answer({"ok": False, "description": "bad webhook"}, 400), answer({"ok": True})]
    world = webhook_world(lambda _: said.pop(0), public_url="https://me.example")
    async with supervised(world, Webhook("webhook", setup=SET_UP)):
        before = world.health.status
        await world.pass_(1)
        after = world.health.status

    assert (before.state, before.why) == ("failing", "the platform answered 400: bad webhook")
    assert after.state == "connected"
