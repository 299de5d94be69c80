"""Texts hold values of paths, and nothing that could run."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.expressions import ExpressionFailed, ExpressionInvalid
from gateway.control.rules import (
    MAX_RENDERED,
    MAX_TEMPLATE,
    MAX_VALUE,
    compile_path,
    compile_template,
)


def rendered(text: str, **payload: Any) -> str:
    return compile_template(text)({"payload": payload})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{payload.n} of {payload.n}", "3 of 3"),
        ("{payload.none}{payload.none.deep}{usage.cost}", ""),
        ("{{{payload.n}}}", "{3}"),
        ("{payload.half}", "0.5"),
        ("{payload.whole}", "80"),
        ("{payload.list}", "a, 1"),
        ("{payload.yes}", "True"),
        ("{payload.large|,}", "1,234,567"),
        ("{payload.half|.1f}", "0.5"),
        ("{payload.half|.0%}", "50%"),
        ("{payload.large|,.2f}", "1,234,567.00"),
        ("{payload.large|d}", "1234567"),
    ],
)
def test_a_value_stands_where_its_path_is_written(text: str, shown: str) -> None:
    payload = {"n": 3, "half": 0.5, "whole": 80.0, "list": ["a", 1], "yes": True}

    assert rendered(text, large=1_234_567, **payload) == shown


@pytest.mark.requirement("S-002-Rules-03")
@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("a {", 2),
        ("a } b", 2),
        ("{}", 1),
        ("{ payload.n }", 1),
        ("{payload.n|}", 11),
        ("{payload.n|>9999999}", 11),
        ("{payload.n|r}", 11),
        ("{payload.n!r}", 1),
        ("{payload[0]}", 1),
        ("{payload.n + 1}", 1),
        ("{len(payload)}", 1),
        ("é {payload.__class__}", 3),
        ("{bayload.n}", 1),
        ("{{% for x in y %}", 16),
    ],
)
def test_what_is_no_path_is_refused_with_its_place(text: str, column: int) -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        compile_template(text)

    assert caught.value.column == column


@pytest.mark.parametrize("value", ["text", [1], 10**400, None])
def test_a_value_that_is_no_number_cannot_be_written_as_one(value: object) -> None:
    with pytest.raises(ExpressionFailed, match=r"payload\.n\|\.1f"):
        rendered("{payload.n|.1f}", n=value)


def test_a_long_value_is_cut() -> None:
    assert len(rendered("{payload.n}", n="x" * 1_000_000)) == MAX_VALUE
    assert len(rendered("{payload.n}", n=["x" * 10] * 1_000)) == MAX_VALUE


def test_what_stands_in_a_value_is_no_template() -> None:
    assert rendered("{payload.n}", n="{payload.secret}", secret="s") == "{payload.secret}"


def test_a_path_says_where_in_its_text_it_is_wrong() -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        compile_path("other.x", 5)

    assert caught.value.column == 5


@given(st.text(alphabet="{}|,.%dpayload x", max_size=30))
def test_any_text_is_a_template_or_is_refused_inside_of_it(text: str) -> None:
    place, shown = 0, ""
    try:
        shown = compile_template(text)({"payload": {"a": 1}})
    except ExpressionInvalid as error:
        place = error.column
    except ExpressionFailed:
        shown = text if "|" in text else "?"

    assert 0 <= place <= len(text)
    assert shown == text or "{" in text or "}" in text


def test_no_text_is_longer_than_anybody_reads_before_its_values_or_after() -> None:
    with pytest.raises(ExpressionInvalid, match=f"longer than {MAX_TEMPLATE}"):
        compile_template("x" * (MAX_TEMPLATE + 1))

    shown = rendered("{payload.a}" * 100, a="y" * MAX_VALUE)

    assert len(shown) == MAX_RENDERED
    assert shown.endswith("y...")
