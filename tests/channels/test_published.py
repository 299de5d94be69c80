"""What is published is what really crosses."""

import json
from collections.abc import Callable

from gateway.channels.adapter_json import schemas
from gateway.channels.adapters import ReplyContext
from gateway.channels.delivery import PlatformClient
from gateway.channels.intake import Received
from gateway.domain.channels import ChannelDef
from gateway.domain.ports import HttpFailed
from gateway.schemas import SchemaChecks
from tests.channels.test_adapter_json import SOCKET, WEBHOOK
from tests.fakes.adapter import FakeAdapter, Taken, a_channel
from tests.fakes.clock import FakeClock
from tests.fakes.fetch import FakeFetch
from tests.fakes.store import open_memory
from tests.fakes.writer import WritingAdapter

WHENCE = ReplyContext("room", "t", "m", is_group=True, answer={"token": 1})


def check(name: str) -> Callable[[object], str | None]:
    return SchemaChecks().compile(json.dumps(schemas()[name]))


def test_a_description_that_is_read_is_valid_and_another_is_not() -> None:
    valid = {**WEBHOOK, "transports": [{"type": "webhook"}, SOCKET]}

    assert check("describe")(valid) is None
    assert check("describe")({**WEBHOOK, "transports": "none"}) is not None


async def test_events_are_as_they_are_published() -> None:
    adapter, valid = FakeAdapter(), check("event")
    async with open_memory() as stores:
        channel = a_channel(adapter, Taken(), stores, api_base="https://a.example")
        for said in (
            Received("webhook", b"{}", (("x-a", "1"),), "POST", "/x", "a=b"),
            Received("poll", b"\xff", (), status=200),
            Received("socket", b"frame"),
        ):
            await channel.receive(said)

    assert [valid(event) for event in adapter.events] == [None] * 3
    assert valid({**adapter.events[0], "more": 1}) is not None


async def test_replies_are_as_they_are_published() -> None:
    adapter, valid = WritingAdapter(), check("reply")
    fetch = FakeFetch(lambda _: HttpFailed("network", "nothing is asked"))
    client = PlatformClient(ChannelDef("chat", "fake"), adapter, fetch, FakeClock())

    await client.format("send", "key", WHENCE, "**hi**")
    await client.format("edit", "key", ReplyContext("p"), "more", edits="m1")
    await client.format("typing", "key", ReplyContext("p"))

    assert [valid(reply) for reply in adapter.replies] == [None] * 3
    assert valid({**adapter.replies[0], "do": "sing"}) is not None
