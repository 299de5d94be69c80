"""What platforms send: scrubbed before an adapter sees it, and kept when no adapter can read it."""

import base64
import json
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from gateway.channels.adapters import HttpReply
from gateway.channels.intake import MOST_FAILURES, Received
from gateway.domain.errors import AdapterFailed, Busy, Conflict
from tests.fakes.adapter import KEY, MESSAGE, FakeAdapter, KeptEvents, Taken, a_channel
from tests.fakes.store import open_memory


async def test_an_event_holds_what_came_and_what_the_channel_is() -> None:
    adapter, headers = FakeAdapter(), (("x-a", "1"), ("x-a", "2"), ("content-type", "text/plain"))
    async with open_memory() as stores:
        channel = a_channel(adapter, Taken(), stores, api_base="https://a.example", room=7)
        channel.state = "cursor"

        await channel.receive(Received("webhook", b"hi", headers, "POST", "/x", "a=b"))

        assert adapter.events == [
            {
                "transport": "webhook",
                "method": "POST",
                "path": "/x",
                "query": "a=b",
                "headers": {"x-a": "1, 2", "content-type": "text/plain"},
                "body": "hi",
                "account": "default",
                "config": {"api_base": "https://a.example", "room": 7},
                "api_base": "https://a.example",
                "state": "cursor",
            }
        ]


@pytest.mark.parametrize(
    "name", ["authorization", "cookie", "proxy-authorization", "x-forwarded-for"]
)
async def test_no_adapter_sees_what_others_are_known_by(name: str) -> None:
    adapter = FakeAdapter()
    async with open_memory() as stores:
        await a_channel(adapter, Taken(), stores).receive(Received("webhook", b"", ((name, "x"),)))

        assert adapter.events[0]["headers"] == {}


async def test_bytes_that_are_no_text_come_as_base64() -> None:
    adapter = FakeAdapter()
    async with open_memory() as stores:
        await a_channel(adapter, Taken(), stores).receive(Received("webhook", b"\xff\0"))

        assert "body" not in adapter.events[0]
        assert base64.b64decode(adapter.events[0]["body_base64"]) == b"\xff\0"


@pytest.mark.parametrize(
    "form",
    [
        KEY.encode(),
        base64.b64encode(KEY.encode()),
        base64.b64encode(b"Bearer " + KEY.encode()),
        quote(KEY, safe="").replace("-", "%2D").encode(),
        b"\xff" + KEY.encode(),
    ],
)
async def test_no_adapter_sees_a_secret_that_a_platform_echoes(form: bytes) -> None:
    adapter = FakeAdapter()
    headers = (("x-echo", form.decode("latin-1")),)
    async with open_memory() as stores:
        said = Received("webhook", form, headers, "POST", f"/{KEY}", f"key={KEY}")
        await a_channel(adapter, Taken(), stores).receive(said)

        event = adapter.events[0]
        seen = json.dumps(event) + str(base64.b64decode(event.get("body_base64", "")))
        assert KEY not in seen
        assert form.decode("latin-1").removeprefix("\xff") not in seen or b"%2D" in form


async def test_state_counts_once_it_is_committed() -> None:
    taken = Taken()
    adapter = FakeAdapter(lambda event: {"messages": [MESSAGE], "state": "next"})
    async with open_memory() as stores:
        channel = a_channel(adapter, taken, stores)
        taken.trouble = Busy("full")
        with pytest.raises(Busy):
            await channel.receive(Received("poll", b"{}", status=200))
        before = channel.state
        taken.trouble = None
        await channel.receive(Received("poll", b"{}", status=200))

        assert (before, channel.state) == ("", "next")


async def test_calls_that_come_together_undo_nothing_in_the_state() -> None:
    adapter = FakeAdapter(lambda event: {"state": event["state"] + event["body"]})
    async with open_memory() as stores:
        channel = a_channel(adapter, Taken(), stores)
        channel.state = "0"
        async with anyio.create_task_group() as group:
            for number in b"123456789":
                group.start_soon(channel.receive, Received("webhook", bytes([number])))

        assert sorted(channel.state) == list("0123456789")


async def test_an_adapter_says_what_is_answered() -> None:
    reply = {"status": 202, "body": "{}"}
    adapter = FakeAdapter(lambda event: {"messages": [], "reply": reply})
    async with open_memory() as stores:
        answer = await a_channel(adapter, Taken(), stores).receive(Received("webhook", b""))

        assert answer == HttpReply(202, body="{}")


@pytest.mark.parametrize("is_bot", [True, False])
async def test_what_promises_an_answer_is_said_only_if_there_will_be_one(*, is_bot: bool) -> None:
    message = {**MESSAGE, "sender": {"id": "ann", "is_bot": is_bot}}
    reply = {"body": "thinking", "promises": True}
    adapter = FakeAdapter(lambda event: {"messages": [message], "reply": reply})
    async with open_memory() as stores:
        answer = await a_channel(adapter, Taken(), stores).receive(Received("webhook", b""))

        assert answer == (None if is_bot else HttpReply(body="thinking", promises=True))


async def test_who_forges_an_account_is_not_believed() -> None:
    """Nor what no message has: an agent, a channel, rights."""
    forged = {"account": "admin", "channel": "websocket", "agent": "other", "scopes": ["admin"]}
    taken = Taken()
    adapter = FakeAdapter(lambda event: {"messages": [{**MESSAGE, **forged}], **forged})
    async with open_memory() as stores:
        await a_channel(adapter, taken, stores).receive(Received("webhook", b""))

        (inbound,) = taken.inbound
        assert (inbound.address.channel, inbound.address.account) == ("family", "default")
        assert inbound.requested_agent is None


@pytest.mark.parametrize(
    "said",
    [
        "",
        "null",
        "[]",
        "{",
        {"messages": 1},
        {"messages": [{}]},
        {"messages": [{**MESSAGE, "peer": ""}]},
        {"messages": [{**MESSAGE, "peer": "x" * 300}]},
        {"messages": [{**MESSAGE, "platform_id": 7}]},
        {"messages": [MESSAGE] * 1_001},
        '{"messages": [' + "[" * 5_000 + "]" * 5_000 + "]}",
        AdapterFailed("it took too long"),
    ],
)
async def test_what_an_adapter_makes_up_is_taken_as_a_failure(said: object) -> None:
    taken = Taken()
    async with open_memory() as stores:
        channel = a_channel(FakeAdapter(lambda event: said), taken, stores)

        with pytest.raises(AdapterFailed):
            await channel.receive(Received("webhook", b"x"))

        assert taken.inbound == []


async def test_what_no_adapter_can_read_is_kept_and_not_asked_for_again() -> None:
    poison = f"poison with {KEY} in it".encode()
    adapter = FakeAdapter(lambda event: AdapterFailed("trapped"))
    async with open_memory() as stores:
        channel = a_channel(adapter, Taken(), stores)
        channel.intake.store = kept = KeptEvents()
        for _ in range(MOST_FAILURES - 1):
            with pytest.raises(AdapterFailed):
                await channel.receive(Received("webhook", poison))
        with pytest.raises(AdapterFailed):
            await channel.receive(Received("webhook", b"another body"))

        answer = await channel.receive(Received("webhook", poison))

        assert answer is None
        assert [(one.outcome, one.detail) for one in kept.heard] == [
            ("unreadable", "poison with [secret key] in it")
        ]


def fails_unless_skipped(event: dict[str, Any]) -> object:
    return {"messages": [], "state": "9"} if event.get("skip") else AdapterFailed("trapped")


async def test_an_answer_that_nobody_can_read_stops_no_channel_for_good() -> None:
    adapter = FakeAdapter(fails_unless_skipped)
    async with open_memory() as stores:
        kept = KeptEvents(inner=stores.channels)
        channel = a_channel(adapter, Taken(), stores)
        channel.intake.store = kept
        for _ in range(MOST_FAILURES - 1):
            with pytest.raises(AdapterFailed):
                await channel.receive(Received("poll", b"poison", status=200))
        before = (channel.state, [*kept.heard])

        await channel.receive(Received("poll", b"poison", status=200))

        assert before == ("", [])
        assert (channel.state, [one.detail for one in kept.heard]) == ("9", ["poison"])
        memos = await stores.channels.read_memos("family", "default")
        assert [memo.text for memo in memos] == ["9"]


@pytest.mark.parametrize("beyond", [AdapterFailed("again"), {"messages": []}, {"state": "old"}])
async def test_an_answer_is_not_given_up_while_nobody_knows_where_to_go_on(beyond: object) -> None:
    adapter = FakeAdapter(lambda event: beyond if event.get("skip") else AdapterFailed("trapped"))
    async with open_memory() as stores:
        channel = a_channel(adapter, Taken(), stores)
        channel.intake.store, channel.state = (kept := KeptEvents()), "old"

        for _ in range(2 * MOST_FAILURES):
            with pytest.raises(AdapterFailed):
                await channel.receive(Received("poll", b"poison", status=200))

        assert (channel.state, kept.heard) == ("old", [])


async def test_what_no_adapter_could_read_is_taken_once_it_can() -> None:
    """Because an operator says so, who has put another adapter in its place."""
    said = [AdapterFailed("trapped")] * MOST_FAILURES
    adapter = FakeAdapter(lambda event: said.pop() if said else {"messages": [MESSAGE]})
    taken, kept = Taken(), KeptEvents()
    async with open_memory() as stores:
        channel = a_channel(adapter, taken, stores)
        channel.intake.store = kept
        for _ in range(MOST_FAILURES - 1):
            with pytest.raises(AdapterFailed):
                await channel.receive(Received("webhook", b"poison"))
        await channel.receive(
            Received("webhook", b"poison", method="POST", headers=(("x-kind", "a"),))
        )
        (letter,) = kept.heard

        said.append(AdapterFailed("still"))
        with pytest.raises(Conflict, match="the message is still unreadable: still"):
            await channel.retry_message(letter)
        await channel.retry_message(letter)

    assert letter.why == "trapped"
    assert [one.content for one in taken.inbound] == ["hi"]
    assert adapter.events[-1] == adapter.events[MOST_FAILURES - 1]
    assert adapter.events[-1]["headers"] == {"x-kind": "a"}


@pytest.mark.parametrize("spoilt", ["peer", "platform_id"])
async def test_of_a_batch_only_the_message_is_kept_that_cannot_be_used(spoilt: str) -> None:
    messages = [MESSAGE, {**MESSAGE, "platform_id": "2", spoilt: "x" * 300}]
    taken, kept = Taken(), KeptEvents()
    async with open_memory() as stores:
        channel = a_channel(FakeAdapter(lambda event: {"messages": messages}), taken, stores)
        channel.intake.store = kept

        await channel.receive(Received("poll", b"{}", status=200))

    assert [one.key for one in taken.inbound] == ["1"]
    assert [spoilt in one.why for one in kept.heard] == [True]


@pytest.mark.parametrize(
    "body", [b'{"text":"\xff"}', b'{"text":"\xed\xa0\x80"}', rb'{"text":"\uDFFF"}']
)
async def test_an_adapter_is_shown_json_that_it_can_read(body: bytes) -> None:
    adapter = FakeAdapter(lambda event: {"messages": []})
    async with open_memory() as stores:
        await a_channel(adapter, Taken(), stores).receive(Received("webhook", body))

    json.loads(adapter.events[0]["body"])["text"].encode()
