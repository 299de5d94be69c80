"""A turn that its user stops: at any moment, in either way, there is one end and the talk goes on."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.client import TERMINAL, WAIT_S, Event
from tests.fakes.model_server import Asked, Reply
from tests.forms import examples
from tests.scenarios import plots_limits as plots
from tests.scenarios.plots import echo_of
from tests.scenarios.scripts import shown
from tests.scenarios.stage import Scene, Stage, is_whole, outline, pairs, play, talk_to

Moment = tuple[int, str, bool]  # after so many chunks, in which mode, and once more at once


@pytest.mark.requirement("S-002-E2E-08", "S-002-Cancel-01", "S-002-Cancel-02", "S-002-LLM-10")
async def test_stopped_in_mid_stream_the_part_is_kept_and_the_next_message_works(
    stage: Stage,
) -> None:
    scene = await play(plots.cancelled, stage)

    assert is_whole(scene.chunks())
    assert outline(scene.chunks()) == [
        "content half of ",
        "usage",
        "notice: Cancelled by user",
        "done cancelled partial",
    ]
    assert scene.model.requests[0].disconnected.is_set()
    assert scene.kinds() == ["query.start", "session.end"]
    assert shown(scene.pages[0]) == [("user", "first"), ("assistant", "half of ")]
    assert scene.pages[0]["messages"][-1]["status"] == "cancelled"
    assert talk_to(scene.model.requests[1]) == [
        ("question", "first"),
        ("answer", "half of "),
        ("question", "second"),
    ]
    assert scene.chunks(1)[-1]["response"] == "answer to second"


@pytest.mark.requirement("S-002-Cancel-01", "S-000-ToolCall-05")
async def test_stopped_in_the_middle_of_its_tools_each_call_has_a_result_and_none_goes_on(
    stage: Stage,
) -> None:
    scene = await play(plots.cancelled_in_a_tool, stage)

    assert is_whole(scene.chunks())
    assert outline(scene.chunks()) == [
        "usage",
        "tool_call c1 pending",
        "tool_call c2 pending",
        "tool_result c1 success",
        "tool_result c2 error",
        "notice: Cancelled by user",
        "done cancelled partial",
    ]
    results = [one for one in scene.pages[0]["messages"] if one["role"] == "tool"]
    assert [one["tool_call_id"] for one in results] == ["c1", "c2"]
    assert outline(scene.chunks(1))[-1] == "done answered"
    _assert_valid(talk_to(scene.model.requests[1]))


async def test_a_rule_that_interrupts_stops_the_run_before_the_call_and_says_why(
    stage: Stage,
) -> None:
    scene = await play(plots.stopped_by_a_rule, stage)

    chunks = scene.chunks()
    assert is_whole(chunks)
    assert outline(chunks)[-1].startswith("done cancelled")
    assert len(scene.model.requests) == 1
    said = [one["system_message"] for one in chunks if one["type"] == "system"]
    assert said[0] == "Nobody may use echo."
    assert "Cancelled by user" not in said
    assert "tool.call.success" not in scene.kinds()


def chatty(asked: Asked) -> Reply:
    """Two rounds of tools, with text around them; then an answer in many pieces."""
    rounds = sum(kind == "call" for kind, _ in _since_the_question(asked)) // 2
    if rounds >= 2:
        return Reply([f"piece {number} " for number in range(8)])
    calls = [echo_of(2 * asked.number + n, f"{asked.number}/{n}") for n in (0, 1)]
    return Reply(["Let ", "me ", "see. "], calls=calls)


def _since_the_question(asked: Asked) -> list[tuple[str, str]]:
    talk = talk_to(asked)
    last = max(place for place, (kind, _) in enumerate(talk) if kind == "question")
    return talk[last:]


async def stopped_at(moments: list[Moment], stage: Stage) -> None:
    with anyio.fail_after(len(moments) * WAIT_S + WAIT_S):
        async with stage.open(chatty, tools=("echo",)) as scene:
            for number, moment in enumerate(moments):
                await _stop_one(scene, number, moment)
            await scene.ask("And the last?")
            await scene.read()

    reasons = [scene.chunks(number)[-1]["reason"] for number in range(len(scene.runs))]
    assert set(reasons[:-1]) <= {"cancelled", "answered"}
    assert reasons[-1] == "answered"
    assert all(is_whole(scene.chunks(number)) for number in range(len(scene.runs)))
    for number in range(len(scene.runs)):
        kinds = [event["type"] for event in scene.events(number)]
        assert (kinds.count("query.start"), kinds.count("session.end")) == (1, 1)
    for asked in scene.model.requests:
        _assert_valid(talk_to(asked))
    assert shown(scene.pages[0])[-1][0] == "assistant"


async def _stop_one(scene: Scene, number: int, moment: Moment) -> None:
    after, mode, again = moment
    run_id = (await scene.send(f"question {number}"))["run_id"]
    await scene.client.until(run_id, lambda seen: len(seen) >= after or _is_over(seen))
    for _ in range(1 + again):
        await scene.client.call("chat.abort", run_id=run_id, mode=mode)
    await scene.ended(run_id)


def _is_over(seen: Sequence[Event]) -> bool:
    return bool(seen) and seen[-1]["type"] in TERMINAL


def _assert_valid(talk: list[tuple[str, str]]) -> None:
    """Every call is answered before anything else is said; questions and answers take turns."""
    open_calls = 0
    for kind, _ in talk:
        if kind == "call":
            open_calls += 1
        elif kind == "result":
            open_calls -= 1
        else:
            assert open_calls == 0
    kinds = [kind for kind, _ in talk]
    assert open_calls == 0
    assert ("question", "question") not in set(zip(kinds, kinds[1:], strict=False))


MOMENTS = st.tuples(st.integers(0, 26), st.sampled_from(["immediate", "after_turn"]), st.booleans())


@pytest.mark.requirement("S-002-Cancel-01", "S-002-Cancel-02")
@pytest.mark.parametrize(("wire", "tree"), pairs())
@settings(
    max_examples=examples(6),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(moments=st.lists(MOMENTS, min_size=1, max_size=6))
def test_stopped_at_any_moment_a_run_has_one_end_no_gap_and_leaves_a_history_that_a_model_can_read(
    moments: list[Moment], wire: str, tree: str
) -> None:
    with TemporaryDirectory() as folder:
        stage = Stage("anthropic" if wire == "anthropic" else "openai", tree, Path(folder))
        anyio.run(stopped_at, moments, stage)
