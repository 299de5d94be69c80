"""Facts without a model: what is found in what people say, and what is not."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.facts import Claim, SaidMessage
from gateway.domain.ids import NodeId, RunId
from gateway.memory.statements import MOST_CLAIMS, claims_in
from tests.fakes.store import session_key

NOW = datetime(2026, 11, 18, 15, 30, tzinfo=UTC)
KEY = session_key()


def said(text: str, sender: str | None = None) -> SaidMessage:
    return SaidMessage(NodeId("m1"), RunId("r1"), sender, text, NOW)


def found(text: str) -> list[str]:
    """Each claim in one line; `-` before what has ended."""
    return [
        f"{'-' if claim.valid_to else ''}{claim.subject} {claim.predicate}: {claim.object}"
        for claim in claims_in(said(text), KEY)
    ]


FACTS = {
    "My name is Anna.": ["user name: Anna"],
    "my name is anna maria": ["user name: anna"],
    "Call me Al": ["user name: Al"],
    "Hi, I'm Anna!": ["user name: Anna"],
    "Hello! I'm Anna and I live in Bonn": ["user name: Anna", "user location: Bonn"],
    "I live in Berlin, can you tell me the weather?": ["user location: Berlin"],
    "I've been living in Tokyo since 2019 with my wife": ["user location: Tokyo"],
    "I moved from NYC to LA last week": ["-user location: NYC", "user location: LA"],
    "I no longer live in Paris": ["-user location: Paris"],
    "I don't live in Rome anymore, I live in Milan": [
        "-user location: Rome",
        "user location: Milan",
    ],
    "I live in Berlin and work at Google": ["user location: Berlin", "user employer: Google"],
    "I work for a bank as a teller": ["user employer: a bank"],
    "I lived in Rome in 2019": ["-user location: Rome"],
    "I left Microsoft in 2020": ["-user employer: Microsoft"],
    "I'm a software engineer at Siemens": ["user occupation: software engineer"],
    "I am 34 years old": ["user age: 34"],
    "I was born on 3 May 1990 in Paris": ["user birthday: 3 May 1990", "user birthplace: Paris"],
    "I was born in 1990": ["user birth_date: 1990"],
    "My birthday is on May 3rd": ["user birthday: May 3rd"],
    "My favorite colour is deep blue": ["user favourite_color: deep blue"],
    "Pizza is my favourite food": ["user favourite_food: Pizza"],
    "I love hiking": ["user likes: hiking"],
    "I don't like olives": ["user dislikes: olives"],
    "I don't like jazz anymore": ["-user likes: jazz"],
    "I have a dog named Luna": ["user dog_name: Luna"],
    'My dog is called "Luna"': ["user dog_name: Luna"],
    "My dog's name is Luna.": ["user dog_name: Luna"],
    "My dog Luna is sick today": ["user dog_name: Luna"],
    "Can you remember that my dog's name is Luna?": ["user dog_name: Luna"],
    "Luna's vet is Dr. Weber": ["Luna vet: Dr. Weber"],
    "Dr. Weber is Luna's vet.": ["Luna vet: Dr. Weber"],
    "I'm allergic to peanuts and shellfish": [
        "user allergic_to: peanuts",
        "user allergic_to: shellfish",
    ],
    "I just started learning Spanish last month": ["user started: learning Spanish"],
    "I sold my car": ["-user has: car"],
    "my locker code is 4711": ["user locker_code: 4711"],
    "My name is Anna, actually it's Anne": ["user name: Anne"],
    "My dog is called Luna. No, her name is Nala.": ["user dog_name: Nala"],
    "I live in Rome. No, her name is Nala.": ["user location: Rome"],
    "My name is J. R. R. Tolkien.": ["user name: J. R. R. Tolkien"],
    "I live in building B. My dog is called Luna.": [
        "user location: building B",
        "user dog_name: Luna",
    ],
    "I have two dogs, Luna and Max": ["user dog_name: Luna", "user dog_name: Max"],
    "My dogs are called Luna and Max": ["user dog_name: Luna", "user dog_name: Max"],
    "My other dog is called Max": ["user dog_name: Max"],
    "I moved to LA on 3/4/2024": ["user location: LA"],
    "My deadline is 2027-03-01": ["user deadline: 2027-03-01"],
    "I'm no longer vegan": ["-user diet: vegan"],
    "Ich wohne nicht mehr in Köln": ["-user location: Köln"],
    "我不住在北京了": ["-user location: 北京"],
    "Ich heiße Jürgen": ["user name: Jürgen"],
    "我叫小明，我住在北京": ["user name: 小明", "user location: 北京"],
}


@pytest.mark.parametrize(("text", "facts"), FACTS.items())
def test_what_people_state_of_themselves_is_found(text: str, facts: list[str]) -> None:
    assert found(text) == facts


@pytest.mark.parametrize(
    "text",
    [
        "What's my name?",
        "Do I live in Rome?",
        "I live in Rome, right?",
        "If I lived in Rome, I would live in a palace",
        "Imagine my name is Zed",
        "I wish my name was Zed",
        "I think I live in Rome",
        'My friend said "I live in Rome"',
        "My friend says I live in Rome",
        "> I live in Rome",
        "John: I live in Rome",
        "```\nmy name is Bob\n```",
        "`my name is Bob`",
        "Translate this: My name is Bob",
        "Translate the following text:\nMy name is Bob",
        "The city I live in is nice",
        "I am not called Bob",
        "Call me later",
        "I work from home",
        "I left my keys at home",
        "I love you",
        "I live in Rome from 2099-01-01",
        "I moved to Rome on 2099-05-05",
        "I live in Rome next year",
        "Next month I live in Rome",
        "Tomorrow I live in Rome",
        "My question is What is love",
        "My code is broken",
        "我住在北京吗？",
        "",
        "\x00",
    ],
)
def test_what_nobody_states_is_not_found(text: str) -> None:
    assert found(text) == []


def test_a_fact_holds_since_the_date_that_is_said_or_since_it_was_said() -> None:
    (dated,) = claims_in(said("I live in Rome since March 2023"), KEY)
    (undated,) = claims_in(said("I live in Rome"), KEY)

    assert dated.valid_from == datetime(2023, 3, 1, tzinfo=UTC)
    assert undated.valid_from == NOW


def test_who_moved_lived_at_the_old_place_only_until_then() -> None:
    before, after = claims_in(said("I moved from NYC to LA last week"), KEY)

    assert before.valid_to is not None
    assert before.valid_to < after.valid_from == datetime(2026, 11, 9, tzinfo=UTC)
    assert (before.functional, after.functional) == (True, True)


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("I lived in Paris from 2010 to 2015.", "2010-01-01", "2015-01-01"),
        ("I lived in Paris until 2019.", "2019-01-01", "2019-01-01"),
        ("Our dog Luna died last week.", "2026-11-18", None),
    ],
)
def test_a_span_is_told_as_one_and_an_accident_dates_no_name(
    text: str, since: str, until: str | None
) -> None:
    (claim,) = claims_in(said(text), KEY)

    assert claim.valid_from.date().isoformat() == since
    assert (claim.valid_to and claim.valid_to.date().isoformat()) == until


def test_a_source_names_who_said_it_where_and_in_which_words() -> None:
    (claim,) = claims_in(said("Well.  I live in Rome, you know. Bye!", "ann"), KEY)

    assert claim.source is not None
    assert (claim.source.message_id, claim.source.session_key) == ("m1", KEY)
    assert (claim.source.said_by, claim.source.at) == ("ann", NOW)
    assert claim.source.quote == "I live in Rome, you know"


def test_a_correction_is_of_what_was_claimed_before() -> None:
    (claim,) = claims_in(said("I live in Rome"), KEY)

    (corrected,) = claims_in(said("No, actually it's Milan"), KEY, last=claim)
    unrelated = claims_in(said("Actually it's raining"), KEY, last=claim)
    unfounded = claims_in(said("Actually it's Milan"), KEY)

    assert (corrected.predicate, corrected.object) == ("location", "Milan")
    assert (unrelated, unfounded) == ((), ())


HOSTILE = [
    "I live in " * 20_000,
    '"' * 100_000,
    "a, I " * 20_000,
    "I have a a a a a a a named\n" * 5_000,
    "1." * 50_000,
    "- " * 50_000,
    "My A's b is Cccc dddd. " * 5_000,
    "`" * 100_000,
    " " * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_costs_little_whatever_its_length(text: str) -> None:
    began = time.process_time()

    claims = claims_in(said(text), KEY)

    assert time.process_time() - began < 0.25  # a few milliseconds; slow machines are slow
    assert len(claims) <= MOST_CLAIMS


PIECES = st.sampled_from(
    [
        "I",
        "my",
        "dog",
        "is",
        "named",
        "live in",
        "moved from",
        "to",
        "Luna",
        "'s",
        "vet",
        ",",
        ".",
        "?",
        "and",
        "actually it's",
        "in 2019",
        "\n",
        '"',
        "`",
        "```",
        "> ",
        ":",
        "born",
        "on 3 May",
        "allergic to",
        "favourite",
        "x",
        "․",
        "我叫",
        "\x00",
        "call me",
        "don't like",
        "anymore",
    ]
)


@settings(deadline=None)
@given(st.lists(PIECES | st.text(max_size=5), max_size=40).map(" ".join))
def test_no_text_breaks_it_and_every_quote_is_from_the_message(text: str) -> None:
    last: Claim | None = None
    for claim in (*claims_in(said(text), KEY), *claims_in(said(text), KEY, last=last)):
        assert claim.source is not None
        assert claim.source.quote in text
        assert claim.object.strip()
        assert claim.valid_from <= NOW
        last = claim
