"""A list that somebody wrote changes by one element, and looks as before."""

import pytest

from gateway.config.editing import _Edit


def one_more(text: str) -> str:
    return _Edit.of(f"x = {text}").with_element(("x",), 9)[4:]


def one_less(text: str, index: int) -> str:
    return _Edit.of(f"x = {text}").without_elements(("x",), [index])[4:]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[]", "[9]"),
        ("[1, 2]", "[1, 2, 9]"),
        ("[ 1, 2 ]", "[ 1, 2, 9 ]"),
        ("[\n  1, # a\n  2 # b\n]", "[\n  1, # a\n  2, # b\n  9,\n]"),
        ("[\n\t1,\n\t# end\n]", "[\n\t1,\n\t# end\n\t9,\n]"),
        ("[\n]", "[\n    9,\n]"),
        ("[1 # a, b\n, 2]", "[1 # a, b\n, 2,\n    9,\n]"),
        ("[\n  1 # a\n  , ]", "[\n  1 # a\n  ,\n  9,\n]"),
    ],
)
def test_an_element_more_stands_as_the_others_do(before: str, after: str) -> None:
    assert one_more(before) == after


@pytest.mark.parametrize(
    ("before", "index", "after"),
    [
        ("[1]", 0, "[]"),
        ("[ 1, 2 ]", 0, "[ 2 ]"),
        ("[ 1, 2 ]", 1, "[ 1 ]"),
        ("[\n  1, # a\n  2 # b\n]", 0, "[\n  2 # b\n]"),
        ("[\n  1, # a\n  2 # b\n]", 1, "[\n  1, # a\n]"),
        ("[\n  # lead\n  1, 2, # c\n]", 1, "[\n  # lead\n  1, # c\n]"),
        ("[1 # a\n, 2]", 0, "[# a\n 2]"),
    ],
)
def test_an_element_less_takes_its_comma_and_its_own_line(
    before: str, index: int, after: str
) -> None:
    assert one_less(before, index) == after
