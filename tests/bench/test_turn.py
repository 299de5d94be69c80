import json
import subprocess
import sys

import pytest

from bench.turn import TREES, ticks

Told = dict[str, dict[str, object]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What the smallest run there is says in JSON, by the names of its figures."""
    file = tmp_path_factory.mktemp("bench") / "figures.json"
    command = [sys.executable, "-m", "bench.turn", "--micro", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return {figure["name"]: figure for figure in json.loads(file.read_text())}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("store", ["memory", "embedded"])
def test_both_trees_are_measured_beside_the_bare_loop_in_both_stores(
    told: Told, tree: str, store: str
) -> None:
    turn, more = (
        told[f"CPU a turn, {tree}, {store}"],
        told[f"more than the bare loop, {tree}, {store}"],
    )

    assert isinstance(turn["floor"], float)
    assert isinstance(turn["gateway"], float)
    assert 0 < turn["floor"] < turn["gateway"]
    assert more["gateway"] == pytest.approx(turn["gateway"] - turn["floor"])
    assert (more["limit"], more["ratio"], more["at_least"]) == (5, False, False)


@pytest.mark.parametrize("tree", TREES)
def test_a_turn_of_three_model_calls_takes_a_tick_or_two_for_each_thing_that_happens(
    tree: str,
) -> None:
    assert ticks(tree) <= 8
