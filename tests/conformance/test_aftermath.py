"""What every store promises about settings, the state of rules and notices for other sessions."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from gateway.domain.events import Notice
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import Ending
from gateway.domain.ports import Stores
from gateway.store.faults import TextRefused
from gateway.store.inbox import MOST_POSTED
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, an_ending, an_entry, session_key

Open = Callable[[], AbstractAsyncContextManager[Stores]]
HERE, THERE = session_key("here"), session_key("there")
ODD = ["ann", "Ann", "ann ", "", "a%3Ab", "telegram:x:5", "é", "e\u0301", "\0", "null"]


# --- settings ----------------------------------------------------------------------------------


async def test_settings_are_written_only_over_what_was_expected(opened: Open) -> None:
    async with opened() as stores:
        settings = stores.sessions
        assert await settings.read_settings("ann") is None

        assert not await settings.write_settings("ann", "[2]", expected="[1]")
        assert await settings.write_settings("ann", "[1]", expected=None)
        assert not await settings.write_settings("ann", "[2]", expected=None)
        assert not await settings.write_settings("ann", "[3]", expected="[2]")
        assert await settings.write_settings("ann", "[2]", expected="[1]")

        assert await settings.read_settings("ann") == "[2]"


@pytest.mark.requirement("S-001-Rel-01")
async def test_every_user_has_one_record_and_it_is_nobody_elses(opened: Open) -> None:
    async with opened() as stores:
        for number, user in enumerate(ODD):
            assert await stores.sessions.write_settings(user, f"[{number}]", expected=None)

        found = [await stores.sessions.read_settings(user) for user in ODD]

    assert found == [f"[{number}]" for number in range(len(ODD))]


async def test_of_many_writers_who_expect_the_same_one_writes(opened: Open) -> None:
    wrote: list[bool] = []
    async with opened() as stores:

        async def write(number: int) -> None:
            wrote.append(await stores.sessions.write_settings("ann", f"[{number}]", expected=None))

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(write, number)

    assert sum(wrote) == 1


# --- the state of rules ------------------------------------------------------------------------


async def end(stores: Stores, name: str, key: SessionKey = HERE, **leaving: object) -> bool:
    """Accepts and finishes run `run-NAME`, from the root."""
    await stores.inbox.accept(an_entry(name, key), begin=True)
    ending = an_ending(name, key, nodes=())
    return await stores.inbox.finish(replace(ending, **leaving))  # type: ignore[arg-type]  # by name


async def test_a_run_leaves_the_state_of_its_rules_to_the_next_of_its_session(opened: Open) -> None:
    async with opened() as stores:
        assert await stores.journal.rule_state(HERE) is None
        await end(stores, "a", rule_state='{"n":1}')
        await end(stores, "b", THERE, rule_state='{"other":1}')
        await end(stores, "c")

        assert await stores.journal.rule_state(HERE) == '{"n":1}'

        await end(stores, "d", rule_state="{}")

        assert await stores.journal.rule_state(HERE) == "{}"
        assert await stores.journal.rule_state(THERE) == '{"other":1}'


async def test_an_ending_that_counts_for_nothing_leaves_nothing(opened: Open) -> None:
    async with opened() as stores:
        await end(stores, "a", rule_state="{}")
        again = replace(
            an_ending("a", HERE), rule_state='{"late":1}', person="ann", posts=(Notice("late"),)
        )

        assert await stores.inbox.finish(again) is False

        assert await stores.journal.rule_state(HERE) == "{}"
        assert await claim(stores, "b") == []


# --- notices -----------------------------------------------------------------------------------


async def post(
    stores: Stores, name: str, *notices: Notice, key: SessionKey = HERE, person: str = "ann"
) -> None:
    await end(stores, name, key, person=person, posts=notices)


async def claim(
    stores: Stores,
    name: str,
    key: SessionKey = THERE,
    *,
    person: str = "ann",
    after_s: float = 0.0,
) -> Sequence[str]:
    now = NOON + timedelta(seconds=after_s)
    claimed = await stores.journal.claim_notices(person, key, RunId(f"run-{name}"), now=now)
    return [notice.content for notice in claimed]


async def test_a_notice_reaches_another_session_of_the_person_once(opened: Open) -> None:
    async with opened() as stores:
        await post(stores, "a", Notice("first"), Notice("second"))
        await post(stores, "b", Notice("third"))

        assert await claim(stores, "c") == ["first", "second", "third"]
        assert await claim(stores, "d") == []
        assert await claim(stores, "e", session_key("elsewhere")) == []


async def test_a_run_that_starts_again_gets_its_own_again_until_it_has_ended(opened: Open) -> None:
    async with opened() as stores:
        await post(stores, "a", Notice("it"))
        await claim(stores, "b")

        assert await claim(stores, "b") == ["it"]

        await end(stores, "b", THERE)
        assert await claim(stores, "b") == []
        assert await claim(stores, "c") == []


async def test_a_run_that_told_nobody_leaves_what_it_claimed_to_the_next(opened: Open) -> None:
    async with opened() as stores:
        await post(stores, "a", Notice("it"))
        await claim(stores, "b")

        await end(stores, "b", THERE, leaves_claimed=True)

        assert await claim(stores, "c", HERE) == []
        assert await claim(stores, "c") == ["it"]
        await end(stores, "c", THERE)
        assert await claim(stores, "d") == []


async def test_a_notice_goes_to_no_other_person_agent_or_the_session_itself(opened: Open) -> None:
    other_agent = session_key("there", agent="other")
    async with opened() as stores:
        await post(stores, "a", Notice("it"))

        assert await claim(stores, "b", HERE) == []
        assert await claim(stores, "c", other_agent) == []
        for person in ODD[1:]:
            assert await claim(stores, "d", person=person) == []
        assert await claim(stores, "e") == ["it"]


async def test_an_expired_notice_never_comes_also_not_again(opened: Open) -> None:
    short = Notice("short", expires_at=NOON + timedelta(seconds=10))
    async with opened() as stores:
        await post(stores, "a", short, Notice("long"))
        before = await claim(stores, "b", after_s=9.999999)

        assert before == ["short", "long"]
        assert await claim(stores, "b", after_s=10) == ["long"]
        await post(stores, "c", short)
        assert await claim(stores, "d", after_s=10) == []


async def test_of_many_runs_at_once_one_gets_each_notice(opened: Open) -> None:
    got: list[str] = []
    async with opened() as stores:
        await post(stores, "a", *(Notice(f"n{number}") for number in range(20)))

        async def ask(number: int) -> None:
            got.extend(await claim(stores, f"b{number}", session_key(f"s{number}")))

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(ask, number)

    assert sorted(got) == sorted(f"n{number}" for number in range(20))


async def test_what_nobody_claims_does_not_grow_for_ever(opened: Open) -> None:
    async with opened() as stores:
        await post(stores, "x", Notice("of another"), person="bob")
        await post(stores, "a", *(Notice(f"n{number}") for number in range(MOST_POSTED)))
        await post(stores, "b", Notice("new"), Notice("newer"))

        kept = await claim(stores, "c")

        assert len(kept) == MOST_POSTED
        assert (kept[0], kept[-2:]) == ("n2", ["new", "newer"])
        assert await claim(stores, "d", person="bob") == ["of another"]


async def test_a_notice_comes_back_as_it_was_posted(opened: Open) -> None:
    notice = Notice(
        "\0 \u202e \U0001f600",
        priority="critical",
        inject_at="cross_session",
        to="model",
        source="rule:x",
        dedupe_key="k",
        expires_at=NOON + timedelta(microseconds=123_457),
        after_tool="search",
        after_turns=2,
        when="turn > 3",
        id="n1",
        data={"percent": 80, "nested": {"a": [1, None, 1.5, "é"]}},
    )
    async with opened() as stores:
        await post(stores, "a", notice)

        [kept] = await stores.journal.claim_notices("ann", THERE, RunId("run-b"), now=NOON)

    assert kept == notice


@pytest.mark.parametrize(
    "leaving",
    [
        {"rule_state": "\ud800"},
        {"person": "\ud800", "posts": (Notice("x"),)},
        {"posts": (Notice("\ud800"),)},
        {"posts": (Notice("x", data={"a": "\ud800"}),)},
    ],
)
async def test_half_a_surrogate_pair_ends_no_run(opened: Open, leaving: dict[str, object]) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a", HERE), begin=True)
        ending: Ending = replace(an_ending("a", HERE), **leaving)  # type: ignore[arg-type]  # by name

        with pytest.raises(TextRefused):
            await stores.inbox.finish(ending)

        assert len(await stores.inbox.unfinished()) == 1


async def test_what_is_left_outlives_the_process(tmp_path: Path) -> None:
    async with open_store("embedded", tmp_path, clock=FakeClock()) as stores:
        await stores.sessions.write_settings("ann", "[1]", expected=None)
        await end(stores, "a", rule_state="{}", person="ann", posts=(Notice("it"),))
        await claim(stores, "b")

    async with open_store("embedded", tmp_path, clock=FakeClock()) as again:
        assert await again.sessions.read_settings("ann") == "[1]"
        assert await again.journal.rule_state(HERE) == "{}"
        assert await claim(again, "c") == []
        assert await claim(again, "b") == ["it"]
