"""One name for one thing, and which things there is one of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.wording import LONGEST, is_functional, predicate_of


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Lives in", "location"),
        ("favorite colour", "favourite_color"),
        ("dog's name", "dog_s_name"),
        ("e-mail", "email"),
        ("date of birth", "birth_date"),
        ("!?", ""),
    ],
)
def test_one_thing_has_one_name(words: str, name: str) -> None:
    assert predicate_of(words) == name


@given(st.text(max_size=200))
def test_a_name_is_bounded_and_names_itself(words: str) -> None:
    name = predicate_of(words)

    assert len(name) <= LONGEST
    assert predicate_of(name) == name


def test_of_some_things_there_is_one_at_a_time_whatever_a_model_says() -> None:
    assert all(map(is_functional, ("location", "dog_name", "favourite_food", "vet")))
    assert not any(is_functional(one, otherwise=True) for one in ("likes", "has", "allergic_to"))
    assert is_functional("star_sign", otherwise=True)
    assert not is_functional("star_sign")
