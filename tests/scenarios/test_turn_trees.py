"""The two shipped trees are one behaviour: nobody who listens can tell them apart."""

from pathlib import Path

import anyio
import pytest

from tests.fakes.model_server import Wire
from tests.scenarios.plots import ANSWERS
from tests.scenarios.plots_killed import KILLED
from tests.scenarios.plots_limits import LIMITS
from tests.scenarios.stage import TREES, WIRES, Scene, Stage, play, without_marks

PLOTS = {**ANSWERS, **LIMITS, **KILLED}


@pytest.mark.requirement("S-002-BT-04")
@pytest.mark.parametrize("wire", WIRES)
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
