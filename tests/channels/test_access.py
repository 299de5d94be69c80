"""Who may talk: in direct chats by policy, in rooms by their list alone."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channels.access import (
    NAMES,
    AccessControl,
    Answered,
    Command,
    Ignored,
    TurnForAgent,
    Verdict,
    command_in,
)
from gateway.domain.channels import ChannelDef, DmPolicy, GroupRule
from gateway.domain.ports import Stores
from tests.channels.people import CHANNEL, a_book, code_in, in_room, judged, said
from tests.fakes.clock import FakeClock
from tests.fakes.store import open_memory

POLICIES: tuple[DmPolicy, ...] = ("pairing", "allowlist", "open", "disabled")
OPEN_DEN = {"den": GroupRule(require_mention=False)}


async def paired(stores: Stores, door: AccessControl, *people: str) -> None:
    """The first of them owns the account."""
    for person in people:
        verdict = await judged(stores, door, CHANNEL, said(person=person))
        await door.approve(code_in(verdict), by="local")


def a_door(stores: Stores, clock: FakeClock | None = None) -> AccessControl:
    return a_book(stores, clock or FakeClock())


def may(verdict: Verdict) -> bool:
    return isinstance(verdict, TurnForAgent | Command)


# --- direct chats ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("policy", "is_listed", "is_paired"), [*product(POLICIES, (False, True), (False, True))]
)
async def test_a_direct_chat_is_judged_by_its_policy(
    policy: DmPolicy, is_listed: bool, is_paired: bool
) -> None:
    listed = frozenset({"ann"} if is_listed else {"annie", "an", "ANN", ""})
    channel = replace(CHANNEL, dm_policy=policy, allow_from=listed)
    expected = {
        "pairing": is_listed or is_paired,
        "allowlist": is_listed,
        "open": True,
        "disabled": False,
    }[policy]
    async with open_memory() as stores:
        door = a_door(stores)
        if is_paired:
            await paired(stores, door, "ann")

        verdict = await door.judge(channel, said())

    assert isinstance(verdict, TurnForAgent) is expected
    assert isinstance(verdict, Answered) is (policy == "pairing" and not expected)


async def test_a_stranger_is_told_once_in_a_codes_life_and_costs_nothing() -> None:
    clock = FakeClock()
    async with open_memory() as stores:
        door = a_door(stores, clock)
        verdicts = [await judged(stores, door, CHANNEL, said(f"/new {n}")) for n in range(100)]
        clock.move(3600)
        later = await door.judge(CHANNEL, said())
        sessions = await stores.sessions.count_sessions()

    assert isinstance(verdicts[0], Answered)
    assert set(verdicts[1:]) == {Ignored("not_paired")}
    assert isinstance(later, Answered)
    assert code_in(later) != code_in(verdicts[0])
    assert sessions == 0


async def test_a_notice_that_was_not_committed_is_told_with_another_code() -> None:
    """Whatever stopped it in between: a code that nobody was told keeps nobody waiting."""
    async with open_memory() as stores:
        door = a_door(stores)

        first = await door.judge(CHANNEL, said("one"))
        again = await door.judge(CHANNEL, said("one"))

        assert code_in(first) != code_in(again)
        assert await stores.channels.list_pairings(limit=9) == []


async def test_who_was_denied_hears_nothing_even_when_the_code_has_expired() -> None:
    clock = FakeClock()
    async with open_memory() as stores:
        door = a_door(stores, clock)
        verdict = await judged(stores, door, CHANNEL, said())
        await door.deny(code_in(verdict), by="local")
        clock.move(100_000)

        assert await door.judge(CHANNEL, said("please")) == Ignored("not_paired")


async def test_pairing_holds_for_one_account_of_one_channel() -> None:
    async with open_memory() as stores:
        door = a_door(stores)
        await paired(stores, door, "ann")

        assert isinstance(await door.judge(CHANNEL, said()), TurnForAgent)
        assert isinstance(await door.judge(replace(CHANNEL, account="b"), said()), Answered)
        assert isinstance(await door.judge(replace(CHANNEL, name="b"), said()), Answered)


# --- rooms -------------------------------------------------------------------------------------
async def test_a_room_that_is_not_listed_is_closed_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "gateway.channels.access")
    channel = replace(CHANNEL, dm_policy="open", allow_from=frozenset({"ann"}), groups=OPEN_DEN)
    async with open_memory() as stores:
        door = a_door(stores)
        for room in ("den2", "de", "DEN", "den2"):
            assert await door.judge(channel, in_room(peer=room)) == Ignored("room_closed")

    assert [record.message for record in caplog.records] == ["room_closed"] * 3


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({}, False),
        ({"*": GroupRule()}, True),
        ({"den": GroupRule()}, True),
        ({"den": GroupRule(frozenset({"ann"}))}, True),
        ({"den": GroupRule(frozenset({"ben"}))}, False),
        ({"*": GroupRule(), "den": GroupRule(frozenset({"ben"}))}, False),
        ({"*": GroupRule(frozenset({"ben"})), "den": GroupRule()}, True),
    ],
)
async def test_a_room_is_judged_by_its_own_rule_and_else_by_that_of_any(
    groups: Mapping[str, GroupRule], expected: bool
) -> None:
    async with open_memory() as stores:
        verdict = await a_door(stores).judge(replace(CHANNEL, groups=groups), in_room())

    assert may(verdict) is expected


@pytest.mark.parametrize(
    ("of_channel", "of_room", "is_wanted"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
async def test_a_room_wants_a_mention_as_it_says_and_else_as_the_channel_says(
    of_channel: bool, of_room: bool | None, is_wanted: bool
) -> None:
    rule = GroupRule(require_mention=of_room)
    channel = replace(CHANNEL, require_mention=of_channel, groups={"den": rule})
    async with open_memory() as stores:
        door = a_door(stores)

        unasked = await door.judge(channel, in_room(mentions_me=False))
        asked = await door.judge(channel, in_room())

    assert unasked == (Ignored("not_mentioned") if is_wanted else TurnForAgent())
    assert asked == TurnForAgent()


@given(
    policy=st.sampled_from(POLICIES),
    groups=st.dictionaries(
        st.sampled_from(["den", "*", "other"]),
        st.builds(
            GroupRule,
            st.frozensets(st.sampled_from(["ben", "cleo"])),
            st.sampled_from([None, True, False]),
        ),
    ),
    allow_from=st.frozensets(st.sampled_from(["ben", "cleo"])),
    mentions=st.booleans(),
    text=st.sampled_from(["hello", "/new", "/pair list"]),
)
async def test_no_path_leads_from_pairing_to_a_room(
    policy: DmPolicy,
    groups: Mapping[str, GroupRule],
    allow_from: frozenset[str],
    mentions: bool,
    text: str,
) -> None:
    channel = ChannelDef("chat", "chat", dm_policy=policy, groups=groups, allow_from=allow_from)
    message = in_room(text, mentions_me=mentions)
    async with open_memory() as stores:
        door = a_door(stores)
        before = await door.judge(channel, message)
        await paired(stores, door, "ann")

        after = await door.judge(channel, message)

    assert after == before
    assert not isinstance(after, Command)  # ann is listed nowhere


# --- commands ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_read(name: str) -> None:
    for text in (f"/{name}", f" /{name.upper()} ", f"/{name}@our_bot", f"/{name}@our.bot-1\n"):
        assert command_in(text) == Command(name, "")
    assert command_in(f"/{name} two\n words ") == Command(name, "two\n words")


@given(st.text())
def test_other_texts_are_no_commands(text: str) -> None:
    found = command_in(text)

    assert found is None or text.strip().lower().startswith(f"/{found.name}")


@pytest.mark.parametrize(
    "text", ["/", "/newer", "/etc/passwd", "new", "a /new", "/new/x", "//new", "\u00a0/new"]
)
def test_what_only_looks_like_a_command_is_plain_text(text: str) -> None:
    assert command_in(text) is None


@pytest.mark.parametrize(
    ("policy", "person", "expected"),
    [
        ("pairing", "ann", True),
        ("pairing", "ben", True),
        ("pairing", "listed", True),
        ("allowlist", "listed", True),
        ("open", "ann", True),
        ("open", "listed", True),
        ("open", "stranger", False),
    ],
)
async def test_in_a_direct_chat_commands_are_for_those_who_are_known(
    policy: DmPolicy, person: str, expected: bool
) -> None:
    channel = replace(CHANNEL, dm_policy=policy, allow_from=frozenset({"listed"}))
    async with open_memory() as stores:
        door = a_door(stores)
        await paired(stores, door, "ann", "ben")

        verdict = await door.judge(channel, said("/usage", person))

    assert verdict == (Command("usage", "") if expected else TurnForAgent())


async def test_who_may_talk_is_for_owners_to_decide_and_in_direct_chats_alone() -> None:
    everywhere = frozenset({"ann", "ben"})
    channel = replace(CHANNEL, allow_from=everywhere, groups={"den": GroupRule(everywhere)})
    async with open_memory() as stores:
        door = a_door(stores)
        await paired(stores, door, "ann", "ben")

        assert await door.judge(channel, said("/pair list")) == Command("pair", "list")
        assert await door.judge(channel, said("/pair list", "ben")) == TurnForAgent()
        assert await door.judge(channel, in_room("/pair list")) == TurnForAgent()


@pytest.mark.parametrize(
    ("of_channel", "of_room", "expected"),
    [("ann", None, True), (None, "ann", True), (None, None, False), ("ben", None, False)],
)
async def test_in_a_room_commands_are_for_those_who_are_listed(
    of_channel: str | None, of_room: str | None, expected: bool
) -> None:
    rule = GroupRule(frozenset({of_room} if of_room else ()))
    listed = frozenset({of_channel} if of_channel else ())
    channel = replace(CHANNEL, allow_from=listed, groups={"den": rule})
    async with open_memory() as stores:
        verdict = await a_door(stores).judge(channel, in_room("/stop"))

    assert verdict == (Command("stop", "") if expected else TurnForAgent())
