"""What every ledger promises, whatever it is made of."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.budgets import (
    NANO,
    Amount,
    BudgetExceeded,
    Grant,
    RecordQuery,
    Reservation,
    Scope,
    Tally,
    TokenRecord,
    day_of,
    scopes_of,
)
from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.domain.ports import Stores
from gateway.domain.sessions import SessionQuery
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock
from tests.fakes.ledger import a_record, a_reservation
from tests.fakes.store import NOON, an_ending, an_entry, session_key
from tests.forms import examples

Open = Callable[[], AbstractAsyncContextManager[Stores]]
KEY = session_key()
TODAY = day_of(NOON)
SCOPES = scopes_of(KEY, TODAY)
DAY = timedelta(days=1)


@asynccontextmanager
async def opening(url: str, data_dir: Path) -> AsyncIterator[Stores]:
    with anyio.fail_after(60):
        async with open_store(url, data_dir, clock=FakeClock()) as stores:
            yield stores


def always(_: Sequence[Tally]) -> Grant:
    return Grant(90, Amount(100, 7))


def never(tallies: Sequence[Tally]) -> Grant:
    raise BudgetExceeded(tallies[0], "tokens", 1)


async def spend(stores: Stores, id_: str, **changes: object) -> TokenRecord:
    reservation, _ = await stores.ledger.reserve(a_reservation(id_), always)
    record = replace(a_record(reservation), **changes)  # type: ignore[arg-type]  # as in a_record
    await stores.ledger.settle(record)
    return record


# --- counters ----------------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Budget-01")
async def test_a_call_is_held_and_then_used_in_all_its_scopes(opened: Open) -> None:
    async with opened() as stores:
        reservation, grant = await stores.ledger.reserve(a_reservation(), always)
        held = await stores.ledger.tallies(SCOPES)
        await stores.ledger.settle(a_record(reservation, nano_usd=3))
        used = await stores.ledger.tallies(SCOPES)

    assert grant.max_tokens == 90
    assert held == [Tally(scope, Amount(), Amount(100, 7), NOON) for scope in SCOPES]
    assert used == [Tally(scope, Amount(15, 3), Amount(), NOON) for scope in SCOPES]
    assert [str(scope) for scope in SCOPES] == ["session", "agent:demo", "daily", "monthly"]


async def test_what_is_settled_or_released_counts_once(opened: Open) -> None:
    async with opened() as stores:
        first, _ = await stores.ledger.reserve(a_reservation("a"), always)
        second, _ = await stores.ledger.reserve(a_reservation("b"), always)
        await stores.ledger.settle(a_record(first))
        await stores.ledger.settle(a_record(first))
        await stores.ledger.settle(first)
        await stores.ledger.settle(second)
        await stores.ledger.settle(a_record(second))

        assert (await stores.ledger.tallies(SCOPES[2:3]))[0].used == Amount(15)
        assert (await stores.ledger.tallies(SCOPES[2:3]))[0].held == Amount()
        assert len((await stores.ledger.records(RecordQuery())).records) == 1
        assert list(await stores.ledger.unsettled()) == []


def not_heard(error: Exception) -> None:
    raise AssertionError(error)


async def test_what_is_settled_without_waiting_is_seen_by_whoever_looks(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)
        first, _ = await stores.ledger.reserve(a_reservation("a"), always)
        second, _ = await stores.ledger.reserve(a_reservation("b"), always)
        stores.ledger.settle_soon(a_record(first), not_heard)
        tally = (await stores.ledger.tallies(SCOPES[2:3]))[0]
        stores.ledger.settle_soon(second, not_heard)
        held = await stores.ledger.unsettled()
        third, _ = await stores.ledger.reserve(a_reservation("c"), always)
        stores.ledger.settle_soon(a_record(third), not_heard)
        session = await stores.sessions.find_session(KEY)
        stores.ledger.settle_soon(a_record(third), not_heard)
        records = (await stores.ledger.records(RecordQuery())).records

    assert (tally.used, tally.held) == (Amount(15), Amount(100, 7))
    assert (list(held), session is not None and session.output_tokens) == ([], 10)
    assert [one.id for one in records] == ["c", "a"]


async def test_what_is_settled_without_waiting_outlives_the_store(tmp_path: Path) -> None:
    async with opening("embedded", tmp_path) as stores:
        reservation, _ = await stores.ledger.reserve(a_reservation(), always)
        stores.ledger.settle_soon(a_record(reservation), not_heard)

    async with opening("embedded", tmp_path) as stores:
        assert list(await stores.ledger.unsettled()) == []
        assert (await stores.ledger.tallies(SCOPES))[0].used == Amount(15)


async def test_who_settles_after_the_end_is_told_that_it_is_too_late(opened: Open) -> None:
    failures: list[Exception] = []
    async with opened() as stores:
        reservation, _ = await stores.ledger.reserve(a_reservation(), always)

    stores.ledger.settle_soon(a_record(reservation), failures.append)

    assert [type(one) for one in failures] == [StoreUnavailable]


async def test_what_is_refused_holds_nothing(opened: Open) -> None:
    async with opened() as stores:
        with pytest.raises(BudgetExceeded):
            await stores.ledger.reserve(a_reservation(), never)

        assert await stores.ledger.tallies(SCOPES) == [Tally(scope) for scope in SCOPES]
        assert list(await stores.ledger.unsettled()) == []


@pytest.mark.requirement("S-003-Budget-06")
async def test_of_many_at_once_no_two_see_the_same_tally(opened: Open) -> None:
    seen: list[int] = []

    async def reserve(id_: str) -> None:
        decided = await stores.ledger.reserve(a_reservation(id_), decide)
        seen.append(decided[1].max_tokens)

    def decide(tallies: Sequence[Tally]) -> Grant:
        return Grant(tallies[2].held.tokens, Amount(100, 7))

    async with opened() as stores:
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(reserve, f"r{number}")

        assert sorted(seen) == [100 * number for number in range(50)]


@pytest.mark.requirement("S-003-Session-06")
async def test_a_session_is_listed_with_the_sums_of_its_records(opened: Open) -> None:
    async with opened() as stores:
        await stores.inbox.accept(an_entry("a"), begin=True)
        await spend(stores, "r1")
        free = await stores.sessions.find_session(KEY)
        await spend(stores, "r2", nano_usd=NANO // 4, pricing="table")
        await spend(stores, "r3", nano_usd=NANO // 2, pricing="provider")
        await stores.inbox.finish(an_ending("a"))

        session = await stores.sessions.find_session(KEY)
        page = await stores.sessions.list_sessions(SessionQuery())

    assert free is not None
    assert free.cost_usd is None
    assert session is not None
    assert page.sessions == (session,)
    assert (session.input_tokens, session.output_tokens, session.cost_usd) == (30, 15, 0.75)


# --- days ---------------------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Budget-02")
async def test_a_clock_that_goes_back_opens_no_day_again(opened: Open) -> None:
    async with opened() as stores:
        tomorrow, _ = await stores.ledger.reserve(a_reservation("a", at=NOON + DAY), always)
        back, _ = await stores.ledger.reserve(a_reservation("b"), always)
        await stores.ledger.settle(a_record(tomorrow))
        tallies = await stores.ledger.tallies((Scope("day", TODAY), Scope("month", TODAY[:7])))

        assert back.day == tomorrow.day == day_of(NOON + DAY)
        assert tallies[0] == Tally(
            Scope("day", tomorrow.day), Amount(15), Amount(100, 7), NOON + DAY
        )


async def test_a_call_is_charged_to_the_day_that_it_was_reserved_in(opened: Open) -> None:
    async with opened() as stores:
        reservation, _ = await stores.ledger.reserve(a_reservation(), always)
        await stores.ledger.settle(replace(a_record(reservation), at=NOON + DAY))
        tallies = await stores.ledger.tallies((Scope("day", TODAY),))

        assert tallies[0].used == Amount(15)


# --- warnings -----------------------------------------------------------------------------------


async def test_somebody_is_warned_once_a_limit(opened: Open) -> None:
    def due(limit: str, tally: Tally) -> str:
        return limit if tally.scope.kind == "day" and tally.used.tokens >= 30 else ""

    warned = []
    async with opened() as stores:
        for number, limit in enumerate(("40", "40", "40", "50", "50")):
            reservation, _ = await stores.ledger.reserve(a_reservation(f"r{number}"), always)
            told = stores.ledger.settle_soon(a_record(reservation), not_heard, partial(due, limit))
            warned.append([(tally.scope.kind, tally.used.tokens) for tally in told])

    assert warned == [[], [("day", 30)], [], [("day", 60)], []]


# --- a process that died ------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Budget-07")
async def test_what_a_process_held_is_known_to_the_next(tmp_path: Path) -> None:
    async with opening("embedded", tmp_path) as stores:
        reservation, _ = await stores.ledger.reserve(a_reservation(), always)
        await spend(stores, "done")

    async with opening("embedded", tmp_path) as stores:
        assert list(await stores.ledger.unsettled()) == [reservation]
        tallies = await stores.ledger.tallies(SCOPES)
        assert tallies == [Tally(scope, Amount(15), Amount(100, 7), NOON) for scope in SCOPES]


# --- records ------------------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Record-01")
async def test_a_record_comes_back_as_it_was(opened: Open) -> None:
    async with opened() as stores:
        record = await spend(
            stores,
            "r1",
            outcome="broken",
            cached_tokens=4,
            reasoning_tokens=2,
            nano_usd=123,
            pricing="provider",
            estimated=True,
        )

        page = await stores.ledger.records(RecordQuery())

    assert page.records == (replace(record, seq=1),)


@pytest.mark.requirement("S-003-Record-04")
async def test_records_are_found_by_what_they_are_of(opened: Open) -> None:
    other = session_key("other", agent="helper")
    async with opened() as stores:
        for id_, key, model in (("a", KEY, "m1"), ("b", other, "m1"), ("c", other, "m2")):
            wanted = replace(a_reservation(id_, key), model=model)
            reservation, _ = await stores.ledger.reserve(wanted, always)
            await stores.ledger.settle(a_record(reservation))

        async def found(**where: object) -> str:
            query = RecordQuery(**where)  # type: ignore[arg-type]  # by name
            return "".join(one.id for one in (await stores.ledger.records(query)).records)

        assert await found() == "cba"
        assert await found(session_key=other) == "cb"
        assert await found(session_key=other, model="m1") == "b"
        assert await found(agent="helper") == "cb"
        assert await found(agent="helper", model="m2") == "c"
        assert await found(model="m1") == "ba"
        assert await found(provider="fake") == "cba"
        assert await found(provider="none") == ""
        assert await found(since=NOON, until=NOON + DAY) == "cba"
        assert await found(until=NOON) == ""
        assert await found(since=NOON + DAY) == ""
        assert await found(before=99) == ""


@pytest.mark.requirement("S-003-Index-01")
@pytest.mark.parametrize("where", [{}, {"agent": "demo"}, {"session_key": KEY}])
async def test_pages_lose_nothing_where_times_are_the_same(
    opened: Open, where: dict[str, object]
) -> None:
    async with opened() as stores:
        for number in range(7):
            await spend(stores, f"r{number}", at=NOON + timedelta(seconds=number // 3))
        found: list[str] = []
        query, more = RecordQuery(limit=2, **where), True  # type: ignore[arg-type]  # by name
        while more:
            page = await stores.ledger.records(query)
            found += [record.id for record in page.records]
            query, more = replace(query, before=page.records[-1].seq), page.more

    assert found == [f"r{number}" for number in reversed(range(7))]


async def test_of_many_models_so_many_are_told_apart(opened: Open) -> None:
    async with opened() as stores:
        for number in range(7):
            wanted = replace(a_reservation(f"r{number}"), model=f"m{min(number, 4)}")
            reservation, _ = await stores.ledger.reserve(wanted, always)
            await stores.ledger.settle(a_record(reservation, nano_usd=1))

        few, all_ = await stores.ledger.models(2), await stores.ledger.models(5)

    assert [(one.provider, one.model, one.calls) for one in few] == [
        ("fake", "m4", 3),
        ("fake", "m0", 1),
        ("other", "other", 3),
    ]
    assert (few[-1].input_tokens, few[-1].output_tokens, few[-1].nano_usd) == (30, 15, 3)
    assert [one.model for one in all_] == ["m4", "m0", "m1", "m2", "m3"]


async def test_a_name_that_no_text_can_hold_is_refused(opened: Open) -> None:
    async with opened() as stores:
        with pytest.raises(GatewayError):
            await stores.ledger.records(RecordQuery(model="\ud800"))


# --- any history --------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "settle", "release", "crash", "forward", "back"]),
        st.integers(0, 3),
        st.integers(0, 500),
    ),
    max_size=25,
)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_counters_are_the_sums_of_records_after_any_history(
    steps: list[tuple[str, int, int]],
) -> None:
    async def both() -> None:
        in_memory = await played("memory", Path(folder) / "no", steps)
        assert await played("embedded", Path(folder) / "data", steps) == in_memory

    with TemporaryDirectory() as folder:
        anyio.run(both)


async def played(url: str, data_dir: Path, steps: list[tuple[str, int, int]]) -> object:
    """What the books say after these steps; a store on disk is opened anew at each crash."""
    now, opened = NOON, opening(url, data_dir)
    stores = await opened.__aenter__()
    for number, (step, peer, size) in enumerate(steps):
        if step == "crash" and url == "embedded":
            await opened.__aexit__(None, None, None)
            opened = opening(url, data_dir)
            stores = await opened.__aenter__()
        now += {"forward": DAY * 20, "back": -DAY}.get(step, timedelta())
        wanted = a_reservation(f"{number:04}", session_key(f"p{peer}"), at=now)
        await take(stores, step, wanted, size)
    books_then = await books(stores)
    await opened.__aexit__(None, None, None)
    return books_then


async def take(stores: Stores, step: str, wanted: Reservation, size: int) -> None:
    held = await stores.ledger.unsettled()
    if step == "reserve":
        await stores.ledger.reserve(wanted, lambda _: Grant(size, Amount(size)))
    elif step == "settle" and held:
        await stores.ledger.settle(a_record(held[size % len(held)], size, 3))
    elif step == "release" and held:
        await stores.ledger.settle(held[size % len(held)])


async def books(stores: Stores) -> object:
    """Everything that a ledger tells; its counters are checked against its records."""
    records = (await stores.ledger.records(RecordQuery(limit=1000))).records
    held = await stores.ledger.unsettled()
    keys = [session_key(f"p{peer}") for peer in range(4)]
    sessions = await stores.ledger.tallies([scopes_of(key, TODAY)[0] for key in keys])
    for key, tally in zip(keys, sessions, strict=True):
        assert tally.used.tokens == sum(r.amount.tokens for r in records if r.session_key == key)
        assert tally.held.tokens == sum(
            one.held.tokens for one in held if one.payer.session_key == key
        )
    (agent,) = await stores.ledger.tallies([scopes_of(KEY, TODAY)[1]])
    assert agent.used.tokens == sum(tally.used.tokens for tally in sessions)
    assert agent.held.tokens == sum(tally.held.tokens for tally in sessions)
    days = await stores.ledger.tallies([Scope("day", TODAY), Scope("month", TODAY[:7])])
    return [replace(record, seq=0) for record in records], held, sessions, days
