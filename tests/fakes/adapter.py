"""An adapter that says what a test wants, and an intake behind it that writes down what it took."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from anyio.lowlevel import checkpoint

from gateway.channels.adapters import Description, Verify, Webhook
from gateway.channels.health import ChannelHealth
from gateway.channels.intake import Intake, OpenChannel
from gateway.domain.channels import ChannelDef, ChannelMemo, Pairing
from gateway.domain.errors import AdapterFailed
from gateway.domain.ids import MessageId, RunId, Secret
from gateway.domain.inbox import Accepted, Inbound, NewDelivery, ReceivedMessage
from gateway.domain.plugins import PluginDef, PluginSecret
from gateway.domain.ports import ChannelStore, Stores
from gateway.outbound.guard import Scrubber
from tests.fakes.clock import FakeClock
from tests.fakes.doorkeeper import FakeCommands, FakeDoor
from tests.fakes.ports import PartOfChannelStore
from tests.fakes.store import session_key

KEY = "hunter2-hunter2"
VERIFY = Verify("token", "x-token", secret="key")
HOOK = Webhook("webhook", paths=("", "events/*"))
MESSAGE = {"peer": "ann", "sender": {"id": "ann"}, "text": "hi", "platform_id": "1"}


@dataclass
class FakeAdapter:
    """Implements Adapter; `say` makes the answer of an event."""

    say: Callable[[Any], object] = lambda event: {"messages": [MESSAGE]}
    description: Description = Description("fake", (HOOK,), verify=VERIFY)
    plugin: PluginDef = PluginDef("fake", Path("fake.wasm"))
    events: list[Any] = field(default_factory=list)

    async def parse(self, event: str) -> str:
        await checkpoint()
        self.events.append(json.loads(event))
        said = self.say(self.events[-1])
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, str) else json.dumps(said)

    async def format(self, reply: str) -> str:
        raise AdapterFailed("it only reads")


@dataclass
class Taken:
    """What was handed in; `trouble` is raised instead."""

    inbound: list[Inbound] = field(default_factory=list)
    trouble: Exception | None = None

    async def accept(self, inbound: Inbound) -> Accepted:
        await checkpoint()
        if self.trouble is not None:
            raise self.trouble
        self.inbound.append(inbound)
        key = session_key(inbound.address.peer)
        return Accepted(MessageId("m"), RunId("r"), key, "default", 1)


@dataclass
class KeptEvents(PartOfChannelStore):
    """Implements ChannelEvents, and shows what was heard."""

    heard: list[ReceivedMessage] = field(default_factory=list)
    inner: ChannelStore | None = None

    async def knows(self, channel: str, account: str, platform_id: str) -> bool:
        await checkpoint()
        return platform_id in {one.platform_id for one in self.heard}

    async def record(
        self,
        heard: ReceivedMessage,
        deliveries: Sequence[NewDelivery] = (),
        memos: Sequence[ChannelMemo] = (),
        asked: Pairing | None = None,
    ) -> bool:
        is_new = not await self.knows(heard.channel, heard.account, heard.platform_id)
        self.heard += [heard] if is_new else []
        return is_new

    async def unread(
        self, channel: str | None, *, platform_id: str | None = None, limit: int
    ) -> Sequence[ReceivedMessage]:
        unread = [one for one in self.heard if one.outcome == "unreadable"]
        return [one for one in unread if platform_id in {None, one.platform_id}][-limit:]

    async def drop_unread(self, one: ReceivedMessage) -> None:
        self.heard.remove(one)

    async def count_unread(self) -> Mapping[str, int]:
        return Counter(one.channel for one in await self.unread(None, limit=99))

    async def forget_received(self, *, before: datetime, limit: int) -> int:
        return 0


def a_channel(adapter: FakeAdapter, taken: Taken, stores: Stores, **config: object) -> OpenChannel:
    secrets = (PluginSecret("key", Secret(KEY), frozenset()),)
    channel = ChannelDef("family", "fake", secrets=secrets, config=config)
    clock = FakeClock()
    health = ChannelHealth(channel, "webhook", clock, lambda _type, _payload: None)
    ways = (FakeDoor(), FakeCommands().run)
    intake = Intake(taken.accept, stores.channels, clock, lambda: None, *ways)
    return OpenChannel(channel, adapter, HOOK, health, intake, Scrubber(secrets).body)
