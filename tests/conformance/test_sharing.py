"""Runs that several nodes know of: an earlier owner of a session commits nothing once a later one has opened it."""

from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest

from gateway.domain.cluster import Begun, Fenced, RunProgress, SharedRuns, Tenure
from gateway.domain.ids import RunId, SessionKey
from gateway.domain.inbox import NO_CHOICE, SessionChoice
from gateway.domain.journal import pack_text
from gateway.domain.ports import Stores
from gateway.store.inbox import StoredInbox
from gateway.store.sharing import MOST_CHOICES, StoredSharedRuns
from tests.conformance.conftest import Open
from tests.fakes.store import an_ending, an_entry, open_memory, session_key

KEY = session_key()
OLD, NEW = Tenure(KEY, 4), Tenure(KEY, 5)
TAKEN_BACK = {"model": None, "mode": None}


@pytest.fixture
async def stores(opened: Open) -> AsyncIterator[Stores]:
    async with opened() as stores:
        yield stores


def sharing(stores: Stores) -> SharedRuns:
    """Of the embedded store too, which no second node shares."""
    inbox = stores.inbox
    assert isinstance(inbox, StoredInbox)
    return stores.shared or StoredSharedRuns(inbox.engine)


async def accept(stores: Stores, *names: str, partition: int = 3) -> None:
    for name in names:
        entry = replace(an_entry(name), partition=partition)
        await stores.inbox.accept(entry, begin=False)


async def test_an_owner_opens_a_session_and_gets_its_open_runs_in_order(stores: Stores) -> None:
    runs = sharing(stores)
    await accept(stores, "a", "b", "c")
    await runs.open_session(OLD)
    await runs.finish(an_ending("a"), OLD)

    found = await runs.open_session(NEW)

    assert [one.new.run_id for one in found] == ["run-b", "run-c"]
    assert [one.seq for one in found] == [2, 3]
    assert {one.new.partition for one in found} == {3}


async def test_an_owner_finds_what_is_open_in_its_partitions_alone(stores: Stores) -> None:
    runs = sharing(stores)
    await accept(stores, "a", "b", partition=3)
    other = session_key("other")
    await stores.inbox.accept(replace(an_entry("o", other), partition=7), begin=False)
    await runs.ask_to_stop(RunId("run-b"), "immediate")

    found = await runs.open_runs([3, 4], {RunId("run-a"), RunId("run-b")})
    all_ = await runs.open_runs([3, 7], {RunId("run-a")})

    assert (found.sessions, found.stops) == (set(), {"run-b": "immediate"})
    assert found.runs == {"run-a", "run-b"}
    assert all_.sessions == {KEY, other}


async def test_an_earlier_owner_commits_nothing_once_a_later_one_has_opened_the_session(
    stores: Stores,
) -> None:
    runs = sharing(stores)
    await accept(stores, "a")
    await runs.open_session(OLD)
    assert await runs.begin(RunId("run-a"), OLD) == Begun(1, 0, None)
    await runs.append(RunId("run-a"), 0, lambda: pack_text([b'["begun",0,"c1"]']), OLD)
    await runs.open_session(NEW)

    with pytest.raises(Fenced):
        await runs.begin(RunId("run-a"), OLD)
    with pytest.raises(Fenced):
        await runs.append(RunId("run-a"), 1, lambda: b"", OLD)
    with pytest.raises(Fenced):
        await runs.forgive(RunId("run-a"), OLD)
    with pytest.raises(Fenced):
        await runs.finish(an_ending("a"), OLD)
    with pytest.raises(Fenced):
        await runs.open_session(OLD)

    assert len(await stores.journal.read(RunId("run-a"))) == 1
    assert await runs.begin(RunId("run-a"), NEW) == Begun(2, 0, None)
    assert await runs.states([RunId("run-a")]) == {"run-a": RunProgress(2, is_over=False)}
    assert await runs.finish(an_ending("a"), NEW)
    assert await runs.states([RunId("run-a"), RunId("none")]) == {
        "run-a": RunProgress(2, is_over=True)
    }


async def race(runs: SharedRuns, name: str, key: SessionKey, late_s: float) -> tuple[bool, bool]:
    """Whether the earlier owner's end was committed, and whether the later one found the run open."""
    has_ended, is_found = True, False

    async def finish() -> None:
        nonlocal has_ended
        try:
            await runs.finish(an_ending(name, key), Tenure(key, 1))
        except Fenced:
            has_ended = False

    async def take_over() -> None:
        nonlocal is_found
        await anyio.sleep(late_s)
        is_found = bool(await runs.open_session(Tenure(key, 2)))

    async with anyio.create_task_group() as group:
        group.start_soon(finish)
        group.start_soon(take_over)
    return has_ended, is_found


async def test_of_an_end_and_a_take_over_at_the_same_time_one_sees_the_other(
    stores: Stores,
) -> None:
    """A breach: the end of an earlier owner is committed, and the later one had found the run open."""
    runs = sharing(stores)
    for number in range(40):
        name, key = f"r{number}", session_key(f"p{number}")
        await stores.inbox.accept(replace(an_entry(name, key), partition=1), begin=False)
        await runs.open_session(Tenure(key, 1))

        has_ended, is_found = await race(runs, name, key, 0.0005 * (number % 5))

        assert has_ended != is_found


async def test_open_runs_are_moved_to_the_partitions_of_their_sessions(stores: Stores) -> None:
    runs = sharing(stores)
    await accept(stores, "a", partition=0)

    assert await runs.place_runs(lambda key: 9) == 1
    assert await runs.place_runs(lambda key: 9) == 0
    assert (await runs.open_runs([9], set())).sessions == {KEY}


async def test_what_is_open_of_a_session_is_counted_and_stopped_as_one(stores: Stores) -> None:
    runs, other = sharing(stores), session_key("other")
    await accept(stores, "a", "b", "c", "d")
    await stores.inbox.accept(replace(an_entry("o", other), partition=3), begin=False)
    await runs.open_session(OLD)
    for name in ("a", "b"):
        await runs.begin(RunId(f"run-{name}"), OLD)
    await runs.finish(an_ending("a"), OLD)

    before = await runs.load(KEY)
    count = await runs.ask_session_to_stop(KEY)
    found = await runs.open_runs([3], set())

    assert (before, count) == ((1, 2), 3)
    assert found.stops == dict.fromkeys(("run-b", "run-c", "run-d"), "immediate")
    assert await runs.load(session_key("nobody")) == (0, 0)
    assert await runs.ask_session_to_stop(session_key("nobody")) == 0


async def test_a_choice_is_found_by_whoever_has_not_seen_it_and_the_latest_counts(
    stores: Stores,
) -> None:
    runs, other = sharing(stores), session_key("other")
    nothing = await runs.choices(0)
    await runs.choose(KEY, {"model": "big", "mode": "steer"})
    await runs.choose(other, {"mode": "collect"})
    first, both = await runs.choices(0)
    await runs.choose(KEY, TAKEN_BACK)
    second, later = await runs.choices(first)

    assert nothing == (0, {})
    assert both == {KEY: SessionChoice("big", "steer"), other: SessionChoice(mode="collect")}
    assert later == {KEY: SessionChoice()}
    assert await runs.choices(second) == (second, {})
    assert await runs.choices(0) == (second, {other: both[other], KEY: SessionChoice()})


async def test_who_chooses_one_thing_leaves_what_was_chosen_elsewhere(stores: Stores) -> None:
    runs = sharing(stores)
    model = await runs.choose(KEY, {"model": "big"})
    mode = await runs.choose(KEY, {"mode": "collect"})
    _, found = await runs.choices(0)

    assert (model, mode) == (SessionChoice("big"), SessionChoice("big", "collect"))
    assert found == {KEY: mode}
    assert found[KEY].change == mode.change > model.change


async def test_whoever_begins_a_run_is_told_what_was_chosen_for_its_session(stores: Stores) -> None:
    runs, new = sharing(stores), session_key("new")
    await accept(stores, "a")
    await runs.open_session(OLD)
    before = await runs.begin(RunId("run-a"), OLD)
    await runs.choose(KEY, {"model": "big"})
    after = await runs.begin(RunId("run-a"), OLD)
    await runs.choose(new, {"model": "small"})  # before its first message
    await stores.inbox.accept(an_entry("b", new), begin=False)
    await runs.open_session(Tenure(new, 1))
    first = await runs.begin(RunId("run-b"), Tenure(new, 1))

    assert (before.choice, after.choice) == (NO_CHOICE, SessionChoice("big"))
    assert first.choice == SessionChoice("small")


async def test_where_nothing_was_chosen_there_is_nothing_to_take_back(stores: Stores) -> None:
    runs = sharing(stores)
    await runs.choose(session_key("other"), {"model": "big"})
    last, _ = await runs.choices(0)
    await runs.choose(KEY, TAKEN_BACK)

    assert await runs.choices(last) == (last, {})


async def test_a_choice_holds_however_many_others_are_made_and_taken_back() -> None:
    """What was taken back is told for a while, and then forgotten."""
    async with open_memory() as stores:
        runs, other, gone = sharing(stores), session_key("other"), session_key("gone")
        chosen = await runs.choose(KEY, {"model": "big"})
        await runs.choose(gone, {"model": "big"})
        await runs.choose(gone, TAKEN_BACK)
        for _ in range(MOST_CHOICES // 2):
            await runs.choose(other, {"model": "big"})
            await runs.choose(other, TAKEN_BACK)
        _, found = await runs.choices(0)

    assert found == {KEY: chosen, other: NO_CHOICE}


async def test_an_attempt_of_a_node_that_is_alive_is_forgiven_up_to_a_bound(stores: Stores) -> None:
    runs, run_id = sharing(stores), RunId("run-a")
    await accept(stores, "a")
    await runs.open_session(OLD)
    told = [await runs.begin(run_id, OLD, "x", {"x", "y"})]
    told.append(await runs.begin(run_id, OLD, "y", {"x", "y"}))  # x lost the session
    told.append(await runs.begin(run_id, OLD, "x", {"x"}))  # y died
    await runs.forgive(run_id, OLD)  # x cut it off itself
    told.append(await runs.begin(run_id, OLD, "x", {"x"}))
    assert [(one.attempts, one.forgiven) for one in told] == [(1, 0), (2, 1), (3, 1), (4, 2)]

    for _ in range(10):
        last = await runs.begin(run_id, OLD, "x", {"x"})
    assert (last.attempts, last.forgiven) == (14, 8)
