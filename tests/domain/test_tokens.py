"""How a created token looks, and that a mistyped one is known without a look-up."""

import random
import re

import pytest

from gateway.domain.tokens import is_created, is_intact, is_token_name, new_secret


def test_a_token_is_42_characters_of_one_word_that_differ_each_time() -> None:
    made = {new_secret(random.Random(seed).randbytes(32)) for seed in range(100)}

    assert len(made) == 100
    assert all(re.fullmatch(r"exo_[0-9A-Za-z]{38}", one) for one in made)
    assert all(is_created(one) and is_intact(one) for one in made)


def test_a_typo_is_found_by_the_checksum() -> None:
    dice = random.Random(7)
    secret = new_secret(dice.randbytes(32))
    for _ in range(1_000):
        place, new = dice.randrange(4, 42), dice.choice("0123456789ABCxyz")
        typed = secret[:place] + new + secret[place + 1 :]
        assert is_intact(typed) == (typed == secret)
    swapped = secret[:9] + secret[10] + secret[9] + secret[11:]
    assert is_intact(swapped) == (secret[9] == secret[10])
    assert not is_intact(secret[:-1] + "é")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(("phone", True), ("9.a_b-C", True), ("a" * 64, True)),
        *(("a" * 65, False), ("", False), ("-a", False), ("a b", False), ("a\n", False)),
        *(("café", False), ("ａ", False), ("a\u202e", False), ("../x", False)),
    ],
)
def test_names_are_plain(name: str, is_one: bool) -> None:  # a table
    assert is_token_name(name) is is_one
