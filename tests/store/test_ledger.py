"""Calls are granted out of slices that are committed, and slices do not stand in anybody's way."""

import sqlite3
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import cast, get_args

import pytest

from gateway.budgets import ReserveRequest, grant
from gateway.domain.budgets import (
    Amount,
    BudgetExceeded,
    Budgets,
    Grant,
    Grouping,
    Limit,
    Reservation,
    Scope,
    ScopeKind,
    Tally,
    day_of,
    scopes_of,
)
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ids import to_micros
from gateway.store.ledger import MOST_UNUSED, StoredLedger, _usage
from gateway.store.tables import migrate
from gateway.store.transaction import Transaction
from tests.fakes.ledger import a_record, a_reservation
from tests.fakes.store import NOON, Mortal, open_mortal, session_key

DAY: tuple[ScopeKind, ...] = ("day",)
SESSION: tuple[ScopeKind, ...] = ("session",)
TODAY = scopes_of(session_key(), day_of(NOON))[2]
HOUR = timedelta(hours=1)
ASK = ReserveRequest(100, 400, at=NOON)


async def hold(mortal: Mortal, id_: str, daily: int, *, peer: str = "main") -> Reservation:
    decide = partial(grant, Budgets(daily=Limit(daily)), ASK)
    wanted = a_reservation(id_, session_key(peer))
    return (await mortal.stores.ledger.reserve(wanted, decide, DAY))[0]


def ledger(mortal: Mortal) -> StoredLedger:
    return cast(StoredLedger, mortal.stores.ledger)


async def charged(mortal: Mortal) -> list[tuple[str, int]]:
    """To whom the next process charges what this one did not settle."""
    stores = await mortal.die()
    left = await stores.ledger.unsettled()
    return [(one.payer.session_key.peer, one.held.tokens) for one in left]


async def test_the_next_call_of_a_session_waits_for_no_commit() -> None:
    async with open_mortal() as mortal:
        await mortal.begin()
        first = await hold(mortal, "a", 10_000)
        await mortal.stores.ledger.settle(a_record(first, 10, 20))
        before = mortal.commits

        await hold(mortal, "b", 10_000)

        assert mortal.commits == before
        assert await charged(mortal) == [("main", 2 * 500 - 30)]


async def test_a_slice_is_committed_before_anything_is_granted_out_of_it() -> None:
    async with open_mortal() as mortal:
        await mortal.begin()
        mortal.writer.stop("the disk is full")
        with pytest.raises(StoreUnavailable):
            await hold(mortal, "a", 10_000)

        assert list(await mortal.stores.ledger.unsettled()) == []


async def test_no_more_is_set_aside_than_a_limit_leaves() -> None:
    async with open_mortal() as mortal:
        await mortal.begin()
        await hold(mortal, "a", 1_600, peer="p")
        await hold(mortal, "b", 1_600, peer="q")

        assert sum(tokens for _, tokens in await charged(mortal)) <= 1_600


async def test_what_is_set_aside_for_nobody_is_given_to_who_needs_it() -> None:
    async with open_mortal() as mortal:
        await mortal.begin()
        for number in range(4):
            one = await hold(mortal, f"s{number}", 2_000, peer=f"p{number}")
            await mortal.stores.ledger.settle(a_record(one, 10, 10))
        held = [await hold(mortal, f"h{number}", 2_000, peer=f"q{number}") for number in range(3)]
        with pytest.raises(BudgetExceeded) as caught:
            await hold(mortal, "h3", 2_000, peer="q3")
        left = dict(await charged(mortal))

    assert [one.held.tokens for one in held] == [500] * 3
    assert (caught.value.used, caught.value.reserved) == (80, 1_500)
    assert {name: left.get(name) for name in ("q0", "q1", "q2")} == {
        "q0": 500,
        "q1": 500,
        "q2": 500,
    }
    assert sum(left.values()) <= 2_000 - 80


async def test_a_slice_that_nobody_uses_is_given_back() -> None:
    async with open_mortal() as mortal:
        await mortal.begin()
        one = await hold(mortal, "a", 10_000)
        await mortal.stores.ledger.settle(a_record(one, 10, 10))

        for _ in range(MOST_UNUSED):
            ledger(mortal).tend()
        still_there = await mortal.rows()
        ledger(mortal).tend()

        assert (still_there, await mortal.rows()) == (1, 0)


async def test_a_call_without_a_limit_is_written_down_if_it_lasts() -> None:
    async with open_mortal() as mortal:
        stores = await mortal.begin()
        short, long = (a_reservation(name) for name in ("short", "long"))
        for one in (short, long):
            stores.ledger.begin(one)
        await stores.ledger.settle(a_record(short))
        at_once = await mortal.rows()
        ledger(mortal).tend()

        assert (at_once, await mortal.rows()) == (0, 1)
        await stores.ledger.settle(a_record(long))
        assert await mortal.rows() == 0


async def test_a_store_that_is_closed_keeps_what_is_held_and_no_more() -> None:
    async with open_mortal() as mortal:
        await mortal.begin()
        await hold(mortal, "a", 10_000, peer="p")
        done = await hold(mortal, "b", 10_000, peer="q")
        await mortal.stores.ledger.settle(a_record(done))
        ledger(mortal).close()

        assert await charged(mortal) == [("p", 500)]


async def test_what_is_held_is_not_forgotten_for_others() -> None:
    def always(_: Sequence[Tally]) -> Grant:
        return Grant(1, Amount(1))

    async with open_mortal() as mortal:
        stores = await mortal.begin()
        one = await hold(mortal, "a", 10_000)
        for number in range(5_000):
            other = a_reservation(f"b{number}", session_key(f"p{number}"))
            held, _ = await stores.ledger.reserve(other, always, SESSION)
            await stores.ledger.settle(held)
        (day,) = await stores.ledger.tallies([TODAY])
        with pytest.raises(BudgetExceeded):
            await hold(mortal, "c", 999, peer="q")

    assert (day.held, one.held) == (Amount(500), Amount(500))


async def test_a_new_session_costs_the_same_however_many_others_have_slices() -> None:
    def always(_: Sequence[Tally]) -> Grant:
        return Grant(1, Amount(1))

    async def calls_of(name: str) -> int:
        called = 0

        def count(_frame: object, event: str, _: object) -> None:
            nonlocal called
            called += event == "call"

        wanted = a_reservation(name, session_key(name))
        sys.setprofile(count)
        try:
            held, _ = await stores.ledger.reserve(wanted, always, SESSION)
        finally:
            sys.setprofile(None)
        await stores.ledger.settle(held)
        return called

    async with open_mortal() as mortal:
        stores = await mortal.begin()
        costs = [await calls_of(f"p{number}") for number in range(500)]

    assert costs[499] == costs[9]


async def test_a_limit_that_is_new_counts_what_calls_without_one_hold() -> None:
    async with open_mortal() as mortal:
        stores = await mortal.begin()
        stores.ledger.begin(replace(a_reservation("a"), held=Amount(700)))

        with pytest.raises(BudgetExceeded) as caught:
            await hold(mortal, "b", 1_000)

    assert caught.value.reserved == 700
    assert caught.value.waits_for == {Scope("day", "")}


def steps_of_usage(older: int) -> int:
    """How much SQLite does for the usage of one day, beside so many records of days before."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    db.execute("INSERT INTO series VALUES (1, 'a', 'p', 'm')")
    rows = [
        (number, str(number), to_micros(NOON) - (number >= 50) * number * 10**9)
        for number in range(50 + older)
    ]
    db.executemany(
        "INSERT INTO token_record VALUES (?, ?, ?, 1, 'a:websocket:local:main', 'r', '2026-01-01',"
        " 'answered', 1, 2, 0, 0, 0, 'table', 0, 0, NULL)",
        rows,
    )
    steps = Counter[str]()
    db.set_progress_handler(lambda: steps.update(["step"]), 1)
    for by in get_args(Grouping):
        (one,) = _usage(Transaction(db), by=by, since=NOON - HOUR, until=NOON + HOUR)
        assert (one.calls, one.output_tokens) == (50, 100)
    return steps["step"]


def test_what_usage_costs_does_not_grow_with_the_days_that_nobody_asks_for() -> None:
    assert steps_of_usage(5_000) <= steps_of_usage(50) * 1.1
