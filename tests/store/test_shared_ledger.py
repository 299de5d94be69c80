"""Budgets of several nodes over one SurrealDB server: never over a limit, and exact."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import anyio
import pytest

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from gateway.domain.budgets import (
    Amount,
    BudgetExceeded,
    Grant,
    Reservation,
    Scope,
    ScopeKind,
    Tally,
    day_of,
    scopes_of,
)
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import Ledger
from gateway.store.ledger import StoredLedger
from gateway.store.sharing import SharedLedger
from gateway.store.surreal import SurrealStore, open_surreal
from tests.fakes.clock import FakeClock
from tests.fakes.ledger import a_record, a_reservation
from tests.fakes.store import NOON, session_key
from tests.fakes.surreal import SurrealDatabase

TODAY = day_of(NOON)
DAILY = Scope("day", TODAY)
CAP = 1_000
OF_DAY: tuple[ScopeKind, ...] = ("day",)
T = TypeVar("T")


def within(tallies: Sequence[Tally], *, tokens: int) -> Grant:
    """As a daily limit grants."""
    [tally] = tallies
    if tally.used.tokens + tally.held.tokens + tokens > CAP:
        raise BudgetExceeded(tally, "tokens", CAP)
    return Grant(tokens, Amount(tokens))


@dataclass
class Doubtful:
    """The port Writing over a store that does not answer to the next commits: `lost` says of each whether it is
    carried out."""

    store: SurrealStore
    lost: list[bool] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None  # before it is said that no answer came

    async def write(self, operation: Callable[[Any], T], *, durable: bool) -> T:
        if not self.lost:
            return await self.store.write(operation, durable=durable)
        if self.lost.pop(0):
            await self.store.write(operation, durable=durable)
        self.meanwhile()
        raise StoreUnavailable("no answer")

    def write_soon(
        self, operation: Callable[[Any], Any], failed: Callable[[Exception], None]
    ) -> None:
        self.store.write_soon(operation, failed)

    async def caught_up(self) -> None:
        await self.store.caught_up()

    async def close(self) -> None:
        await self.store.close()


@asynccontextmanager
async def in_doubt(
    database: SurrealDatabase, *lost: bool, within_s: float = 20.0
) -> AsyncIterator[tuple[SharedLedger, Doubtful]]:
    """A node alone, of whose commits these are not answered."""
    connection = await database.connected()

    async def alive() -> set[str]:
        return {"a"}

    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        store = SurrealStore(connection)
        await store.open()
        writer = Doubtful(store, [*lost])
        engine = replace(store.engine, writer=writer)
        ledger = SharedLedger(engine, node="a", alive=alive, within_s=within_s)
        group.start_soon(ledger.run)
        yield ledger, writer
        group.cancel_scope.cancel()


@asynccontextmanager
async def node(
    database: SurrealDatabase, name: str, alive: set[str]
) -> AsyncIterator[SharedLedger]:
    connection = await database.connected()

    async def here() -> set[str]:
        return alive

    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        store = SurrealStore(connection)
        await store.open()
        ledger = SharedLedger(store.engine, node=name, alive=here)
        group.start_soon(ledger.run)
        yield ledger
        group.cancel_scope.cancel()


@asynccontextmanager
async def alone(database: SurrealDatabase) -> AsyncIterator[StoredLedger]:
    """A gateway without `[cluster]` on the same store."""
    connection = await database.connected()
    async with open_surreal(connection, FakeClock(), is_alone=True) as stores:
        assert isinstance(stores.ledger, StoredLedger)
        yield stores.ledger


async def settle_lost(ledger: Ledger) -> int:
    """As a start does; gives how many calls there were."""
    lost = await ledger.unsettled()
    for one in lost:
        record = a_record(one, one.held.tokens, 0)
        await ledger.settle(replace(record, outcome="lost"))
    return len(lost)


def call(name: str, peer: str = "main") -> Reservation:
    return replace(a_reservation(name, session_key(peer)), id=name)


async def test_nodes_together_grant_no_more_than_a_limit_and_count_every_token(
    emptied_database: SurrealDatabase,
) -> None:
    granted, refused = list[str](), list[str]()

    async def ask(ledger: SharedLedger, name: str) -> None:
        try:
            held, _ = await ledger.reserve(
                call(name, name), partial(within, tokens=100), kinds=OF_DAY
            )
        except BudgetExceeded:
            refused.append(name)
            return
        granted.append(name)
        assert held.held == Amount(100)

    alive = {"a", "b"}
    async with (
        node(emptied_database, "a", alive) as first,
        node(emptied_database, "b", alive) as second,
    ):
        async with anyio.create_task_group() as group:
            for number in range(16):
                group.start_soon(ask, first, f"a{number}")
                group.start_soon(ask, second, f"b{number}")
        assert (len(granted), len(refused)) == (10, 22)
        assert (await second.tallies([DAILY]))[0].held == Amount(1_000)

        for name in granted:
            ledger = first if name[0] == "a" else second
            await ledger.settle(a_record(call(name, name), 30, 10))
        [tally] = await first.tallies([DAILY])
        assert (tally.used.tokens, tally.held) == (400, Amount())
        await ask(second, "late")
        assert granted[-1] == "late"


async def test_calls_that_end_at_the_same_time_are_held_no_more(
    emptied_database: SurrealDatabase,
) -> None:
    names, failed = ("one", "two", "three"), list[Exception]()
    async with (
        node(emptied_database, "a", {"a"}) as ledger,
        node(emptied_database, "b", set()) as other,
    ):
        for name in names:
            await ledger.reserve(call(name), partial(within, tokens=100), kinds=OF_DAY)
        for name in names:
            ledger.settle_soon(a_record(call(name), 30, 10), failed.append)
        [tally] = await ledger.tallies([DAILY])

        assert (tally.used.tokens, tally.held, failed) == (120, Amount(), [])
        assert await other.unsettled() == []


async def test_what_a_dead_node_held_is_settled_once(emptied_database: SurrealDatabase) -> None:
    alive = {"a", "b", "c"}
    async with (
        node(emptied_database, "a", alive) as first,
        node(emptied_database, "b", alive) as second,
        node(emptied_database, "c", alive) as third,
    ):
        await first.reserve(call("one"), partial(within, tokens=100), kinds=OF_DAY)
        assert await second.unsettled() == []
        alive.discard("a")
        for ledger in (second, third):
            [lost] = await ledger.unsettled()
            assert lost.held == Amount(100)
        record = replace(a_record(call("one"), 60, 40), outcome="lost")
        await second.settle(record)
        await third.settle(record)
        await first.settle(a_record(call("one"), 30, 10))  # it was only slow

        [tally] = await second.tallies([DAILY])
        assert (tally.used.tokens, tally.held) == (100, Amount())
        assert await third.unsettled() == []


async def test_a_short_call_without_a_limit_costs_one_commit(
    emptied_database: SurrealDatabase,
) -> None:
    async with node(emptied_database, "a", {"a"}) as ledger:
        ledger.begin(call("one"))
        await ledger.settle(a_record(call("one"), 30, 10))

        tallies = await ledger.tallies(scopes_of(session_key(), TODAY))
        assert {one.used.tokens for one in tallies if one.scope.kind in {"session", "day"}} == {40}


async def test_what_nodes_held_is_spent_once_by_one_that_is_alone_and_not_held_for_ever(
    emptied_database: SurrealDatabase,
) -> None:
    async with node(emptied_database, "a", {"a"}) as first:
        await first.reserve(call("one"), partial(within, tokens=100), kinds=OF_DAY)
    async with alone(emptied_database) as ledger:
        assert await settle_lost(ledger) == 1
        [tally] = await ledger.tallies([DAILY])
        assert (tally.used.tokens, tally.held) == (100, Amount())
    async with node(emptied_database, "b", {"b"}) as second:
        assert await settle_lost(second) == 0
        scopes = scopes_of(session_key(), TODAY)
        for tally in await second.tallies([one for one in scopes if one.kind != "token_session"]):
            assert (tally.used.tokens, tally.held) == (100, Amount())


async def test_what_one_that_was_alone_set_aside_is_spent_once_by_nodes(
    emptied_database: SurrealDatabase,
) -> None:
    async with alone(emptied_database) as ledger:
        await ledger.reserve(call("one"), partial(within, tokens=100), kinds=OF_DAY)
    async with (
        node(emptied_database, "a", {"a", "b"}) as first,
        node(emptied_database, "b", {"a", "b"}) as second,
    ):
        await first.reserve(call("two", "other"), partial(within, tokens=100), kinds=OF_DAY)
        lost = await first.unsettled()
        set_aside = sum(one.held.tokens for one in lost)
        assert set_aside >= 100
        assert await settle_lost(second) == len(lost)
        [tally] = await second.tallies([DAILY])
        assert (tally.used.tokens, tally.held) == (set_aside, Amount(100))
        await first.settle(a_record(call("two", "other"), 30, 10))
        [tally] = await second.tallies([DAILY])
        assert (tally.used.tokens, tally.held) == (set_aside + 40, Amount())


async def test_what_is_held_when_the_day_is_set_back_is_held_on_that_day_and_given_back_there(
    emptied_database: SurrealDatabase,
) -> None:
    async with node(emptied_database, "a", {"a"}) as ledger:
        ahead = NOON + timedelta(days=40)
        late = replace(call("one"), at=ahead, day=day_of(ahead))
        await ledger.reserve(late, partial(within, tokens=100), kinds=OF_DAY)
        await ledger.resync(NOON)
        scopes = scopes_of(session_key(), TODAY)
        assert {one.held.tokens for one in await ledger.tallies(scopes)} == {100}
        await ledger.settle(a_record(late, 30, 10))
        tallies = await ledger.tallies(scopes)

    assert {one.held for one in tallies} == {Amount()}


async def test_what_is_held_for_a_turn_that_was_cut_off_meanwhile_is_given_back(
    emptied_database: SurrealDatabase,
) -> None:
    async with node(emptied_database, "a", {"a"}) as ledger:
        for turns in range(4):
            await cut_off(ledger, turns)
        [tally] = await ledger.tallies([DAILY])

    assert tally.held == Amount()


async def cut_off(ledger: SharedLedger, turns: int) -> None:
    """Of the loop, after so many."""
    async with anyio.create_task_group() as group:
        ask = partial(ledger.reserve, kinds=OF_DAY)
        group.start_soon(ask, call(f"c{turns}"), partial(within, tokens=100))
        for _ in range(turns + 1):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("is_carried_out", [True, False], ids=["carried_out", "lost"])
async def test_a_call_whose_commit_was_not_answered_is_held_once_and_harms_no_other(
    emptied_database: SurrealDatabase, is_carried_out: bool
) -> None:
    async with in_doubt(emptied_database, is_carried_out) as (ledger, _):
        first = await ledger.reserve(call("one"), partial(within, tokens=100), kinds=OF_DAY)
        grants = [first[1]]

        async def ask(name: str) -> None:
            held = await ledger.reserve(call(name), partial(within, tokens=900), kinds=OF_DAY)
            grants.append(held[1])

        with anyio.fail_after(20):
            await ask("two")
        [tally] = await ledger.tallies([DAILY])
        await ledger.settle(a_record(call("one"), 30, 10))
        await ledger.settle(a_record(call("two"), 30, 10))
        [later] = await ledger.tallies([DAILY])

    assert [one.held for one in grants] == [Amount(100), Amount(900)]
    assert tally.held == Amount(1_000)
    assert (later.used.tokens, later.held) == (80, Amount())


async def test_a_call_that_breaks_a_rule_of_the_store_harms_no_other_of_its_commit(
    emptied_database: SurrealDatabase,
) -> None:
    async with in_doubt(emptied_database) as (ledger, _):
        await ledger.reserve(call("one"), partial(within, tokens=100), kinds=OF_DAY)
        failures: list[Exception] = []
        ledger.settle_soon(a_record(call("one"), 30, 10), failures.append)
        ledger.begin(call("two"))
        ledger.settle_soon(replace(a_record(call("two")), model="\ud800"), failures.append)
        await ledger.caught_up()
        [tally] = await ledger.tallies([DAILY])

    assert len(failures) == 1
    assert (tally.used.tokens, tally.held) == (40, Amount())


async def test_a_call_is_refused_in_time_while_the_store_carries_nothing_out(
    emptied_database: SurrealDatabase,
) -> None:
    async with in_doubt(emptied_database, *[False] * 1_000, within_s=0.05) as (ledger, _):
        with anyio.fail_after(10), pytest.raises(StoreUnavailable):
            await ledger.reserve(call("one"), partial(within, tokens=100), kinds=OF_DAY)


@pytest.mark.parametrize("is_carried_out", [True, False], ids=["carried_out", "lost"])
async def test_a_call_that_ends_while_it_is_written_down_is_counted_once(
    emptied_database: SurrealDatabase, is_carried_out: bool
) -> None:
    failed, ended = list[Exception](), anyio.Event()

    def end() -> None:
        ledger.settle_soon(a_record(call("one"), 30, 10), failed.append)
        ended.set()

    async with in_doubt(emptied_database, is_carried_out) as (ledger, writer):
        writer.meanwhile = end
        ledger.begin(call("one"))
        with anyio.fail_after(30):
            await ended.wait()  # it has lasted long enough to be written down
        [tally] = await ledger.tallies([DAILY])

    assert (tally.used.tokens, tally.held, failed) == (40, Amount(), [])


@pytest.mark.parametrize("is_carried_out", [True, False], ids=["carried_out", "lost"])
async def test_a_short_call_whose_commit_was_not_answered_is_counted_once(
    emptied_database: SurrealDatabase, is_carried_out: bool
) -> None:
    record = a_record(call("one"), 30, 10)
    async with in_doubt(emptied_database, is_carried_out) as (ledger, _):
        ledger.begin(call("one"))
        with pytest.raises(StoreUnavailable):
            await ledger.settle(record)
        await ledger.settle(record)
        [tally] = await ledger.tallies([DAILY])

    assert tally.used.tokens == 40
