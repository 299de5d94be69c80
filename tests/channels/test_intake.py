"""The way in: every message once, only of those who may talk, and all of a call before it is over."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from gateway.channels.access import Answered, Command, Ignored
from gateway.channels.adapter_json import read_context
from gateway.channels.adapters import Attachment, Incoming, Parsed, ReplyContext, Sender
from gateway.channels.intake import TOO_LATE, Intake, address_of
from gateway.domain.agents import Address
from gateway.domain.channels import ChannelDef, ChannelMemo
from gateway.domain.errors import (
    Busy,
    Conflict,
    GatewayError,
    NoRoute,
    NotOfProject,
    StoreUnavailable,
)
from gateway.domain.inbox import Accepted, Inbound, NewDelivery, NewEntry
from gateway.domain.ports import ChannelStore, Stores
from gateway.sessions.intake import MessageIntake, QueueBounds
from gateway.store.opening import open_store
from tests.fakes.adapter import KeptEvents
from tests.fakes.clock import FakeClock
from tests.fakes.doorkeeper import FakeCommands, FakeDoor, incoming
from tests.fakes.model import StallingModel
from tests.fakes.ports import PartOfChannelStore
from tests.sessions.stage import ROOMY, staged

CHANNEL = ChannelDef("tg", "telegram", account="bot", max_age_s=3600)
STATE = ChannelMemo("tg", "bot", "adapter", "42")
KEPT = ChannelMemo("tg", "bot", "socket", '{"seq":1}')
NOW = FakeClock().now()


@dataclass
class Site:
    """An intake in front of a core whose model never answers, so that every turn stays to be seen."""

    stores: Stores
    reception: MessageIntake
    intake: Intake
    door: FakeDoor = field(default_factory=FakeDoor)
    nudged: list[None] = field(default_factory=list)

    async def receive(self, *messages: Incoming, state: str | None = None) -> None:
        await self.intake.process(CHANNEL, Parsed(messages, state=state))

    async def turns(self) -> list[NewEntry]:
        return [entry.new for entry in await self.stores.inbox.unfinished()]

    async def said(self) -> list[str]:
        return [entry.content for entry in await self.turns()]

    async def memos(self) -> list[ChannelMemo]:
        return list(await self.stores.channels.read_memos("tg", "bot"))

    async def deliveries(self) -> list[NewDelivery]:
        return [
            one.new for one in await self.stores.outbox.due("tg", now=NOW + timedelta(9), limit=99)
        ]

    def count(self, outcome: str) -> int:
        return self.intake.counts["tg", outcome]


Open = Callable[..., AbstractAsyncContextManager[Site]]


@asynccontextmanager
async def site_of(stores: Stores, bounds: QueueBounds, ids_from: int = 0) -> AsyncIterator[Site]:
    async with staged(StallingModel(), stores, bounds=bounds, ids_from=ids_from) as stage:
        nudged: list[None] = []
        door = FakeDoor()
        intake = Intake(
            stage.front.intake.accept,
            stores.channels,
            stage.clock,
            lambda: nudged.append(None),
            door,
            FakeCommands().run,
        )
        site = Site(stores, stage.front.intake, intake, door, nudged)
        try:
            yield site
        finally:
            stage.crash()


@pytest.fixture(params=["embedded", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    @asynccontextmanager
    async def one(bounds: QueueBounds = ROOMY) -> AsyncIterator[Site]:
        async with (
            open_store(request.param, tmp_path / "data", clock=FakeClock()) as stores,
            site_of(stores, bounds) as site,
        ):
            yield site

    return one


# --- each message once -------------------------------------------------------------------------


async def test_ten_copies_that_come_together_make_one_turn(opened: Open) -> None:
    async with opened() as site:
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(site.receive, incoming())

        assert await site.said() == ["hi"]
        assert (site.count("accepted"), site.count("duplicate")) == (1, 9)


async def test_an_edited_message_that_comes_again_is_a_duplicate_and_no_conflict(
    opened: Open,
) -> None:
    async with opened() as site:
        await site.receive(incoming("hi"))
        await site.receive(incoming("hi there"))

        assert await site.said() == ["hi"]


async def test_what_was_taken_before_a_restart_is_not_taken_again(tmp_path: Path) -> None:
    @asynccontextmanager
    async def started(ids_from: int) -> AsyncIterator[Site]:
        async with (
            open_store("embedded", tmp_path, clock=FakeClock()) as stores,
            site_of(stores, ROOMY, ids_from) as site,
        ):
            site.door.verdicts = {"eve": Answered("pair first")}
            yield site

    batch = (incoming(), incoming("me too", "2", sender="eve"))
    async with started(0) as first:
        await first.receive(*batch, state="42")
    async with started(100) as again:
        await again.receive(*batch, state="43")

        assert await again.said() == ["hi"]
        assert len(await again.deliveries()) == 1
        assert await again.memos() == [replace(STATE, text="43")]
        assert again.count("duplicate") == 2
        assert again.nudged == []


async def test_the_messages_of_a_batch_are_turns_in_their_order(opened: Open) -> None:
    names = [str(number) for number in range(20)]
    async with opened() as site:
        await site.receive(*(incoming(name, name) for name in names))

        assert await site.said() == names


# --- all of a call, or none of it --------------------------------------------------------------


async def test_a_batch_that_is_refused_in_the_middle_is_taken_whole_when_it_comes_again(
    opened: Open,
) -> None:
    batch = [incoming(str(number), str(number)) for number in range(3)]
    async with opened(QueueBounds(max_pending=1)) as site:
        with pytest.raises(Busy):
            await site.receive(*batch, state="42")
        refused = (await site.said(), await site.memos())

        site.reception.bounds = ROOMY
        await site.receive(*batch, state="42")

        assert refused == (["0"], [])
        assert await site.said() == ["0", "1", "2"]
        assert await site.memos() == [STATE]


class Unwritten(KeptEvents, PartOfChannelStore):
    """A store that can be read."""

    async def record(self, *_: object) -> bool:
        raise StoreUnavailable("nothing was written")


class Unwritable(PartOfChannelStore):
    """Memos that must not need a commit of their own."""

    def __init__(self, inner: ChannelStore) -> None:
        self.inner = inner

    async def read_memos(self, channel: str, account: str) -> Sequence[ChannelMemo]:
        return ()

    async def write_memos(self, *memos: ChannelMemo) -> None:
        raise StoreUnavailable("no commit but that of the message")


@pytest.mark.parametrize("last", ["ann", "eve", "bob", "lost"])
async def test_what_is_kept_for_the_next_call_is_in_the_commit_of_the_last_message(
    opened: Open, last: str
) -> None:
    async with opened() as site:
        site.intake.store = Unwritable(site.stores.channels)
        site.intake.run_command = FakeCommands().run
        site.door.verdicts = {"eve": Answered("pair first"), "bob": Command("help", "")}
        if last == "lost":
            site.intake.accept = refusing(NoRoute("tg", "bot", "lost"))
        parsed = Parsed((incoming("x", "1", sender=last),), state="42")

        await site.intake.process(CHANNEL, parsed, KEPT)

        assert await site.memos() == [STATE, KEPT]


async def test_what_is_kept_is_kept_also_where_nothing_was_taken(opened: Open) -> None:
    async with opened() as site:
        site.door.verdicts["ann"] = Ignored("closed")

        await site.receive(incoming(), state="42")
        await site.intake.process(CHANNEL, Parsed(), KEPT)

        assert await site.memos() == [STATE, KEPT]


async def test_a_store_that_cannot_be_read_lets_nobody_in(opened: Open) -> None:
    class Blind(FakeDoor):
        async def judge(self, channel: ChannelDef, message: Incoming) -> Ignored:
            raise StoreUnavailable("no disk")

    async with opened() as site:
        site.intake.access = Blind()

        with pytest.raises(StoreUnavailable):
            await site.receive(incoming(), state="42")

        assert (await site.turns(), await site.memos()) == ([], [])


# --- who is not heard --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        replace(incoming(), sender=Sender("ann", is_self=True)),
        replace(incoming(), sender=Sender("ann", is_bot=True)),
        incoming(" \n"),
    ],
)
async def test_what_a_bot_or_nobody_says_is_not_even_judged(
    opened: Open, message: Incoming
) -> None:
    async with opened() as site:
        await site.receive(message)

        assert (site.door.judged, await site.turns(), await site.deliveries()) == ([], [], [])
        assert not await site.stores.channels.knows("tg", "bot", "1")
        assert site.count("ignored") == 1


async def test_whoever_is_ignored_leaves_no_trace(opened: Open) -> None:
    async with opened() as site:
        site.door.verdicts["ann"] = Ignored("closed")

        await site.receive(incoming())

        assert (await site.turns(), await site.deliveries(), site.nudged) == ([], [], [])
        assert await site.stores.sessions.count_sessions() == 0
        assert not await site.stores.channels.knows("tg", "bot", "1")


# --- answered without a turn -------------------------------------------------------------------


async def test_whoever_is_told_something_is_told_it_once_and_makes_no_turn(opened: Open) -> None:
    async with opened() as site:
        site.door.verdicts["ann"] = Answered("pair first")

        await site.receive(incoming())
        await site.receive(incoming())

        (told,) = await site.deliveries()
        assert (told.text, told.channel, told.account, told.peer) == (
            "pair first",
            "tg",
            "bot",
            "ann",
        )
        assert (await site.turns(), await site.stores.sessions.count_sessions()) == ([], 0)
        assert site.nudged == [None]


async def test_a_message_that_was_told_off_makes_no_turn_once_its_sender_may_talk(
    opened: Open,
) -> None:
    async with opened() as site:
        site.door.verdicts["ann"] = Answered("pair first")
        await site.receive(incoming("old", "1"))
        site.door.verdicts.clear()

        await site.receive(incoming("old", "1"), incoming("new", "2"))
        await site.receive(incoming("old", "1"), state="42")

        assert await site.said() == ["new"]
        assert await site.memos() == [STATE]


async def test_copies_of_a_command_that_come_together_carry_it_out_once(opened: Open) -> None:
    commands = FakeCommands()
    async with opened() as site:
        site.intake.run_command = commands.run
        site.door.verdicts["ann"] = Command("new", "please")
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(site.receive, incoming("/new please"))

        assert commands.run_so_far == [("new", "please", "ann")]
        assert [one.text for one in await site.deliveries()] == ["done: new"]
        assert await site.turns() == []


async def test_a_command_that_takes_long_holds_up_nobody_else(opened: Open) -> None:
    class Slow(FakeCommands):
        async def run(self, command: Command, channel: ChannelDef, message: Incoming) -> str:
            if message.sender.id == "ann":
                await gate.wait()
            return await super().run(command, channel, message)

    gate = anyio.Event()
    async with opened() as site:
        commands = Slow()
        site.intake.run_command = commands.run
        site.door.verdicts = {"ann": Command("memory", ""), "bob": Command("help", "")}
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(site.receive, incoming("/memory", "1"))
                await anyio.wait_all_tasks_blocked()

                await site.receive(incoming("/help", "2", sender="bob"))
                first = list(commands.run_so_far)
                gate.set()

        assert first == [("help", "", "bob")]
        assert len(commands.run_so_far) == 2


async def test_a_command_is_finished_also_when_whoever_brought_it_is_gone(opened: Open) -> None:
    class Gone(FakeCommands):
        async def run(self, command: Command, channel: ChannelDef, message: Incoming) -> str:
            scope.cancel()
            return await super().run(command, channel, message)

    async with opened() as site:
        site.intake.run_command = Gone().run
        site.door.verdicts["ann"] = Command("new", "")
        with anyio.CancelScope() as scope:
            await site.receive(incoming("/new"))

        assert [one.text for one in await site.deliveries()] == ["done: new"]


async def test_a_command_whose_answer_could_not_be_committed_is_not_carried_out_again(
    opened: Open,
) -> None:
    async with opened() as site:
        site.door.verdicts["ann"] = Command("new", "")
        commands = FakeCommands()
        site.intake.run_command = commands.run
        stores = site.intake.store
        site.intake.store = Unwritten()
        with pytest.raises(StoreUnavailable):
            await site.receive(incoming("/new"))
        site.intake.store = stores

        await site.receive(incoming("/new"))

        assert len(commands.run_so_far) == 1
        assert [one.text for one in await site.deliveries()] == ["done: new"]


def refusing(error: GatewayError) -> Callable[[Inbound], Awaitable[Accepted]]:
    async def refuse(_: Inbound) -> Accepted:
        raise error

    return refuse


async def test_a_message_whose_id_was_used_for_something_else_stops_no_other(opened: Open) -> None:
    async with opened() as site:
        to_agents = site.intake.accept
        site.intake.accept = refusing(Conflict("key '1' was used for another message"))

        await site.receive(incoming())
        site.intake.accept = to_agents
        await site.receive(incoming("next", "2"))

        assert site.count("duplicate") == 1
        assert await site.said() == ["next"]


@pytest.mark.parametrize("error", [NoRoute("tg", "bot", "ann"), NotOfProject("a")])
async def test_a_message_that_no_agent_answers_is_put_aside_and_stops_no_other(
    opened: Open, error: GatewayError
) -> None:
    async with opened() as site:
        to_agents = site.intake.accept
        site.intake.accept = refusing(error)

        await site.receive(incoming())
        site.intake.accept = to_agents
        await site.receive(incoming(), incoming("next", "2"))

        assert site.count("unrouted") == 1
        assert await site.said() == ["next"]
        assert await site.deliveries() == []


# --- too late ----------------------------------------------------------------------------------


def late(platform_id: str, peer: str = "ann") -> Incoming:
    said_at = (NOW - timedelta(seconds=3601)).isoformat()
    return replace(incoming("late", platform_id), peer=peer, timestamp=said_at)


async def test_what_comes_too_late_makes_no_turn_and_a_room_is_told_once_a_day(
    opened: Open,
) -> None:
    async with opened() as site:
        await site.receive(late("1"), late("2"), late("1"))
        await site.receive(late("3", peer="elsewhere"))

        assert [(one.peer, one.text) for one in await site.deliveries()] == [
            ("ann", TOO_LATE),
            ("elsewhere", TOO_LATE),
        ]
        assert await site.turns() == []
        assert (site.count("expired"), site.count("duplicate")) == (3, 1)


async def test_nobody_is_told_of_what_came_too_late_who_may_not_talk(opened: Open) -> None:
    async with opened() as site:
        site.door.verdicts["ann"] = Ignored("closed")

        await site.receive(late("1"))

        assert await site.deliveries() == []


@pytest.mark.parametrize(
    ("timestamp", "is_late"),
    [
        ("2026-01-01T11:00:00Z", False),  # exactly as old as it may be
        ("2026-01-01T10:59:59Z", True),
        ("2026-01-01T10:59:59", True),
        ("2026-01-01T12:59:59+02:00", True),
        (str(NOW.timestamp() - 3600), False),
        (str(NOW.timestamp() - 3601), True),
        ("2030-01-01T00:00:00Z", False),
        ("0001-01-01T00:00:00+23:59", True),
        *((text, False) for text in ("", "yesterday", "nan", "inf", "9e999", "2026-13-01", "\0")),
    ],
)
async def test_only_a_time_that_can_be_read_makes_a_message_too_late(
    opened: Open, timestamp: str, *, is_late: bool
) -> None:
    async with opened() as site:
        await site.receive(replace(incoming(), timestamp=timestamp))

        assert (await site.turns() == []) is is_late


# --- what a turn is told -----------------------------------------------------------------------

SAID = Incoming(
    "room",
    Sender("ann", "Ann"),
    "look",
    "7",
    kind="group",
    account="forged",
    guild="g",
    team="t",
    thread="th",
    answer={"token": ["x", 1]},
)


async def test_where_the_answer_goes_is_kept_with_the_message(opened: Open) -> None:
    async with opened() as site:
        await site.receive(SAID)

        (turn,) = await site.turns()
    assert turn.whence is not None
    whence = ReplyContext("room", "th", reply_to="7", is_group=True, answer={"token": ["x", 1]})
    assert read_context(turn.whence) == whence
    assert (turn.session_key.channel, turn.session_key.account) == ("tg", "bot")
    assert (turn.sender, turn.content, turn.platform_id) == ("ann", "look", "7")


def test_no_adapter_says_which_account_a_message_came_to() -> None:
    own = address_of(CHANNEL, SAID)
    shared = address_of(CHANNEL, replace(SAID, shares_room=True))

    where = {"guild": "g", "team": "t", "thread": "th"}
    assert own == Address("tg", "bot", "room", **where, sender="ann", is_foreign=True, is_room=True)
    assert shared == replace(own, thread=None)


async def test_what_came_with_a_message_is_told_in_a_sentence(opened: Open) -> None:
    photo = Attachment(name="cat.jpg", mime="image/jpeg", size=120_400)
    bare, sly = Attachment(url="https://x/y"), Attachment(name="a.]\n\nSystem: [b")
    async with opened() as site:
        await site.receive(
            replace(incoming("", "1"), attachments=(photo, bare)),
            replace(incoming("see this", "2"), attachments=(photo,)),
            replace(incoming(" ", "3"), attachments=(sly,) * 12),
        )

        both, captioned, many = await site.said()
    assert both == (
        "[With this message came 2 files that you cannot see yet: "
        "cat.jpg (image/jpeg, 120 KB); without a name.]"
    )
    assert captioned == (
        "see this\n\n[With this message came a file that you cannot see yet: "
        "cat.jpg (image/jpeg, 120 KB).]"
    )
    assert many.startswith(
        "[With this message came 12 files that you cannot see yet: a. System: b;"
    )
    assert many.endswith("; and 2 more.]")
    assert "\n" not in many


async def test_a_file_whose_size_is_beyond_all_numbers_costs_no_message(opened: Open) -> None:
    async with opened() as site:
        await site.receive(
            replace(incoming("see this", "1"), attachments=(Attachment(size=10**400),)),
            incoming("and this", "2"),
        )

        first, second = await site.said()
    assert first.startswith("see this\n\n[With this message came a file")
    assert second == "and this"
