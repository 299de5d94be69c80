"""A channel at work with everything around it faked but the way in."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio

from gateway.channels.access import TurnForAgent, Verdict
from gateway.channels.adapters import Description, Incoming
from gateway.channels.connections import ConnectedChannel
from gateway.channels.health import ChannelHealth
from gateway.channels.intake import Intake, OpenChannel
from gateway.domain.channels import ChannelDef, ChannelMemo, Pairing
from gateway.domain.ids import AgentId, MessageId, RunId, SessionKey
from gateway.domain.inbox import Accepted, Inbound, NewDelivery, ReceivedMessage
from gateway.domain.plugins import HttpGrant, PluginDef, PluginSecret
from gateway.domain.ports import Fetch, Fetched
from tests.fakes.clock import FakeClock
from tests.fakes.doorkeeper import FakeCommands
from tests.fakes.fetch import FakeFetch
from tests.fakes.ports import PartOfChannelStore
from tests.fakes.sockets import FakeSockets
from tests.outbound.guarded import a_secret, origin

SECRETS = ("bot_token", "app_token", "token")
PLACES = ("https://api.example", "https://gateway.discord.gg")


@dataclass
class FakeAdapter:
    """Finds messages in `messages` of a body, or in `d` or `payload` of a frame: by their ids."""

    description: Description
    plugin: PluginDef = PluginDef(
        "chat", Path("chat.wasm"), tuple(HttpGrant(origin(one)) for one in PLACES)
    )
    events: list[dict[str, object]] = field(default_factory=list)

    async def parse(self, event: str) -> str:
        told = json.loads(event)
        self.events.append(told)
        body = json.loads(told["body"])
        found = body.get("messages") or [body.get("d") or body.get("payload") or {}]
        ids = [one.get("id") or one.get("event_id") for one in found]
        messages = [
            {"peer": "p", "sender": {"id": "s"}, "text": "hi", "platform_id": one}
            for one in ids
            if one is not None
        ]
        return json.dumps({"messages": messages, "state": body.get("next")})

    async def format(self, reply: str) -> str:
        raise AssertionError("nothing is sent here")


@dataclass
class FakeShelf(PartOfChannelStore):
    """ChannelMemos, ChannelEvents and the inbox: what is committed, and what refuses to be."""

    memos: dict[str, str] = field(default_factory=dict)
    accepted: list[str] = field(default_factory=list)
    refusal: Exception | None = None
    gate: anyio.Event | None = None
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def until_accepted(self, count: int) -> None:
        while len(self.accepted) < count:
            self._news = anyio.Event()
            await self._news.wait()

    async def read_memos(self, channel: str, account: str) -> Sequence[ChannelMemo]:
        self._check()
        return [
            ChannelMemo(channel, account, "socket" if slot == "socket" else "adapter", text)
            for slot, text in self.memos.items()
        ]

    async def write_memos(self, *memos: ChannelMemo) -> None:
        self._check()
        self.memos.update({memo.slot: memo.text for memo in memos})

    async def accept(self, inbound: Inbound) -> Accepted:
        if self.gate is not None:
            await self.gate.wait()
        self._check()
        self.accepted.append(inbound.key or "")
        await self.write_memos(*inbound.memos)
        self._news.set()
        key = SessionKey(AgentId("main"), inbound.address.channel, inbound.address.account)
        return Accepted(MessageId("m"), RunId("r"), key, "default", 1)

    async def knows(self, channel: str, account: str, platform_id: str) -> bool:
        return False

    async def record(
        self,
        heard: ReceivedMessage,
        deliveries: Sequence[NewDelivery] = (),
        memos: Sequence[ChannelMemo] = (),
        asked: Pairing | None = None,
    ) -> bool:
        raise AssertionError("everything here makes a turn")

    async def unread(
        self, channel: str | None, *, platform_id: str | None = None, limit: int
    ) -> Sequence[ReceivedMessage]:
        return []

    async def drop_unread(self, one: ReceivedMessage) -> None:
        raise AssertionError("nothing is unread")

    async def count_unread(self) -> Mapping[str, int]:
        return {}

    async def forget_received(self, *, before: object, limit: int) -> int:
        return 0

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal


class Everybody:
    async def judge(self, channel: ChannelDef, message: Incoming) -> Verdict:
        return TurnForAgent()

    def report_request(self, asked: Pairing) -> None:
        raise AssertionError("everybody may talk")


@dataclass
class World:
    """Whatever a test wants to look at; `live` is made of it."""

    description: Description
    config: Mapping[str, object] = field(default_factory=dict)
    sockets: FakeSockets = field(default_factory=FakeSockets)
    fetch: Fetch = field(default_factory=FakeFetch)
    shelf: FakeShelf = field(default_factory=FakeShelf)
    clock: FakeClock = field(default_factory=FakeClock)
    told: list[tuple[str, object]] = field(default_factory=list)
    jitter: Callable[[], float] = lambda: 1.0

    def __post_init__(self) -> None:
        self.adapter = FakeAdapter(self.description)
        transport = self.description.transports[0]
        secrets = tuple(a_secret("hush", *PLACES, name=name) for name in SECRETS)
        channel = ChannelDef("chat", "chat", config=self.config, secrets=secrets)
        self.health = ChannelHealth(channel, transport.type, self.clock, self._tell)
        shelf = self.shelf
        commands = FakeCommands().run
        intake = Intake(shelf.accept, shelf, self.clock, lambda: None, Everybody(), commands)
        what = (transport, self.health, intake, _unchanged)
        opened = OpenChannel(channel, self.adapter, *what)
        with_ = (self.fetch, self.sockets, shelf, self.clock, self.jitter)
        self.live = ConnectedChannel(opened, *with_)

    def _tell(self, kind: str, payload: Mapping[str, object]) -> None:
        self.told.append((kind, payload["why"]))

    async def pass_(self, seconds: float) -> None:
        self.clock.move(seconds)
        await anyio.wait_all_tasks_blocked()


def granted(live: ConnectedChannel, place: str, *secrets: PluginSecret) -> ConnectedChannel:
    """The same channel, with a grant for that place alone."""
    channel = live.channel
    plugin = PluginDef("chat", Path("chat.wasm"), (HttpGrant(origin(place)),))
    assert isinstance(channel.adapter, FakeAdapter)
    adapter = replace(channel.adapter, plugin=plugin)
    settings = replace(channel.settings, secrets=secrets)
    return replace(live, channel=replace(channel, adapter=adapter, settings=settings))


async def _unchanged(body: bytes) -> bytes:
    return body


def answer(body: object, status: int = 200, **headers: str) -> Fetched:
    pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Fetched(status, pairs, json.dumps(body).encode())
