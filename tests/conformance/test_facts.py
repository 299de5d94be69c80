"""What every store of facts promises, whatever it is made of."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.domain.errors import GatewayError
from gateway.domain.facts import (
    Claim,
    Erasure,
    Fact,
    FactQuery,
    FactView,
    SaidSource,
    form,
    scope_of,
    tombstone_of,
)
from gateway.domain.ports import FactStore, Stores
from tests.conformance.test_ledger import opening
from tests.fakes.store import NOON, session_key
from tests.forms import examples

Open = Callable[[], AbstractAsyncContextManager[Stores]]
ANN, ROOM = session_key("ann"), session_key("room")
HERS = FactView(scope=scope_of(ANN, None))
DAY = timedelta(days=1)


def a_claim(object_: str = "NYC", since: int = 0, **changes: object) -> Claim:
    """Said `since` days after noon in a direct chat."""
    at = NOON + since * DAY
    key = changes.get("session_key", ANN)
    source = SaidSource(f"m{since}", key, at, f"I live in {object_}", "ann")  # type: ignore[arg-type]
    claim = Claim("user", "lives in", object_, True, at, ANN, source=source)
    return replace(claim, **changes)  # type: ignore[arg-type]  # by name


async def told(
    facts: FactStore, *claims: Claim, first: int = 0, scope: str | None = None
) -> list[Fact]:
    """One after the other, learned a day apart; their ids are numbers."""
    given: list[Fact] = []
    for number, claim in enumerate(claims, first):
        now = NOON + number * DAY
        given += await facts.add_facts(
            scope or str(HERS.scope), [claim], ids=[str(number)], now=now
        )
    return given


async def seen(facts: FactStore, **query: object) -> list[Fact]:
    return list(await facts.select_facts(FactQuery(HERS, **query)))  # type: ignore[arg-type]  # by name


def brief(facts: Sequence[Fact]) -> list[str]:
    return [fact.object for fact in facts]


# --- one fact -----------------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Memory-01")
async def test_a_fact_has_all_that_was_claimed(opened: Open) -> None:
    claim = a_claim(confidence=0.5, entity_type="attribute")
    async with opened() as stores:
        (made,) = await told(stores.facts, claim)
        found = await seen(stores.facts)

    assert found == [made]
    assert made == Fact(
        "0",
        str(HERS.scope),
        "attribute",
        "user",
        "lives in",
        "NYC",
        True,
        0.5,
        ANN,
        learned_at=NOON,
        valid_from=NOON,
        source_message_ids=("m0",),
    )


@pytest.mark.requirement("S-003-Memory-01")
@pytest.mark.parametrize("confidence", [-0.01, 1.01, float("nan"), float("inf")])
async def test_a_confidence_outside_0_to_1_is_refused(opened: Open, confidence: float) -> None:
    async with opened() as stores:
        with pytest.raises(GatewayError, match="confidence"):
            await told(stores.facts, a_claim(confidence=confidence))

        assert await seen(stores.facts, with_history=True) == []


@pytest.mark.requirement("S-003-Memory-03", "S-003-Memory-06")
async def test_another_object_supersedes_and_nothing_is_deleted(opened: Open) -> None:
    async with opened() as stores:
        _, new = await told(stores.facts, a_claim("NYC"), a_claim("LA", 5))
        current = await seen(stores.facts)
        history = await seen(stores.facts, subject="The User", with_history=True)
        recalled = await stores.facts.facts_matching(HERS, ["lives", "nyc"], limit=9)
        near = await stores.facts.facts_around(HERS, ["nyc"], limit=9)

    assert current == [new]
    assert brief(history) == ["NYC", "LA"]
    assert (history[0].superseded_by, history[0].superseded_at) == (new.id, NOON + DAY)
    assert history[0].valid_to == NOON + 5 * DAY
    assert brief(recalled) == ["LA"]
    assert list(near) == []


@pytest.mark.requirement("S-003-Memory-04")
async def test_a_fact_says_when_it_was_learned_and_from_which_message(opened: Open) -> None:
    claims = [a_claim("NYC"), a_claim("LA", 5), a_claim("LA.", 6), a_claim("la", 7)]
    async with opened() as stores:
        facts = await told(stores.facts, *claims)
        origin = await stores.facts.origin_of("1")
        unknown = await stores.facts.origin_of("9")
        not_a_fact = await stores.facts.origin_of("3")

    assert origin is not None
    assert origin.fact == replace(facts[1], source_message_ids=("m5", "m6", "m7"))
    assert (origin.fact.learned_at, origin.fact.session_key) == (NOON + DAY, ANN)
    assert origin.sources == tuple(claim.source for claim in claims[1:])
    assert list(origin.supersedes) == ["0"]
    assert (unknown, not_a_fact) == (None, None)


@pytest.mark.requirement("S-003-Memory-07")
async def test_the_same_again_confirms(opened: Open) -> None:
    async with opened() as stores:
        await told(
            stores.facts,
            a_claim("New York", confidence=0.5),
            a_claim(" the  NEW york.", 3, confidence=0.9),
            a_claim("\uff2eew York", 4, confidence=0.2, predicate="Lives_in"),
        )
        facts = await seen(stores.facts, with_history=True)

    assert brief(facts) == ["New York"]
    assert facts[0].confidence == 0.9
    assert facts[0].source_message_ids == ("m0", "m3", "m4")
    assert facts[0].valid_from == NOON


async def test_what_is_not_functional_accumulates(opened: Open) -> None:
    likes = [a_claim(one, day, functional=False) for day, one in enumerate(["tea", "art", "Tea"])]
    async with opened() as stores:
        await told(stores.facts, *likes)

        assert brief(await seen(stores.facts)) == ["tea", "art"]


async def test_what_comes_late_takes_its_place_in_the_past(opened: Open) -> None:
    async with opened() as stores:
        *_, late = await told(stores.facts, a_claim("NYC"), a_claim("LA", 9), a_claim("Rome", 4))
        history = await seen(stores.facts, with_history=True)

    assert brief(history) == ["NYC", "Rome", "LA"]
    assert [fact.valid_to for fact in history] == [NOON + 4 * DAY, NOON + 9 * DAY, None]
    assert (late.superseded_by, late.superseded_at) == ("1", NOON + 2 * DAY)


async def test_what_confirms_the_past_leaves_the_present_alone(opened: Open) -> None:
    async with opened() as stores:
        *_, confirmed = await told(
            stores.facts, a_claim("NYC"), a_claim("LA", 9), a_claim("nyc", 4)
        )

        assert (confirmed.id, confirmed.source_message_ids) == ("0", ("m0", "m4"))
        assert brief(await seen(stores.facts)) == ["LA"]


async def test_a_change_in_between_tells_two_times_apart(opened: Open) -> None:
    claims = [a_claim("NYC"), a_claim("NYC", 9), a_claim("LA", 4)]
    async with opened() as stores:
        await told(stores.facts, *claims)
        history = await seen(stores.facts, with_history=True)

    assert [(fact.id, fact.object) for fact in history] == [("0", "NYC"), ("2", "LA"), ("1", "NYC")]
    assert [fact.source_message_ids for fact in history] == [("m0",), ("m4",), ("m9",)]


async def test_what_has_ended_is_no_longer_current(opened: Open) -> None:
    ended = a_claim("NYC", 8, valid_to=NOON + 6 * DAY)
    async with opened() as stores:
        await told(stores.facts, a_claim("NYC"), ended, first=9)
        current = await seen(stores.facts)
        history = await seen(stores.facts, with_history=True)
        then = await seen(stores.facts, at=NOON + 5 * DAY)
        believed = await seen(stores.facts, known_at=NOON + 9 * DAY)

    assert current == []
    assert (history[0].valid_to, history[0].superseded_by) == (NOON + 6 * DAY, None)
    assert brief(then) == brief(believed) == ["NYC"]
    assert believed[0].valid_to is None


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
async def test_who_moved_from_one_to_another_is_at_the_other(
    opened: Open, is_known: bool, is_first: bool
) -> None:
    """Both are said in one message, and neither text says which comes first."""
    moved = [a_claim("NYC", 5, valid_to=NOON + 5 * DAY), a_claim("LA", 5)]
    async with opened() as stores:
        await told(stores.facts, *([a_claim("NYC")] if is_known else []))
        await told(stores.facts, *(moved if is_first else moved[::-1]), first=1)
        history = await seen(stores.facts, with_history=True)

        assert brief(await seen(stores.facts)) == ["LA"]
        assert [fact.valid_to for fact in history] == [NOON + 5 * DAY, None]


async def test_who_moved_before_they_told_where_they_live_has_lived_there_since(
    opened: Open,
) -> None:
    """`I live in NYC`, and then: `I moved to LA last month`, which is so now as well."""
    source = SaidSource("m3", ANN, NOON + 3 * DAY, "I moved to LA last month", "ann")
    moved = [a_claim("LA", since, source=source) for since in (3, -20)]
    async with opened() as stores:
        await told(stores.facts, a_claim("NYC", 2), *moved)

        assert brief(await seen(stores.facts)) == ["LA"]
        assert [fact.valid_from for fact in await seen(stores.facts)] == [NOON - 20 * DAY]
        assert {fact.object for fact in await seen(stores.facts, with_history=True)} == {
            "NYC",
            "LA",
        }


async def test_what_is_one_at_a_time_stays_it_for_whoever_says_it_again(opened: Open) -> None:
    async with opened() as stores:
        await told(stores.facts, a_claim("NYC"), a_claim("LA"))
        await told(stores.facts, replace(a_claim("LA", 1), functional=False), first=5)

        assert brief(await seen(stores.facts)) == ["LA"]


# --- any order, any number at once --------------------------------------------------------------

PREDICATES = {"lives in": [True], "likes": [False], "odd": [True, False]}


def affirmed(claims: Sequence[Claim]) -> list[Claim]:
    """Who says since when it is so says that it is so now."""
    twice: list[Claim] = []
    for claim in claims:
        source = claim.source
        if claim.predicate == "lives in" and source and claim.valid_from < source.at:
            twice.append(replace(claim, valid_from=source.at, valid_to=None))
        twice.append(claim)
    return twice


CLAIMS = st.lists(
    st.builds(
        lambda predicate, functional, object_, since, said, until: Claim(
            "user",
            predicate,
            object_,
            functional % 2 == 0 if predicate == "odd" else PREDICATES[predicate][0],
            NOON + since * DAY,
            ANN,
            "fact",
            functional / 3,
            None if until is None else NOON + (since + until) * DAY,
            None if said is None else SaidSource("m", ANN, NOON + said * DAY, "q", "ann"),
        ),
        st.sampled_from([*PREDICATES]),
        st.integers(0, 3),
        st.sampled_from(["NYC", "nyc.", "LA", "Rome"]),
        st.integers(0, 6),
        st.none() | st.integers(0, 2),
        st.none() | st.none() | st.integers(-2, 4),
    ),
    max_size=8,
).map(affirmed)
WIDE = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.requirement("S-003-Memory-08")
@WIDE
@given(CLAIMS, st.randoms(use_true_random=False))
def test_in_any_order_the_same_is_believed(claims: list[Claim], random: object) -> None:
    shuffled = list(claims)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a Random

    async def both() -> None:
        one = await believed("embedded", Path(folder) / "one", claims, 1)
        assert one == await believed("embedded", Path(folder) / "grouped", claims, 3)
        other = await believed("embedded", Path(folder) / "other", shuffled, 2)
        assert times(other) == times(one)
        assert current(other) == current(one)
        functional = [predicate for predicate, _ in current(one) if predicate == "lives in"]
        assert len(functional) <= 1

    with TemporaryDirectory() as folder:
        anyio.run(both)


async def believed(url: str, data_dir: Path, claims: Sequence[Claim], at_once: int) -> list[Fact]:
    async with opening(url, data_dir) as stores:
        for start in range(0, len(claims), at_once):
            some = claims[start : start + at_once]
            ids = [str(start + number) for number in range(len(some))]
            await stores.facts.add_facts(str(HERS.scope), some, ids=ids, now=NOON + 50 * DAY)
        return await seen(stores.facts, with_history=True)


def times(facts: Sequence[Fact]) -> list[tuple[object, ...]]:
    return sorted(
        (fact.predicate, form(fact.object), fact.valid_from, str(fact.valid_to), fact.confidence)
        for fact in facts
    )


def current(facts: Sequence[Fact]) -> list[tuple[str, str]]:
    return sorted(
        (fact.predicate, form(fact.object)) for fact in facts if fact.superseded_at is None
    )


def lived(where: str, since: int, said: int, until: int | None = None) -> Claim:
    end = None if until is None else NOON + until * DAY
    source = SaidSource("m", ANN, NOON + said * DAY, "q", "ann")
    return a_claim(where, since, valid_to=end, source=source)


STILL = affirmed([lived("NYC", 0, 2), lived("LA", 1, 1)])
ENDED = affirmed([lived("NYC", 0, 2, until=0), lived("LA", 1, 1)])


@WIDE
@given(CLAIMS, st.integers(-1, 12), st.integers(-1, 8))
@example(STILL, 1, 0)
@example(STILL[::-1], 1, 2)
@example(ENDED, 0, 0)
@example(ENDED, 1, 1)
def test_what_was_true_and_what_was_known_is_what_a_list_of_claims_says(
    claims: list[Claim], at: int, known: int
) -> None:
    when, learned = NOON + at * DAY, NOON + known * DAY

    async def asked() -> None:
        async with opening("embedded", Path(folder)) as stores:
            await told(stores.facts, *claims)
            for then in (None, learned):
                facts = await seen(stores.facts, at=when, known_at=then)
                held = sorted((fact.predicate, form(fact.object)) for fact in facts)
                assert held == modelled(claims, when, then)

    with TemporaryDirectory() as folder:
        anyio.run(asked)


def modelled(claims: Sequence[Claim], at: datetime, known: datetime | None) -> object:
    """By looking at every claim."""
    learned = [one for n, one in enumerate(claims) if known is None or NOON + n * DAY <= known]
    held = set()
    for predicate in PREDICATES:
        some = [one for one in learned if one.predicate == predicate]
        single = {form(one.object) for one in some if one.functional}
        for lane in {"" if form(one.object) in single else form(one.object) for one in some}:
            mine = [
                one
                for one in some
                if ("" if form(one.object) in single else form(one.object)) == lane
            ]
            begins = [
                begin(moved(one, mine), n) for n, one in enumerate(mine) if not only_ends(one)
            ]
            begun = [one for one in begins if one[0] <= at]
            if not begun:
                continue
            since, *_, object_ = max(begun)
            ends = (one.valid_to for one in mine if form(one.object) == object_ and one.valid_to)
            if not any(since <= end <= at for end in ends):
                held.add((predicate, object_))
    return sorted(held)


def moved(claim: Claim, among: Sequence[Claim]) -> Claim:
    """What was so undated while another was so `since then and still` was so before that one."""
    if claim.source is None or claim.valid_to or claim.valid_from != claim.source.at:
        return claim
    other = [
        one
        for one in among
        if form(one.object) != form(claim.object) and one.source and not one.valid_to
        if one.valid_from < claim.valid_from < one.source.at
        and any(
            begin(two)[0] == one.source.at and form(two.object) == form(one.object) for two in among
        )
    ]
    return replace(
        claim, valid_from=min((one.valid_from for one in other), default=claim.valid_from)
    )


def only_ends(claim: Claim) -> bool:
    return claim.valid_to is not None and claim.valid_to <= claim.valid_from


def begin(claim: Claim, learned: int = 0) -> tuple[datetime, bool, datetime, int, str]:
    since = min(claim.valid_from, claim.valid_to or claim.valid_from)
    said = claim.source.at if claim.source else since
    return (since, claim.valid_to != since, said, learned, form(claim.object))


@pytest.mark.requirement("S-003-Memory-08")
async def test_of_many_at_once_one_is_current(opened: Open) -> None:
    async with opened() as stores:

        async def say(number: int) -> None:
            claim = a_claim(f"city {number % 7}", number * 4 % 15)
            await stores.facts.add_facts(str(HERS.scope), [claim], ids=[str(number)], now=NOON)

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(say, number)
        facts = await seen(stores.facts, with_history=True)

    last = max(range(30), key=lambda number: (number * 4 % 15, f"city {number % 7}"))
    assert [fact.object for fact in facts if fact.superseded_at is None] == [f"city {last % 7}"]
    periods = sorted(
        (fact.valid_from, fact.valid_to or NOON + 99 * DAY)
        for fact in facts
        if fact.valid_from != fact.valid_to
    )
    assert len(periods) == 15
    assert all(before[1] == after[0] for before, after in pairwise(periods))


# --- found again --------------------------------------------------------------------------------


def about(subject: str, predicate: str, object_: str, **changes: object) -> Claim:
    plain = a_claim(object_, subject=subject, predicate=predicate, functional=False)
    return replace(plain, **changes)  # type: ignore[arg-type]  # by name


FOUND_BY = [
    (["dogs"], ["Luna"]),
    (["DOG", "named"], ["Luna"]),
    (["犬"], ["ポチ"]),
    (["犬の名前は"], ["ポチ"]),
    (["東京"], ["東京都に住む"]),
    (["जन्म"], ["जन्म दिल्ली"]),
    (["naïve"], ["naïve café"]),
    (["mother"], []),
    (['"', "OR", "NEAR(", "q*b", "words:x", "-", ")"], []),
    ([], []),
    (["\x00"], []),
    (["x" * 5000], []),
]


async def test_facts_are_found_by_words_of_any_script(opened: Open) -> None:
    async with opened() as stores:
        await told(
            stores.facts,
            about("user", "has a dog", "Luna"),
            about("犬", "の名前", "ポチ"),
            about("user", "住所", "東京都に住む"),
            about("user", "born", "जन्म दिल्ली"),
            about("user", "mood", "naïve café"),
        )

        for words, found in FOUND_BY:
            assert brief(await stores.facts.facts_matching(HERS, words, limit=9)) == found, words


async def test_facts_with_the_rarer_words_come_first(opened: Open) -> None:
    async with opened() as stores:
        kinds = [about("user", "likes", f"tea of kind {one}") for one in range(9)]
        await told(stores.facts, about("user", "likes", "oolong"), *kinds)
        both = about("user", "drinks", "oolong tea")
        await told(stores.facts, both, first=20)

        found = brief(await stores.facts.facts_matching(HERS, ["tea", "oolong"], limit=3))

    assert found[:2] == ["oolong tea", "oolong"]
    assert len(found) == 3


async def test_of_a_room_only_what_was_said_there_is_found(opened: Open) -> None:
    hers, bobs = scope_of(ROOM, "ann"), scope_of(ROOM, "bob")
    room, bob = FactView(room=ROOM), FactView(scope=bobs)
    async with opened() as stores:
        await told(stores.facts, about("cat", "is", "private"))
        await told(stores.facts, about("cat", "is", "hers", session_key=ROOM), first=1, scope=hers)
        await told(stores.facts, about("cat", "is", "bobs", session_key=ROOM), first=2, scope=bobs)
        # Somebody with the name of the room, in a chat of their own and in the room.
        odd = scope_of(ROOM, None)
        await told(stores.facts, about("cat", "is", "odd", session_key=ROOM), first=3, scope=odd)
        await told(stores.facts, about("cat", "is", "far", session_key=ANN), first=4, scope=odd)

        for view, expected in (
            (room, ["bobs", "hers", "odd"]),
            (HERS, ["hers", "private"]),
            (bob, ["bobs"]),
            (FactView(scope="nobody"), []),
            (FactView(), []),
            (FactView(room=session_key("elsewhere")), []),
        ):
            found = [
                await stores.facts.select_facts(FactQuery(view)),
                await stores.facts.select_facts(FactQuery(view, subject="Cat", predicate="is")),
                await stores.facts.select_facts(FactQuery(view, known_at=NOON + 9 * DAY)),
                await stores.facts.select_facts(FactQuery(view, subject="cat", at=NOON)),
                await stores.facts.select_facts(FactQuery(view, with_history=True)),
                await stores.facts.facts_matching(view, ["cats"], limit=9),
                await stores.facts.facts_around(view, ["cat"], limit=9),
            ]
            assert [sorted(brief(facts)) for facts in found] == [expected] * len(found)


@pytest.mark.requirement("S-003-Memory-05")
async def test_neighbours_are_one_hop_away(opened: Open) -> None:
    async with opened() as stores:
        await told(
            stores.facts,
            about("user", "dog", "Luna"),
            about("luna", "vet", "the Dr. X"),
            about("Dr. X", "works in", "Boston"),
            about("user", "likes", "tea"),
        )
        names = ["Luna."]
        hops = []
        for _ in range(3):
            facts = await stores.facts.facts_around(HERS, names, limit=9)
            hops.append(sorted(brief(facts)))
            names = [fact.object for fact in facts]
        few = await stores.facts.facts_around(HERS, ["luna"], limit=1)
        later = about("user", "likes", "jazz", valid_from=NOON + timedelta(days=2))
        await told(stores.facts, later, first=4)
        newest = await stores.facts.facts_around(HERS, ["user"], limit=1)

    assert hops == [
        ["Luna", "the Dr. X"],
        ["Boston", "Luna", "the Dr. X"],
        ["Boston", "Luna", "the Dr. X"],
    ]
    assert len(few) == 1
    assert brief(newest) == ["jazz"]


@pytest.mark.requirement("S-003-Index-01")
async def test_a_question_has_the_bounds_that_it_names(opened: Open) -> None:
    async with opened() as stores:
        await told(stores.facts, *(about("user", "likes", f"tea {one}") for one in range(9)))

        assert brief(await seen(stores.facts, limit=2)) == ["tea 0", "tea 1"]
        assert await seen(stores.facts, limit=0) == []
        assert len(await seen(stores.facts, known_at=NOON + 4 * DAY, limit=9)) == 5
        assert len(await stores.facts.facts_matching(HERS, ["tea"], limit=3)) == 3
        assert len(await stores.facts.facts_matching(HERS, ["tea"], limit=-1)) == 0


# --- refused ------------------------------------------------------------------------------------


NO_FACTS: list[tuple[dict[str, object], str]] = [
    ({"object_": "\ud800"}, "surrogate"),
    ({"subject": "\udfff"}, "surrogate"),
    ({"source": SaidSource("m", ANN, NOON, "\ud800", "ann")}, "surrogate"),
    ({"object_": "x" * 1_000_000}, "1000000 characters, at most 4000"),
    ({"predicate": "x" * 501}, "at most 500"),
    ({"source": SaidSource("m", ANN, NOON, "x" * 100_001, "ann")}, "quote"),
    ({"object_": " \n\x00"}, "object of a fact is empty"),
    ({"subject": ""}, "subject of a fact is empty"),
]


async def test_what_no_fact_can_be_made_of_is_refused(opened: Open) -> None:
    async with opened() as stores:
        for changes, why in NO_FACTS:
            with pytest.raises(GatewayError, match=why):
                await told(stores.facts, a_claim(**changes))  # type: ignore[arg-type]  # by name

        assert await seen(stores.facts, with_history=True) == []


@pytest.mark.parametrize(
    "text", ["a\x00b", "'; DROP TABLE fact; --", '"', "the", "💩\u200d", "%_*"]
)
async def test_odd_texts_come_back_letter_for_letter(opened: Open, text: str) -> None:
    claim = a_claim(text, subject=text, predicate=text)
    async with opened() as stores:
        (made,) = await told(stores.facts, claim)
        found = await seen(stores.facts, subject=text, predicate=text)
        near = await stores.facts.facts_around(HERS, [text], limit=1)

    assert (made.subject, made.predicate, made.object) == (text, text, text)
    assert found == list(near) == [made]


async def test_a_question_with_half_a_character_is_refused(opened: Open) -> None:
    async with opened() as stores:
        with pytest.raises(GatewayError, match="surrogate"):
            await seen(stores.facts, subject="\ud800")
        with pytest.raises(GatewayError, match="surrogate"):
            await stores.facts.facts_around(HERS, ["\ud800"], limit=1)
        assert await stores.facts.facts_matching(HERS, ["\ud800"], limit=1) == []


# --- erased -------------------------------------------------------------------------------------


async def test_what_is_erased_is_gone_and_nothing_older_is_believed_again(opened: Open) -> None:
    what = Erasure(fact_id="1", by="ops")
    async with opened() as stores:
        await told(stores.facts, a_claim("NYC"), a_claim("LA", 5))
        tried = await stores.facts.erase_facts(what, dry_run=True, now=NOON)
        before = await seen(stores.facts)
        count = await stores.facts.erase_facts(what, dry_run=False, now=NOON + 9 * DAY)
        again = await stores.facts.erase_facts(what, dry_run=False, now=NOON + 9 * DAY)
        current = await seen(stores.facts)
        history = await seen(stores.facts, with_history=True)
        found = await stores.facts.facts_matching(HERS, ["la"], limit=9)
        entry = (await stores.audit.newest(kind="memory.erased", limit=2))[-1]
        *_, late = await told(stores.facts, a_claim("Rome", 3), a_claim("Oslo", 8), first=20)

        assert (tried, brief(before), count, again) == (1, ["LA"], 1, 0)
        assert (current, found, await stores.facts.origin_of("1")) == ([], [], None)
        assert (brief(history), history[0].valid_to) == (["NYC"], NOON + 5 * DAY)
        assert brief(await seen(stores.facts)) == ["Oslo"]
        assert late.valid_to is None
        assert entry.actor == "ops"
        assert tombstone_of(what, NOON + 9 * DAY) in entry.detail


@pytest.mark.parametrize(
    ("what", "left"),
    [
        (Erasure(scope=str(HERS.scope)), ["theirs"]),
        (Erasure(session_key=ROOM), ["private", "theirs"]),
    ],
)
async def test_a_person_or_a_session_is_erased(
    opened: Open, what: Erasure, left: list[str]
) -> None:
    there = SaidSource("m7", ROOM, NOON, "private, I said", "ann")
    async with opened() as stores:
        await told(stores.facts, about("user", "is", "private"))
        await told(stores.facts, about("user", "is", "private", source=there), first=1)
        await told(stores.facts, about("user", "was", "loud", session_key=ROOM), first=2)
        await told(stores.facts, about("user", "is", "theirs"), first=3, scope="other")
        tried = await stores.facts.erase_facts(what, dry_run=True, now=NOON)
        count = await stores.facts.erase_facts(what, dry_run=False, now=NOON)
        both = [
            *await seen(stores.facts, with_history=True),
            *await stores.facts.select_facts(FactQuery(FactView(scope="other"))),
        ]
        origin = await stores.facts.origin_of("0")

    assert tried == count == len(left) % 2 + 1
    assert brief(both) == left
    assert origin is None or [source.message_id for source in origin.sources] == ["m0"]


@pytest.mark.parametrize("what", [Erasure(), Erasure(fact_id="1", scope="s")])
async def test_an_erasure_names_one_thing(opened: Open, what: Erasure) -> None:
    async with opened() as stores:
        with pytest.raises(GatewayError, match="name one fact"):
            await stores.facts.erase_facts(what, dry_run=True, now=NOON)


@pytest.mark.parametrize(
    ("what", "learned"),
    [
        (Erasure(fact_id="0"), ["m1", "m9", None]),  # another message tells it anew
        (Erasure(scope=str(HERS.scope)), ["m9", None]),
        (Erasure(session_key=ANN), ["m9", None]),
    ],
)
async def test_what_was_forgotten_is_not_learned_again_from_what_was_said_before(
    opened: Open, what: Erasure, learned: list[str | None]
) -> None:
    async with opened() as stores:
        await told(stores.facts, a_claim())
        await stores.facts.erase_facts(what, dry_run=False, now=NOON + 5 * DAY)

        again: list[Fact] = []
        for number, claim in enumerate([a_claim(), a_claim(since=1), a_claim(since=9)], 1):
            again += await told(stores.facts, claim, first=number)
        again += await told(stores.facts, a_claim(source=None), first=4)
        others = await told(stores.facts, a_claim(), first=5, scope="other")
        origin = await stores.facts.origin_of(again[0].id)

    sources = [*again[-1].source_message_ids]
    assert sources == [one for one in learned if one]
    assert len(again) == len(learned)
    assert origin is not None
    assert [len(others)] == ([1] if what.scope else [0])


# On a shared store another gateway may have learned something meanwhile.
@pytest.mark.parametrize("opened", ["embedded"], indirect=True)
async def test_where_nothing_was_ever_learned_nobody_need_ask(opened: Open) -> None:
    async with opened() as stores:
        await told(stores.facts, a_claim())
        assert stores.facts.knows(HERS)

    async with opened() as stores:
        assert stores.facts.knows(HERS)
        assert not await stores.facts.facts_matching(FactView(room=ROOM), ["nyc"], limit=9)
        assert stores.facts.knows(HERS)
        assert not stores.facts.knows(FactView(room=ROOM))
