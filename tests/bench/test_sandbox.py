import json
import subprocess
import sys

import pytest

from bench.sandbox import SCENARIOS

Told = dict[str, dict[str, object]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What the smallest run there is says in JSON, by the names of its figures."""
    file = tmp_path_factory.mktemp("bench") / "figures.json"
    command = [sys.executable, "-m", "bench.sandbox", "--micro", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"{scenario.__name__}: other load" in done.stderr for scenario in SCENARIOS)
    return {figure["name"]: figure for figure in json.loads(file.read_text())}


def test_the_whole_way_is_held_against_the_raw_call_of_the_same_run(told: Told) -> None:
    whole = told["whole way, 1 KB"]

    assert (whole["limit"], whole["ratio"], whole["base"]) == (6, True, "raw call")
    assert isinstance(whole["floor"], float)
    assert isinstance(whole["gateway"], float)
    assert 0 < whole["floor"] < whole["gateway"]


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("host's share p99, 1 KB", 1),
        ("throughput, 16 callers", 2_000),
        ("idle worker RSS", 60),
        ("growth of the gateway, 20 trapping calls", 2),
        ("deadline to error at most, 8 spinning", 250),
        ("loop stall at most, 8 spinning", 20),
    ],
)
def test_a_figure_has_its_mark(told: Told, name: str, limit: float) -> None:
    assert told[name]["limit"] == limit


def test_all_50_calls_come_back_though_the_worker_is_killed(told: Told) -> None:
    assert told["results of 50 calls, worker killed"]["gateway"] == 50
    assert told["errors among them"]["verdict"] == "met"
