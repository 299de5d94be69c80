"""Sessions over real sockets, through the guarded way out, with platforms that behave as theirs."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from gateway.channels.connections import keep_connected
from gateway.outbound.client import open_socket_client
from tests.channels.described import discord, slack
from tests.channels.living import World, answer, granted
from tests.fakes.fetch import FakeFetch
from tests.fakes.platform_socket import FakeDiscord, FakeSlack
from tests.outbound.guarded import a_secret


@asynccontextmanager
async def supervised(world: World, url: str) -> AsyncIterator[None]:
    at = url.partition("/link")[0].replace("ws", "http", 1)
    secrets = tuple(a_secret("hush", at, name=name) for name in ("bot_token", "app_token"))
    async with open_socket_client() as sockets, anyio.create_task_group() as group:
        live = granted(replace(world.live, sockets=sockets), at, *secrets)
        group.start_soon(keep_connected, live)
        yield
        group.cancel_scope.cancel()


@asynccontextmanager
async def discord_session(platform: FakeDiscord) -> AsyncIterator[World]:
    async with platform.running() as url:
        world = World(discord(f"{url}/?v=10&encoding=json"))
        async with supervised(world, url):
            await platform.expect()
            yield world


async def come_back(world: World, platform: FakeDiscord | FakeSlack, lines: int) -> None:
    """The wait before the next connection passes."""
    while len(platform.lines) < lines:
        await world.pass_(1)


def message(name: str) -> dict[str, object]:
    return {"id": name, "content": "hi"}


async def test_discord_a_session_survives_a_connection_and_nothing_comes_twice() -> None:
    platform = FakeDiscord()
    with anyio.fail_after(60):
        async with platform.running() as url:
            world = World(discord(f"{url}/?v=10&encoding=json"))
            async with supervised(world, url):
                identify = await platform.expect()
                await platform.dispatch("MESSAGE_CREATE", message("1"))
                await platform.close(4_000)
                await come_back(world, platform, 2)
                await platform.until(lambda: len(platform.told) == 2)
                await platform.dispatch("MESSAGE_CREATE", message("2"))
                await world.shelf.until_accepted(2)
            await platform.until(lambda: len(platform.closed) == 2)

    assert identify == {"op": 2, "d": {"token": "hush", "intents": 37_377}}
    resume = platform.told[1]
    assert resume["op"] == 6
    assert resume["d"] == {"token": "hush", "session_id": "session-1", "seq": 2}
    assert world.shelf.accepted == ["1", "2"]
    assert platform.closed == [4_000, 4_000]
    assert "hush" not in json.dumps([world.adapter.events, world.shelf.memos])


async def test_discord_what_was_said_while_nobody_listened_comes_with_the_resume() -> None:
    platform = FakeDiscord()
    with anyio.fail_after(60):
        async with platform.running() as url:
            description = discord(f"{url}/?v=10&encoding=json")
            first = World(description)
            async with supervised(first, url):
                await platform.expect()
                await platform.dispatch("MESSAGE_CREATE", message("1"))
                await first.shelf.until_accepted(1)
            platform.events += [
                {"op": 0, "t": "MESSAGE_CREATE", "s": 3, "d": message("2")},
                {"op": 0, "t": "MESSAGE_CREATE", "s": 4, "d": message("3")},
            ]
            second = World(description, shelf=first.shelf)
            async with supervised(second, url):
                await second.shelf.until_accepted(3)

    assert second.shelf.accepted == ["1", "2", "3"]


async def test_discord_a_session_that_is_gone_is_begun_anew() -> None:
    platform = FakeDiscord()
    with anyio.fail_after(60):
        async with platform.running() as url:
            world = World(discord(f"{url}/?v=10&encoding=json"))
            async with supervised(world, url):
                await platform.expect()
                platform.session = "session-2"
                await platform.close(4_000)
                await come_back(world, platform, 2)
                await come_back(world, platform, 3)
                await platform.until(lambda: len(platform.told) == 3)

    assert [frame["op"] for frame in platform.told] == [2, 6, 2]


async def test_discord_a_connection_that_answers_is_kept() -> None:
    platform = FakeDiscord(interval_ms=10_000)
    with anyio.fail_after(60):
        async with discord_session(platform) as world:
            for beats in range(3):
                await until_heard(world, 1 + beats)
                await world.pass_(10)
                await platform.expect()

    assert [frame["op"] for frame in platform.told] == [2, 1, 1, 1]


async def test_discord_a_silent_connection_is_left_so_that_it_can_be_resumed() -> None:
    platform = FakeDiscord(answers_beats=False, interval_ms=10_000)
    with anyio.fail_after(60):
        async with discord_session(platform) as world:
            await until_heard(world, 1)
            await world.pass_(10)
            await platform.expect()
            await world.pass_(10)
            await platform.until(lambda: platform.closed == [4_000])


async def test_slack_what_was_not_acknowledged_comes_again_by_the_new_connection() -> None:
    platform = FakeSlack()
    with anyio.fail_after(60):
        async with platform.running() as url:
            world = slack_world(url)
            gate = world.shelf.gate = anyio.Event()
            async with supervised(world, url):
                await platform.until(lambda: len(platform.lines) == 1)
                await platform.event("e-1", {"type": "message", "id": "m"})
                await platform.disconnect()
                gate.set()
                await platform.expect()
                await platform.until(lambda: len(platform.lines) == 2)
                await platform.until(lambda: platform.closed == [4_000])
                await platform.event("e-2", {"type": "message", "id": "m"})
                await platform.expect()

    assert [frame["envelope_id"] for frame in platform.told] == ["e-1", "e-2"]
    assert platform.open_envelopes == {}
    assert set(world.shelf.accepted) == {"e-1", "e-2"}


def slack_world(url: str) -> World:
    return World(slack(), fetch=FakeFetch(lambda _: answer({"ok": True, "url": url})))


async def until_heard(world: World, count: int) -> None:
    while world.health.count < count:
        await anyio.wait_all_tasks_blocked()
