"""Conditions as text: what they mean, and what they refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.expressions import (
    MAX_CHARACTERS,
    MAX_NUMBER,
    ExpressionFailed,
    ExpressionInvalid,
    compile_expression,
)

DATA = {
    "turn": 3,
    "name": "Ada",
    "limits": {"max": 10, "warn": 0.7},
    "calls": [{"name": "read"}, {"name": "write"}],
    "warned": {"token"},
    "nothing": None,
    "huge": 10**400,
}


def value(text: str) -> object:
    return compile_expression(text, roots=DATA).evaluate(DATA)


def refusal(text: str) -> ExpressionInvalid:
    with pytest.raises(ExpressionInvalid) as caught:
        compile_expression(text, roots=DATA)
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("turn + 1", 4),
        ("turn * 2 - 1 >= limits.max * limits.warn / 2", True),
        ("turn // 2 + turn % 2", 2),
        ("-turn", -3),
        ("1 < turn <= 3", True),
        ("1 < turn < 3", False),
        ("limits['max']", 10),
        ("limits.absent.deeper", None),
        ("limits.absent > 3 or nothing < 3", False),
        ("calls[0].name", "read"),
        ("calls[-1].name == 'write'", True),
        ("calls[7]", None),
        ("len(calls)", 2),
        ("len(nothing)", 0),
        ("'token' in warned and 'time' not in warned", True),
        ("'x' in nothing", False),
        ("name in ['Ada', 'Bob']", True),
        ("nothing is None and name is not None", True),
        ("not nothing", True),
        ("'yes' if turn > 2 else 'no'", "yes"),
        ("any([turn > 5, turn > 2])", True),
        ("all([])", True),
        ("max([1, turn, 2]) + min([4, 5]) + sum([1, 1])", 9),
        ("lower(name)", "ada"),
        ("starts_with(name, 'A') and ends_with(name, 'a')", True),
        ("abs(-2) + round(2.6)", 5),
        ("True == False or None == nothing", True),
        ("(turn\n > 2)", True),
        ("  turn", 3),
    ],
)
def test_an_expression_means_what_it_says(text: str, expected: object) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "turn.__class__.__name__",
        "name._x",
        "name.upper()",
        "().__class__",
        "(lambda: 1)()",
        "[x for x in calls]",
        "{x for x in calls}",
        "{'a': 1}",
        "f'{turn}'",
        "turn ** 2",
        "1 << 60",
        "turn | 1",
        "~turn",
        "+turn",
        "turn := 4",
        "calls[0:1]",
        "calls[*turn]",
        "open('x')",
        "__import__('os')",
        "len",
        "len()",
        "len(calls, calls)",
        "len(x=calls)",
        "len(*calls)",
        "b'x'",
        "1j",
        "...",
        "turn is 3",
        "await turn",
        "yield",
        "turn;turn",
        "turn = 3",
        "",
        "  ",
        "#",
        "turn \\\n",
        "'\\x00'",
        "\0",
        "9" * 30,
        "turn +",
        "((((((",
        "(" * 500 + "1" + ")" * 500,
        "-" * 1500 + "1",
        "not " * 400 + "turn",
        "1" + "+1" * 900,
        "x" * (MAX_CHARACTERS + 1),
        "é.é",
        "\ud800",
    ],
)
def test_what_is_not_listed_is_refused(text: str) -> None:
    problem = refusal(text)

    assert problem.problem
    assert 0 <= problem.column <= max(len(text), 1)


def test_the_place_counts_characters() -> None:
    assert refusal("'äöü' == doen").column == 9
    assert refusal("  turn > limts.max").column == 9


def test_unknown_words_are_answered_with_the_nearest() -> None:
    assert 'did you mean "turn"?' in refusal("tunr > 1").problem
    assert 'did you mean "len"?' in refusal("lenn(calls) > 1").problem
    assert 'did you mean "True"?' in refusal("turn == true").problem


def test_open_roots_let_paths_through_and_no_bare_names() -> None:
    made = compile_expression("usage.percent > 3", roots=(), open_roots=True)

    assert made.roots == {"usage"}
    assert made.holds({"usage": {"percent": 4}})
    with pytest.raises(ExpressionInvalid):
        compile_expression("usage", roots=(), open_roots=True)
    with pytest.raises(ExpressionInvalid):
        compile_expression("_x.y", roots=(), open_roots=True)


@pytest.mark.parametrize(
    "text",
    [
        "name * 3",
        "name + name",
        "calls * 99999999",
        "turn / 0",
        "turn % 0",
        "name < 3",
        "nothing + 1",
        "huge + 1",
        f"{MAX_NUMBER} * {MAX_NUMBER}",
        "True + 1",
        "3 in turn",
        "sum(name)",
        "max(['a'])",
        "calls in warned",
    ],
)
def test_what_has_no_value_for_this_data_fails_cleanly(text: str) -> None:
    with pytest.raises(ExpressionFailed):
        value(text)


def test_a_chain_of_products_cannot_grow() -> None:
    with pytest.raises(ExpressionFailed):
        value("*".join(["999999999999"] * 30))


TOKENS = st.sampled_from(
    ["turn", "limits", ".", "max", "[", "]", "(", ")", "'a'", "1", "2.5", "+", "-", "*", "/", "**"]
    + ["<", ">=", "==", "and", "or", "not", "in", "is", "None", "len", ",", ":", "if", "else"]
    + ["lambda", "for", "__class__", "\\", "\n", "\t", "#", "{", "}", "é", "@", ":=", "~", "_"]
)


@given(st.one_of(st.lists(TOKENS, max_size=25).map(" ".join), st.text(max_size=60)))
def test_any_text_is_refused_or_has_a_value_or_fails_cleanly(text: str) -> None:
    try:
        made = compile_expression(text, roots=DATA)
    except ExpressionInvalid:
        return
    try:
        made.evaluate(DATA)
    except ExpressionFailed:
        return
