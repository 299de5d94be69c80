"""From an accepted message to the platform that asked: wired as the gateway wires it."""

from collections import Counter

import anyio
from anyio.abc import SocketAttribute, SocketStream

from gateway.app.shared import scrubbing
from gateway.budgets import LiveBudgets
from gateway.channels.adapter_json import write_context
from gateway.channels.adapters import Outbound, ReplyContext
from gateway.channels.commands import ChatCommands
from gateway.channels.room import ChannelRoom, Traffic, channel_room, delivering
from gateway.config.sections import parse_capability
from gateway.control.notices import Bus
from gateway.domain.agents import Address
from gateway.domain.budgets import Budgets
from gateway.domain.channels import ChannelDef
from gateway.domain.ids import SessionKey
from gateway.domain.inbox import Inbound
from gateway.memory.recall import Recall
from gateway.outbound.client import open_guarded
from gateway.sandbox.plugins import Plugins
from tests.channels.people import a_book
from tests.fakes.model import ScriptedModel, says
from tests.fakes.store import open_memory
from tests.fakes.writer import WritingAdapter
from tests.sessions.stage import Stage, staged

CHANNEL = ChannelDef("websocket", "fake")


async def at_once(_key: SessionKey) -> None:
    """Nothing is left to be looked at."""


def a_room(stage: Stage) -> ChannelRoom:
    stores, clock = stage.stores, stage.clock
    commands = ChatCommands(
        front=stage.front,
        spending=stores.ledger,
        budgets=LiveBudgets(Budgets()),
        facts=stores.facts,
        recall=Recall(stores.facts),
        settled=at_once,
        shared=frozenset(),
        access=a_book(stores, clock),
    )
    traffic = Traffic(Counter(), Counter(), Counter())
    return channel_room(
        stores, commands, publish=lambda *_: None, scrubbing=scrubbing, traffic=traffic
    )


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

    with anyio.fail_after(60):
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
            room = a_room(stage)
            await room.load([CHANNEL], Plugins(adapters=(adapter,)))
            accounts = frozenset({(CHANNEL.name, CHANNEL.account)})
            async with (
                open_guarded() as fetch,
                delivering(room, accounts, stores.outbox, stage.front, Bus(), fetch=fetch),
            ):
                whence = write_context(ReplyContext("room"))
                address = Address("websocket", "default", "main")
                await room.intake.accept(Inbound(address, "hi", whence=whence))
                await stage.until_idle()
                room.nudge()
                await answered.wait()
                await room.drain()

            group.cancel_scope.cancel()

    assert [line.split()[1] for line in seen if "send" in line] == ["/send/room"]
    assert room.deliveries is not None
    assert room.deliveries.counts == {("websocket", "sent"): 1}
    assert room.statuses()[0].sending.count == 1
