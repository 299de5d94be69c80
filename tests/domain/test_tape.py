"""A tape is read back as it was written; anything else is refused."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.tape import _SHAPES, Mark, MarkKind, Tape, from_plain, to_plain

EXAMPLES = {str: "text", int: 7, float: 0.5, bool: True, dict: {"a": 1}, list: [1]}
MARKS = tuple(
    Mark(
        kind,
        tuple(EXAMPLES[one[0] if isinstance(one, tuple) else one] for one in _SHAPES[kind]),
    )
    for kind in get_args(MarkKind)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from([*_SHAPES]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
)


def test_every_kind_of_mark_comes_back() -> None:
    tape = Tape(MARKS)

    assert from_plain(json.loads(json.dumps(to_plain(tape)))) == tape


def test_one_that_is_cut_says_so() -> None:
    assert from_plain(to_plain(Tape(is_cut=True))).is_cut


@given(JSON)
def test_what_is_no_tape_is_refused(plain: object) -> None:
    with pytest.raises(ValueError, match="it"):
        from_plain(plain)


@given(st.lists(JSON, max_size=5))
def test_no_mark_holds_what_its_kind_does_not(plain: list[object]) -> None:
    try:
        tape = from_plain({"version": 1, "cut": False, "asked": ["r"], "marks": plain})
    except ValueError:
        return
    assert to_plain(tape)["marks"] == plain


@pytest.mark.parametrize(
    "mark",
    [["bytes", 1], ["stop", "cancelled"], ["what"], ["now", -1], ["now", 10**30], "check", []],
)
def test_a_mark_of_another_shape_is_refused(mark: object) -> None:
    with pytest.raises(ValueError, match="a mark that is none"):
        from_plain({"version": 1, "cut": False, "asked": ["r"], "marks": [mark]})
