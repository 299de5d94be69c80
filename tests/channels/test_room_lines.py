"""The lines of the configured channels: kept while the gateway works, hung up when it drains."""

import json
from dataclasses import replace

import anyio

from gateway.app.shared import scrubbing
from gateway.channels.room import ChannelRoom, OpenChannel, keep_lines
from gateway.channels.webhooks import WebhookDoor
from gateway.domain.ports import FetchGrant, Stores
from gateway.host.clock import SystemClock
from gateway.outbound.client import open_dialler, open_guarded
from tests.channels.described import telegram
from tests.channels.living import World
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server
from tests.fakes.store import open_memory
from tests.outbound.guarded import a_secret, base, origin


def empty_room(world: World, stores: Stores) -> ChannelRoom:
    clock = SystemClock()
    door = WebhookDoor(stores.audit, clock)
    return ChannelRoom(
        world.live.way_in.intake, world.shelf, clock, lambda kind, payload: None, door, scrubbing
    )


def room_of(world: World, stores: Stores, server: ModelServer) -> ChannelRoom:
    """With one channel that polls that server."""
    way_in, secret = world.live.way_in, a_secret("hush", base(server), name="token")
    channel = replace(way_in.channel, config={"api_base": base(server)})
    way_in = replace(way_in, channel=channel)
    room = empty_room(world, stores)
    leave = FetchGrant(frozenset({origin(base(server))}), (secret,))
    transport = world.description.transports[0]
    room.open.append(OpenChannel(way_in, transport, world.health, leave))
    return room


async def test_a_channel_that_polls_takes_in_what_its_platform_has_until_it_hangs_up() -> None:
    world = World(telegram())

    def updates(asked: Asked) -> Reply:
        news = {"messages": [{"id": "7"}], "next": "8"} if "offset=&" in asked.path else {}
        headers = {"content-type": "application/json"}
        return Reply(headers=headers, body=json.dumps({"ok": True, **news}).encode())

    with anyio.fail_after(5):
        async with (
            open_memory() as stores,
            scripted_server(updates) as server,
            anyio.create_task_group() as group,
        ):
            room = room_of(world, stores, server)
            async with open_guarded() as fetch, open_dialler() as dialler:
                group.start_soon(keep_lines, room, fetch, dialler)
                await world.shelf.until_accepted(1)
                room.hang_up()

    assert server.requests[0].path == "/bothush/deleteWebhook"
    assert world.shelf.accepted == ["7"]
    assert world.shelf.memos == {"adapter": "8"}
