"""Answers leave through the outbox: `sending` before the network, and one end for each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import anyio
import pytest

from gateway.domain.errors import StoreUnavailable
from gateway.domain.events import Event
from gateway.domain.inbox import TWICE, Delivery, NewDelivery, Receipt, ReceivedMessage, Sending
from gateway.domain.ports import Stores
from gateway.sessions.outbox import GIVES_UP_S, MOST_TRIES, Deliveries
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, an_ending, an_entry, open_memory, session_key


@dataclass
class FakeChannel:
    """Answers from a script, once its gate is open, and keeps in what state each delivery was."""

    stores: Stores
    script: list[Receipt] = field(default_factory=lambda: [Receipt("sent")])
    gate: anyio.Event = field(default_factory=anyio.Event)
    parts: Sequence[int] = (0,)
    is_sure: Receipt = Receipt("pending", why="again")
    got: list[Delivery] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    async def deliver(self, delivery: Delivery, sending: Sending) -> Receipt:
        self.got.append(delivery)
        for arrived in self.parts:
            if arrived >= delivery.arrived:
                await sending(arrived, waits=arrived > delivery.arrived)
                await sending(arrived)
                self.states.append(await state_of(self.stores, delivery.new.id))
                await self.gate.wait()
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def unsure(self, delivery: Delivery) -> Receipt:
        return self.is_sure


@dataclass
class Stage:
    stores: Stores
    clock: FakeClock
    channel: FakeChannel
    deliveries: Deliveries
    events: list[Event]

    async def answer(self, name: str, peer: str = "main", channel: str = "websocket") -> None:
        key = session_key(peer)
        new = NewDelivery(f"d-{name}", channel, "local", peer, None, "ok")
        await self.stores.inbox.accept(an_entry(name, key), begin=True)
        await self.stores.inbox.finish(an_ending(name, key, nodes=(), deliveries=[new], after_s=0))
        self.deliveries.nudge()
        await anyio.wait_all_tasks_blocked()

    async def later(self, seconds: float) -> None:
        self.clock.move(seconds)
        self.deliveries.nudge()
        await anyio.wait_all_tasks_blocked()

    @property
    def got(self) -> list[str]:
        return [one.new.id for one in self.channel.got]

    async def dead(self) -> list[tuple[str, str | None]]:
        dead = await self.stores.outbox.dead_letters(None, before=None, limit=9)
        return [(one.state, one.why) for one in dead]


async def state_of(stores: Stores, name: str) -> str:
    being_sent = [one.new.id for one in await stores.outbox.interrupted()]
    return "sending" if name in being_sent else "not sending"


@asynccontextmanager
async def staged(*script: Receipt, is_open: bool = True) -> AsyncIterator[Stage]:
    clock, events = FakeClock(), list[Event]()
    with anyio.fail_after(60):
        async with open_memory() as stores, anyio.create_task_group() as group:
            channel = FakeChannel(stores, list(script) or [Receipt("sent")])
            if is_open:
                channel.gate.set()
            channels = {"websocket": channel}
            deliveries = Deliveries(
                stores.outbox,
                channels,
                frozenset({("websocket", "local"), ("closed", "local")}),
                clock,
                events.append,
                fraction=lambda: 1.0,
            )
            stage = Stage(stores, clock, channel, deliveries, events)
            yield stage
            group.cancel_scope.cancel()


@asynccontextmanager
async def running(stage: Stage) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(stage.deliveries.run)
        await anyio.wait_all_tasks_blocked()
        yield
        group.cancel_scope.cancel()


async def test_an_answer_is_marked_as_sending_before_the_network_and_sent_after() -> None:
    async with staged() as stage, running(stage):
        await stage.answer("a")

        assert stage.channel.states == ["sending"]
        assert await state_of(stage.stores, "d-a") == "not sending"
        assert stage.deliveries.counts == {("websocket", "sent"): 1}


async def test_what_may_be_tried_again_waits_longer_each_time_and_is_given_up() -> None:
    async with staged(Receipt("pending", why="503")) as stage, running(stage):
        await stage.answer("a")
        for n in range(1, MOST_TRIES):
            await stage.later(min(60, 2**n) - 1)
            assert len(stage.got) == n
            await stage.later(2)
            assert len(stage.got) == n + 1

        assert await stage.dead() == [("failed", "gave up after 8 tries: 503")]
        assert [event.type for event in stage.events] == ["delivery.failed"]
        assert stage.events[0].payload["channel"] == "websocket"


async def test_a_wait_that_the_platform_named_is_kept_and_given_up_after_a_day() -> None:
    wait_s = GIVES_UP_S / 10
    async with staged(Receipt("pending", why="429", retry_after_s=wait_s)) as stage, running(stage):
        await stage.answer("a")
        for n in range(1, 11):
            await stage.later(wait_s - 1)
            assert len(stage.got) == n
            await stage.later(1)

        assert len(stage.got) == 11
        [(state, why)] = await stage.dead()
        assert (state, why) == ("failed", "gave up after 11 tries: 429")


async def test_a_part_that_arrived_begins_the_count_of_tries_anew() -> None:
    async with staged(Receipt("pending", why="503")) as stage, running(stage):
        stage.channel.parts = (0, 2)
        await stage.answer("a")

        [again] = await stage.stores.outbox.due("websocket", now=NOON + timedelta(hours=1), limit=9)
        assert (again.arrived, again.attempts) == (2, 1)
        assert again.due_at - stage.clock.now() == timedelta(seconds=2)


async def test_one_answer_of_a_session_goes_at_a_time_and_holds_up_no_other_session() -> None:
    async with staged(is_open=False) as stage, running(stage):
        for name, peer in {"a": "one", "b": "one", "c": "two"}.items():
            await stage.answer(name, peer)
        assert stage.got == ["d-a", "d-c"]

        stage.channel.gate.set()
        await anyio.wait_all_tasks_blocked()

        assert stage.got == ["d-a", "d-c", "d-b"]


@pytest.mark.parametrize(
    ("is_sure", "sent"), [(Receipt("pending", why="twice"), 1), (Receipt("unknown"), 0)]
)
async def test_what_was_being_sent_when_the_gateway_died_follows_the_operators_choice(
    is_sure: Receipt, sent: int
) -> None:
    async with staged() as stage:
        stage.channel.is_sure = is_sure
        await stage.answer("a")
        await stage.stores.outbox.sending("d-a", 0)

        async with running(stage):
            await stage.later(1)

        assert len(stage.got) == sent
        if sent:
            assert "stopped while it was being sent; twice" in (stage.channel.got[0].why or "")
        else:
            assert await stage.dead() == [
                ("unknown", "the gateway stopped while it was being sent")
            ]
            assert [event.type for event in stage.events] == ["delivery.unknown"]


async def test_a_channel_that_comes_late_has_its_answers_kept_for_it_and_holds_up_no_other() -> (
    None
):
    async with staged() as stage:
        late, came = FakeChannel(stage.stores, gate=stage.channel.gate), anyio.Event()
        channels = {"websocket": stage.channel}
        stage.deliveries = replace(stage.deliveries, channels=channels, coming={"closed": came})
        for name in "ab":
            await stage.answer(name, name, channel="closed")
        await stage.stores.outbox.sending("d-a", 0)

        async with running(stage):
            await stage.answer("c")
            assert (stage.got, await state_of(stage.stores, "d-a")) == (["d-c"], "sending")
            channels["closed"] = late
            came.set()
            await anyio.wait_all_tasks_blocked()
            await stage.later(1)

        assert sorted(one.new.id for one in late.got) == ["d-a", "d-b"]
        assert await stage.dead() == []


async def test_an_answer_for_a_channel_that_is_gone_fails_with_a_reason() -> None:
    async with staged() as stage:
        await stage.answer("a", channel="gone")

        async with running(stage):
            [(state, why)] = await stage.dead()

        assert state == "failed"
        assert "no channel" in (why or "")


async def test_an_answer_for_a_channel_that_is_closed_for_now_waits() -> None:
    async with staged() as stage:
        await stage.answer("a", channel="closed")

        async with running(stage):
            assert await stage.dead() == []
            assert len(await stage.stores.outbox.due("closed", now=NOON, limit=9)) == 1


class Broken(FakeChannel):
    async def deliver(self, delivery: Delivery, sending: Sending) -> Receipt:
        if not self.got:
            self.got.append(delivery)
            raise RuntimeError("a defect")
        return await FakeChannel.deliver(self, delivery, sending)


async def test_a_defect_fails_one_answer_and_stops_no_other() -> None:
    async with staged() as stage:
        broken = Broken(stage.stores)
        broken.gate.set()
        stage.deliveries.channels = {"websocket": broken}
        async with running(stage):
            await stage.answer("a")
            await stage.answer("b", "two")

            assert [state for state, _ in await stage.dead()] == ["failed"]
            assert [one.new.id for one in broken.got] == ["d-a", "d-b"]


async def test_an_answer_whose_mark_cannot_be_written_is_not_sent_and_waits() -> None:
    class Full(FakeChannel):
        async def deliver(self, delivery: Delivery, sending: Sending) -> Receipt:
            raise StoreUnavailable("the disk is full")

    async with staged() as stage:
        stage.deliveries.channels = {"websocket": Full(stage.stores)}
        async with running(stage):
            await stage.answer("a")

            [waiting] = await stage.stores.outbox.due(
                "websocket", now=NOON + timedelta(hours=1), limit=9
            )
            assert (waiting.state, waiting.why) == ("pending", "the disk is full")


async def test_a_drain_lets_the_part_arrive_that_is_under_way_and_begins_no_other() -> None:
    async with staged(is_open=False) as stage, running(stage):
        stage.channel.parts = (0, 2)
        await stage.answer("a")
        async with anyio.create_task_group() as group:
            group.start_soon(stage.deliveries.drain)
            await anyio.wait_all_tasks_blocked()
            await stage.answer("b", "two")
            assert stage.got == ["d-a"]
            stage.channel.gate.set()

        assert await stage.stores.outbox.interrupted() == []
        left = await stage.stores.outbox.due("websocket", now=NOON + timedelta(hours=1), limit=9)
        assert [(one.new.id, one.arrived, one.state) for one in left] == [
            ("d-a", 2, "pending"),
            ("d-b", 0, "pending"),
        ]


async def test_a_dead_letter_that_is_sent_anew_leaves_before_what_came_after_it() -> None:
    async with staged(Receipt("failed", why="403"), Receipt("sent")) as stage, running(stage):
        await stage.answer("a")
        assert await stage.dead() == [("failed", "403")]

        await stage.stores.outbox.resubmit("d-a", now=stage.clock.now())
        await stage.later(0)

        assert stage.got == ["d-a", "d-a"]
        assert await stage.dead() == []


async def test_an_answer_that_no_turn_made_goes_out_as_well() -> None:
    async with staged() as stage, running(stage):
        new = NewDelivery("d-x", "websocket", "local", "p", None, "pair first")
        heard = ReceivedMessage("websocket", "local", "m1", "told", NOON)
        await stage.stores.channels.record(heard, [replace(new, whence="{}")])
        await stage.later(0)

        assert stage.got == ["d-x"]
        assert stage.deliveries.counts == {("websocket", "sent"): 1}


async def test_once_a_part_may_have_arrived_twice_no_later_trouble_takes_that_back() -> None:
    doubt = Receipt("pending", why=f"broke off; {TWICE}")
    async with staged(doubt, Receipt("pending", why="503"), Receipt("failed", why="403")) as stage:
        await stage.answer("a")
        async with running(stage):
            await stage.later(60)
            await stage.later(60)

        assert await stage.dead() == [("failed", f"403; {TWICE}")]
