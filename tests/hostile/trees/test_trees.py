"""Every hostile tree is refused with a place, quickly; the odd ones load."""

from pathlib import Path

import pytest

from gateway.control.trees.lint import format_tree
from gateway.control.trees.loading import load
from gateway.control.trees.reader import MAX_PROBLEMS, TreeInvalid, TreeProblem, decode_file
from tests.control.trees.stage import Stage

HERE = Path(__file__).parent
HOSTILE = sorted(HERE.glob("*.bt"))
ODD = sorted((HERE / "fine").glob("*.bt"))


def refusal(path: Path) -> tuple[TreeProblem, ...]:
    with pytest.raises(TreeInvalid) as caught:
        load(decode_file(path.read_bytes(), path.name), path.name, Stage().registry)
    return caught.value.problems


@pytest.mark.requirement("S-002-BT-12")
@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.stem)
def test_a_hostile_tree_is_refused_with_places(path: Path) -> None:
    found = refusal(path)

    assert any(problem.severity == "error" for problem in found)
    assert len(found) <= MAX_PROBLEMS
    for problem in found:
        shown = problem.render()
        assert shown.startswith(f"{path.name}:{problem.line}:{problem.column}: ")
        assert shown.replace("\n", "").isprintable()
        assert len(shown) < 800


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.stem)
def test_a_hostile_tree_is_laid_out_once_or_refused(path: Path) -> None:
    try:
        once = format_tree(decode_file(path.read_bytes(), path.name))
    except TreeInvalid:
        return
    assert format_tree(once) == once


@pytest.mark.parametrize("path", ODD, ids=lambda path: path.stem)
def test_an_odd_tree_loads_and_is_laid_out_once(path: Path) -> None:
    text = decode_file(path.read_bytes(), path.name)
    once = format_tree(text)

    assert load(text).name == "t"
    assert load(once).name == "t"
    assert format_tree(once) == once


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 40
