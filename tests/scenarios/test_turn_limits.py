"""Turns that are stopped: each limit warns once, stops once, says why, and keeps what there is."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from tests.fakes.client import Event, texts_of
from tests.scenarios import plots_limits as plots
from tests.scenarios.scripts import shown
from tests.scenarios.stage import (
    Plot,
    Stage,
    is_whole,
    notices_to,
    of_system,
    outline,
    play,
    talk_to,
)

NEARLY = "Approaching iteration limit (2/3). Consider wrapping up."
AT_LIMIT = "Maximum iterations reached. Saving partial response."
NO_PROGRESS = "No progress detected - same action attempted 3 times."


@pytest.mark.requirement("S-002-E2E-05", "S-002-Query-11")
@pytest.mark.requirement("S-002-Budget-01", "S-002-Budget-03", "S-002-Budget-06")
@pytest.mark.requirement("S-001-System-05", "S-001-System-06")
async def test_at_turn_2_of_3_it_is_warned_and_after_3_it_is_stopped_with_one_end(
    stage: Stage,
) -> None:
    scene = await play(plots.max_iterations, stage)

    chunks = scene.chunks()
    step = [[f"content step {n}. ", "usage", *_echoed(n)] for n in (1, 2, 3)]
    assert is_whole(chunks)
    assert outline(chunks) == [
        *step[0],
        f"limit_warning: {NEARLY}",
        *step[1],
        *step[2],
        f"limit_reached: {AT_LIMIT}",
        "done max_iterations partial",
    ]
    assert scene.kinds() == [
        "query.start",
        "tool.call.success",
        "budget.iteration.warning",
        "tool.call.success",
        "tool.call.success",
        "budget.iteration.exceeded",
        "session.end",
    ]
    warning = of_system(chunks, "limit_warning")[0]["metadata"]
    assert (warning["current_value"], warning["limit_value"]) == (2, 3)
    assert {"percent", "limit_type"} <= warning.keys()
    told = [one["payload"] for one in scene.events() if one["type"].startswith("budget")]
    assert [(one["current"], one["max"], one["message"]) for one in told] == [
        (2, 3, NEARLY),
        (3, 3, AT_LIMIT),
    ]
    assert [round(one["percent"]) for one in told] == [67, 100]
    page = shown(scene.pages[0])
    assert page[0] == ("user", "Go on for ever.")
    assert [text for role, text in page if role == "assistant"][:3] == [
        "step 1. ",
        "step 2. ",
        "step 3. ",
    ]
    assert page[-1][0] == "assistant"


def _echoed(number: int) -> list[str]:
    return [f"tool_call c{number} pending", f"tool_result c{number} success"]


@pytest.mark.requirement("S-001-System-07", "S-002-ANS-06")
async def test_the_model_is_told_of_the_warning_once_and_no_history_keeps_it(stage: Stage) -> None:
    scene = await play(plots.max_iterations, stage)

    # It is told before the second reply and stays where it was told; the next query starts clean.
    told = [notices_to(asked) for asked in scene.model.requests]
    assert [len(notices) for notices in told] == [0, 1, 1, 0, 1, 1]
    assert told[1] == told[2]
    assert "2/3" in told[1][0]
    assert "system-notice" not in str(scene.pages[0])


@pytest.mark.requirement("S-002-Query-01")
async def test_a_query_after_a_stopped_one_starts_clean(stage: Stage) -> None:
    scene = await play(plots.max_iterations, stage)

    again = [line for line in outline(scene.chunks(1)) if line.startswith(("limit", "done"))]
    assert is_whole(scene.chunks(1))
    assert again == [
        f"limit_warning: {NEARLY}",
        f"limit_reached: {AT_LIMIT}",
        "done max_iterations partial",
    ]


@pytest.mark.requirement("S-002-E2E-06", "S-002-Budget-02", "S-002-Budget-04")
async def test_a_small_token_budget_warns_and_then_ends_the_stream_itself(stage: Stage) -> None:
    scene = await play(plots.token_budget, stage)

    chunks = scene.chunks()
    lines = [line.split(" ")[0] for line in outline(chunks) if not line.startswith("usage")]
    warned, stopped = lines.index("limit_warning:"), lines.index("limit_reached:")
    before, between = lines[:warned], lines[warned + 1 : stopped]
    assert is_whole(chunks)
    assert set(before) == set(between) == {"content"}
    assert lines[stopped:] == ["limit_reached:", "done"]
    assert outline(chunks)[-1] == "done token_budget partial"
    warning = of_system(chunks, "limit_warning")[0]["metadata"]
    assert 80 <= warning["current_value"] < warning["limit_value"] == 100
    assert scene.kinds() == [
        "query.start",
        "budget.token.warning",
        "budget.token.exceeded",
        "session.end",
    ]


@pytest.mark.requirement("S-002-E2E-06", "S-002-LLM-10")
async def test_what_a_token_budget_cut_off_is_kept_as_a_part(stage: Stage) -> None:
    scene = await play(plots.token_budget, stage)

    heard = texts_of(scene.chunks())
    assert "".join(plots.WORDS).startswith(heard)
    assert scene.model.requests[0].disconnected.is_set()
    assert shown(scene.pages[0]) == [("user", "Go on for ever."), ("assistant", heard)]
    assert scene.pages[0]["messages"][-1]["status"] == "partial"
    assert scene.chunks()[-1]["response"] == heard
    assert outline(scene.chunks(1))[-1] == "done answered"


@pytest.mark.requirement("S-002-Budget-02", "S-002-Budget-04")
async def test_a_token_budget_over_several_turns_warns_once_and_stops_once(stage: Stage) -> None:
    scene = await play(plots.token_budget_between_turns, stage)

    chunks = scene.chunks()
    budgets = [kind for kind in scene.kinds() if kind.startswith("budget")]
    assert is_whole(chunks)
    assert budgets == ["budget.token.warning", "budget.token.exceeded"]
    assert _counts(chunks) == {"limit_warning": 1, "limit_reached": 1}
    assert outline(chunks)[-1] == "done token_budget partial"
    assert len(scene.model.requests) == 3
    assert shown(scene.pages[0])[-1][0] == "assistant"


@pytest.mark.requirement("S-002-E2E-07", "S-002-Loop-03", "S-002-Loop-06", "S-001-System-05")
async def test_the_same_call_is_warned_of_then_refused_and_then_ends_the_run(
    stage: Stage,
) -> None:
    scene = await play(plots.no_progress, stage)

    chunks = scene.chunks()
    calls = [line for line in outline(chunks) if line.startswith("tool")]
    assert is_whole(chunks)
    assert calls[:8] == [
        *_echoed(1),
        *_echoed(2),
        *_echoed(3),
        "tool_call c4 pending",
        "tool_result c4 error",
    ]
    assert outline(chunks)[-2:] == [f"no_progress: {NO_PROGRESS}", "done no_progress partial"]
    assert len(scene.model.requests) == 5
    assert _counts(chunks) == {"notice": 1, "no_progress": 1}
    assert _turn_of(chunks, of_system(chunks, "notice")[0]) == 3
    told = [len(notices_to(asked)) for asked in scene.model.requests]
    assert told == [0, 0, 0, 1, 1]
    assert scene.kinds().count("agent.loop.detected") == 1
    assert scene.kinds().count("tool.call.success") == 3


def _turn_of(chunks: Sequence[Event], one: Event) -> int:
    """In which turn a chunk came: each begins with a reply, whose tokens are counted at its end."""
    return sum(before["type"] == "usage" for before in chunks[: chunks.index(one)])


@pytest.mark.requirement("S-002-E2E-07", "S-000-ToolCall-05")
async def test_a_history_that_no_progress_ended_has_a_result_for_every_call(stage: Stage) -> None:
    scene = await play(plots.no_progress, stage)

    messages = scene.pages[0]["messages"]
    asked = [call["id"] for one in messages for call in one["tool_calls"] or ()]
    answered = [one["tool_call_id"] for one in messages if one["role"] == "tool"]
    assert asked == answered
    assert len(asked) == 5
    assert messages[-1]["role"] == "assistant"


@pytest.mark.requirement("S-002-Loop-03", "S-002-Loop-06", "S-002-Loop-05")
async def test_a_loop_of_two_calls_is_told_once_a_query_and_stops_nothing(stage: Stage) -> None:
    scene = await play(plots.loop_of_two, stage)

    first, second = scene.chunks(0), scene.chunks(1)
    assert scene.kinds(0).count("agent.loop.detected") == 1
    assert _counts(first) == {"notice": 1}
    assert _turn_of(first, of_system(first, "notice")[0]) == 5
    assert len(notices_to(scene.model.requests[5])) == 1
    assert outline(first)[-1] == outline(second)[-1] == "done answered"
    assert scene.kinds(1) == ["query.start", "session.resumed", "session.end"]


async def test_the_same_call_with_other_results_is_a_loop_and_goes_on(stage: Stage) -> None:
    scene = await play(plots.polling, stage)

    chunks = scene.chunks()
    assert scene.kinds().count("agent.loop.detected") == 1
    assert scene.kinds().count("tool.call.success") == 6
    assert "agent.no_progress" not in scene.kinds()
    assert _counts(chunks) == {"notice": 1}
    assert outline(chunks)[-1] == "done answered"


async def test_three_turns_in_a_row_in_which_every_call_fails_end_the_run(stage: Stage) -> None:
    scene = await play(plots.error_limit, stage)

    chunks = scene.chunks()
    assert is_whole(chunks)
    assert len(scene.model.requests) == 3
    assert _counts(chunks) == {"error_limit": 1}
    assert outline(chunks)[-1] == "done error_limit partial"
    assert outline(chunks)[-2].startswith("error_limit: ")
    assert scene.kinds() == ["query.start", *["tool.call.failure"] * 3, "session.end"]
    assert shown(scene.pages[0])[-1][0] == "assistant"


async def test_failing_turns_that_are_not_in_a_row_end_nothing(stage: Stage) -> None:
    scene = await play(plots.errors_with_a_success_between, stage)

    assert outline(scene.chunks())[-1] == "done answered"
    assert _counts(scene.chunks()) == {}
    assert len(scene.model.requests) == 6


async def test_when_its_time_is_up_the_model_is_hung_up_on_and_the_part_is_kept(
    stage: Stage,
) -> None:
    scene = await play(plots.timeout, stage)

    chunks, heard = scene.chunks(), "".join(plots.WORDS[:2])
    assert is_whole(chunks)
    assert texts_of(chunks).startswith(heard)
    assert _counts(chunks) == {"limit_reached": 1}
    assert outline(chunks)[-1] == "done timeout partial"
    assert scene.kinds() == ["query.start", "session.end"]
    assert shown(scene.pages[0])[-1] == ("assistant", texts_of(chunks))
    assert outline(scene.chunks(1))[-1] == "done answered"


async def test_a_model_that_fails_ends_the_run_with_one_error_and_the_next_one_works(
    stage: Stage,
) -> None:
    scene = await play(plots.provider_failure, stage)

    chunks = scene.chunks()
    assert is_whole(chunks)
    assert outline(chunks) == ["error provider_error"]
    assert chunks[-1]["retryable"] is False
    assert scene.inspected[0]["tokens_used"] == 0
    assert scene.kinds().count("model.failed") == 1
    assert scene.kinds()[-1] == "session.end"
    assert outline(scene.chunks(1))[-1] == "done answered"


async def test_another_model_that_answers_instead_is_asked_in_each_turn(stage: Stage) -> None:
    scene = await play(plots.fallback, stage)

    assert [asked.body["model"] for asked in scene.model.requests] == ["m", "spare"] * 2
    assert outline(scene.chunks())[-1] == "done answered"
    assert scene.chunks()[-1]["model"] == "spare"
    assert scene.kinds().count("model.failed") == 0


async def test_what_a_model_said_before_it_broke_off_is_kept(stage: Stage) -> None:
    scene = await play(plots.provider_breaks_off, stage)

    chunks = scene.chunks()
    assert is_whole(chunks)
    assert outline(chunks) == ["content It ", "content is ", "usage", "error provider_error"]
    assert scene.inspected[0]["tokens_used"] > 0  # what was sent and heard counts
    assert shown(scene.pages[0]) == [("user", "Is it so?"), ("assistant", "It is ")]
    assert talk_to(scene.model.requests[-1]) == [
        ("question", "Is it so?"),
        ("answer", "It is "),
        ("question", "And now?"),
    ]


@pytest.mark.requirement("S-002-Budget-05")
async def test_a_context_that_is_nearly_full_is_warned_of_once(stage: Stage) -> None:
    scene = await play(plots.nearly_full, stage)

    chunks = scene.chunks()
    assert scene.kinds().count("context.approaching_limit") == 1
    assert _counts(chunks) == {"limit_warning": 1}
    assert outline(chunks)[-1] == "done answered"
    warning = of_system(chunks, "limit_warning")[0]
    before = [one for one in chunks[: chunks.index(warning)] if one["type"] == "context_update"]
    full = [one["context_tokens"] / one["max_context_tokens"] >= 0.7 for one in before]
    assert full == [False] * (len(full) - 1) + [True]


STOPS: dict[str, Plot] = {
    "max_iterations": plots.max_iterations,
    "token_budget": plots.token_budget,
    "timeout": plots.timeout,
    "no_progress": plots.no_progress,
    "error_limit": plots.error_limit,
    "cancelled": plots.cancelled,
    "provider_error": plots.provider_failure,
}


@pytest.mark.requirement("S-002-Query-12", "S-001-System-01")
@pytest.mark.parametrize("why", STOPS)
async def test_every_stop_says_why_once_ends_once_and_carries_the_time(
    why: str, stage: Stage
) -> None:
    scene = await play(STOPS[why], stage)

    chunks, events = scene.chunks(), scene.events()
    end = chunks[-1]
    assert is_whole(chunks)
    assert end.get("reason", end.get("error_type")) == why
    assert end.get("partial", True) is True
    stamped = [one for one in chunks if one["type"] in {"system", "done", "error"}]
    times = [datetime.fromisoformat(one["timestamp"]) for one in stamped]
    assert times == sorted(times)
    assert {time.utcoffset() for time in times} == {timedelta(0)}
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("query.start", "session.end")
    assert (kinds.count("query.start"), kinds.count("session.end")) == (1, 1)
    told = events[-1]["payload"]
    assert (told["exchange_saved"], told["cancelled"]) == (True, why == "cancelled")
    inspected = scene.inspected[0]
    assert inspected["termination_reason"] == ("failed" if why == "provider_error" else why)
    assert inspected["tree"] == stage.tree


def _counts(chunks: Sequence[Event]) -> dict[str, int]:
    """How often each type of system chunk came."""
    return dict(Counter(one["system_type"] for one in chunks if one["type"] == "system"))
