"""Each call of a reply has one result, told as it comes and remembered in the order of the reply."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.output import INTERRUPTED
from gateway.agent.turn import MOST_CITED, SHOWN_ARGUMENTS, SHOWN_RESULT
from gateway.domain.agents import Limits
from gateway.tools import ToolSource
from tests.agent.paper import SHIPPED, Paper, call


def cited(id_: str, url: str | None = None) -> ToolSource:
    return ToolSource(id_, f"Title {id_}", url)


@pytest.mark.requirement("S-002-Tools-03", "S-002-Tools-07", "S-002-Tools-08")
@pytest.mark.parametrize("plan", SHIPPED)
def test_calls_are_told_before_results_and_remembered_in_their_order(plan: str) -> None:
    paper = Paper(plan).begin().reply("", call("0"), call("1"), call("2"))

    paper.give("2").give("0", is_error=True).give("1")

    kinds = [word for word in paper.trace if word in {"tool_call", "tool_result"}]
    assert kinds == ["tool_call"] * 3 + ["tool_result"] * 3
    assert [one["tool_call"]["id"] for one in paper.of("tool_result")] == ["2", "0", "1"]
    assert [one["tool_call"]["status"] for one in paper.of("tool_result")] == [
        "success",
        "error",
        "success",
    ]
    assert [id_ for id_, _, _ in paper.results] == ["0", "1", "2"]
    told = [event.type for event in paper.events if event.type.startswith("tool.call.")]
    assert told == [
        *["tool.call.started"] * 3,
        "tool.call.success",
        "tool.call.failure",
        "tool.call.success",
    ]


@pytest.mark.requirement("S-002-Tools-08")
def test_the_events_of_a_call_say_what_it_was() -> None:
    paper = Paper().begin().reply("", call("0", '{"q":1}'), call("1"), call("2"))

    paper.give("0", "12345", items=7).give("1", "no luck", is_error=True)
    paper.give("2", "again", is_error=True)

    assert paper.told_of("tool.call.started")[0] == {
        "tool": "echo",
        "call_id": "0",
        "arguments": '{"q":1}',
    }
    assert paper.told_of("tool.call.success") == [
        {"tool": "echo", "call_id": "0", "duration_ms": 0.0, "items": 7, "size": 5}
    ]
    assert paper.told_of("tool.call.failure") == [
        {"tool": "echo", "call_id": "1", "error": "no luck", "failures": 1},
        {"tool": "echo", "call_id": "2", "error": "again", "failures": 2},
    ]


def test_failures_are_counted_by_tool_until_it_succeeds() -> None:
    paper = Paper(limits=Limits(error_limit=20)).begin()

    paper.round(call("0"), is_error=True)
    paper.round(call("1", name="other"), is_error=True)
    paper.round(call("2"), is_error=True).round(call("3")).round(call("4"), is_error=True)

    failures = [(one["tool"], one["failures"]) for one in paper.told_of("tool.call.failure")]
    assert failures == [("echo", 1), ("other", 1), ("echo", 2), ("echo", 1)]


@pytest.mark.requirement("S-001-Config-06")
@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_calls_beyond_the_limit_are_answered_in_their_place(plan: str, most: int) -> None:
    paper = Paper(plan, Limits(max_tool_calls_per_turn=most)).begin()

    paper.reply("", *(call(str(number)) for number in range(4))).give_all()

    assert paper.called == [str(number) for number in range(most)]
    why = f"Not executed: at most {most} tool calls a turn. Call it again in the next turn."
    assert paper.results == [
        (str(number), f"result {number}" if number < most else why, number >= most)
        for number in range(4)
    ]
    assert len(paper.told_of("tool.call.started")) == most


def test_calls_beyond_the_limit_are_no_errors_of_tools() -> None:
    paper = Paper(limits=Limits(max_tool_calls_per_turn=1, error_limit=1)).begin()

    paper.round(call("0"), call("1"))

    assert paper.reason is None
    assert paper.told_of("tool.call.failure") == []


@pytest.mark.parametrize("plan", SHIPPED)
def test_a_call_that_was_at_work_is_told_as_interrupted(plan: str) -> None:
    paper = Paper(plan).begin().reply("", call("0"), call("1"), call("2"), call("3"))

    paper.give("1").stop()

    assert paper.called == ["0", "1", "2", "3"]
    assert [content for _, content, _ in paper.results] == [
        INTERRUPTED,
        "result 1",
        INTERRUPTED,
        INTERRUPTED,
    ]
    assert paper.trace.count("?cancel") == 3


def test_calls_that_wait_for_a_place_are_not_begun_by_a_stop() -> None:
    paper = Paper(limits=Limits(max_parallel_tools=1)).begin().reply("", call("0"), call("1"))

    paper.stop()

    assert paper.called == ["0"]
    assert [content for _, content, _ in paper.results] == [
        INTERRUPTED,
        "Not executed: the run went on without it.",
    ]


@pytest.mark.requirement("S-002-Tools-05")
@pytest.mark.parametrize("plan", SHIPPED)
def test_the_next_call_begins_when_a_place_is_free(plan: str) -> None:
    paper = Paper(plan, Limits(max_parallel_tools=2)).begin()
    paper.reply("", call("0"), call("1"), call("2"), call("3"))
    assert paper.called == ["0", "1"]

    paper.give("1")

    assert paper.called == ["0", "1", "2"]


@pytest.mark.requirement("S-002-Tools-12")
def test_a_client_sees_the_beginning_of_what_is_long() -> None:
    arguments, result = json.dumps("a" * 30_000), "r" * 5_000
    paper = Paper().begin().reply("", call("0", arguments)).give("0", result)

    [asked], [shown] = paper.of("tool_call"), paper.of("tool_result")
    assert asked["tool_call"]["arguments"] == arguments[:SHOWN_ARGUMENTS]
    assert shown["tool_call"]["result"] == result[:SHOWN_RESULT]
    assert paper.calls == []
    assert paper.results[0][1] == result
    assert paper.said[0].tool_calls[0].arguments == arguments


@pytest.mark.requirement("S-002-Tools-09")
@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize("end", ["answered", "cancelled", "max_iterations", "provider_error"])
def test_sources_are_told_once_before_the_end(plan: str, end: str) -> None:
    paper = Paper(plan, Limits(max_iterations=2)).begin().reply("", call("0"), call("1"))
    sources = (cited("a", "https://a"), cited("b"))
    paper.give("1", sources=sources).give("0", sources=(*sources, cited("c")))
    assert paper.of("source") == []

    match end:
        case "answered":
            paper.reply("done")
        case "cancelled":
            paper.stop()
        case "max_iterations":
            paper.round(call("2"))
        case "provider_error":
            paper.break_off()

    assert paper.reason == end
    told = [shown["source"] for shown in paper.of("source")]
    assert [(one["id"], one["title"], one["url"], one["tool_call_id"]) for one in told] == [
        ("a", "Title a", "https://a", "1"),
        ("b", "Title b", None, "1"),
        ("c", "Title c", None, "0"),
    ]


def test_no_run_cites_without_end() -> None:
    paper = Paper(limits=Limits(max_iterations=20)).begin()

    for number in range(11):
        sources = tuple(cited(f"{number}.{index}") for index in range(50))
        paper.reply("", call(str(number))).give(str(number), sources=sources)
    paper.reply("done")

    assert len(paper.of("source")) == MOST_CITED


@given(st.permutations(["0", "1", "2", "3"]), st.integers(1, 4))
def test_results_keep_the_order_of_calls_however_they_come(order: list[str], at_once: int) -> None:
    paper = Paper(limits=Limits(max_parallel_tools=at_once)).begin()
    paper.reply("", *(call(one) for one in "0123"))

    while paper.calls:
        at_work = {wish.call.id for wish in paper.calls}
        assert len(at_work) <= at_once
        paper.give(next(one for one in order if one in at_work))

    assert [id_ for id_, _, _ in paper.results] == ["0", "1", "2", "3"]
