"""Every dialect of the corpora is read, and however its text is cut, the same comes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.markup import DIALECTS
from tests.providers.marked import Case, cases, recovered

CASES = cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
@pytest.mark.requirement(
    "S-002-XML-01",
    "S-002-XML-02",
    "S-002-XML-03",
    "S-002-XML-04",
    "S-002-XML-06",
    "S-002-XML-07",
    "S-002-XML-08",
    "S-002-XML-09",
)
def test_of_a_text_the_calls_are_found_and_the_rest_is_shown(case: Case) -> None:
    shown, calls = recovered([case.said])

    assert shown == case.shown
    whole = [(call.name, json.loads(call.arguments)) for call in calls if call.is_whole]
    assert whole == case.calls
    assert [call.name for call in calls if not call.is_whole] == case.broken


@every_case
def test_a_text_that_is_cut_in_two_anywhere_is_the_same_text(case: Case) -> None:
    said, whole = case.said, recovered([case.said])

    for place in range(len(said) + 1):
        assert recovered([said[:place], said[place:]]) == whole
    assert recovered(list(said)) == whole


@given(st.lists(st.sampled_from(CASES), max_size=3), st.lists(st.integers(0, 3000), max_size=30))
def test_a_text_that_is_cut_anyhow_is_the_same_text(chosen: list[Case], places: list[int]) -> None:
    said = "\n".join([case.said for case in chosen])
    edges = [0, *sorted({place % (len(said) + 1) for place in places}), len(said)]

    pieces = [said[a:b] for a, b in zip(edges, edges[1:], strict=False)]

    assert recovered(pieces) == recovered([said])


FRAGMENTS = sorted(
    {
        said[start : start + 12]
        for said in (case.said for case in CASES)
        for start in range(0, 400, 6)
    }
)


@given(st.lists(st.sampled_from([*FRAGMENTS, "\n", "`", "```", "> ", "~~~", '"', "{", "}"])))
def test_a_text_made_of_ruins_is_the_same_text_character_by_character(ruins: list[str]) -> None:
    said = "".join(ruins)

    assert recovered(list(said)) == recovered([said])


# Where a line ends, and so a call on a line of its own, is also where the text does.
CLOSED = [case for case in CASES if not case.name.startswith("inline")]


@pytest.mark.parametrize("case", CLOSED, ids=lambda case: case.name)
def test_what_is_cut_off_anywhere_calls_nothing_that_the_whole_does_not(case: Case) -> None:
    whole = [call for call in recovered([case.said])[1] if call.is_whole]

    for end in range(len(case.said)):
        calls = [call for call in recovered([case.said[:end]])[1] if call.is_whole]
        assert calls == whole[: len(calls)]


@pytest.mark.parametrize("case", [case for case in CASES if case.broken], ids=lambda c: c.name)
def test_what_is_not_closed_has_arguments_that_nothing_can_run_on(case: Case) -> None:
    for call in recovered([case.said])[1]:
        assert call.is_whole == is_json(call.arguments)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_no_mark_begins_another() -> None:
    assert not [(a, b) for a in DIALECTS for b in DIALECTS if a != b and b.startswith(a)]
