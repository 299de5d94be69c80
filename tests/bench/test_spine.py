from pathlib import Path

from bench.spine import MICRO, measure


def test_a_tiny_run_measures_floor_and_gateway_side_by_side(tmp_path: Path) -> None:
    figures = {figure.name: figure for figure in measure(MICRO, tmp_path)}

    cpu = figures["CPU a message, 1 session"]
    assert cpu.floor is not None
    assert 0 < cpu.floor < cpu.gateway
    assert figures["throughput, 8 sessions"].gateway > 0
    assert figures["idle RSS"].gateway > 10
