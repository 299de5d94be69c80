"""Sources are read from a result with suspicion: bounded, harmless to click on, never an error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools import MOST_FIELD, MOST_SOURCES, MOST_VALUES, ToolSource, listed


def found(*sources: object) -> tuple[ToolSource, ...]:
    return listed(json.dumps({"sources": sources})).sources


@pytest.mark.requirement("S-002-Tools-09")
def test_each_source_is_found_once_and_in_order() -> None:
    first = {"id": "n1", "title": "Note", "url": "https://a.example/1"}

    assert found(first, {"id": "n2"}, first, {"url": "notes/x.md"}, {"title": " T "}) == (
        ToolSource("n1", "Note", "https://a.example/1"),
        ToolSource("n2", "n2", None),
        ToolSource("notes/x.md", "notes/x.md", "notes/x.md"),
        ToolSource("T", "T", None),
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "plain text",
        '"sources"',
        '[{"sources": [{"id": "x"}]}]',
        '{"sources": {"id": "x"}}',
        '{"sources": "x"}',
        '{"a": {"sources": [{"id": "x"}]}}',
        '{"sources": [{"id": "x"}]',
        '{"sources": ' + "[" * 100_000,
        '{"text": "the \\"sources\\" of the Nile"}',
    ],
)
def test_what_is_no_object_with_sources_has_none(content: str) -> None:
    assert listed(content).sources == ()


@pytest.mark.parametrize("one", [None, 1, "x", [], {}, {"id": 7}, {"id": " "}, {"name": "x"}])
def test_a_malformed_source_is_left_out_and_the_others_stay(one: object) -> None:
    assert found(one, {"id": "good"}) == (ToolSource("good", "good", None),)


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        "java\tscript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "vbscript:x",
        "//evil.example",
        "\\\\evil.example",
        "https://a b",
        "http://",
        "x" * (MOST_FIELD + 1),
        {"href": "https://a.example"},
    ],
)
def test_a_url_that_must_not_be_followed_is_left_away(url: object) -> None:
    assert found({"id": "n", "url": url}) == (ToolSource("n", "n", None),)


@pytest.mark.parametrize(
    "url",
    ["https://a.example/?q=1#f", "HTTP://A.example", "notes/a.md", "/a:b", "?q=a:b", "a.md#x"],
)
def test_a_url_that_may_be_followed_is_kept(url: str) -> None:
    assert found({"id": "n", "url": url}) == (ToolSource("n", "n", url),)


def test_there_are_never_too_many_or_too_long_ones() -> None:
    many = found(*({"id": f"{n}-{'x' * MOST_FIELD}", "title": "t" * 9_999} for n in range(99)))

    assert len(many) == MOST_SOURCES
    assert {len(one.id) for one in many} == {len(one.title) for one in many} == {MOST_FIELD}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["id", "title", "url"]), inner),
)


@given(json_values)
def test_whatever_stands_there_is_no_error(value: object) -> None:
    for source in listed(json.dumps({"sources": value})).sources:
        assert source.id
        assert source.title


@pytest.mark.parametrize(
    ("content", "items"),
    [
        ("[1, 2, 3]", 3),
        ('{"results": [1, 2], "sources": [1, 2, 3]}', 2),
        ('{"a": [1], "b": [1, 2]}', 2),
        ('{"a": 1}', None),
        ("[", None),
        ("text", None),
    ],
)
def test_a_result_that_lists_something_says_how_much(content: str, items: int | None) -> None:
    assert listed(content).items == items


HUGE, HUGER = "1" + "0" * 400, "1" + "0" * 800


@pytest.mark.parametrize(
    ("scores", "spread"),
    [
        (["0.9", "0.8"], 0.1),
        (["200", "150"], 0.25),
        (["-3", "-5"], 2.0),
        (["0.5", "1e999", "-1e999", "NaN"], 0.0),
        (["0.5", HUGE, f"-{HUGER}"], 0.0),
        (["1e999", HUGE], None),
        ([HUGE, f"-{HUGER}"], None),
        (["true", '"0.9"', "null"], None),
    ],
)
def test_only_numbers_that_can_be_compared_are_scores(
    scores: list[str], spread: float | None
) -> None:
    entries = ",".join(f'{{"score": {score}}}' for score in scores)

    assert listed(f"[{entries}]").spread == (spread and pytest.approx(spread))


def test_a_result_of_very_many_values_is_not_looked_into() -> None:
    assert listed(f"[{'1,' * MOST_VALUES}1]").items is None
    assert listed(f"[{'1,' * (MOST_VALUES - 1)}1]").items == MOST_VALUES
