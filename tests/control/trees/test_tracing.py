"""Scripted leaves."""

from dataclasses import asdict

import pytest

from gateway.control.trees.loading import load
from gateway.control.trees.tracing import BadScript, LeafScript, trace


def test_a_trace_has_the_shape_that_programs_read() -> None:
    plan = load('(tree "t" (reactive-sequence (action l0) (action l1)))')
    assert asdict(trace(plan, LeafScript({"l0": "SFS", "l1": "R"}, 3))) == {
        "ticks": [
            {"status": "R", "ticked": [["l0", "S"], ["l1", "R"]], "halted": []},
            {"status": "F", "ticked": [["l0", "F"]], "halted": ["l1"]},
            {"status": "R", "ticked": [["l0", "S"], ["l1", "R"]], "halted": []},
        ],
        "final_halt": ["l1"],
    }


def test_a_leaf_that_the_script_lacks_is_named() -> None:
    with pytest.raises(BadScript, match='no leaf "step1"; did you mean "step0"'):
        trace(load('(tree "t" (action step1))'), LeafScript({"step0": "S"}, 1))


@pytest.mark.parametrize(
    "data",
    [
        *(None, [], {}, {"leaves": {}}, {"leaves": [], "ticks": 1}, {"leaves": {}, "ticks": "8"}),
        *({"leaves": {"a": ""}, "ticks": 1}, {"leaves": {"a": "RX"}, "ticks": 1}),
        *(
            {"leaves": {"a": 1}, "ticks": 1},
            {"leaves": {}, "ticks": -1},
            {"leaves": {}, "ticks": True},
        ),
        *({"leaves": {}, "ticks": 10**9}, {"leaves": {}, "ticks": 1, "tick_s": "1"}),
        {"leaves": {}, "ticks": 1, "other": 1},
    ],
)
def test_a_script_that_is_none_is_refused(data: object) -> None:
    with pytest.raises(BadScript):
        LeafScript.from_json(data)


def test_a_script_is_read_from_json() -> None:
    assert LeafScript.from_json({"leaves": {"a": "RSFK"}, "ticks": 8}) == LeafScript(
        {"a": "RSFK"}, 8
    )


def test_the_end_of_a_tree_needs_no_script() -> None:
    plan = load('(tree "t" (action a) :finally (action clean))')

    assert [tick.status for tick in trace(plan, LeafScript({"a": "RS"}, 2)).ticks] == ["R", "S"]
