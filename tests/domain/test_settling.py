"""What tells two things apart, and which of several statements is believed."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.facts import (
    Claim,
    SaidSource,
    StoredClaim,
    form,
    in_order,
    predicate_form,
    settle_claims,
)
from tests.fakes.store import session_key

NOON, KEY = datetime(2026, 11, 18, 12, tzinfo=UTC), session_key()
PLACES = ["Aachen", "Lyon", "Paris", "Zagreb"]


@pytest.mark.requirement("S-003-Memory-07")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("NYC", " nyc.  "),
        ("the Big  Apple", "Big\tapple!"),
        ("A dog", "dog"),
        ("Café", "CAFE\u0301"),
        ("\uff21\uff22", "ab"),
        ("東京。", "東京"),
    ],
)
def test_spellings_of_one_thing_have_one_form(one: str, other: str) -> None:
    assert form(one) == form(other)


@pytest.mark.parametrize(
    ("one", "other"), [("L.A.", "LA"), ("7", "17"), ("C", "C++"), ("The", "A"), ("?", "!")]
)
def test_other_things_have_other_forms(one: str, other: str) -> None:
    assert form(one) != form(other)


def test_a_predicate_may_be_written_as_a_name() -> None:
    assert predicate_form("Lives_In") == predicate_form("lives in")


@given(st.text())
def test_only_blanks_have_no_form(text: str) -> None:
    assert bool(form(text)) == bool(form(form(text)))


def stated(*places: str) -> list[Claim]:
    """In one message, one after the other; what begins with `-` is over."""
    source = SaidSource("m", KEY, NOON, "q", "ann")
    return in_order(
        [
            Claim(
                "user",
                "location",
                place.removeprefix("-"),
                functional=True,
                valid_from=NOON,
                session_key=KEY,
                valid_to=NOON if place.startswith("-") else None,
                source=source,
            )
            for place in places
        ]
    )


def believed(stored: list[StoredClaim]) -> list[tuple[str, datetime, datetime | None]]:
    facts = [
        one.fact for one in settle_claims("s", stored, before={}, now=NOON + timedelta(days=1))
    ]
    return sorted((one.object, one.valid_from, one.valid_to) for one in facts)


@given(st.lists(st.sampled_from(PLACES), min_size=1, max_size=6), st.randoms())
def test_the_last_statement_of_a_message_is_believed_however_often_and_in_whatever_order_it_is_learned(
    places: list[str], random: Random
) -> None:
    claims = stated(*places)
    first = [StoredClaim(f"f{n}", claim, NOON) for n, claim in enumerate(claims)]
    again = [StoredClaim(f"g{n}", claim, NOON + timedelta(1)) for n, claim in enumerate(claims)]
    shuffled = random.sample(first, len(first))

    facts = believed(first)

    assert [place for place, _, until in facts if until is None] == [places[-1]]
    assert {place for place, _, _ in facts} == set(places)
    assert believed([*first, *again]) == believed(shuffled) == facts


@given(st.permutations(["-Paris", "Lyon", "-Rome"]))
def test_what_is_said_to_be_over_ends_nothing_else_wherever_it_is_said(places: list[str]) -> None:
    ends = {
        place: until is None
        for place, _, until in believed(
            [StoredClaim(f"f{n}", claim, NOON) for n, claim in enumerate(stated(*places))]
        )
    }

    assert ends == {"Paris": False, "Lyon": True, "Rome": False}


def test_a_statement_alone_keeps_the_time_of_its_message() -> None:
    (one,) = stated("Paris")
    moved = stated("-Paris", "Lyon")

    assert (one.valid_from, one.source and one.source.at) == (NOON, NOON)
    assert [claim.valid_from for claim in moved] == [NOON, NOON]
