"""Traces of the reference engines, and what nodes do that these do not have.

`traces.json` was made by running random trees with random scripts: `by: btcpp` in BehaviorTree.CPP
4.10.0 (tickExactlyOnce, which gives way between the rounds of a loop), `by: both` in that and in
py_trees 2.6.0, which gave the same statuses, ticks and halts. The kinds that only the former has are
memory-sequence, parallel, if, while, try, repeat, retry, until-fail and run-once, and it alone skips.
`(parallel :policy :continue-on-failure …)` is its ParallelAll with max_failures = -1.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.control.trees.kinds import KINDS
from gateway.control.trees.loading import load
from gateway.control.trees.tracing import Script, trace
from tests.control.trees.stage import line, traced

TRACES = json.loads((Path(__file__).parent / "traces.json").read_text(encoding="utf-8"))
TRACED = {"sequence", "selector", "reactive-sequence", "reactive-selector", "memory-sequence"} | {
    *("parallel", "if", "while", "try", "repeat", "retry", "invert", "force-success"),
    *("force-failure", "until-fail", "run-once"),
}


@pytest.mark.requirement("S-002-BT-02")
@pytest.mark.parametrize("number", range(len(TRACES)))
def test_a_tree_ticks_and_halts_as_in_the_reference_engines(number: int) -> None:
    case = TRACES[number]

    plan = load(f'(tree "t" {case["tree"]})')
    found = trace(plan, Script(case["leaves"], len(case["ticks"])))

    assert [line(tick) for tick in found.ticks] == case["ticks"]
    assert " ".join(found.final_halt) == case["end"]


def test_every_kind_of_the_reference_engines_is_traced_with_halts_and_skips() -> None:
    kinds: Counter[str] = Counter()
    halted: Counter[str] = Counter()
    for case in TRACES:
        found = set(re.findall(r"\(([a-z-]+)", case["tree"])) - {"action", "catch"}
        kinds.update(found)
        if any(" -" in tick for tick in case["ticks"]):
            halted.update(found)

    assert kinds.keys() == TRACED
    assert min(kinds.values()) >= 30
    assert min(halted.values()) >= 10
    assert any("K" in letters for case in TRACES for letters in case["leaves"].values())


def test_aliases_are_the_same_nodes() -> None:
    for alias, kind in (
        ("(fallback (action a) (action b))", "(selector (action a) (action b))"),
        ("(repeater :max-iterations 2 (action b))", "(repeat :max 2 (action b))"),
        ("(always_succeed (action a))", "(force-success (action a))"),
        ("(inverter (action a))", "(invert (action a))"),
    ):
        assert traced(alias, 6, a="FRS", b="RS") == traced(kind, 6, a="FRS", b="RS")


NESTED = st.recursive(
    st.integers(0, 4).map(lambda number: f"(action l{number})"),
    lambda inner: st.one_of(
        st.tuples(
            st.sampled_from([k for k in sorted(TRACED) if KINDS[k].most > 3 and k != "try"]),
            st.lists(inner, min_size=1, max_size=3),
        ).map(lambda made: f"({made[0]} {' '.join(made[1])})"),
        st.tuples(
            st.sampled_from(["repeat", "retry", "until-fail", "invert", "run-once", "timeout 2s"]),
            inner,
        ).map(lambda made: f"({made[0]} {made[1]})"),
        st.tuples(
            st.sampled_from(["if", "while", "ensure"]), st.lists(inner, min_size=2, max_size=2)
        ).map(lambda made: f"({made[0]} {' '.join(made[1])})"),
    ),
    max_leaves=12,
)


@given(NESTED, st.lists(st.text("RSFK", min_size=1, max_size=4), min_size=5, max_size=5))
@settings(max_examples=150)
def test_a_tick_always_ends_whatever_the_leaves_say(node: str, letters: list[str]) -> None:
    leaves = {f"l{number}": each for number, each in enumerate(letters)}

    found = trace(load(f'(tree "t" {node})'), Script(leaves, 12, 0.5))

    assert len(found.ticks) == 12
    assert all(len(tick.ticked) < 2_000 for tick in found.ticks)
