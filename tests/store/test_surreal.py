"""The shared store: what is asked of the server, and several gateways over one database."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import anyio
import pytest

from gateway.domain.agents import speaker_in
from gateway.domain.budgets import Amount, BudgetExceeded, Grant, Tally, day_of, scopes_of
from gateway.domain.cluster import Tenure
from gateway.domain.errors import Conflict, GatewayError, StoreRefused, StoreUnavailable
from gateway.domain.facts import Claim, FactQuery, FactView, fact_view
from gateway.domain.ids import NodeId, RunId
from gateway.domain.inbox import NewDelivery
from gateway.domain.ports import Stores
from gateway.store.surreal import SurrealStore, open_surreal
from gateway.store.surreal_connection import (
    OutcomeUnknown,
    Params,
    SurrealConnection,
)
from gateway.store.surreal_transaction import Selection
from gateway.store.tables import TABLES
from gateway.store.transaction import SEQ_BITS, Transaction, places_of
from tests.fakes.clock import FakeClock
from tests.fakes.ledger import a_record, a_reservation
from tests.fakes.store import NOON, an_ending, an_entry, session_key
from tests.fakes.surreal import PATIENT, ROOT, SurrealDatabase

KEY = session_key()
SCOPES = scopes_of(KEY, day_of(NOON))
DELIVERY = NewDelivery("d", "chat", "default", "ann", None, "hello")


@dataclass
class Gateway:
    stores: Stores
    asked: list[str]  # requests
    connection: "Listening"


@asynccontextmanager
async def gateways(
    database: SurrealDatabase, count: int, *, is_alone: bool = False
) -> AsyncIterator[list[Gateway]]:
    found: list[Gateway] = []
    with anyio.fail_after(60):
        async with AsyncExitStack() as stack:
            for _ in range(count):
                connection = await listening(database)
                opening = open_surreal(connection, FakeClock(), is_alone=is_alone)
                stores = await stack.enter_async_context(opening)
                found.append(Gateway(stores, connection.asked, connection))
            yield found


class Listening(SurrealConnection):
    """Loses the answer to a commit that was carried out (`after`), the commit itself (`before`), or carries
    it out as late as it can (`late`)."""

    asked: list[str]
    lose: str = ""
    between: Callable[[], Awaitable[None]] | None = None  # what others do after each of its reads
    is_away: bool = False
    before_commit: Callable[[], Awaitable[None]] | None = None
    _late: tuple[str, Params | None] | None = None

    async def query(
        self,
        text: str,
        params: Params | None = None,
        *,
        deadline_s: float | None = None,
        moment: UUID | None = None,
    ) -> list[object]:
        self.asked = getattr(self, "asked", [])
        self.asked.append(text)
        if self.is_away:
            raise StoreUnavailable("there is no server")
        is_commit, how = text.startswith("{"), self.lose
        if is_commit and self._late is not None:
            text_, self._late = self._late, None
            with suppress(GatewayError):
                await super().query(*text_)
        if is_commit and how:
            self.lose = ""
            if how == "after":
                await super().query(text, params)
            if how == "late":
                self._late = (text, params)
            raise OutcomeUnknown("no answer came")
        if is_commit and self.before_commit is not None:
            await self.before_commit()
        result = await super().query(text, params, deadline_s=deadline_s)
        if self.between is not None and text.startswith("RETURN"):
            await self.between()
        return result


async def listening(database: SurrealDatabase) -> Listening:
    place = (database.url, database.namespace, database.database)
    connection = Listening(*place, ROOT, PATIENT)
    connection._socket = await connection._connect()
    return connection


async def exchange(stores: Stores, name: str, grown_from: str | None) -> bool:
    await stores.inbox.accept(an_entry(name, platform_id=name), begin=True)
    return await stores.inbox.finish(an_ending(name, grown_from=grown_from))


async def test_whoever_begins_a_run_asks_for_what_was_chosen_only_if_something_was(
    emptied_database: SurrealDatabase,
) -> None:
    async with gateways(emptied_database, 2) as (here, there):
        runs, others = here.stores.shared, there.stores.shared
        assert runs is not None
        assert others is not None
        key, began = session_key(), list[tuple[str | None, int]]()
        await here.stores.inbox.accept(an_entry("a"), begin=False)
        await runs.open_session(Tenure(key, 1))
        for model in (None, "big", "big", "small"):
            await others.choose(key, {"model": model})
            for _ in range(2):
                here.asked.clear()
                begun = await runs.begin(RunId("run-a"), Tenure(key, 1))
                began.append((begun.choice.model, len(here.asked)))

    assert [model for model, _ in began] == [
        None,
        None,
        "big",
        "big",
        "big",
        "big",
        "small",
        "small",
    ]
    assert [count for _, count in began[1::2]] == [2, 3, 3, 3]


async def test_what_a_turn_asks_about_first_is_read_at_once_and_anew_once_it_was_changed(
    emptied_database: SurrealDatabase,
) -> None:
    async with gateways(emptied_database, 2) as (here, _):
        stores, key, tenure = here.stores, session_key(), Tenure(session_key(), 1)
        person, theirs = speaker_in(key, None), fact_view(key, None)
        assert stores.shared is not None
        await stores.inbox.accept(an_entry("a"), begin=False)
        await stores.shared.open_session(tenure)

        async def asked() -> int:
            here.asked.clear()
            facts = await stores.facts.facts_matching(theirs, ["tea"], limit=9)
            found = await stores.sessions.read_settings(person)
            await stores.journal.claim_notices(person, key, RunId("run-a"), now=NOON)
            seen.append((found, [one.object for one in facts]))
            return len(here.asked)

        seen, counts = list[tuple[str | None, list[str]]](), list[int]()
        await stores.shared.begin(RunId("run-a"), tenure)
        counts.append(await asked())
        await stores.sessions.write_settings(person, "{}", expected=None)
        await stores.facts.add_facts(
            theirs.scope or "",
            [Claim("user", "likes", "tea", False, NOON, key)],
            ids=["f"],
            now=NOON,
        )
        counts.append(await asked())

    assert seen == [(None, []), ("{}", ["tea"])]
    assert counts[0] == 0
    assert counts[1] > 1


async def test_a_message_is_one_request_and_its_end_another(
    emptied_database: SurrealDatabase,
) -> None:
    async with gateways(emptied_database, 1, is_alone=True) as (gateway,):
        await exchange(gateway.stores, "a", None)
        gateway.asked.clear()

        await gateway.stores.inbox.accept(an_entry("b", platform_id="b"), begin=True)
        accepting = len(gateway.asked)
        await gateway.stores.inbox.finish(an_ending("b", grown_from="a-2"))

        assert (accepting, len(gateway.asked) - accepting) == (1, 1)


async def test_a_message_without_a_key_reads_no_other_message_without_one(
    emptied_database: SurrealDatabase,
) -> None:
    async with gateways(emptied_database, 2) as (here, there):
        for number in range(3):
            await there.stores.inbox.accept(an_entry(f"t{number}"), begin=False)
        here.asked.clear()
        await here.stores.inbox.accept(an_entry("h"), begin=False)  # of a session not known here

        assert any(text.startswith("RETURN") for text in here.asked)
        assert not [text for text in here.asked if "`platform_id` = NONE" in text]


async def test_what_must_be_durable_waits_for_what_was_to_be_written_before_and_no_longer(
    emptied_database: SurrealDatabase,
) -> None:
    """More to be written soon comes with each commit, as it does under load."""
    connection = await listening(emptied_database)
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        store = SurrealStore(connection)
        await store.open()
        group.start_soon(store.run)
        written, failed = list[int](), list[Exception]()

        def more(number: int, tx: Transaction) -> None:
            tx.change("pulse", {"id": 1}, {"commits": number})
            if number == len(written) < 10_000:  # else it runs again, or is tried once more
                written.append(number)
                store.write_soon(partial(more, number + 1), failed.append)

        with anyio.fail_after(30):
            store.write_soon(partial(more, 0), failed.append)
            await store.write(lambda tx: tx.count("notice", {}), durable=True)
        group.cancel_scope.cancel()

    assert (0 in written, failed) == (True, [])
    assert len(written) < 10_000


async def test_what_ends_while_more_is_set_aside_leaves_no_limit_exceeded_by_a_kill(
    emptied_database: SurrealDatabase,
) -> None:
    def up_to_400(tallies: Sequence[Tally]) -> Grant:
        for one in tallies:
            if (one.used + one.held).tokens + 100 > 400:
                raise BudgetExceeded(one, "tokens", 400)
        return Grant(90, Amount(100))

    async def slowly() -> None:
        connection.before_commit = None
        group.start_soon(ledger.settle, a_record(first))
        for _ in range(9):  # the server would have written it by now
            await connection.query("RETURN 1")

    async with gateways(emptied_database, 1, is_alone=True) as (gateway,):
        connection, ledger = gateway.connection, gateway.stores.ledger
        first, _ = await ledger.reserve(a_reservation("a"), up_to_400)
        await ledger.reserve(a_reservation("b"), up_to_400)
        connection.before_commit = slowly
        async with anyio.create_task_group() as group:
            await ledger.reserve(a_reservation("c"), up_to_400)
        await ledger.tallies(SCOPES)  # what has ended is written
        async with gateways(emptied_database, 1, is_alone=True) as (next_one,):
            found = await next_one.stores.ledger.tallies(SCOPES)

    assert {(one.used.tokens, one.held.tokens <= 385) for one in found} == {(15, True)}


async def test_who_was_forestalled_reads_what_the_other_wrote_and_nothing_prefetched(
    emptied_database: SurrealDatabase,
) -> None:
    async with gateways(emptied_database, 2) as (here, there):
        stores, tenure, person = here.stores, Tenure(session_key(), 1), speaker_in(KEY, None)
        assert stores.shared is not None
        await stores.inbox.accept(an_entry("a"), begin=False)
        await stores.shared.open_session(tenure)
        await stores.shared.begin(RunId("run-a"), tenure)
        assert await there.stores.sessions.write_settings(person, "{}", expected=None)

        is_written = await stores.sessions.write_settings(person, "[]", expected=None)
        found = await stores.sessions.read_settings(person)

    assert (is_written, found) == (False, "{}")


async def test_a_store_that_ends_while_the_server_is_away_tries_nothing_more(
    emptied_database: SurrealDatabase,
) -> None:
    """What could not be written is given again, as whoever wanted it written may do."""
    connection = await listening(emptied_database)
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        store = SurrealStore(connection)
        await store.open()
        connection.is_away = True
        group.start_soon(store.run)
        failed = list[Exception]()

        def again(error: Exception) -> None:
            failed.append(error)
            if len(failed) < 10_000:
                store.write_soon(lambda tx: tx.change("pulse", {"id": 1}, {"commits": 2}), again)
            if len(failed) == 3:
                group.cancel_scope.cancel()

        again(StoreUnavailable("the first"))

    assert len(failed) < 10


async def test_where_nothing_was_ever_learned_a_gateway_alone_need_not_ask(
    emptied_database: SurrealDatabase,
) -> None:
    claim = Claim("user", "likes", "tea", False, NOON, session_key())
    async with gateways(emptied_database, 1, is_alone=True) as (gateway,):
        await gateway.stores.facts.add_facts("hers", [claim], ids=["f"], now=NOON)
    async with gateways(emptied_database, 1, is_alone=True) as (gateway,):
        facts = gateway.stores.facts
        found = await facts.facts_matching(FactView(scope="hers"), ["tea"], limit=9)
        gateway.asked.clear()
        none = await facts.facts_matching(FactView(scope="his"), ["tea"], limit=9)

        assert ([one.object for one in found], none, gateway.asked) == (["tea"], [], [])
        assert (facts.knows(FactView(scope="hers")), facts.knows(FactView(scope="his"))) == (
            True,
            False,
        )


async def test_what_another_gateway_changed_is_read_before_anything_is_written(
    emptied_database: SurrealDatabase,
) -> None:
    async with gateways(emptied_database, 2) as (here, there):
        await exchange(here.stores, "a", None)
        await exchange(there.stores, "b", "a-2")
        moved = await there.stores.sessions.move_head(
            session_key(), NodeId("a-1"), expected=NodeId("b-2")
        )

        followed = await exchange(here.stores, "c", "b-2")
        path = await there.stores.sessions.path(session_key(), limit=9)

        assert (moved, followed) == (True, False)
        assert [node.id for node in path.nodes] == ["a-1"]


@pytest.mark.parametrize("gateway_count", [1, 3])
async def test_of_copies_at_several_gateways_one_is_accepted(
    emptied_database: SurrealDatabase, gateway_count: int
) -> None:
    accepted = []
    async with (
        gateways(emptied_database, gateway_count) as some,
        anyio.create_task_group() as group,
    ):

        async def accept(number: int) -> None:
            inbox = some[number % gateway_count].stores.inbox
            entry = an_entry(f"a{number}", platform_id="same", digest="d")
            accepted.append(await inbox.accept(entry, begin=True))

        for number in range(12):
            group.start_soon(accept, number)

    assert [one.duplicate for one in accepted].count(False) == 1
    assert len({one.run_id for one in accepted}) == 1
    figures = [one.connection.figures for one in some]
    assert gateway_count == 1 or any(one.conflicts.values for one in figures)


async def test_places_in_a_session_are_given_once_over_all_gateways(
    emptied_database: SurrealDatabase,
) -> None:
    async with gateways(emptied_database, 3) as some:
        async with anyio.create_task_group() as group:
            for number in range(18):
                accept = partial(some[number % 3].stores.inbox.accept, begin=False)
                group.start_soon(accept, an_entry(f"m{number}"))
        entries = await some[0].stores.inbox.unfinished()

    assert sorted(one.seq for one in entries) == [*range(1, 19)]


async def test_of_two_gateways_that_send_one_delivers(emptied_database: SurrealDatabase) -> None:
    outcomes: list[bool] = []
    async with gateways(emptied_database, 2) as some:
        await some[0].stores.inbox.accept(an_entry("a"), begin=True)
        await some[0].stores.inbox.finish(an_ending("a", deliveries=[DELIVERY]))

        async def send(stores: Stores) -> None:
            try:
                await stores.outbox.sending("d", 0)
            except Conflict:
                outcomes.append(False)
            else:
                outcomes.append(True)

        async with anyio.create_task_group() as group:
            for gateway in some:
                group.start_soon(send, gateway.stores)

    assert sorted(outcomes) == [False, True]


@pytest.mark.parametrize("lost", ["after", "before", "late"])
async def test_a_commit_without_an_answer_is_looked_up_and_done_once(
    emptied_database: SurrealDatabase, lost: str
) -> None:
    async with gateways(emptied_database, 1) as (gateway,):
        stores, line = gateway.stores, gateway.connection
        await exchange(stores, "a", None)

        line.lose = lost
        accepted = await stores.inbox.accept(an_entry("b", platform_id="b"), begin=True)
        line.lose = lost
        moved = await stores.inbox.finish(an_ending("b", grown_from="a-2"))
        line.lose = lost
        begun = await stores.inbox.accept(an_entry("c"), begin=False)
        line.lose = lost
        attempts = await stores.inbox.begin(begun.run_id)
        path = await stores.sessions.path(session_key(), limit=9)

    assert (accepted.duplicate, accepted.seq, moved) == (False, 2, True)
    assert (begun.seq, attempts) == (3, 1)
    assert [one.id for one in path.nodes] == ["a-1", "a-2", "b-1", "b-2"]


@pytest.mark.parametrize("count", [1, 17, 18, 30])
async def test_few_or_many_branches_of_a_session_are_all_found(
    emptied_database: SurrealDatabase, count: int
) -> None:
    """Sessions before and after it have branches too."""
    async with gateways(emptied_database, 1) as (gateway,):
        inbox = gateway.stores.inbox
        for peer in ("before", "here", "after"):
            for number in range(count):
                name, root = f"{peer}{number}", f"{peer}0-2" if number else None
                await inbox.accept(an_entry(name, session_key(peer)), begin=True)
                await inbox.finish(an_ending(name, session_key(peer), grown_from=root))
        select, values = Selection(TABLES["node"], places_of(2), "fork").rows("-place", 99)
        params = {f"v{number}": value for number, value in enumerate(values)}
        found: Any
        every: Any
        (found,) = await gateway.connection.query(select.replace("$", "$v"), params)
        (every,) = await gateway.connection.query("SELECT * FROM node WHERE in_fork = true")

    here = [row["place"] for row in every if row["place"] >> SEQ_BITS == 2]
    assert [row["place"] for row in found] == sorted(here, reverse=True)
    assert len(here) == max(1, count - 1)


async def test_tables_of_a_newer_version_are_refused_with_a_sentence(
    surreal_database: SurrealDatabase,
) -> None:
    async with gateways(surreal_database, 1) as (gateway,):
        await gateway.connection.query("UPDATE schema:main SET version = 99")
    with pytest.raises(ExceptionGroup) as caught:
        async with gateways(surreal_database, 1):
            pass

    (refused,) = caught.value.exceptions
    assert isinstance(refused, StoreRefused)
    assert "has schema version 99" in str(refused)


async def test_tables_of_an_earlier_version_are_brought_up_to_date_once(
    surreal_database: SurrealDatabase,
) -> None:
    async with gateways(surreal_database, 1) as (gateway,):
        await exchange(gateway.stores, "a", None)
        ask = gateway.connection.query
        await ask("REMOVE FIELD standing ON node; UPDATE node UNSET standing")
        await ask("UPDATE schema:main SET version = 1")
    async with gateways(surreal_database, 4) as some:
        path = await some[3].stores.sessions.path(session_key(), limit=9)

    defined = sum("DEFINE TABLE IF NOT EXISTS `node`" in text for one in some for text in one.asked)
    assert [one.id for one in path.nodes] == ["a-1", "a-2"]
    assert defined == 1


async def test_rows_of_several_moments_break_no_rule_of_the_tables(
    emptied_database: SurrealDatabase,
) -> None:
    """Others learn of the same subject after each read of ours: we see a number that was counted before
    a fact that has it, and a current fact beside the one that superseded it."""
    left, names = 15, itertools.count()

    async def learn(stores: Stores, minute: int) -> None:
        at, number = NOON + timedelta(minutes=minute), next(names)
        claim = Claim("I", "lives in", f"town {number}", True, at, session_key())
        now = NOON + timedelta(hours=1, seconds=number)
        await stores.facts.add_facts("ann", [claim], ids=[f"f{number}"], now=now)

    async with gateways(emptied_database, 2) as (ours, theirs):
        await learn(theirs.stores, 0)

        async def between() -> None:
            nonlocal left
            if left:
                left -= 1
                await learn(theirs.stores, (7 * left) % 30)

        ours.connection.between = between
        await learn(ours.stores, 12)
        ours.connection.between = None
        query = FactQuery(FactView("ann"), with_history=True)
        facts = await theirs.stores.facts.select_facts(query)

    assert left == 0
    assert len(facts) == next(names)
    assert [one.superseded_at for one in facts].count(None) == 1


async def test_a_run_that_ends_while_it_is_looked_up_is_not_told_as_open_with_its_last_chunk(
    emptied_database: SurrealDatabase,
) -> None:
    async with gateways(emptied_database, 2) as (ours, theirs):
        accepted = await theirs.stores.inbox.accept(an_entry("a"), begin=True)

        async def between() -> None:
            ours.connection.between = None
            await theirs.stores.inbox.finish(an_ending("a"))

        ours.connection.between = between
        open_one = await ours.stores.inbox.find_run(accepted.run_id)
        ended = await ours.stores.inbox.find_run(accepted.run_id)

    assert open_one
    assert (open_one.finished_at, open_one.log) == (None, b"")
    assert ended
    assert ended.finished_at
    assert ended.log == b'{"type":"done"}'


async def test_thirty_facts_at_once_from_three_gateways_are_all_kept(
    emptied_database: SurrealDatabase,
) -> None:
    async with gateways(emptied_database, 3) as some:
        async with anyio.create_task_group() as group:
            for number in range(30):
                at = NOON + timedelta(minutes=number * 7 % 30)
                claim = Claim("I", "lives in", f"town {number}", True, at, session_key())
                add = partial(some[number % 3].stores.facts.add_facts, "ann", [claim])
                now = NOON + timedelta(hours=2, seconds=number)
                group.start_soon(partial(add, ids=[f"f{number}"], now=now))
        facts = await some[0].stores.facts.select_facts(
            FactQuery(FactView("ann"), with_history=True, limit=100)
        )

    assert len({one.id for one in facts}) == 30
    assert [one.superseded_at for one in facts].count(None) == 1


def _is_ready(row: dict[str, object]) -> bool:
    return row["state"] == "ready"


LOOKED_UP: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
    ("state = 'ready'", _is_ready),
    ("state = 'ready' AND owner = 'y'", lambda one: _is_ready(one) and one["owner"] == "y"),
    ("owner = 'y' AND state = 'ready'", lambda one: _is_ready(one) and one["owner"] == "y"),
    ("state = 'ready' AND due < 50", lambda one: _is_ready(one) and one["due"] < 50),
    ("state IN ['ready', 'done'] AND due >= 90", lambda one: one["due"] >= 90),
    ("open = 3", lambda one: one["open"] == 3),
    ("open IN [3, 4] AND owner = 'y'", lambda one: one["open"] in {3, 4} and one["owner"] == "y"),
    ("open = NONE AND state = 'ready'", lambda one: one["open"] is None and _is_ready(one)),
    ("open != NONE AND due < 20", lambda one: one["open"] is not None and one["due"] < 20),
]


async def test_the_server_finds_by_its_indexes_what_it_finds_without(
    surreal_database: SurrealDatabase,
) -> None:
    """Older servers found too little when a condition besides that of an index came with a limit."""
    rows = [
        {
            "number": number,
            "state": "ready" if number % 3 else "done",
            "owner": "xy"[number // 3 % 2],
            "due": number,
            "open": number % 5 if number % 4 else None,
        }
        for number in range(100)
    ]
    async with gateways(surreal_database, 1) as (gateway,):
        ask = gateway.connection.query
        await ask(
            "DEFINE TABLE job; DEFINE INDEX by_state ON job FIELDS state, due;"
            "DEFINE INDEX by_open ON job FIELDS open"
        )
        await ask("INSERT INTO job $rows RETURN NONE", {"rows": rows})
        for condition, holds in LOOKED_UP:
            right = [row["number"] for row in rows if holds(row)]
            found: list[Any] = await ask(
                f"SELECT VALUE number FROM job WHERE {condition};"
                f"SELECT VALUE number FROM job WHERE {condition} LIMIT 10"
            )

            whole, first = found
            assert sorted(whole) == right, condition
            assert len(first) == min(10, len(right)), condition
            assert set(first) <= set(right), condition
