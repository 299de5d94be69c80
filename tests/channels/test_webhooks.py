"""The door for platforms: who is let in, and what everybody else is answered."""

from dataclasses import replace

import pytest

from gateway.channels.access import Answered, Command, Verdict
from gateway.channels.adapters import Challenge, Webhook
from gateway.channels.webhooks import LARGEST_BODY, NOT_HERE, WebhookEndpoint, webhook_address
from gateway.domain.channels import WebhookAnswer, WebhookCall
from gateway.domain.errors import AdapterFailed, Busy, StoreUnavailable
from gateway.domain.ports import Stores
from tests.fakes.adapter import HOOK, KEY, MESSAGE, VERIFY, FakeAdapter, Taken, a_channel
from tests.fakes.doorkeeper import FakeCommands, FakeDoor
from tests.fakes.store import open_memory

CALL = WebhookCall("family", "POST", "", "", (("x-token", KEY),), b"{}")
ASKS = Challenge("key", "token", "say")


def a_door(
    stores: Stores, adapter: FakeAdapter, taken: Taken, recipe: Webhook = HOOK
) -> WebhookEndpoint:
    channel = a_channel(adapter, taken, stores)
    clock = channel.intake.clock
    here = webhook_address(channel, recipe, clock)
    return WebhookEndpoint(stores.audit, clock, {"family": here})


async def answered(
    call: WebhookCall, *, trouble: Exception | None = None, say: object = None, **recipe: object
) -> tuple[WebhookAnswer, FakeAdapter, Taken, dict[str, int]]:
    adapter, taken = FakeAdapter(), Taken(trouble=trouble)
    if say is not None:
        adapter.say = lambda event: say
    async with open_memory() as stores:
        door = a_door(stores, adapter, taken, replace(HOOK, **recipe))  # type: ignore[arg-type]  # by name
        answer = await door.receive(call)
        status = door.addresses["family"].channel.health.status
        return answer, adapter, taken, {**status.refused, "in": status.receiving.count}


async def test_a_genuine_call_is_taken_in_and_then_answered() -> None:
    answer, adapter, taken, counts = await answered(CALL)

    assert answer == WebhookAnswer()
    assert len(adapter.events) == len(taken.inbound) == 1
    assert adapter.events[0]["headers"] == {}
    assert counts == {"in": 1}


@pytest.mark.parametrize("headers", [(), (("x-token", "wrong"),), CALL.headers * 2])
async def test_whoever_proves_nothing_is_refused_before_an_adapter_sees_a_byte(
    headers: tuple[tuple[str, str], ...],
) -> None:
    answer, adapter, taken, counts = await answered(replace(CALL, headers=headers))

    assert answer == WebhookAnswer(401)
    assert adapter.events == taken.inbound == []
    assert sum(counts.values()) == 1
    assert counts["in"] == 0


@pytest.mark.parametrize(
    "call",
    [
        replace(CALL, channel="nobody"),
        replace(CALL, channel=""),
        replace(CALL, method="GET"),
        replace(CALL, method="PUT"),
        replace(CALL, path="/other"),
        replace(CALL, path="/events"),
        replace(CALL, path="/events/"),
        replace(CALL, path="/events/1/2"),
        replace(CALL, path="/events/1/"),
        replace(CALL, path="//"),
    ],
)
async def test_nothing_is_at_an_address_that_no_recipe_names(call: WebhookCall) -> None:
    answer, adapter, _, _ = await answered(call)

    assert answer == NOT_HERE
    assert adapter.events == []


@pytest.mark.parametrize("path", ["", "/", "/events/1", "/events/..", "/events/%2F"])
async def test_a_star_is_any_one_segment_as_it_was_sent(path: str) -> None:
    answer, adapter, _, _ = await answered(replace(CALL, path=path))

    assert answer.status == 200
    assert adapter.events[0]["path"] == path


async def test_a_body_is_no_larger_than_the_recipe_says_and_never_than_the_limit() -> None:
    large, _, _, _ = await answered(replace(CALL, body=b"123"), max_body_bytes=2)
    async with open_memory() as stores:
        small = a_door(stores, FakeAdapter(), Taken(), replace(HOOK, max_body_bytes=2))
        endless = a_door(stores, FakeAdapter(), Taken(), replace(HOOK, max_body_bytes=10**12))

        assert large == WebhookAnswer(413)
        assert small.largest_body("family") == 2
        assert endless.largest_body("family") == LARGEST_BODY
        assert small.largest_body("nobody") is None


@pytest.mark.parametrize(
    ("trouble", "status", "headers"),
    [
        (Busy("full", retry_after_s=7), 503, (("retry-after", "7"),)),
        (StoreUnavailable("the disk is full"), 503, (("retry-after", "5"),)),
    ],
)
async def test_what_cannot_be_kept_is_refused_so_that_it_is_sent_again(
    trouble: Exception, status: int, headers: tuple[tuple[str, str], ...]
) -> None:
    answer, _, taken, counts = await answered(CALL, trouble=trouble)

    assert answer == WebhookAnswer(status, headers)
    assert taken.inbound == []
    assert counts == {"in": 0, "unavailable": 1}


async def test_an_adapter_that_fails_says_nothing_to_the_platform() -> None:
    answer, _, _, counts = await answered(CALL, say=AdapterFailed(f"trap with {KEY}"))

    assert answer == WebhookAnswer(500)
    assert counts == {"in": 0, "unreadable": 1}


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ({"body": "{}"}, WebhookAnswer(200, (), b"{}")),
        (
            {"headers": {"Content-Type": "application/json", "Set-Cookie": "a=b"}},
            WebhookAnswer(200, (("content-type", "application/json"),)),
        ),
        ({"headers": {"content-type": "a\r\nset-cookie: a=b"}}, WebhookAnswer()),
        ({"status": 204}, WebhookAnswer(204)),
        ({"status": 204, "body": "HTTP/1.1 200 OK"}, WebhookAnswer(204)),
        ({"status": 304, "body": "HTTP/1.1 200 OK"}, WebhookAnswer(304)),
        ({"status": 99}, WebhookAnswer(500)),
        ({"status": 101}, WebhookAnswer(500)),
        ({"status": 10**9}, WebhookAnswer(500)),
    ],
)
async def test_an_adapter_answers_with_a_body_and_what_it_is_and_nothing_else(
    reply: object, answer: WebhookAnswer
) -> None:
    given, *_ = await answered(CALL, say={"messages": [], "reply": reply})

    assert given == answer


@pytest.mark.parametrize(
    ("query", "status", "body"),
    [
        (f"token={KEY}&say=1158201444", 200, b"1158201444"),
        (f"token={KEY}&say=%3Cb%3E", 200, b"<b>"),
        ("token=wrong&say=1", 403, b""),
        ("say=1", 403, b""),
        ("", 403, b""),
        (f"token={KEY}&token={KEY}&say=1", 403, b""),
        ("&".join(f"a{n}=1" for n in range(1_000)) + f"&token={KEY}&say=1", 403, b""),
    ],
)
async def test_a_challenge_is_answered_by_the_host_alone(
    query: str, status: int, body: bytes
) -> None:
    call = replace(CALL, method="GET", query=query, headers=())

    answer, adapter, _, _ = await answered(call, challenge=ASKS)

    assert (answer.status, answer.body) == (status, body)
    assert adapter.events == []
    if status == 200:
        assert dict(answer.headers)["content-type"].startswith("text/plain")


async def test_a_challenge_proves_nothing_for_a_message() -> None:
    call = replace(CALL, query=f"token={KEY}&say=1", headers=())

    answer, adapter, _, _ = await answered(call, challenge=ASKS)

    assert answer.status == 401
    assert adapter.events == []


async def test_the_audit_tells_of_refused_calls_and_is_not_filled_by_them() -> None:
    async with open_memory() as stores:
        door = a_door(stores, FakeAdapter(), Taken())
        for _ in range(11):
            await door.receive(replace(CALL, headers=()))
        await door.receive(replace(CALL, headers=(("x-token", "wrong"),)))
        await door.receive(CALL)

        told = await stores.audit.newest(kind="webhook.refused", limit=9)

    assert [(one.actor, one.detail) for one in told] == [
        ("family", '{"times":1,"why":"wrong"}'),
        ("family", '{"times":10,"why":"missing"}'),
        ("family", '{"times":1,"why":"missing"}'),
    ]


def by_header(event: dict[str, dict[str, str]]) -> object:
    """Two messages of a call, with ids that nobody has signed."""
    return {"messages": [MESSAGE | {"platform_id": event["headers"]["x-id"] + n} for n in "ab"]}


def under(name: str) -> WebhookCall:
    return replace(CALL, headers=(*CALL.headers, ("x-id", name)))


@pytest.mark.parametrize("verdict", [Answered("Who are you?"), Command("new", "")])
async def test_what_is_answered_without_a_turn_is_answered_once_whatever_id_a_copy_has(
    verdict: Verdict,
) -> None:
    adapter, taken, commands = FakeAdapter(by_header), Taken(), FakeCommands()
    adapter.description = replace(adapter.description, verify=replace(VERIFY, dedupe="body"))

    async with open_memory() as stores:
        channel = a_channel(adapter, taken, stores)
        channel.intake.access = FakeDoor({"ann": verdict})
        channel.intake.run_command = commands.run
        here = webhook_address(channel, HOOK, channel.intake.clock)
        door = WebhookEndpoint(stores.audit, channel.intake.clock, {"family": here})
        answers = [await door.receive(under(name)) for name in ("1", "2", "3")]
        counts = channel.intake.counts
        other = await door.receive(replace(under("1"), body=b"[]"))

    assert {one.status for one in (*answers, other)} == {200}
    assert counts["family", "duplicate"] == 4  # two messages, twice again
    assert counts["family", "told"] + counts["family", "command"] == 4
    assert len(commands.run_so_far) == (4 if isinstance(verdict, Command) else 0)
