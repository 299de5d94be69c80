"""What every store promises to channels: each message once, and nothing forgotten in between."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from gateway.domain.channels import ChannelMemo
from gateway.domain.errors import AlreadyReceived, Conflict, StoreUnavailable
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.inbox import NewDelivery, NewEntry, ReceivedMessage
from gateway.domain.ports import Stores
from gateway.store.faults import TextRefused
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, an_ending, an_entry

Open = Callable[[], AbstractAsyncContextManager[Stores]]
HERE = SessionKey(AgentId("demo"), "tg", "bot", "p1")
OLD, NEW = ChannelMemo("tg", "bot", "adapter", "7"), ChannelMemo("tg", "bot", "adapter", "8")
SOCKET = ChannelMemo("tg", "bot", "socket", '{"seq":3}')
WHENCE = '{"peer":"room","thread":"t"}'
MUCH = timedelta(days=8)


def message(name: str, *memos: ChannelMemo, platform_id: str = "1") -> NewEntry:
    entry = an_entry(name, HERE, platform_id=platform_id)
    return replace(entry, whence=WHENCE, memos=memos)


def heard(platform_id: str = "1", *, after: timedelta = timedelta()) -> ReceivedMessage:
    return ReceivedMessage("tg", "bot", platform_id, "told", NOON + after)


def delivery(name: str) -> NewDelivery:
    return NewDelivery(name, "tg", "bot", "room", "t", "pair first", WHENCE)


async def memos_of(stores: Stores) -> list[ChannelMemo]:
    return list(await stores.channels.read_memos("tg", "bot"))


async def due(stores: Stores) -> list[NewDelivery]:
    return [one.new for one in await stores.outbox.due("tg", now=NOON, limit=9)]


# --- memos -------------------------------------------------------------------------------------


async def test_the_newest_memo_of_a_slot_is_kept_and_nobody_elses(opened: Open) -> None:
    async with opened() as stores:
        await stores.channels.write_memos(OLD, SOCKET, replace(OLD, channel="other"))
        await stores.channels.write_memos(NEW)

        assert await memos_of(stores) == [NEW, SOCKET]
        assert list(await stores.channels.read_memos("other", "bot")) == [
            replace(OLD, channel="other")
        ]
        assert list(await stores.channels.read_memos("tg", "another")) == []


async def test_a_memo_comes_with_the_message_that_it_goes_with(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(message("a", NEW, SOCKET), begin=False)

        assert await memos_of(stores) == [NEW, SOCKET]


async def test_a_duplicate_still_moves_the_memo_on(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(message("a", OLD), begin=False)

        again = await stores.inbox.accept(message("b", NEW), begin=False)

        assert again.duplicate
        assert await memos_of(stores) == [NEW]


async def test_no_memo_is_written_with_a_message_that_is_refused(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(message("a", OLD), begin=False)

        with pytest.raises(Conflict):  # the run's id is taken
            await stores.inbox.accept(message("a", NEW, platform_id="2"), begin=False)

        assert await memos_of(stores) == [OLD]


# --- where the answer goes ---------------------------------------------------------------------


async def test_where_an_answer_goes_is_kept_with_the_message_and_the_memos_are_not(
    opened: Open,
) -> None:
    async with opened() as stores:
        await stores.inbox.accept(message("a", NEW), begin=False)

        (left,) = await stores.inbox.unfinished()
        record = await stores.inbox.find_run(RunId("run-a"))

    assert left.new == message("a")
    assert record is not None
    assert record.entry == left


async def test_an_answer_of_a_turn_keeps_where_it_goes(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(message("a"), begin=True)

        ending = replace(an_ending("a", HERE), deliveries=(delivery("d1"),), finished_at=NOON)
        await stores.inbox.finish(ending)

        assert await due(stores) == [delivery("d1")]


# --- heard -------------------------------------------------------------------------------------


async def test_a_message_is_heard_once_and_answered_once(opened: Open) -> None:
    async with opened() as stores:
        first = await stores.channels.record(heard(), [delivery("d1")], [OLD])
        again = await stores.channels.record(heard(), [delivery("d2")], [NEW])

        assert (first, again) == (True, False)
        assert await due(stores) == [delivery("d1")]
        assert await memos_of(stores) == [NEW]
        assert await stores.channels.knows("tg", "bot", "1")
        assert not await stores.channels.knows("tg", "other", "1")
        assert not await stores.channels.knows("tg", "bot", "2")


async def test_ten_copies_that_come_together_are_heard_once(opened: Open) -> None:
    outcomes: list[bool] = []
    async with opened() as stores:

        async def copy(number: int) -> None:
            told = [delivery(f"d{number}")]
            outcomes.append(await stores.channels.record(heard(), told))

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(copy, number)

        assert len(await due(stores)) == 1
    assert outcomes.count(True) == 1


async def test_a_message_that_was_answered_without_a_turn_makes_none_later(opened: Open) -> None:
    async with opened() as stores:
        await stores.channels.record(heard())

        with pytest.raises(AlreadyReceived, match="tg:bot"):
            await stores.inbox.accept(message("a", NEW), begin=False)

        assert await stores.inbox.unfinished() == []
        assert await stores.sessions.count_sessions() == 0
        assert await memos_of(stores) == []


async def test_a_message_that_made_a_turn_is_not_answered_without_one_later(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(message("a"), begin=False)

        assert await stores.channels.knows("tg", "bot", "1")
        assert not await stores.channels.record(heard(), [delivery("d1")])
        assert await due(stores) == []


async def test_a_key_of_a_client_is_not_taken_for_a_message_of_a_channel(opened: Open) -> None:
    async with opened() as stores:
        await stores.channels.record(heard())

        accepted = await stores.inbox.accept(replace(message("a"), whence=None), begin=False)

        assert not accepted.duplicate


async def test_a_delivery_that_is_there_already_is_not_made_again(opened: Open) -> None:
    async with opened() as stores:
        await stores.channels.record(heard("1"), [delivery("late")])

        is_new = await stores.channels.record(heard("2"), [delivery("late"), delivery("d2")])

        assert is_new
        assert await due(stores) == [delivery("late"), delivery("d2")]


async def test_a_delivery_without_a_session_waits_for_no_other(opened: Open) -> None:
    async with opened() as stores:
        await stores.channels.record(heard("1"), [delivery("d1")])
        await stores.channels.record(heard("2"), [delivery("d2")])

        await stores.outbox.sending("d1", 0)

        assert await due(stores) == [delivery("d2")]
        (left,) = await stores.outbox.interrupted()
        assert (left.new, left.run_id, left.session_key) == (delivery("d1"), None, None)


async def test_what_no_platform_sends_again_is_forgotten_the_oldest_first(opened: Open) -> None:
    async with opened() as stores:
        events = stores.channels
        for name, after in [("c", MUCH), ("b", MUCH / 2), ("a", MUCH / 4)]:
            await events.record(heard(name, after=after))

        forgotten = [await events.forget_received(before=NOON + MUCH, limit=1) for _ in range(3)]

        assert forgotten == [1, 1, 0]
        assert [await events.knows("tg", "bot", name) for name in "abc"] == [False, False, True]


async def test_what_no_adapter_could_read_is_listed_the_newest_first(opened: Open) -> None:
    async with opened() as stores:
        events = stores.channels
        lost = [
            replace(heard(name, after=after), outcome="unreadable", detail=f"body {name}")
            for name, after in [("a", MUCH / 4), ("b", MUCH / 2)]
        ]
        for one in [*lost, heard("c"), replace(lost[0], channel="other")]:
            await events.record(one)

        assert await events.unread("tg", limit=9) == [lost[1], lost[0]]
        assert await events.unread("tg", limit=1) == [lost[1]]
        assert len(await events.unread(None, limit=9)) == 3
        assert len(await events.unread(None, platform_id="a", limit=9)) == 2
        assert await events.unread("tg", platform_id="a", limit=9) == [lost[0]]
        assert await events.unread("tg", platform_id="c", limit=9) == []


async def test_what_is_forgotten_last_is_the_newest(opened: Open) -> None:
    async with opened() as stores:
        events = stores.channels
        for name, after in [("b", MUCH / 2), ("a", MUCH / 4)]:
            await events.record(heard(name, after=after))

        await events.forget_received(before=NOON + MUCH, limit=1)

        assert [await events.knows("tg", "bot", name) for name in "ab"] == [False, True]


async def test_a_text_without_a_utf8_form_is_refused_and_nothing_is_written(opened: Open) -> None:
    half = "\ud800"
    async with opened() as stores:
        for refused in (
            stores.channels.write_memos(OLD, replace(SOCKET, text=half)),
            stores.channels.record(replace(heard(), detail=half), (), [OLD]),
            stores.channels.record(heard(), [replace(delivery("d"), whence=half)], [OLD]),
            stores.inbox.accept(replace(message("a", OLD), whence=half), begin=False),
        ):
            with pytest.raises(TextRefused):
                await refused

        assert await memos_of(stores) == []
        assert not await stores.channels.knows("tg", "bot", "1")


async def test_a_closed_store_hears_nothing(opened: Open) -> None:
    async with opened() as stores:
        pass

    for refused in (
        stores.channels.write_memos(OLD),
        stores.channels.record(heard()),
        stores.channels.knows("tg", "bot", "1"),
    ):
        with pytest.raises(StoreUnavailable):
            await refused


# --- a file only -------------------------------------------------------------------------------


async def test_what_was_heard_and_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        await stores.channels.record(heard("1"), [delivery("d1")])
        await stores.inbox.accept(message("a", NEW, SOCKET, platform_id="2"), begin=False)

    async with open_store("embedded", tmp_path, clock=FakeClock()) as again:
        assert await memos_of(again) == [NEW, SOCKET]
        assert await due(again) == [delivery("d1")]
        with pytest.raises(AlreadyReceived):
            await again.inbox.accept(message("b", platform_id="1"), begin=False)
        assert (await again.inbox.accept(message("c", platform_id="2"), begin=False)).duplicate
