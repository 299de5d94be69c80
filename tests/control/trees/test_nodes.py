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
from gateway.control.trees.nodes import LeafCall
from gateway.control.trees.tracing import LeafScript, trace
from tests.control.trees.stage import Pending, Stage, ended, line, traced
from tests.forms import examples

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
    found = trace(plan, LeafScript(case["leaves"], len(case["ticks"])))

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
            st.sampled_from(
                [k for k in sorted(TRACED) if KINDS[k].max_children > 3 and k != "try"]
            ),
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
@settings(max_examples=examples(150))
def test_a_tick_always_ends_whatever_the_leaves_say(node: str, letters: list[str]) -> None:
    leaves = {f"l{number}": each for number, each in enumerate(letters)}

    found = trace(load(f'(tree "t" {node})'), LeafScript(leaves, 12, 0.5))

    assert len(found.ticks) == 12
    assert all(len(tick.ticked) < 2_000 for tick in found.ticks)


@pytest.mark.requirement("S-002-BT-07")
def test_with_continue_on_failure_every_child_runs_to_its_end() -> None:
    node = "(parallel :policy :continue-on-failure (action a) (action b) (action c))"

    assert traced(node, 2, a="F", b="RS", c="S") == ["R aF bR cS", "S bS"]
    assert traced(node, 2, a="F", b="RF", c="F") == ["R aF bR cF", "F bF"]


@pytest.mark.parametrize(
    "policy", [":policy :require-one", ":require-one", ":success one :failure all"]
)
def test_one_is_enough_if_the_tree_says_so(policy: str) -> None:
    node = f"(parallel {policy} (action a) (action b) (action c))"

    assert traced(node, 2, a="R", b="FS", c="RS") == ["R aR bF cR", "S aR cS -a"]


@pytest.mark.parametrize(
    "policy", ["", ":require-all", ":policy :require-all", ":success all :failure 1"]
)
def test_all_have_to_succeed_otherwise(policy: str) -> None:
    node = f"(parallel {policy} (action a) (action b) (action c))"

    assert traced(node, 2, a="R", b="RF", c="R") == ["R aR bR cR", "F aR bF -a -c"]


def test_an_ensured_node_runs_after_success_and_failure_and_keeps_the_status() -> None:
    assert traced("(ensure (action body) (action clean))", 3, body="RSF", clean="F") == [
        "R bodyR",
        "S bodyS cleanF",
        "F bodyF cleanF",
    ]


def test_a_halted_body_is_cleaned_up_with_one_tick() -> None:
    node = "(reactive-sequence (action gate) (ensure (action body) (action clean)))"

    assert traced(node, 2, gate="SF", body="R", clean="RS") == [
        "R gateS bodyR",
        "F gateF cleanR -body -clean",
    ]


def test_a_body_that_is_skipped_has_nothing_to_clean_up() -> None:
    assert traced("(ensure (action body) (action clean))", 1, body="K", clean="S") == ["K bodyK"]


def test_a_condition_that_is_skipped_skips_the_branches() -> None:
    assert traced("(if (action c) (action a))", 1, c="K", a="S") == ["K cK"]
    assert traced("(while (action c) (action a))", 2, c="SK", a="R") == ["R cS aR", "K cK -a"]


def switching(stage: Stage) -> str:
    stage.logs("one", "other")
    return (
        '(tree "t" :blackboard-schema {:mode "a" :done false} '
        "(switch $mode {:a (action one) :true (succeed) :else (action other)}))"
    )


def test_a_switch_takes_the_branch_of_its_value_or_else() -> None:
    stage = Stage()
    text = switching(stage)

    ended(stage.run(text))
    ended(stage.run(text, mode="zzz"))

    assert stage.log == ["one", "other"]


def test_a_switch_without_a_branch_fails_and_says_so() -> None:
    stage = Stage()
    run = stage.run('(tree "t" :blackboard-schema {:x nil} (switch $x {:a (succeed)}))')

    failure = ended(run).failure

    assert failure is not None
    assert failure["message"] == "no case for nil"


def test_a_switch_halts_the_branch_that_is_no_longer_right() -> None:
    stage = Stage()
    halted: list[str] = []
    stage.offer("wait-for-it", lambda call: Pending(call, lambda: halted.append(call.plan.label)))
    run = stage.run(
        '(tree "t" :blackboard-schema {:mode "a"} '
        "(switch $mode {:a (action wait-for-it) :b (succeed)}))"
    )
    assert not run.step()

    run.frame.set("mode", "b")

    assert run.state.is_awake  # whoever writes a key that is asked for wakes the run
    assert ended(run).status.name == "SUCCESS"
    assert halted == ["wait-for-it"]


def test_after_a_caught_failure_the_reason_can_be_read() -> None:
    stage = Stage()
    seen: list[object] = []

    def look(call: LeafCall) -> None:
        seen.append(call.read("failure"))

    stage.offer("look", look)
    ended(stage.run('(try (fail "no luck") (catch (action look)))'))

    assert isinstance(seen[0], dict)
    assert (seen[0]["message"], seen[0]["line"]) == ("no luck", 1)
