"""A policy sees a state that nobody changes, gives reasons in their order, and lifts no limit."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace
from itertools import product
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.policy import (
    AgentState,
    DecisionTree,
    DefaultDecisionTree,
    LoopState,
    add_built_in,
    tighten,
    warning_at,
)
from gateway.domain.agents import BOUNDS, Limits

LIMITS = Limits()


def state(**given: Any) -> AgentState:
    return AgentState(**{"user_id": "u", "config": LIMITS, **given})


def result(
    signature: str = "echo:1", digest: str = "d", *, is_error: bool = False
) -> Mapping[str, object]:
    said = {"tool": "echo", "call_id": "1", "signature": signature, "digest": digest}
    return {**said, "is_error": is_error}


# -- the state


@pytest.mark.requirement("S-001-State-01")
def test_a_run_begins_at_zero_with_nothing_done() -> None:
    one = state()

    assert (one.user_id, one.project_id, one.config) == ("u", "default", LIMITS)
    assert (one.turn, one.tokens_used, one.start_time) == (0, 0, 0.0)
    assert (one.recent_actions, one.termination_reason, dict(one.extensions)) == ((), None, {})


@pytest.mark.requirement("S-001-State-02")
@pytest.mark.parametrize("name", [one.name for one in fields(AgentState)])
def test_no_field_of_a_state_can_be_set(name: str) -> None:
    one = state()

    with pytest.raises(FrozenInstanceError):
        setattr(one, name, getattr(one, name))


@pytest.mark.requirement("S-001-State-02")
def test_the_next_state_leaves_the_one_before_as_it_was() -> None:
    before = state()

    after = before.evolve(turn=1, tokens_used=5, warnings=frozenset({"x"}))

    assert (before.turn, before.tokens_used, before.warnings) == (0, 0, frozenset())
    assert (after.turn, after.tokens_used, after.warnings) == (1, 5, frozenset({"x"}))


@pytest.mark.requirement("S-001-State-02", "S-001-State-06")
def test_what_a_module_keeps_in_a_state_cannot_be_changed_behind_its_back() -> None:
    mine: dict[str, object] = {"mine": 1}

    one = state(extensions=mine)
    mine["mine"] = 2

    assert one.extensions == {"mine": 1}
    with pytest.raises(TypeError):
        one.extensions["mine"] = 3  # type: ignore[index]  # what is proved


@pytest.mark.requirement("S-001-State-06")
def test_a_module_keeps_something_without_touching_anything_else() -> None:
    before = state(turn=2)

    after = before.evolve(extensions={**before.extensions, "mine": 1})

    assert replace(after, extensions=before.extensions) == before
    assert after.evolve(turn=3).extensions == {"mine": 1}


@pytest.mark.requirement("S-001-State-03")
def test_a_run_that_has_ended_goes_nowhere() -> None:
    ended = state().evolve(turn=1).evolve(termination_reason="timeout")

    assert ended.is_terminal
    with pytest.raises(ValueError, match="ended: timeout"):
        ended.evolve(turn=2)
    with pytest.raises(ValueError, match="ended"):
        ended.evolve(termination_reason=None)


@pytest.mark.requirement("S-001-State-04")
def test_percentages_and_time_follow_from_the_rest() -> None:
    config = Limits(max_iterations=8, token_budget=2_000)

    one = state(config=config, turn=2, tokens_used=500, started=10.0, now=12.5, start_time=1e9)

    assert (one.iteration_percent, one.token_percent, one.elapsed_seconds) == (25.0, 25.0, 2.5)
    assert not one.is_terminal
    assert one.evolve(termination_reason="x").is_terminal


@pytest.mark.requirement("S-001-State-05")
@pytest.mark.parametrize(
    "wrong",
    [
        {"turn": -1},
        {"tokens_used": -1},
        {"started": 2.0, "now": 1.0},
        {"warnings": frozenset({1, "a"})},
        {"warnings": ["a"]},
        {"circles": None},
        {"recent_actions": [1]},
        {"recent_actions": (1,)},
        {"consecutive_errors": "1"},
        {"termination_reason": 5},
        {"recent_actions": ("a", "b", "c", "d")},
        {"config": None},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_state_that_no_run_can_be_in_is_refused(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="the state is invalid"):
        state(**wrong)
    with pytest.raises(ValueError, match="the state is invalid"):
        state().evolve(**wrong)


# -- reasons

# In the order in which they count.
HOLDS: Mapping[str, Mapping[str, Any]] = {
    "cancelled": {"is_cancelled": True},
    "max_iterations": {"turn": LIMITS.max_iterations},
    "token_budget": {"tokens_used": LIMITS.token_budget},
    "timeout": {"now": float(LIMITS.timeout_seconds)},
    "no_progress": {"circles": LoopState(is_stuck=True)},
    "error_limit": {"consecutive_errors": LIMITS.error_limit},
}
ALMOST: Mapping[str, Mapping[str, Any]] = {
    "max_iterations": {"turn": LIMITS.max_iterations - 1},
    "token_budget": {"tokens_used": LIMITS.token_budget - 1},
    "timeout": {"now": LIMITS.timeout_seconds - 0.001},
    "error_limit": {"consecutive_errors": LIMITS.error_limit - 1},
}


@pytest.mark.requirement("S-001-Tree-01", "S-001-Tree-05", "S-002-Cancel-03")
@pytest.mark.parametrize("which", list(product([False, True], repeat=len(HOLDS))))
def test_of_all_reasons_that_hold_the_first_is_given(which: tuple[bool, ...]) -> None:
    holding = [name for name, holds in zip(HOLDS, which, strict=True) if holds]
    changes: dict[str, Any] = {}
    for name in HOLDS:
        changes |= HOLDS[name] if name in holding else ALMOST.get(name, {})

    may, reason = DefaultDecisionTree(LIMITS).should_continue(state(**changes))

    assert (may, reason) == (not holding, holding[0] if holding else "")


@pytest.mark.requirement("S-001-Tree-04")
def test_a_policy_gives_the_limits_that_it_was_made_with() -> None:
    limits = Limits(max_iterations=3)

    assert DefaultDecisionTree(limits).get_config() == limits


# -- warnings


@pytest.mark.requirement("S-002-Budget-01", "S-002-Budget-02", "S-002-Budget-07")
@pytest.mark.parametrize(
    ("most", "percent", "first"),
    [
        *((10, 70, 7), (15, 70, 10), (3, 70, 2), (1, 70, 1), (2, 70, 1), (50, 70, 35)),
        *((10, 50, 5), (10, 90, 9), (1, 50, 1), (15, 80, 12), (50_000, 80, 40_000), (1, 80, 1)),
        *((7, 70, 4), (99, 95, 94)),
    ],
)
def test_a_warning_comes_at_the_whole_part_of_the_percentage(
    most: int, percent: int, first: int
) -> None:
    assert warning_at(most, percent) == first


@pytest.mark.requirement("S-001-Tree-02", "S-002-Budget-01")
@pytest.mark.parametrize(("most", "first"), [(10, 7), (15, 10), (3, 2), (1, 1), (2, 1)])
def test_the_turn_that_is_warned_of_is_the_first_that_reaches_it(most: int, first: int) -> None:
    policy = DefaultDecisionTree(Limits(max_iterations=most))

    warned = [
        turn + 1
        for turn in range(most)
        if "max_iterations" in policy.on_turn_start(state(turn=turn)).warnings
    ]

    assert warned == list(range(first, most + 1))


@pytest.mark.requirement("S-001-Tree-02", "S-002-Budget-02")
@pytest.mark.parametrize(("used", "is_warned"), [(39_999, False), (40_000, True), (50_000, True)])
def test_tokens_are_warned_of_at_their_share(used: int, *, is_warned: bool) -> None:
    after = DefaultDecisionTree(LIMITS).on_turn_start(state(tokens_used=used))

    assert ("token_budget" in after.warnings) == is_warned


def test_a_warning_of_before_is_never_forgotten() -> None:
    before = state(warnings=frozenset({"context_window"}))

    assert DefaultDecisionTree(LIMITS).on_turn_start(before).warnings == {"context_window"}


# -- results


@pytest.mark.requirement("S-001-Tree-03")
def test_the_last_three_actions_are_remembered() -> None:
    policy, after = DefaultDecisionTree(LIMITS), state()

    for number in range(5):
        after = policy.on_tool_result(after, result(f"echo:{number}"))

    assert after.recent_actions == ("echo:2", "echo:3", "echo:4")


# Turns are apart by spaces; each letter is a call, + if it worked.
@pytest.mark.requirement("S-001-Tree-05")
@pytest.mark.parametrize(
    ("turns", "count"),
    [
        ("-", 1),
        ("- -", 2),
        ("- - -", 3),
        ("--- ---", 2),
        ("-----", 1),
        ("+", 0),
        ("- - +", 0),
        ("- - + -", 1),
        ("- -+", 0),
        ("- +-", 0),
        ("- -+- -", 1),
        ("- --- +-- --", 1),
        ("+ - -", 2),
        ("-+ -+ -+", 0),
    ],
)
def test_only_turns_in_a_row_without_one_success_count_as_errors(turns: str, count: int) -> None:
    policy, after = DefaultDecisionTree(LIMITS), state()

    for turn, calls in enumerate(turns.split()):
        after = after.evolve(turn=turn)
        for number, sign in enumerate(calls):
            told = result(f"echo:{number}", is_error=sign == "-")
            after = policy.on_tool_result(after, told)

    assert after.consecutive_errors == count


# -- limits

SOME = st.builds(
    Limits,
    **{name: st.integers(int(max(least, 1)), int(most)) for name, (least, most) in BOUNDS.items()},
)


@pytest.mark.requirement("S-001-Tree-08")
@given(limits=SOME, wanted=SOME)
def test_a_policy_tightens_limits_and_never_lifts_one(limits: Limits, wanted: Limits) -> None:
    after = tighten(limits, wanted)

    # A window that reaches further back sees more loops; of all the rest less is stricter.
    assert after.loop_window == max(limits.loop_window, wanted.loop_window)
    for name in BOUNDS.keys() - {"loop_window"}:
        assert getattr(after, name) == min(getattr(limits, name), getattr(wanted, name))
    assert tighten(after, wanted) == after == tighten(wanted, limits)


@pytest.mark.requirement("S-001-Tree-07")
@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("wanted", [0, -5])
def test_no_limit_becomes_so_tight_that_no_run_can_bear_it(name: str, wanted: int) -> None:
    after = tighten(LIMITS, replace(LIMITS, **{name: wanted}))

    assert 0 < getattr(after, name) <= getattr(LIMITS, name)


@pytest.mark.requirement("S-001-Tree-07")
@pytest.mark.parametrize("name", sorted(BOUNDS.keys() - {"tool_timeout_s"}))
@pytest.mark.parametrize("wanted", ["3", None, 2.5, float("nan"), True])
def test_what_is_no_limit_is_refused_by_its_name(name: str, wanted: Any) -> None:
    with pytest.raises(ValueError, match=name):
        tighten(LIMITS, replace(LIMITS, **{name: wanted}))


def test_a_window_reaches_back_no_further_than_can_be_set() -> None:
    assert tighten(LIMITS, replace(LIMITS, loop_window=10**9)).loop_window == 20


# -- policies by name


class Mine(DefaultDecisionTree):
    pass


@pytest.mark.requirement("S-001-Tree-06")
def test_policies_of_others_are_found_by_their_name() -> None:
    trees = add_built_in({"mine": Mine})

    assert list(trees.items()) == [("default", DefaultDecisionTree), ("mine", Mine)]


def test_nobody_takes_the_place_of_the_default_policy() -> None:
    assert add_built_in({"default": Mine}) == {"default": DefaultDecisionTree}


def test_the_default_policy_is_one_and_changes_nothing_of_its_own() -> None:
    policy: DecisionTree = DefaultDecisionTree(LIMITS)
    before = state()

    policy.on_tool_result(policy.on_turn_start(before), result())

    assert policy == DefaultDecisionTree(LIMITS)
    assert before == state()
    assert isinstance(before.extensions, MappingProxyType)
