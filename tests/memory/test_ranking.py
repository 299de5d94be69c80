"""What is beside the point comes last, and the quick way finds what the plain formula says."""

from collections.abc import Sequence
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.facts import FoundTurns, Hits, Trail
from gateway.memory.recall import ranked

WORDS = ("ba", "ko", "mi", "tu")
BESIDE = {0: 1.0, 1: 1.0, 2: 0.75, 3: 0.5, 4: 0.25}

texts = st.lists(st.lists(st.sampled_from([*WORDS, "x", "y"]), max_size=5), min_size=1, max_size=40)


def found(said: Sequence[Sequence[str]], words: Sequence[str] = WORDS) -> FoundTurns:
    places = {word: frozenset(n for n, text in enumerate(said) if word in text) for word in words}
    hits = {word: Hits(depths, len(depths)) for word, depths in places.items() if depths}
    return FoundTurns(Trail.of([(1, len(said))]), hits)


def bm25(counts: dict[str, list[float]], documents: int) -> list[float]:
    """Of each document, without regard to its length."""
    scores = [0.0] * documents
    for held in counts.values():
        holding = sum(count > 0 for count in held)
        rarity = log(1 + (documents - holding + 0.5) / (holding + 0.5))
        for number, count in enumerate(held):
            scores[number] += rarity * count * 2.2 / (count + 1.2)
    return scores


def plainly(said: Sequence[Sequence[str]], words: Sequence[str]) -> list[float]:
    """Every document is looked at, every sum is written out."""
    size, blocks = len(said), len(said) // 32 + 1
    own = {word: [float(word in text) for text in said] for word in words if any(word in t for t in said)}  # fmt: skip
    near = {
        word: [sum(BESIDE.get(abs(a - b), 0.0) * held[b] for b in range(size)) for a in range(size)]
        for word, held in own.items()
    }
    inside = {word: [sum(held[b * 32 : b * 32 + 32]) for b in range(blocks)] for word, held in own.items()}  # fmt: skip
    parts = [(1.0, bm25(near, size)), (0.5, bm25(own, size)), (0.3, bm25(inside, blocks))]
    most = [max(scores) or 1.0 for _, scores in parts]
    return [
        sum(
            weight * scores[number // 32 if part == 2 else number] / most[part]
            for part, (weight, scores) in enumerate(parts)
        )
        for number in range(size)
    ]


@given(texts)
def test_the_scores_are_those_of_plain_bm25_over_every_document(said: list[list[str]]) -> None:
    # Forms of one word that are always said together count once; these differ in their letters.
    expected = plainly(said, WORDS)

    best = ranked(found(said), {}, limit=100)

    assert dict(best) == pytest.approx({n: expected[n] for n, _ in best})
    beside = [score for number, score in enumerate(expected) if number not in dict(best)]
    assert all(score <= 0.3 + 1e-9 for score in beside)  # of their block alone
    assert [score for _, score in best] == sorted((score for _, score in best), reverse=True)


def test_a_turn_beside_the_words_comes_before_one_far_away() -> None:
    said = [["x"]] * 20 + [["ba", "ko"], ["y"]] + [["x"]] * 20

    best = [depth for depth, _ in ranked(found(said), {}, limit=5)]

    assert best[0] == 20
    assert set(best) == {18, 19, 20, 21, 22}


def test_what_a_fact_came_of_is_found_without_its_words() -> None:
    said = [["ba"], *[["x"]] * 60, ["y"]]

    best = ranked(found(said), {61: 2.0}, limit=2)

    assert [depth for depth, _ in best] == [61, 0]


def test_what_is_shown_anyhow_is_left_out() -> None:
    said = [["ba"], ["ba", "ko"], ["ba"]]

    best = ranked(found(said), {}, limit=9, without=frozenset({1, 2}))

    assert [depth for depth, _ in best] == [0]


def test_other_forms_of_a_word_count_once() -> None:
    hits = Hits(frozenset({3}), 1)
    once = FoundTurns(Trail.of([(1, 9)]), {"house": hits, "tree": Hits(frozenset({5}), 1)})
    twice = FoundTurns(once.trail, {**once.words, "houses": hits})

    assert ranked(twice, {}, limit=9) == ranked(once, {}, limit=9)


def test_of_two_alike_the_newer_comes_first() -> None:
    said = [["ba"], *[["x"]] * 127, ["ba"], *[["x"]] * 31]

    best = [depth for depth, _ in ranked(found(said), {}, limit=2)]

    assert best[0] == 128


def test_nothing_found_ranks_nothing() -> None:
    assert ranked(FoundTurns(), {}, limit=9) == []
