"""Turns that come to their answer, on both wires and under both trees: chunks, events, history."""

import json
from typing import Any

import pytest

from tests.fakes.client import Event, texts_of
from tests.scenarios import plots
from tests.scenarios.scripts import shown
from tests.scenarios.stage import (
    Scene,
    Stage,
    is_whole,
    notices_to,
    of_system,
    outline,
    play,
    shown_to,
    talk_to,
)

pytestmark = pytest.mark.shared_store


@pytest.mark.requirement("S-002-E2E-01", "S-002-Query-02", "S-002-Query-12")
async def test_text_comes_in_pieces_one_exchange_is_kept_and_one_end_is_told(
    stage: Stage,
) -> None:
    scene = await play(plots.basic, stage)

    chunks = scene.chunks()
    assert is_whole(chunks)
    assert outline(chunks) == [
        "content It ",
        "content is ",
        "content so.",
        "usage",
        "done answered",
    ]
    assert chunks[-1]["response"] == "It is so."
    assert shown(scene.pages[0]) == [("user", "Is it so?"), ("assistant", "It is so.")]
    assert scene.kinds() == ["query.start", "session.end"]
    began, ended = scene.events()[0]["payload"], scene.events()[-1]["payload"]
    about = {"query": "Is it so?", "user": "local", "project": "default", "context_id": None}
    assert began == about
    assert (ended["exchange_saved"], ended["cancelled"]) == (True, False)
    assert len(scene.model.requests) == 1
    assert notices_to(scene.model.requests[0]) == []


@pytest.mark.requirement("S-002-E2E-02")
async def test_a_call_is_told_before_its_result_and_the_next_request_carries_it(
    stage: Stage,
) -> None:
    scene = await play(plots.single_tool, stage)

    chunks = scene.chunks()
    result = next(one["tool_call"]["result"] for one in chunks if one["type"] == "tool_result")
    assert is_whole(chunks)
    assert outline(chunks) == [
        "content Let me see. ",
        "usage",
        "tool_call c1 pending",
        "tool_result c1 success",
        f"content It said {result}.",
        "usage",
        "done answered",
    ]
    assert talk_to(scene.model.requests[1]) == [
        ("question", "What does it say?"),
        ("answer", "Let me see. "),
        ("call", "c1"),
        ("result", result),
    ]
    assert [role for role, _ in shown(scene.pages[0])] == ["user", "assistant", "tool", "assistant"]
    assert chunks[-1]["tokens_used"] == 55
    assert scene.kinds() == ["query.start", "tool.call.success", "session.end"]


@pytest.mark.requirement("S-002-E2E-03", "S-002-Tools-05", "S-002-Tools-06", "S-002-Tools-07")
async def test_calls_run_at_once_one_that_fails_harms_none_and_results_keep_the_calls_order(
    stage: Stage,
) -> None:
    scene = await play(plots.parallel_tools, stage)

    chunks = scene.chunks()
    states = [line for line in outline(chunks) if line.startswith("tool")]
    asked = ["a", "wrong", "b"]
    assert is_whole(chunks)
    assert states[:3] == [f"tool_call {id} pending" for id in asked]
    assert sorted(states[3:]) == [
        "tool_result a success",
        "tool_result b success",
        "tool_result wrong error",
    ]
    told = talk_to(scene.model.requests[1])
    assert [id for kind, id in told if kind == "call"] == asked
    a, wrong, b = [text for kind, text in told if kind == "result"]
    assert ("page /a" in a, "division by zero" in wrong, "page /b" in b) == (True, True, True)
    kept = [one["tool_call_id"] for one in scene.pages[0]["messages"] if one["role"] == "tool"]
    assert kept == asked
    assert chunks[-1]["response"] == "Both are read."
    assert sorted(scene.kinds()[1:-1]) == ["tool.call.failure"] + ["tool.call.success"] * 2


@pytest.mark.requirement("S-002-E2E-04", "S-002-Query-09")
async def test_pieces_are_heard_while_the_model_still_speaks_after_how_full_the_context_is(
    stage: Stage,
) -> None:
    scene = await play(plots.streaming, stage)

    chunks = scene.chunks()
    assert chunks[0]["type"] == "context_update"
    assert 0 < chunks[0]["context_tokens"] <= chunks[0]["max_context_tokens"]
    assert outline(chunks) == [
        "content one ",
        "content two ",
        "content three",
        "usage",
        "done answered",
    ]


@pytest.mark.requirement("S-002-E2E-09")
async def test_a_subscriber_hears_start_tool_and_end_in_this_order_and_nothing_else(
    stage: Stage,
) -> None:
    scene = await play(plots.observed, stage)

    told = scene.beside[0].told
    assert [event["type"] for event in told] == ["query.start", "tool.call.success", "session.end"]
    assert {event["run_id"] for event in told} == {scene.runs[0]}
    assert {event["session_key"] for event in told} == {"main:websocket:local:main"}
    assert {event["severity"] for event in told} == {"info"}
    wanted = {"type", "severity", "source", "at", "session_key", "run_id", "payload"}
    assert all(wanted <= event.keys() for event in told)


@pytest.mark.requirement("S-002-Risk-04")
async def test_events_and_chunks_come_in_the_order_of_what_they_tell(stage: Stage) -> None:
    scene = await play(plots.single_tool, stage)

    order = [_name(frame) for frame in scene.client.frames if "method" in frame]
    places = [
        order.index(name)
        for name in (
            "query.start",
            "context_update",
            "tool_call c1 pending",
            "tool_result c1 success",
            "tool.call.success",
            "done answered",
        )
    ]
    assert places == sorted(places)


def _name(frame: dict[str, Any]) -> str:
    told: Event = frame["params"]
    if frame["method"] == "event":
        return str(told["type"])
    return (outline([told]) or ["context_update"])[0]


@pytest.mark.requirement("S-002-Rules-09")
async def test_every_turn_and_every_call_is_told_when_it_begins_and_when_it_ends(
    stage: Stage,
) -> None:
    scene = await play(plots.single_tool, stage)

    assert [event["type"] for event in scene.events()] == [
        "query.start",
        "agent.turn.started",
        "tool.call.started",
        "tool.call.success",
        "agent.turn.ended",
        "agent.turn.started",
        "agent.turn.ended",
        "session.end",
    ]


@pytest.mark.requirement("S-002-E2E-10", "S-002-CtxTree-02", "S-002-CtxTree-04")
async def test_a_conversation_goes_on_from_its_context_and_two_branches_do_not_see_each_other(
    stage: Stage,
) -> None:
    scene = await play(plots.branches, stage)

    asked = [questions_of(scene, number) for number in range(4)]
    assert asked == [
        ["root"],
        ["root", "left"],
        ["root", "right"],
        ["root", "left", "more left"],
    ]
    assert ("answer", "answer to root") in talk_to(scene.model.requests[1])
    pages = [[text for role, text in shown(page) if role == "user"] for page in scene.pages]
    assert pages == [["root", "right"], ["root", "left", "more left"]]
    # What went before was loaded for each but the first.
    resumed = ["session.resumed" in scene.kinds(number) for number in range(4)]
    assert resumed == [False, True, True, True]


def questions_of(scene: Scene, number: int) -> list[str]:
    return [text for kind, text in talk_to(scene.model.requests[number]) if kind == "question"]


@pytest.mark.requirement("S-002-Query-05")
async def test_another_session_of_a_person_is_told_of_a_notice_once(stage: Stage) -> None:
    scene = await play(plots.cross_session, stage)

    *here, there, now = scene.model.requests
    text = "A tool has answered elsewhere."
    assert [notices_to(asked) for asked in here] == [[], [], []]
    assert len(notices_to(there)) == 1
    assert text in notices_to(there)[0]
    assert notices_to(now) == []
    told = [
        [one["system_message"] for one in of_system(scene.chunks(number), "notice")]
        for number in range(4)
    ]
    assert told == [[], [], [text], []]
    # It stays beside the answer, and is no part of what was said.
    beside = [one.get("notices", []) for one in scene.pages[0]["messages"]]
    assert beside == [[], [{"system_type": "notice", "system_message": text}], [], []]
    assert text not in str(shown(scene.pages[0]))


@pytest.mark.requirement("S-002-LLM-03")
async def test_a_reply_in_one_piece_gives_the_same_turn(stage: Stage) -> None:
    scene = await play(plots.not_streamed, stage)

    assert is_whole(scene.chunks())
    assert outline(scene.chunks()) == [
        "content Let me see. ",
        "usage",
        "tool_call c1 pending",
        "tool_result c1 success",
        "content It said so.",
        "usage",
        "done answered",
    ]
    assert not any(asked.body.get("stream") for asked in scene.model.requests)


@pytest.mark.requirement("S-002-XML-01", "S-002-XML-06", "S-002-XML-07")
async def test_a_call_that_a_model_writes_as_text_is_executed_and_not_shown(stage: Stage) -> None:
    scene = await play(plots.written_calls, stage)

    chunks = scene.chunks()
    [call] = [one["tool_call"] for one in chunks if one["type"] == "tool_call"]
    [result] = [one["tool_call"] for one in chunks if one["type"] == "tool_result"]
    assert is_whole(chunks)
    assert (call["name"], json.loads(call["arguments"])) == ("echo", {"text": "a < b"})
    assert (result["status"], result["id"]) == ("success", call["id"])
    assert "a < b" in result["result"]
    assert texts_of(chunks) == "Let me see. It said so."
    assert "function_calls" not in str(scene.pages[0])
    assert [kind for kind, _ in talk_to(scene.model.requests[1])][-2:] == ["call", "result"]


@pytest.mark.requirement("S-000-ToolCall-04")
async def test_calls_beyond_the_limit_of_a_turn_are_answered_and_not_executed(stage: Stage) -> None:
    scene = await play(plots.too_many_calls, stage)

    states = [line for line in outline(scene.chunks()) if line.startswith("tool")]
    assert is_whole(scene.chunks())
    assert states == [
        *(f"tool_call c{number} pending" for number in (1, 2, 3)),
        "tool_result c1 success",
        "tool_result c2 success",
        "tool_result c3 error",
    ]
    told = [text for kind, text in talk_to(scene.model.requests[1]) if kind == "result"]
    assert len(told) == 3
    assert "at most 2 tool calls" in told[2]
    assert scene.kinds().count("tool.call.success") == 2


@pytest.mark.requirement("S-002-ANS-04", "S-002-ANS-05", "S-002-ANS-06")
async def test_each_notice_comes_at_its_point_once_and_never_between_a_call_and_its_result(
    stage: Stage,
) -> None:
    scene = await play(plots.notices, stage)

    told = ["\n".join(notices_to(asked)) for asked in scene.model.requests]
    assert [_found(text) for text in told] == [
        ["urgent", "at once"],
        ["urgent", "at once", "after the tool", "at the next turn"],
        ["urgent", "at once", "after the tool", "at the next turn", "after calc"],
        [],
    ]
    heard = [one["system_message"] for one in of_system(scene.chunks(), "notice")]
    assert heard == ["to the client", "urgent", "at once", "after the tool", "after calc"]
    for asked in scene.model.requests:
        kinds = [kind for kind, _ in shown_to(asked)]
        assert ("call", "notice") not in set(zip(kinds, kinds[1:], strict=False))
    assert "system-notice" not in str(scene.pages[0])
    assert of_system(scene.chunks(1), "notice") == []


TOLD = ["urgent", "at once", "to the client", "after the tool", "at the next turn", "after calc"]


def _found(text: str) -> list[str]:
    """Which of them it tells, in order, each as often as it does."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line in TOLD]
