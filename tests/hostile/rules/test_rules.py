"""Every hostile file of rules is refused with places; the odd ones load and do no harm."""

import math
from pathlib import Path

import pytest

from gateway.config.problems import ConfigInvalid
from gateway.config.rules import RuleReader
from gateway.control.rules import CORE, RunRules, check_rule, load_rules
from tests.fakes.rules import event

HERE = Path(__file__).parent
HOSTILE = sorted(HERE.glob("*.toml"))
ODD = sorted((HERE / "fine").glob("*.toml"))
READER = RuleReader(check_rule, lambda path: path.name)
TAKEN = {rule.id: rule for rule in READER.read_file(CORE, {})}


@pytest.mark.requirement("S-002-Rules-03")
@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.stem)
def test_a_hostile_file_is_refused_with_places(path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        READER.read_file(path, TAKEN)

    for problem in caught.value.problems:
        assert problem.source == path.name
        assert problem.line >= 1
        assert problem.column >= 1
        assert problem.message
        assert problem.fix
        assert 0 <= problem.caret <= len(problem.text)
        shown = problem.render()
        assert all(line.isprintable() for line in shown.split("\n"))
        assert len(shown) < 1_500


@pytest.mark.parametrize("path", ODD, ids=lambda path: path.stem)
def test_an_odd_file_loads_and_whatever_happens_harms_nobody(path: Path) -> None:
    rules = load_rules(READER.read_file(path, TAKEN))
    deep: object = None
    for _ in range(50_000):
        deep = {"payload": deep, "x": [deep]}
    values: list[object] = [
        None,
        "{payload.x}",
        math.inf,
        10**5_000,
        -0.0,
        deep,
        [deep],
        "x" * 99_999,
    ]

    run = RunRules(rules)
    for value in values:
        for name in ("query.start", "tool.call.success", "a" * 200, "house.again"):
            acts = run.on(event(name, {"x": value, "n": value}), {})
            assert len(acts) <= len(rules.rules)

    assert len(repr(run.kept)) < 5_000


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 80
    assert len(ODD) >= 15
