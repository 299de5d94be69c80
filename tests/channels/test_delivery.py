"""Each part of an answer reaches one of the ends that the life cycle has, and none goes out twice."""

from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from gateway.channels.adapter_json import write_context
from gateway.channels.adapters import Outbound, Rate, ReplyContext, TextLimits
from gateway.channels.delivery import (
    NOTHING_TO_SAY,
    ChannelSender,
    Draft,
    Piece,
    PlatformClient,
    key_of,
)
from gateway.channels.health import ChannelHealth
from gateway.domain.channels import ChannelDef, OnUnknown
from gateway.domain.errors import AdapterFailed, Denied
from gateway.domain.ids import RunId, Secret
from gateway.domain.inbox import TWICE, Delivery, DeliveryState, NewDelivery, Receipt
from gateway.domain.plugins import PluginSecret
from gateway.domain.ports import Fetched, FetchRequest, HttpFailed
from tests.fakes.clock import FakeClock
from tests.fakes.fetch import FakeFetch, Said
from tests.fakes.store import NOON
from tests.fakes.writer import ORIGIN, Reply, WritingAdapter, keyed, posts

CHANNEL = ChannelDef("chat", "fake", account="bot")
OK = Fetched(200, (), b'{"id":"m1"}')


def a_delivery(
    text: str = "hello", *, arrived: int = 0, whence: ReplyContext | None = None
) -> Delivery:
    kept = None if whence is None else write_context(whence)
    new = NewDelivery("d1", "chat", "bot", "p", None, text, kept)
    return Delivery(new, None, None, "pending", 0, NOON, arrived=arrived)


class Stage:
    def __init__(
        self,
        *said: Said,
        adapter: WritingAdapter | None = None,
        channel: ChannelDef = CHANNEL,
        draft: Draft | None = None,
    ) -> None:
        async def draft_of(_: RunId) -> Draft | None:
            return draft

        script = list(said) or [OK]
        self.fetch = FakeFetch(lambda _: script.pop(0) if len(script) > 1 else script[0])
        self.adapter = adapter or WritingAdapter()
        self.clock = FakeClock()
        post = PlatformClient(channel, self.adapter, self.fetch, self.clock)
        self.health = ChannelHealth(channel, "poll", self.clock, lambda type_, payload: None)
        self.courier = ChannelSender(post, self.health, draft_of)
        self.marks: list[tuple[int, int]] = []  # what had arrived, and the requests before
        self.kept: list[tuple[bool, str | None]] = []
        self.known: list[int] = []  # to have arrived, before the next part waited

    async def deliver(self, delivery: Delivery) -> Receipt:
        async def sending(
            arrived: int, *, is_safe: bool = False, receipt: str | None = None, waits: bool = False
        ) -> None:
            if waits:
                self.known.append(arrived)
                return
            self.marks.append((arrived, len(self.fetch.asked)))
            self.kept.append((is_safe, receipt))

        with anyio.fail_after(60):
            return await self.courier.deliver(delivery, sending)

    @property
    def bodies(self) -> list[str]:
        return [ask.body.decode() for ask, _ in self.fetch.asked]

    @property
    def urls(self) -> list[str]:
        return [ask.url.removeprefix("https://api.example") for ask, _ in self.fetch.asked]


async def test_no_secret_goes_into_the_query_of_what_an_adapter_asks() -> None:
    url = "https://api.example/bots/of-somebody-else/send?text=${secret:token}"
    stage = Stage(adapter=WritingAdapter(lambda _: {"requests": [{"url": url}]}))

    receipt = await stage.deliver(a_delivery())

    assert receipt.state == "failed"
    assert "a secret in its query" in (receipt.why or "")
    assert stage.fetch.asked == []


async def test_the_adapter_is_told_where_to_and_what_came_with_the_question() -> None:
    stage = Stage(channel=replace(CHANNEL, config={"api_base": "https://mine.example", "n": 1}))
    whence = ReplyContext("room", "t1", "m0", is_group=True, answer={"token": [1]})

    receipt = await stage.deliver(a_delivery("**hi**", whence=whence))

    assert receipt == Receipt("sent", "m1")
    [reply] = stage.adapter.replies
    assert len(reply.pop("key")) == 20
    assert reply == {
        "do": "send",
        "peer": "room",
        "thread": "t1",
        "is_group": True,
        "reply_to": "m0",
        "answer": {"token": [1]},
        "text": "**hi**",
        "edits": None,
        "account": "bot",
        "config": {"api_base": "https://mine.example", "n": 1},
        "api_base": "https://mine.example",
    }


async def test_secrets_that_are_not_meant_for_requests_go_nowhere_and_are_only_scrubbed() -> None:
    origins = WritingAdapter().plugin.origins
    secrets = tuple(PluginSecret(name, Secret(name), origins) for name in ("token", "signing"))
    stage = Stage(channel=replace(CHANNEL, secrets=secrets))

    await stage.deliver(a_delivery())

    [(_, leave)] = stage.fetch.asked
    assert [(one.name, one.origins) for one in leave.secrets] == [
        ("token", origins),
        ("signing", frozenset()),
    ]
    assert leave.origins == stage.adapter.plugin.origins


async def test_a_long_answer_leaves_in_parts_each_marked_before_it_goes() -> None:
    adapter = WritingAdapter(more={"limits": TextLimits(text=10)})
    stage = Stage(adapter=adapter)

    receipt = await stage.deliver(
        a_delivery("one two three four", whence=ReplyContext("p", None, "m0"))
    )

    assert receipt.state == "sent"
    assert stage.bodies == ["one two", "three four"]
    assert stage.marks == [(0, 0), (8, 1)]
    assert [reply["reply_to"] for reply in adapter.replies] == ["m0", None]


async def test_parts_that_have_arrived_are_not_sent_again() -> None:
    stage = Stage(adapter=WritingAdapter(more={"limits": TextLimits(text=10)}))

    await stage.deliver(a_delivery("one two three four", arrived=8))

    assert stage.bodies == ["three four"]
    assert stage.marks == [(8, 0)]


async def test_an_empty_answer_is_said_to_be_one() -> None:
    stage = Stage()

    await stage.deliver(a_delivery(" \n"))

    assert stage.bodies == [NOTHING_TO_SAY]


def unsent() -> HttpFailed:
    return HttpFailed("network", "no connection", sent=False)


def broken() -> HttpFailed:
    return HttpFailed("network", "broke off")


LIFE: list[
    tuple[str, Callable[[Reply], object], Said, OnUnknown, DeliveryState, float | None, str]
] = [
    ("2xx", posts, Fetched(204, (), b""), "resend", "sent", None, ""),
    ("429", posts, Fetched(429, (("retry-after", "7"),), b""), "resend", "pending", 7.0, "429"),
    ("503", posts, Fetched(503, (), b""), "resend", "pending", None, "503"),
    ("502", posts, Fetched(502, (), b""), "resend", "pending", None, TWICE),
    ("502", posts, Fetched(502, (), b""), "hold", "unknown", None, "502"),
    ("502-keyed", keyed, Fetched(502, (), b""), "hold", "pending", None, "502"),
    ("400", posts, Fetched(400, (), b""), "resend", "failed", None, "400"),
    ("403", posts, Fetched(403, (), b""), "hold", "failed", None, "403"),
    ("denied", posts, Denied("not granted"), "resend", "failed", None, "not granted"),
    ("unsent", posts, unsent(), "hold", "pending", None, "no connection"),
    ("broken", posts, broken(), "resend", "pending", None, "may have arrived twice"),
    ("broken", posts, broken(), "hold", "unknown", None, "may have arrived"),
    ("keyed", keyed, broken(), "hold", "pending", None, "broke off"),
]


@pytest.mark.parametrize(
    ("formats", "said", "on_unknown", "state", "after_s", "why"),
    [row[1:] for row in LIFE],
    ids=[f"{row[0]}-{row[3]}" for row in LIFE],
)
async def test_every_outcome_of_a_request_leads_to_its_state(
    formats: Callable[[Reply], object],
    said: Said,
    on_unknown: OnUnknown,
    state: DeliveryState,
    after_s: float | None,
    why: str,
) -> None:
    channel = replace(CHANNEL, on_unknown_send=on_unknown)
    stage = Stage(said, adapter=WritingAdapter(formats), channel=channel)

    receipt = await stage.deliver(a_delivery())

    assert (receipt.state, receipt.retry_after_s) == (state, after_s)
    assert why in (receipt.why or "")
    assert stage.health.status.sending.count == (state == "sent")


@pytest.mark.parametrize(
    ("is_safe", "on_unknown", "state", "why"),
    [
        (True, "hold", "pending", "once"),
        (False, "resend", "pending", TWICE),
        (False, "hold", "unknown", "may have arrived"),
    ],
)
def test_after_a_kill_what_was_sent_or_the_operator_decides(
    *, is_safe: bool, on_unknown: OnUnknown, state: DeliveryState, why: str
) -> None:
    channel = replace(CHANNEL, on_unknown_send=on_unknown)
    stage = Stage(adapter=WritingAdapter(outbound=Outbound(idempotency=True)), channel=channel)

    receipt = stage.courier.unsure(replace(a_delivery(), is_safe=is_safe))

    assert receipt.state == state
    assert why in (receipt.why or "")


@pytest.mark.parametrize(
    ("said", "fails"),
    [
        (Fetched(503, (), b""), True),
        (Fetched(401, (), b""), True),
        (unsent(), True),
        (Denied("not granted"), True),
        (Fetched(429, (("retry-after", "7"),), b""), False),
        (Fetched(403, (), b""), False),
    ],
)
async def test_a_channel_fails_by_what_is_wrong_with_it_and_not_with_one_peer(
    said: Said, *, fails: bool
) -> None:
    stage = Stage(said, OK)

    await stage.deliver(a_delivery())
    failing = stage.health.status.sending.failing_since is not None
    stage.clock.move(60)
    await stage.deliver(a_delivery())

    assert failing is fails
    assert stage.health.status.sending.failing_since is None


async def test_what_goes_out_again_carries_the_same_key_and_another_part_another_one() -> None:
    adapter = WritingAdapter(keyed, more={"limits": TextLimits(text=10)})
    stage = Stage(adapter=adapter)

    for _ in range(2):
        await stage.deliver(a_delivery("one two three four"))

    keys = [dict(ask.headers)["x-key"] for ask, _ in stage.fetch.asked]
    assert keys[:2] == keys[2:]
    assert len({*keys}) == 2
    assert key_of("d1", Piece(0, 8, "")) == keys[0]
    assert key_of("d1", Piece(0, 9, "")) != keys[0]
    assert all(
        len(key) == 20 and set(key) <= set("abcdefghijklmnopqrstuvwxyz234567") for key in keys
    )


async def test_a_room_that_moved_is_followed_once() -> None:
    outbound = Outbound(moved_to="to")
    moved = Fetched(400, (), b'{"to":-100}')
    followed, lost = (
        Stage(moved, OK, adapter=WritingAdapter(outbound=outbound)),
        Stage(moved, adapter=WritingAdapter(outbound=outbound)),
    )

    assert (await followed.deliver(a_delivery())).state == "sent"
    assert (await lost.deliver(a_delivery())).state == "failed"
    assert followed.urls == lost.urls == ["/send/p", "/send/-100"]


async def test_a_text_that_the_adapter_finds_too_long_is_cut_smaller_a_few_times() -> None:
    def picky(most: int) -> Callable[[Reply], object]:
        return lambda reply: {"too_long": True} if len(reply["text"]) > most else posts(reply)

    text = "word " * 40
    fine, never = Stage(adapter=WritingAdapter(picky(300))), Stage(adapter=WritingAdapter(picky(0)))
    fine.adapter.more = never.adapter.more = {"limits": TextLimits(text=1_000)}

    assert (await fine.deliver(a_delivery(text * 3))).state == "sent"
    receipt = await never.deliver(a_delivery(text))

    assert "".join(fine.bodies).replace(" ", "") == "word" * 120
    assert receipt.state == "failed"
    assert "too long" in (receipt.why or "")
    assert never.bodies == []


async def test_an_adapter_that_fails_makes_a_dead_letter() -> None:
    def fails(_: Reply) -> object:
        raise AdapterFailed("out of fuel")

    assert await Stage(adapter=WritingAdapter(fails)).deliver(a_delivery()) == Receipt(
        "failed", why="out of fuel"
    )
    nonsense = await Stage(adapter=WritingAdapter(lambda _: {"requests": 7})).deliver(a_delivery())
    assert nonsense.state == "failed"


async def test_an_adapter_with_nothing_to_send_has_done_it() -> None:
    stage = Stage(adapter=WritingAdapter(lambda _: {}))

    assert (await stage.deliver(a_delivery())).state == "sent"
    assert stage.marks == []


async def test_the_first_part_takes_the_place_of_the_draft_and_the_others_follow() -> None:
    stage = Stage(
        adapter=WritingAdapter(more={"limits": TextLimits(text=10)}), draft=Draft("m7", "one")
    )

    await stage.deliver(replace(a_delivery("one two three four"), run_id=RunId("r1")))

    assert stage.urls == ["/edit/m7", "/send/p"]


async def test_a_part_is_safe_if_each_of_its_requests_carries_a_key() -> None:
    def mixed(reply: Reply) -> object:
        made = keyed(reply)
        assert isinstance(made, dict)
        return {"requests": [*made["requests"], {"url": f"{ORIGIN}/other"}]}

    whole, half = (
        Stage(adapter=WritingAdapter(keyed)),
        Stage(broken(), adapter=WritingAdapter(mixed)),
    )

    await whole.deliver(a_delivery())
    receipt = await half.deliver(a_delivery())

    assert (whole.kept, half.kept) == ([(True, None)], [(False, None)])
    assert (receipt.why or "").endswith(TWICE)


async def test_what_took_the_place_of_a_draft_takes_it_again_after_a_kill() -> None:
    first = Stage(broken(), draft=Draft("m7", "one"))
    again = Stage()

    receipt = await first.deliver(replace(a_delivery(), run_id=RunId("r1")))
    await again.deliver(replace(a_delivery(), run_id=RunId("r1"), receipt="m7"))

    assert (receipt.state, first.kept) == ("pending", [(True, "m7")])
    assert (again.urls, again.kept) == (["/edit/m7"], [(True, "m7")])


async def test_an_edit_and_the_message_instead_of_it_have_keys_of_their_own() -> None:
    stage = Stage(Fetched(404, (), b""), OK, draft=Draft("m7", "one"))

    await stage.deliver(replace(a_delivery(), run_id=RunId("r1")))

    assert len({reply["key"] for reply in stage.adapter.replies}) == 2
    assert stage.kept == [(True, "m7"), (False, None)]


async def test_the_parts_after_the_first_keep_its_id() -> None:
    stage = Stage(adapter=WritingAdapter(more={"limits": TextLimits(text=10)}))

    await stage.deliver(a_delivery("one two three four"))

    assert stage.kept == [(False, None), (False, "m1")]


async def test_a_draft_that_says_it_all_is_left_as_it_is() -> None:
    stage = Stage(draft=Draft("m7", "hello"))

    receipt = await stage.deliver(replace(a_delivery("hello\n"), run_id=RunId("r1")))

    assert receipt == Receipt("sent", "m7")
    assert stage.urls == []


async def test_a_draft_that_is_gone_keeps_no_answer_from_arriving() -> None:
    stage = Stage(Fetched(404, (), b""), OK, draft=Draft("m7", "one"))

    receipt = await stage.deliver(replace(a_delivery(), run_id=RunId("r1")))

    assert receipt == Receipt("sent", "m1")
    assert stage.urls == ["/edit/m7", "/send/p"]


async def test_a_part_waits_for_its_rate_before_it_is_marked_as_being_sent() -> None:
    limits = TextLimits(text=10, rates=(Rate("peer", 1, 5.0),))
    stage = Stage(adapter=WritingAdapter(more={"limits": limits}))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(stage.deliver, a_delivery("one two three four"))
            await anyio.wait_all_tasks_blocked()
            assert stage.marks == [(0, 0)]
            assert stage.known == [8]

            stage.clock.move(5)
            await anyio.wait_all_tasks_blocked()

    assert stage.marks == [(0, 0), (8, 1)]


async def test_after_a_429_nothing_goes_to_that_peer_until_its_time() -> None:
    stage = Stage(Fetched(429, (("retry-after", "30"),), b""), OK)
    await stage.deliver(a_delivery())
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(stage.deliver, a_delivery())
            await anyio.wait_all_tasks_blocked()
            assert len(stage.fetch.asked) == 1

            stage.clock.move(30)

    assert len(stage.fetch.asked) == 2


async def test_a_request_goes_out_as_the_adapter_wrote_it() -> None:
    def formats(_: Reply) -> object:
        request = {"url": "https://api.example/x", "method": "PUT", "headers": {"a": "b"}}
        return {"requests": [{**request, "body": "é"}]}

    stage = Stage(adapter=WritingAdapter(formats))

    await stage.deliver(a_delivery())

    [(ask, _)] = stage.fetch.asked
    assert ask == FetchRequest("PUT", "https://api.example/x", (("a", "b"),), "é".encode(), 30.0)
