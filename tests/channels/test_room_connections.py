"""The connections of the configured channels: kept while the gateway works, closed when it drains."""

import json
from dataclasses import replace

import anyio

from gateway.app.shared import scrubbing
from gateway.channels.room import ChannelRoom, keep_channels_connected
from gateway.channels.webhooks import WebhookEndpoint
from gateway.domain.ports import Stores
from gateway.host.clock import SystemClock
from gateway.outbound.client import open_guarded, open_socket_client
from gateway.sandbox.plugins import Plugins
from tests.channels.described import telegram
from tests.channels.living import World, granted
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server
from tests.fakes.store import open_memory
from tests.outbound.guarded import a_secret, base


async def a_room(world: World, stores: Stores, server: ModelServer) -> ChannelRoom:
    """With one channel that polls that server."""
    place = base(server)
    channel = granted(world.live, place, a_secret("hush", place, name="token")).channel
    settings = replace(channel.settings, config={"api_base": place})
    clock = SystemClock()
    webhooks = WebhookEndpoint(stores.audit, clock)
    what = (lambda kind, payload: None, webhooks, scrubbing)
    room = ChannelRoom(channel.intake, world.shelf, clock, *what)
    await room.load([settings], Plugins(adapters=(channel.adapter,)))
    return room


async def test_a_channel_that_polls_takes_in_what_its_platform_has_until_it_disconnects() -> None:
    world = World(telegram())

    def updates(asked: Asked) -> Reply:
        news = {"messages": [{"id": "7"}], "next": "8"} if "offset=&" in asked.path else {}
        headers = {"content-type": "application/json"}
        return Reply(headers=headers, body=json.dumps({"ok": True, **news}).encode())

    with anyio.fail_after(60):
        async with (
            open_memory() as stores,
            scripted_server(updates) as server,
            anyio.create_task_group() as group,
        ):
            room = await a_room(world, stores, server)
            async with open_guarded() as fetch, open_socket_client() as sockets:
                group.start_soon(keep_channels_connected, room, fetch, sockets)
                await world.shelf.until_accepted(1)
                room.disconnect()

    assert server.requests[0].path == "/bothush/deleteWebhook"
    assert world.shelf.accepted == ["7"]
    assert world.shelf.memos == {"adapter": "8"}
