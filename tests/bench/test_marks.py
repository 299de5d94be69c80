import json
from pathlib import Path

import pytest

from bench.marks import Figure, report, table


def test_a_ratio_is_held_against_the_floor() -> None:
    figure = Figure("CPU", "ms", gateway=0.9, floor=0.2, limit=4.0, ratio=True)

    assert figure.is_met is False
    assert figure.verdict == "missed by 12%"


@pytest.mark.parametrize(
    ("value", "at_least", "is_met"),
    [(3.0, False, True), (3.1, False, False), (3.0, True, True), (2.9, True, False)],
)
def test_a_mark_is_met_up_to_its_limit(*, value: float, at_least: bool, is_met: bool) -> None:
    figure = Figure("x", "ms", gateway=value, limit=3.0, at_least=at_least)

    assert figure.is_met is is_met


def test_a_figure_without_a_mark_is_neither_met_nor_missed() -> None:
    figure = Figure("x", "ms", gateway=1.0)

    assert figure.is_met is None
    assert figure.verdict == figure.mark == ""


def test_the_table_names_what_a_figure_is_compared_with() -> None:
    figure = Figure("late", "ms", 1.2, floor=1.0, limit=1.15, ratio=True, base="turn 10")

    assert "<= 1.15 x turn 10 | missed by 4%" in table([figure])


def test_figures_are_told_as_a_table_and_as_json_where_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report([Figure("x", "ms", gateway=1.0, limit=3.0)], tmp_path / "figures.json")

    (told,) = json.loads((tmp_path / "figures.json").read_text())
    assert (told["name"], told["gateway"], told["verdict"]) == ("x", 1.0, "met")
    assert "| x " in capsys.readouterr().out
