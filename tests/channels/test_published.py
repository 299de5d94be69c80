"""What is published is what really crosses."""

import json
from collections.abc import Callable

from gateway.channels.adapters import Whence
from gateway.channels.delivery import Post, Reply
from gateway.channels.published import schemas
from gateway.channels.translating import Said
from gateway.domain.channels import ChannelDef
from gateway.schemas import SchemaChecks
from tests.channels.test_crossing import SOCKET, WEBHOOK
from tests.fakes.adapter import FakeAdapter, Taken, a_way_in
from tests.fakes.clock import FakeClock
from tests.fakes.fetch import FakeFetch
from tests.fakes.store import open_memory
from tests.fakes.writer import WritingAdapter

WHENCE = Whence("room", "t", "m", is_group=True, answer={"token": 1})


def check(name: str) -> Callable[[object], str | None]:
    return SchemaChecks().compile(json.dumps(schemas()[name]))


def test_a_description_that_is_read_is_valid_and_another_is_not() -> None:
    valid = {**WEBHOOK, "transports": [{"type": "webhook"}, SOCKET]}

    assert check("describe")(valid) is None
    assert check("describe")({**WEBHOOK, "transports": "none"}) is not None


async def test_events_are_as_they_are_published() -> None:
    adapter, valid = FakeAdapter(), check("event")
    async with open_memory() as stores:
        way_in = a_way_in(adapter, Taken(), stores, api_base="https://a.example")
        for said in (
            Said("webhook", b"{}", (("x-a", "1"),), "POST", "/x", "a=b"),
            Said("poll", b"\xff", (), status=200),
            Said("socket", b"frame"),
        ):
            await way_in.take(said)

    assert [valid(event) for event in adapter.events] == [None] * 3
    assert valid({**adapter.events[0], "more": 1}) is not None


async def test_replies_are_as_they_are_published() -> None:
    adapter, valid = WritingAdapter(), check("reply")
    post = Post(ChannelDef("chat", "fake"), adapter, FakeFetch(lambda _: None), FakeClock())  # type: ignore[arg-type,return-value]  # nothing is asked

    await post.format(Reply("send", "key", WHENCE, "**hi**"))
    await post.format(Reply("edit", "key", Whence("p"), "more", edits="m1"))
    await post.format(Reply("typing", "key", Whence("p")))

    assert [valid(reply) for reply in adapter.replies] == [None] * 3
    assert valid({**adapter.replies[0], "do": "sing"}) is not None
