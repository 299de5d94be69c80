"""What tells two things apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.settling import form, predicate_form


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
