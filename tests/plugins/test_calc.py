"""The calculator agrees with Python's fractions, whatever the expression."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forms import examples
from tests.plugins.running import Guest

TOOL = Path(__file__).parent.parent.parent / "plugins" / "calc" / "tool.wasm"
Built = tuple[str, Fraction | None]  # an expression and its value; None: it divides by zero


@pytest.fixture(scope="module")
def calc() -> Guest:
    return Guest.load(TOOL)


def worked_out(calc: Guest, expression: str) -> tuple[bool, str]:
    return calc.run({"call": {"tool": "calc", "arguments": {"expression": expression}}})


def literal(number: int, places: int) -> Built:
    digits = f"{number:0{places + 1}d}"
    text = f"{digits[:-places]}.{digits[-places:]}" if places else digits
    return text, Fraction(number, 10**places)


def joined(left: Built, operator: str, right: Built) -> Built:
    text = f"({left[0]}) {operator} ({right[0]})"
    if left[1] is None or right[1] is None or (operator in "/%" and right[1] == 0):
        return text, None
    a, b = left[1], right[1]
    values = {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b}
    values |= {"/": lambda: a / b, "%": lambda: a % b}
    return text, values[operator]()


def negated(inner: Built) -> Built:
    return f"-({inner[0]})", None if inner[1] is None else -inner[1]


EXPRESSIONS: st.SearchStrategy[Built] = st.recursive(
    st.builds(literal, st.integers(0, 10**12), st.integers(0, 4)),
    lambda inner: st.builds(joined, inner, st.sampled_from("+-*/%"), inner) | inner.map(negated),
    max_leaves=8,
)


@given(built=EXPRESSIONS)
@settings(max_examples=examples(200), deadline=None)
def test_sums_products_quotients_and_remainders_are_those_of_fractions(
    calc: Guest, built: Built
) -> None:
    text, value = built

    did, said = worked_out(calc, text)

    if value is None:
        assert not did
        assert "division by zero" in said
        return
    result = json.loads(said)
    if result["exact"]:
        assert Fraction(result["result"]) == value
    else:
        assert abs(Fraction(result["result"]) - value) <= abs(value) * Fraction(1, 10**14)
        assert "fraction" not in result or Fraction(result["fraction"]) == value


@given(text=st.text(alphabet="0123456789.+-*/%^(), episqrtmaxround−π·e\t", max_size=40))
@settings(max_examples=examples(300), deadline=None)
def test_no_text_breaks_it(calc: Guest, text: str) -> None:
    did, said = worked_out(calc, text)

    assert said if did else said.startswith(("At position ", "The expression is empty"))


def test_the_longest_expressions_fit_into_memory(calc: Guest) -> None:
    sums = "+".join(f"1/{number}" for number in range(1, 260))
    squares = "3.7" + "^2" * 9 + "*1.1^90" * 200

    assert worked_out(calc, sums)[0]
    assert worked_out(calc, squares)[1]
