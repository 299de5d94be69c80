"""Texts are cut where a reader would, fit their platform, and lose nothing."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channels.delivery import Piece, Splitting, Unit, width_of

UNITS: tuple[Unit, ...] = ("utf16", "characters", "bytes")
SCRAPS = (
    "word ", "A sentence. ", "\n", "\n\n", "```py\n", "```\n", "~~~\n", "&amp;", "[a link](http://x/y)",
    "`some code`", "é", "e\u0301", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "漢字。", "\r\n", "a" * 70, "- item\n", "    ",
)  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(SCRAPS), st.text(max_size=9)), max_size=60).map("".join)


def pieces(text: str, limit: int, unit: Unit = "characters") -> list[Piece]:
    splitting, start, cut = Splitting(text, unit), 0, []
    while start < len(text):
        cut.append(splitting.cut(start, limit))
        assert cut[-1].start == start < cut[-1].end
        start = cut[-1].end
    return cut


def said(text: str, limit: int, unit: Unit = "characters") -> list[str]:
    return [piece.text for piece in pieces(text, limit, unit)]


@given(texts, st.integers(4, 300), st.sampled_from(UNITS))
def test_the_slices_join_to_the_text_and_each_piece_fits(text: str, limit: int, unit: Unit) -> None:
    cut = pieces(text, limit, unit)

    assert "".join(text[piece.start : piece.end] for piece in cut) == text
    assert all(width_of(piece.text, unit) <= limit for piece in cut)


@given(texts, st.integers(150, 300))
def test_every_piece_closes_the_fences_that_it_opens(text: str, limit: int) -> None:
    *cut, _last = pieces(text, limit) or [Piece(0, 0, "")]

    for piece in cut:
        assert not any(fence.end == fence.close for fence in Splitting(piece.text)._fences)


@given(texts, st.integers(80, 300))
def test_nothing_but_fences_and_blank_ends_is_added_or_lost(text: str, limit: int) -> None:
    for piece in pieces(text, limit):
        slice_ = text[piece.start : piece.end].strip()

        assert slice_ in piece.text.strip() or slice_.endswith(piece.text.strip())


@given(st.lists(st.sampled_from([s for s in SCRAPS if len(s) > 1]), max_size=60).map("".join))
def test_what_is_seen_as_one_character_stays_whole(text: str) -> None:
    for piece in pieces(text, 60)[1:]:
        assert text[piece.start] not in "\u200d\ufe0f\u0301\U0001f3fd"
        assert text[piece.start - 1] != "\u200d"
        assert text[piece.start - 1 : piece.start + 1] != "🇩🇪"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three\n\nfour five six seven", ["one two three", "four five six seven"]),
        ("one two three\nfour five six seven", ["one two three", "four five six seven"]),
        ("One two three. Four five six", ["One two three.", "Four five six"]),
        ("one two three four five six", ["one two three four", "five six"]),
        ("x" * 25, ["x" * 20, "x" * 5]),
        ("x http://a.example/b/c/d", ["x", "http://a.example/b/c", "/d"]),
        ("0123456789 [a b](u:v/w)", ["0123456789", "[a b](u:v/w)"]),
        ("0123456789 `a b c d e`", ["0123456789", "`a b c d e`"]),
        ("0123456789abcdefg&amp;", ["0123456789abcdefg", "&amp;"]),
    ],
)
def test_it_is_cut_at_the_best_place_that_leaves_no_half_empty_piece(
    text: str, expected: list[str]
) -> None:
    assert said(text, 20) == expected


def test_a_fence_that_is_cut_is_closed_and_opened_again_with_its_language() -> None:
    text = "Look:\n```python title\n" + "print(1)\n" * 12 + "```\nDone."

    first, second = said(text, 100)

    assert first.startswith("Look:\n```python title\nprint(1)\n")
    assert first.endswith("print(1)\n```")
    assert second.startswith("```python\nprint(1)\n")
    assert second.endswith("print(1)\n```\nDone.")


@pytest.mark.parametrize(("unit", "count"), [("characters", 1), ("utf16", 2), ("bytes", 4)])
def test_the_limit_counts_in_the_platforms_unit(unit: Unit, count: int) -> None:
    assert len(said("😀" * 100, 100, unit)) == count


@pytest.mark.parametrize(
    "scrap", ["a", "`", "[", "```\n", "a\u0301", "🇩", "[](", "&a", " \n", "`a"]
)
def test_a_text_of_a_megabyte_is_cut_in_linear_time(scrap: str) -> None:
    text = scrap * (1_000_000 // len(scrap))
    began = time.process_time()

    cut = pieces(text, 4_000)

    assert cut[-1].end == len(text)
    assert time.process_time() - began < 5
