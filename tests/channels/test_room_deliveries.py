"""From an accepted message to the platform that asked: wired as the gateway wires it."""

from collections.abc import Mapping

import anyio
from anyio.abc import SocketAttribute, SocketStream

from gateway.app.shared import scrubbing
from gateway.channels.adapters import CallRecipe, Outbound, Poll, Whence
from gateway.channels.crossing import write_whence
from gateway.channels.intake import Intake
from gateway.channels.progress import Health
from gateway.channels.room import ChannelRoom, OpenChannel, delivering
from gateway.channels.translating import WayIn
from gateway.channels.webhooks import WebhookDoor
from gateway.config.sections import parse_capability
from gateway.control.notices import Bus
from gateway.domain.agents import Address
from gateway.domain.channels import ChannelDef
from gateway.domain.inbox import Inbound
from gateway.domain.ports import FetchGrant
from gateway.outbound.client import open_guarded
from tests.fakes.model import ScriptedModel, says
from tests.fakes.store import open_memory
from tests.fakes.writer import WritingAdapter
from tests.sessions.stage import Stage, staged

CHANNEL = ChannelDef("websocket", "fake")


async def scrub(text: bytes) -> bytes:
    return text


def a_room(stage: Stage, adapter: WritingAdapter) -> tuple[ChannelRoom, Health]:
    def tell(_type: str, _payload: Mapping[str, object]) -> None:
        pass

    stores, clock = stage.stores, stage.clock
    memos, accept = stores.channels, stage.front.intake.accept
    intake = Intake(accept, stores.channels, memos, clock, lambda: None)
    health = Health(CHANNEL, "poll", clock, tell)
    way_in, poll = WayIn(CHANNEL, adapter, intake, scrub), Poll("poll", CallRecipe("http://x"))
    room = ChannelRoom(intake, memos, clock, tell, WebhookDoor(stores.audit, clock), scrubbing)
    room.open.append(OpenChannel(way_in, poll, health, FetchGrant(adapter.plugin.origins)))
    return room, health


async def test_an_answer_goes_to_the_platform_that_asked() -> None:
    seen: list[str] = []
    answered = anyio.Event()

    async def platform(stream: SocketStream) -> None:
        async with stream:
            raw = b""
            while b"\r\n\r\n" not in raw:
                raw += await stream.receive()
            seen.append(raw.split(b" HTTP")[0].decode())
            await stream.send(b'HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"id":"m"}')
            if "/send/" in seen[-1]:
                answered.set()

    with anyio.fail_after(5):
        async with (
            open_memory() as stores,
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as group,
            staged(ScriptedModel(says("ok")), stores, channels=frozenset({"websocket"})) as stage,
        ):
            group.start_soon(listener.serve, platform)
            base = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
            adapter = WritingAdapter(
                lambda reply: {"requests": [{"url": f"{base}/{reply['do']}/{reply['peer']}"}]},
                Outbound(typing_every_s=5.0),
                grant=parse_capability(f"http:{base}"),
            )
            room, health = a_room(stage, adapter)
            accounts = frozenset({(CHANNEL.name, CHANNEL.account)})
            async with (
                open_guarded() as fetch,
                delivering(room, accounts, stores.outbox, stage.front, Bus(), fetch=fetch),
            ):
                whence = write_whence(Whence("room"))
                address = Address("websocket", "default", "main")
                await room.intake.accept(Inbound(address, "hi", whence=whence))
                await stage.until_idle()
                room.intake.nudge()
                await answered.wait()
                await room.drain()

            group.cancel_scope.cancel()

    assert [line.split()[1] for line in seen if "send" in line] == ["/send/room"]
    assert room.deliveries is not None
    assert room.deliveries.counts == {("websocket", "sent"): 1}
    assert health.status.sending.count == 1
