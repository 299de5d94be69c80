"""The two shipped trees are one behaviour: nobody who listens can tell them apart."""

from pathlib import Path

import anyio
import pytest

from tests.fakes.model_server import Asked, Reply, Wire
from tests.forms import is_long
from tests.scenarios.plots import ANSWERS, echo_of
from tests.scenarios.plots_killed import KILLED
from tests.scenarios.plots_limits import LIMITS
from tests.scenarios.stage import TREES, WIRES, Scene, Stage, outline, play, shown_to, without_marks

PLOTS = {**ANSWERS, **LIMITS, **KILLED}


SAMPLES = Path(__file__).parents[1] / "control" / "trees" / "samples"
THE_OLDER = str(SAMPLES / "first-draft.bt")


@pytest.mark.parametrize("tree", [THE_OLDER, "oracle-agent"])
@pytest.mark.parametrize("wire", WIRES)
async def test_the_oracle_trees_make_round_after_round_of_calls_and_answer(
    tree: str, wire: Wire, tmp_path: Path
) -> None:
    rounds = [
        Reply("", calls=[echo_of(1, "a"), ("c2", "no_such_tool", "{}"), echo_of(3, "b")]),
        Reply("", calls=[echo_of(4, "c")]),
        Reply("It is so."),
    ]
    async with Stage(wire, tree, tmp_path).open(rounds, tools=("echo",)) as scene:
        chunks = await scene.ask("Is it so?")

    told = outline(chunks)
    assert sorted(line for line in told if line.startswith("tool_result")) == [
        "tool_result c1 success",
        "tool_result c2 error",
        "tool_result c3 success",
        "tool_result c4 success",
    ]
    assert told[-1] == "done answered"
    assert len(scene.model.requests) == 3
    assert [kind for kind, _ in shown_to(scene.model.requests[2])].count("result") == 4


@pytest.mark.parametrize("tree", [THE_OLDER, "oracle-agent"])
async def test_the_oracle_trees_end_at_the_limits_of_the_agent(tree: str, tmp_path: Path) -> None:
    def again(asked: Asked) -> Reply:
        return Reply("", calls=[echo_of(asked.number, str(asked.number))])

    limits = "[agent.limits]\nmax_iterations = 3"
    async with Stage("openai", tree, tmp_path).open(again, agent=limits, tools=("echo",)) as scene:
        chunks = await scene.ask("Is it so?")

    assert outline(chunks)[-1] == "done max_iterations partial"
    assert len(scene.model.requests) == 3


@pytest.mark.requirement("S-002-BT-04")
@pytest.mark.parametrize("wire", WIRES if is_long() else WIRES[:1])
@pytest.mark.parametrize("name", PLOTS)
async def test_both_trees_give_the_same_chunks_the_same_events_and_ask_the_model_the_same(
    name: str, wire: Wire, tmp_path: Path
) -> None:
    scenes: list[Scene] = []
    for tree in TREES:
        folder = tmp_path / tree
        await anyio.Path(folder).mkdir()
        scenes.append(await play(PLOTS[name], Stage(wire, tree, folder)))

    one, other = scenes
    assert one.told_alike() == other.told_alike()
    assert one.kinds_of_all() == other.kinds_of_all()
    assert asked_alike(one) == asked_alike(other)
    assert all(one.told_alike())


def asked_alike(scene: Scene) -> list[object]:
    """What the model was asked, whole."""
    return [without_marks(asked.body) for asked in scene.model.requests]
