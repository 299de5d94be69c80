"""Notes on the older part: nothing that was decided and no identifier gets lost, whatever a model writes."""

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import NodeId, RunId
from gateway.domain.messages import Message, Node, ToolCall, ToolResult, estimate_tokens
from gateway.domain.sessions import Summary, from_plain
from gateway.memory.compaction import (
    MOST_IDENTIFIERS,
    CoveredSpan,
    read_reply,
    request_text,
    shrinks,
    span_of,
    summary_message,
    summed_up,
)
from gateway.memory.context import Window, message_tokens, summary_of, summary_text

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def nodes_of(*pairs: tuple[str, str]) -> tuple[Node, ...]:
    said = [one for q, a in pairs for one in (Message("user", q), Message("assistant", a))]
    return tuple(
        Node(NodeId(str(n)), None, RunId("r"), message, NOW, message_tokens(message), seq=n)
        for n, message in enumerate(said, 1)
    )


def span(*pairs: tuple[str, str]) -> CoveredSpan:
    nodes = nodes_of(*pairs)
    return CoveredSpan(Window(nodes[:-2]), nodes[-2:])


@given(st.lists(st.integers(1, 4_000), max_size=30), st.integers(500, 9_000))
def test_the_newest_exchanges_stay_and_at_least_one(sizes: list[int], allowance: int) -> None:
    nodes = nodes_of(*(("q" * size, "a") for size in sizes))

    found = span_of(nodes, allowance)

    if found is not None:
        assert (*found.covered, *found.kept) == nodes
        assert found.kept
        assert len(found.kept) == 2 or Window(found.kept).tokens <= 0.3 * allowance
        assert found.covered.tokens >= 0.1 * allowance
    elif len(sizes) > 1:
        assert Window(nodes[:-2]).tokens < 0.3 * allowance + 0.1 * allowance + 1_300


@pytest.mark.requirement("S-000-Exchange-07")
def test_identifiers_that_the_model_left_out_are_added_and_decisions_are_all_kept() -> None:
    part = span(
        ("deploy build-42 to https://a.example/x", "ok, by `deploy.sh`"),
        ("the port is 8443", "noted"),
        ("and the port?", "8443"),
    )
    earlier = Summary(NodeId("0"), decisions=("Use JWT.",), identifiers=("#4711",), made=2)
    reply: dict[str, object] = {
        "goal": "deploy",
        "decisions": ["use jwt", "deploy at night"],
        "identifiers": ["build-42"],
        "key_insight": "the port matters",
        "mentioned_files": ["x.py"],
        "facts": "not a list",
    }

    summary = summed_up(reply, earlier, part)

    assert summary.decisions == ("Use JWT.", "deploy at night")
    assert summary.identifiers == (
        *("#4711", "build-42"),
        *("8443", "deploy.sh", "https://a.example/x"),
    )
    assert (summary.covers, summary.made, summary.key_insight) == ("4", 3, "the port matters")
    assert summary.files == ("x.py", "deploy.sh")
    assert summary.facts == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
NAMES = ["goal", "decisions", "facts", "open", "identifiers", "key_insight", "mentioned_files"]


@given(st.dictionaries(st.sampled_from(NAMES), json_values), st.lists(st.text(min_size=1)))
def test_whatever_a_model_writes_becomes_a_summary_that_can_be_kept(
    reply: dict[str, object], decided: list[str]
) -> None:
    earlier = Summary(NodeId("0"), decisions=tuple(decided))
    part = span(("ask " + "x" * 900, "see #4711"), ("more", "so"))

    summary = summed_up(reply, earlier, part)

    assert summary.decisions[: len(set(decided))] or not decided
    assert all(
        any(one.casefold().strip(" .") == kept.casefold().strip(" .") for kept in summary.decisions)
        for one in decided
    )
    assert len(summary.identifiers) <= MOST_IDENTIFIERS
    assert "#4711" in summary_text(summary, 1 << 40)
    node = replace(nodes_of(("", ""))[0], message=summary_message(summary))
    assert summary_of(node) == summary
    assert from_plain(json.loads(json.dumps(asdict(summary)))) == summary


@given(st.lists(st.text(max_size=80), max_size=30), st.text(max_size=300), st.integers(-5, 600))
def test_what_is_shown_of_it_fits_and_stays_in_its_block(
    lines: list[str], goal: str, most: int
) -> None:
    lists = tuple(" ".join(f"{line} </summary>".split()) for line in lines)
    summary = Summary(NodeId("0"), " ".join(goal.split()), lists, lists, identifiers=lists)

    told = summary_text(summary, most)

    assert estimate_tokens(told) <= max(0, most)
    assert not told or (told.startswith("<summary>\n") and told.endswith("\n</summary>"))
    assert told.count("</summary>") <= 1


def test_the_newest_decisions_are_the_ones_that_are_shown() -> None:
    summary = Summary(NodeId("0"), decisions=("first one", "second one", "third one"))

    assert (
        summary_text(summary, 20) == "<summary>\nDecisions:\n- second one\n- third one\n</summary>"
    )


def test_the_request_has_the_notes_the_newest_part_and_short_results() -> None:
    call = Message("assistant", "", (ToolCall("1", "read", '{"path": "a"}'),))
    result = Message("tool", result=ToolResult("1", "read", "r" * 5_000))
    nodes = [*nodes_of(("old " * 400, "yes"), ("read it", "done"), ("now?", "now"))]
    nodes[3:3] = [replace(nodes[0], message=call), replace(nodes[0], message=result)]
    part = CoveredSpan(Window(nodes[:-2]), nodes[-2:])

    text = request_text(Summary(NodeId("0"), goal="learn"), part, 400)

    assert '"goal": "learn"' in text
    assert "[2026-01-01] user: read it" in text
    assert '[calls read {"path": "a"}]' in text
    assert "4600 characters left out" in text
    assert "[what was said before is left out]" in text
    assert "old old" not in text
    assert "now?" not in text
    assert estimate_tokens(text) <= 420


@pytest.mark.parametrize("text", ["", "no object", "[1]", "{", "} {", '{"a": 1', "null"])
def test_a_reply_without_an_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_reply(text)


def test_an_object_among_other_words_is_found() -> None:
    assert read_reply('Sure:\n```json\n{"goal": "x"}\n```') == {"goal": "x"}


def test_a_summary_as_long_as_what_it_stands_for_is_none() -> None:
    part = span(("a" * 400, "b"), ("c", "d"))

    assert shrinks(Summary(NodeId("1"), goal="short"), None, part)
    assert not shrinks(Summary(NodeId("1"), facts=("x" * 300,)), None, part)


def test_a_node_that_holds_none_stands_for_nothing() -> None:
    (node, _) = nodes_of(("[]", ""))

    assert summary_of(node) is None
    assert summary_of(None) is None


def test_half_a_character_in_a_reply_spoils_nothing() -> None:
    summary = summed_up(read_reply(r'{"goal": "a\ud800b"}'), None, span(("q", "a"), ("r", "b")))

    assert summary.goal == "a?b"
