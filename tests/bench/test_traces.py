"""The benchmark of traces runs to its end."""

from pathlib import Path

from bench.traces import MICRO, measure


def test_traced_messages_are_measured_beside_others(tmp_path: Path) -> None:
    figures = {figure.name: figure for figure in measure(MICRO, tmp_path)}

    assert len(figures) == 4
    assert figures["CPU a message, 1 session"].limit == 1.15
    assert all(figure.gateway > 0 for figure in figures.values())
