"""Words by which texts are found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.facts import LONGEST, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Where's my DOG_house, no. 7?", "where s my dog house no 7"),
        ("Ångström ﬁne ①", "ångström fine 1"),
        ("Straße", "strasse"),
        ("हिन्दी", "हिन्दी"),
        ("犬", "犬"),
        ("犬の名前", "犬の の名 名前 犬 名 前"),
        ("xポチy", "x ポチ y"),
        ("서울에서", "서울 울에 에서"),
        ("💩 \x00 \ud800 -", ""),
        ("", ""),
    ],
)
def test_a_text_is_taken_apart_in_any_script(text: str, words: str) -> None:
    assert words_of(text) == tuple(words.split())


@given(st.text())
def test_words_are_clean_and_found_again_in_themselves(text: str) -> None:
    for word in words_of(text):
        assert 0 < len(word) <= LONGEST
        assert set(words_of(word)) <= set(words_of(text))
        assert not set(word) & set(" \"'*:^()+-{}\0")


def test_a_text_does_not_grow_without_bound() -> None:
    """One sign that stands for eighteen characters."""
    assert words_of("\ufdfa") == ("صلى", "الله", "عليه", "وسلم")
    assert sum(map(len, words_of("\ufdfa" * 10_000))) < 41_000
