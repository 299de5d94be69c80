"""A table is the tabular form of TOON: what is written can be read back, cell by cell."""

import json
import re
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.notices import Cell, render_table

TRICKY = st.sampled_from(list('ab,:"\\[]{}-#0 1.e+\n\t\x01|'))
TEXTS = st.text(st.one_of(TRICKY, st.characters(exclude_categories=["Cs"])), max_size=8)
WORDS = st.sampled_from(["true", "false", "null", "-1", "+1e5", "05", "1.5", "#x", "- a"])
CELLS = st.one_of(TEXTS, WORDS, st.integers(), st.booleans(), st.none(), st.floats())
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^,"]*')
WORD_VALUES: dict[str, Cell] = {"true": True, "false": False, "null": None}


def tokens(line: str) -> list[str]:
    """Splits at commas outside quotes."""
    found, at = [], 0
    while True:
        match = TOKEN.match(line, at)
        assert match is not None
        found.append(match.group())
        at = match.end() + 1
        if match.end() == len(line):
            return found
        assert line[match.end()] == ","


def value(token: str) -> Cell:
    """As the format's decoder reads it."""
    if token.startswith('"'):
        return str(json.loads(token))
    if token in WORD_VALUES:
        return WORD_VALUES[token]
    if re.fullmatch(r"-?(?:0|[1-9][0-9]*)", token):
        return int(token)
    if re.fullmatch(r"-?(?:0|[1-9][0-9]*)\.[0-9]+", token):
        return float(token)
    return token


@given(
    st.lists(TEXTS, min_size=1, max_size=4).flatmap(
        lambda columns: st.tuples(
            st.just(columns),
            st.lists(st.tuples(*(CELLS for _ in columns)), min_size=1, max_size=4),
        )
    )
)
def test_what_is_written_can_be_read_back(
    given_table: tuple[list[str], list[tuple[Cell, ...]]],
) -> None:
    columns, rows = given_table

    head, *lines = render_table("t", columns, rows).split("\n")

    fields = head.removeprefix(f"t[{len(rows)}]{{").removesuffix("}:")
    expected = [
        tuple(None if isinstance(cell, float) and not isfinite(cell) else cell for cell in row)
        for row in rows
    ]
    assert [json.loads(one) if one[:1] == '"' else one for one in tokens(fields)] == columns
    assert [tuple(map(value, tokens(line.removeprefix("  ")))) for line in lines] == expected


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("", '""'),
        ("two words", "two words"),
        (" edge", '" edge"'),
        ("a,b", '"a,b"'),
        ("a: b", '"a: b"'),
        ("a|b", "a|b"),
        ('say "no"', r'"say \"no\""'),
        ("C:\\x", r'"C:\\x"'),
        ("[x]", '"[x]"'),
        ("line\nline", r'"line\nline"'),
        ("\x01", r'"\u0001"'),
        ("-x", '"-x"'),
        ("x-y", "x-y"),
        ("#1", '"#1"'),
        ("42", '"42"'),
        ("+1", '"+1"'),
        ("007", '"007"'),
        ("1e6", '"1e6"'),
        ("1.2.3", "1.2.3"),
        ("true", '"true"'),
        ("True", "True"),
        ("null", '"null"'),
        (True, "true"),
        (None, "null"),
        (7, "7"),
        (10**400, "1" + "0" * 400),
        (7.0, "7"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (0.00001, "0.00001"),
        (float("nan"), "null"),
        (float("-inf"), "null"),
    ],
)
def test_values_are_quoted_only_where_they_have_to_be(cell: Cell, written: str) -> None:
    assert render_table("t", ["a"], [(cell,)]) == f"t[1]{{a}}:\n  {written}"


@pytest.mark.parametrize(
    ("key", "written"),
    [("a.b_1", "a.b_1"), ("my-key", '"my-key"'), ("1a", '"1a"'), ("é", '"é"'), ("", '""')],
)
def test_names_are_quoted_unless_they_are_words(key: str, written: str) -> None:
    assert render_table(key, [key], [("x",)]) == f"{written}[1]{{{written}}}:\n  x"
