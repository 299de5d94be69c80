"""The tool `result` reads bounded parts of a kept result; sources are read from a result within bounds, are
harmless as links, and never raise."""

import json
import threading
from collections.abc import AsyncIterator
from typing import ClassVar

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import AgentDef, Original
from gateway.domain.errors import StoreUnavailable, ToolFailed
from gateway.domain.ids import AgentId, RunId
from gateway.domain.ports import ToolScope
from gateway.tools import (
    AROUND,
    MOST_FIELD,
    MOST_HITS,
    MOST_PART,
    MOST_SOURCES,
    MOST_VALUES,
    PIECE,
    SPEC,
    ResultTool,
    ToolSource,
    _found,
    _part,
    listed,
)
from tests.fakes.plugin_store import FakeOriginals
from tests.fakes.store import NOON, open_memory, session_key

KEY = session_key()
SCOPE = ToolScope(KEY, RunId("r"), "ann", agent=AgentDef(AgentId("main"), "p", "m"))
LONG = "".join(f"line {number} of many\n" for number in range(2_000))


@pytest.fixture
async def tool() -> AsyncIterator[ResultTool]:
    async with open_memory() as stores:
        await stores.tools.keep_original(Original("r/1", KEY, RunId("r"), "search", LONG, NOON))
        yield ResultTool(stores.tools)


async def test_parts_follow_on_each_other_to_the_end(tool: ResultTool) -> None:
    read, at = "", 0
    while at < len(LONG):
        part = await tool.call({"reference": "result://r/1", "from": at}, SCOPE)
        told, _, text = part.partition("\n")
        assert len(text) <= MOST_PART
        assert f"Characters {at} to {at + len(text)} of {len(LONG)}." in told
        read, at = read + text, at + len(text)
        assert (f"offset={at}" in told) == (at < len(LONG))

    assert read == LONG


async def test_words_are_found_in_any_case_with_their_places(tool: ResultTool) -> None:
    found = await tool.call({"reference": "r/1", "grep": "LINE 1234 OF"}, SCOPE)

    (hit,) = found.splitlines()[1:2]
    assert found.startswith("'LINE 1234 OF' stands in 1 places")
    assert f"at {LONG.index('line 1234 of')}: " in hit


async def test_frequent_words_are_shown_up_to_a_bound(tool: ResultTool) -> None:
    found = await tool.call({"reference": "r/1", "grep": "many"}, SCOPE)

    assert f"at least {MOST_HITS} places" in found
    assert found.count("\nat ") == MOST_HITS


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"reference": "result://r/2"}, "No result 'r/2' is kept"),
        ({"reference": "r/1", "from": 10**9}, "There is nothing from"),
        ({"reference": "r/1", "from": 5, "to": 5}, "There is nothing from 5 to 5"),
    ],
)
async def test_what_is_not_there_is_said(
    tool: ResultTool, arguments: dict[str, object], told: str
) -> None:
    with pytest.raises(ToolFailed, match=told):
        await tool.call(arguments, SCOPE)


async def test_a_store_that_is_away_is_no_defect() -> None:
    class Away:
        async def read_original(self, *_: object) -> None:
            raise StoreUnavailable("disk")

    with pytest.raises(ToolFailed, match="cannot be read"):
        await ResultTool(Away()).call({"reference": "r"}, SCOPE)  # type: ignore[arg-type]  # no more is asked


@pytest.mark.parametrize(
    "arguments",
    [{"id": ""}, {"reference": ""}, {"reference": "r", "from": -1}, {"reference": "r", "grep": ""}],
)
def test_its_schema_refuses_what_means_nothing(arguments: dict[str, object]) -> None:
    check = jsonschema_rs.validator_for(json.loads(SPEC.parameters))

    assert not check.is_valid(arguments)


@given(st.text(min_size=1), st.integers(0, 50), st.none() | st.integers(0, 50))
def test_a_part_is_what_stands_there(content: str, first: int, last: int | None) -> None:
    expected = content[first:last]
    if not expected:
        with pytest.raises(ToolFailed):
            _part(content, first, last, 10_000)
        return

    assert _part(content, first, last, 10_000).partition("\n")[2] == expected


@given(st.text("aAbİ. "), st.text("aAbİ. ", min_size=1))
def test_a_place_holds_what_was_sought(content: str, sought: str) -> None:
    found = _found(content, sought)

    if sought in content:
        at = int(found.split("\nat ", 1)[1].partition(":")[0])
        assert content[at : at + len(sought)].lower() == sought.lower()
        assert at <= content.index(sought)
    assert len(found) <= 500 + MOST_HITS * (2 * AROUND + len(sought) + 30)


@pytest.mark.parametrize("place", [PIECE - 5, PIECE - 1, PIECE, 3 * PIECE + 5])
def test_words_are_found_in_any_case_wherever_pieces_of_the_search_meet(place: int) -> None:
    content = f"İ{'x' * (2 * PIECE + place)}needle{'x' * PIECE}"

    at = _found(content, "NEEDLE").split("\nat ", 1)[1].partition(":")[0]

    assert int(at) == content.index("needle")


async def test_others_have_their_turn_while_words_are_sought() -> None:
    class Content(str):
        threads: ClassVar = set[int]()

        def __getitem__(self, place: object) -> str:
            self.threads.add(threading.get_ident())
            return super().__getitem__(place)  # type: ignore[index]  # as a text takes it

    originals = FakeOriginals()
    await originals.keep_original(Original("r/1", KEY, RunId("r"), "search", Content(LONG), NOON))
    await ResultTool(originals).call({"reference": "r/1", "grep": "many"}, SCOPE)

    assert Content.threads
    assert threading.get_ident() not in Content.threads


# --- sources -------------------------------------------------------------------------------------
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
