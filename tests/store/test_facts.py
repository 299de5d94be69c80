"""What is special about facts on disk."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TypeVar

import anyio
import pytest

from gateway.domain.facts import (
    Claim,
    Erasure,
    Fact,
    FactQuery,
    FactView,
    QueryRefused,
    SaidSource,
    StoredClaim,
    settle_claims,
)
from gateway.domain.ports import FactStore
from gateway.store.fact_search import MOST_WEIGHED, FactBase
from gateway.store.sqlite import open_sqlite
from gateway.store.tables import migrate
from gateway.store.writer import Query, Readers
from tests.fakes.clock import FakeClock
from tests.fakes.store import NOON, session_key
from tests.forms import is_long

T = TypeVar("T")
ANN = session_key("ann")
CANARY = "Zebraquagga"
PEOPLE = 4_500 if is_long() else 2_500  # more than a page of them


def a_claim(number: int, object_: str) -> Claim:
    source = SaidSource(f"m{number}", ANN, NOON, f"I told you about {object_}", "ann")
    subject = CANARY if object_ == CANARY else f"thing {number}"
    return Claim(subject, "is", object_, False, NOON, ANN, source=source)


def churned(number: int) -> Claim:
    at = NOON + timedelta(seconds=number)
    source = SaidSource("m", ANN, at, f"I say {CANARY}{number}", "ann")
    text = f"{CANARY} v{number} {'pad ' * (number % 90)}"
    return Claim("user", f"p{number % 50}", text, True, at, ANN, source=source)


def traces(data_dir: Path) -> list[str]:
    return [
        path.name
        for path in data_dir.iterdir()
        if any(form in path.read_bytes().lower() for form in (b"zebraquagga", b"zebra"))
    ]


@pytest.mark.parametrize(
    "what", [Erasure(fact_id="f150"), Erasure(session_key=ANN), Erasure(scope="s")]
)
@pytest.mark.parametrize("is_superseded", [False, True])
async def test_nothing_of_what_was_erased_is_left_in_the_files(
    tmp_path: Path, what: Erasure, is_superseded: bool
) -> None:
    with anyio.fail_after(60):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            for number in range(300):
                claim = a_claim(number, CANARY if number == 150 else f"words {number}")
                await stores.facts.add_facts("s", [claim], ids=[f"f{number}"], now=NOON)
            if is_superseded:  # so that it is no longer in the index, but in old segments of it
                ended = Claim(CANARY, "is", CANARY, False, NOON, ANN, valid_to=NOON)
                await stores.facts.add_facts("s", [ended], ids=["end"], now=NOON)
            before = await anyio.to_thread.run_sync(traces, tmp_path)
            count = await stores.facts.erase_facts(what, dry_run=False, now=NOON)
            after = await anyio.to_thread.run_sync(traces, tmp_path)
            left = await stores.facts.select_facts(FactQuery(FactView(scope="s")))
            found = await stores.facts.facts_matching(
                FactView(scope="s"), [CANARY, "words"], limit=999
            )

    assert before
    assert after == []
    assert count == (1 if what.fact_id else 300)
    assert len(left) == len(found) == 300 - count
    assert await anyio.to_thread.run_sync(traces, tmp_path) == []


async def test_nothing_is_left_between_the_rows_of_others(tmp_path: Path) -> None:
    """Rows that were moved from page to page leave copies behind."""
    with anyio.fail_after(60):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            for number in range(0, 600, 2):
                both = [churned(number), churned(number + 1)]
                at = both[1].valid_from
                ids = [f"f{number}", f"f{number + 1}"]
                await stores.facts.add_facts("s", both, ids=ids, now=at)
                other = Claim("user", "likes", f"x{number}", False, at, ANN)
                await stores.facts.add_facts("t", [other], ids=[f"g{number}"], now=at)
            await stores.facts.erase_facts(Erasure(scope="s"), dry_run=False, now=NOON)
            after = await anyio.to_thread.run_sync(traces, tmp_path)
            left = await stores.facts.select_facts(FactQuery(FactView(scope="t")))

    assert after == []
    assert len(left) == 300


def rows(path: Path) -> tuple[object, list[int]]:
    """The only tombstone, and how many rows there are of facts."""
    with closing(sqlite3.connect(path)) as db:
        (tombstone,) = db.execute("SELECT kind, facts, length(tombstone) FROM fact_erasure")
        tables = ("fact", "fact_claim", "fact_topic", "fact_group", "fact_words")
        return tombstone, [
            db.execute(f"SELECT count(*) FROM {one}").fetchone()[0] for one in tables
        ]


async def test_an_erasure_leaves_a_tombstone_and_says_no_word(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            await stores.facts.add_facts("s", [a_claim(1, CANARY)], ids=["f1"], now=NOON)
            await stores.facts.erase_facts(Erasure(scope="s"), dry_run=True, now=NOON)
            await stores.facts.erase_facts(Erasure(scope="s"), dry_run=False, now=NOON)

    tombstone, left = await anyio.to_thread.run_sync(rows, tmp_path / "store.db")

    assert tombstone == ("scope", 1, 32)
    assert left == [0] * 5


async def test_what_is_known_survives_a_restart(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            (made,) = await stores.facts.add_facts("s", [a_claim(1, "x")], ids=["f1"], now=NOON)
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            assert await stores.facts.select_facts(FactQuery(FactView(scope="s"))) == [made]
            assert await stores.facts.facts_matching(FactView(scope="s"), ["things"], limit=9) == [
                made
            ]


class Counting:
    def __init__(self, readers: Readers) -> None:
        self.readers, self.reads = readers, 0

    async def read(self, query: Query[T]) -> T:
        self.reads += 1
        return await self.readers.read(query)


async def test_of_whom_nothing_is_kept_costs_no_read(tmp_path: Path) -> None:
    bob, asked = FactView(scope="bob"), ["things"]
    with anyio.fail_after(60):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            await stores.facts.add_facts("ann", [a_claim(1, "x")], ids=["f1"], now=NOON)
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            facts = stores.facts
            assert isinstance(facts, FactBase)
            facts._readers = readers = Counting(facts._readers)  # type: ignore[assignment,arg-type]
            await facts.facts_matching(bob, asked, limit=9)
            before = readers.reads
            nothing = [
                await facts.facts_matching(bob, asked, limit=9),
                await facts.facts_around(bob, ["x"], limit=9),
                await facts.facts_matching(FactView(room=session_key("bob")), asked, limit=9),
            ]
            unasked = readers.reads - before
            ann = await facts.facts_matching(FactView(scope="ann"), asked, limit=9)
            room = await facts.facts_around(FactView(room=ANN), ["x"], limit=9)
            await facts.add_facts("bob", [a_claim(2, "y")], ids=["f2"], now=NOON)
            stored = await facts.facts_matching(bob, asked, limit=9)

    assert (nothing, unasked) == ([[], [], []], 0)
    assert [len(ann), len(room), len(stored)] == [1, 1, 1]


async def test_what_was_believed_then_is_not_weighed_without_end(tmp_path: Path) -> None:
    many = [replace(a_claim(n, "x"), source=None) for n in range(MOST_WEIGHED + 1)]
    view, then = FactView(scope="s"), NOON + timedelta(days=1)
    with anyio.fail_after(60):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            await stores.facts.add_facts(
                "s", many, ids=[f"f{n}" for n in range(len(many))], now=NOON
            )
            with pytest.raises(QueryRefused, match="name a subject"):
                await stores.facts.select_facts(FactQuery(view, known_at=then))
            one = await stores.facts.select_facts(FactQuery(view, subject="thing 7", known_at=then))

    assert [fact.id for fact in one] == ["f7"]


async def test_people_are_known_though_there_are_many_of_them(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            for number in range(PEOPLE):
                claim = a_claim(number, "x")
                await stores.facts.add_facts(f"p{number}", [claim], ids=[f"f{number}"], now=NOON)
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            facts = stores.facts
            for _ in range(PEOPLE // 2_000 + 1):
                assert facts.knows(FactView(scope=f"p{PEOPLE - 1}"))
                await facts.facts_around(FactView(scope="nobody"), ["x"], limit=1)

            assert all(facts.knows(FactView(scope=f"p{number}")) for number in range(PEOPLE))
            assert sum(facts.knows(FactView(scope=f"q{number}")) for number in range(1_000)) < 50


@pytest.mark.requirement("S-003-Memory-08")
def test_the_database_itself_refuses_a_second_current_fact() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    insert = (
        "INSERT INTO fact (place, id, scope, session, topic, about, form, entity_type, subject,"
        " predicate, object, functional, confidence, learned_at, valid_from)"
        " VALUES (?, 'f', 1, 1, 1, '', '', 'fact', '', '', '', 1, 1.0, 0, 0)"
    )
    db.execute(insert, (1,))

    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        db.execute(insert, (2,))


def story(number: int) -> list[Claim]:
    """Of where somebody lived: late and in order, said again, over, by word of others."""
    dice, claims = Random(number), list[Claim]()
    for at in range(dice.choice((4, 8, 14))):
        since = NOON + timedelta(days=dice.randrange(8 if number % 2 else 100))
        said = NOON + timedelta(days=dice.randrange(20), seconds=at)
        is_one = dice.random() < (1 if number % 3 else 0.6)
        source = SaidSource(f"m{at}", ANN, said, "q", "ann") if dice.random() < 0.8 else None
        over = since + timedelta(days=dice.randrange(3))
        until = over if number % 5 == 0 and dice.random() < 0.2 else None
        place = dice.choice("ABC")
        claims.append(
            Claim("user", "city", place, is_one, since, ANN, valid_to=until, source=source)
        )
    return claims


def outcome(facts: Iterable[Fact]) -> dict[str, Fact]:
    """Without the times at which somebody found it out."""
    return {one.id: replace(one, superseded_at=one.superseded_at and NOON) for one in facts}


async def told_to(facts: FactStore, scope: str, claims: list[Claim]) -> list[StoredClaim]:
    stored = list[StoredClaim]()
    for at, claim in enumerate(claims):
        one = StoredClaim(f"{scope}-{at}", claim, NOON + timedelta(days=30 + at))
        await facts.add_facts(scope, [claim], ids=[one.id], now=one.learned_at)
        stored.append(one)
    return stored


@pytest.mark.requirement("S-003-Memory-08")
async def test_a_part_of_the_story_is_enough_to_settle_what_comes_late(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with open_sqlite(tmp_path, clock=FakeClock()) as stores:
            for number in [*range(60), 575, 825]:
                scope = f"s{number}"
                stored = await told_to(stores.facts, scope, story(number))
                kept = await stores.facts.select_facts(
                    FactQuery(FactView(scope=scope), with_history=True)
                )

                every = settle_claims(scope, stored, before={}, now=stored[-1].learned_at)
                assert outcome(kept) == outcome(one.fact for one in every), number
