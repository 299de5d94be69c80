"""A turn whose gateway is killed: the next process brings it to the end that it would have had."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.client import texts_of
from tests.scenarios import plots_limits as plots
from tests.scenarios.plots_killed import killed, killed_at, killed_in_a_tool, undisturbed
from tests.scenarios.scripts import shown
from tests.scenarios.stage import Scene, Stage, outline, play, talk_to, without_marks

pytestmark = pytest.mark.shared_store

LIMITED = f"{plots.LIMITED}max_iterations = 3\n"


@pytest.mark.requirement("S-002-LLM-10", "S-000-ToolCall-05")
async def test_after_kill_9_in_mid_stream_the_turn_goes_on_and_its_tool_is_not_called_again(
    stage: Stage,
) -> None:
    scene = await play(killed, stage)

    before, after = scene.earlier[0].chunks(), scene.chunks()
    first, *rest = after
    assert (first["type"], first["system_type"]) == ("system", "notice")
    assert first["metadata"]["discard_from_seq"] <= before[-1]["seq"] < first["seq"]
    seqs = [one["seq"] for one in after]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert texts_of(rest).endswith("It said hello.")
    assert outline(rest)[-1] == "done answered"
    assert [one["type"] in {"done", "error"} for one in after].count(True) == 1
    # The reply that asked for the tool was kept; only the one that was cut is asked for again.
    assert len(scene.model.requests) == 4
    assert talk_to(scene.model.requests[2]) == talk_to(scene.model.requests[1])
    assert [role for role, _ in shown(scene.pages[0])] == ["user", "assistant", "tool", "assistant"]
    assert shown(scene.pages[0])[-1] == ("assistant", "It said hello.")
    assert outline(scene.chunks(1))[-1] == "done answered"


@pytest.mark.requirement("S-000-ToolCall-05")
async def test_of_the_calls_that_were_at_work_only_those_without_a_result_are_made_again(
    stage: Stage,
) -> None:
    scene = await play(killed_in_a_tool, stage)

    assert sorted(scene.paths) == ["/a", "/b", "/b"]
    assert sorted(outline(scene.chunks()[1:])[1:5]) == [
        "tool_call a pending",
        "tool_call b pending",
        "tool_result a success",
        "tool_result b success",
    ]
    assert outline(scene.chunks())[-1] == "done answered"
    kept = [one["tool_call_id"] for one in scene.pages[0]["messages"] if one["role"] == "tool"]
    assert kept == ["a", "b"]
    assert len(scene.model.requests) == 2


STOPS: dict[str, Any] = {
    "a limit": (3, plots.calling, LIMITED, "done max_iterations partial"),
    "no progress": (4, plots.repeating, "", "done no_progress partial"),
    "no progress, refused already": (5, plots.repeating, "", "done no_progress partial"),
    "errors": (3, plots.failing, "", "done error_limit partial"),
}


@pytest.mark.parametrize("what", STOPS)
async def test_a_run_that_was_killed_is_stopped_where_it_would_have_been_and_says_the_same(
    what: str, stage: Stage, tmp_path: Path
) -> None:
    number, script, agent, end = STOPS[what]
    other = Stage(stage.wire, stage.tree, tmp_path / "other")
    await anyio.Path(other.folder).mkdir()

    scene = await killed_at(number, script, stage, tools=("echo",), agent=agent)
    whole = await undisturbed(script, other, tools=("echo",), agent=agent)

    assert told(scene)[0]["metadata"] == {"discard_from_seq": 1}
    assert told(scene)[1:] == told(whole)
    assert outline(scene.chunks())[-1] == end
    assert shown(scene.pages[0]) == shown(whole.pages[0])
    # Only the request that was cut off is made again.
    assert len(scene.model.requests) == len(whole.model.requests) + 1


def told(scene: Scene) -> list[dict[str, Any]]:
    chunks = [without_marks({**chunk, "seq": 0}) for chunk in scene.chunks()]
    assert all(isinstance(chunk, dict) for chunk in chunks)
    return chunks  # type: ignore[return-value]  # as was just looked
