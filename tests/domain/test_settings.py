"""What a user may set, and what then holds for a query."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import BOUNDS, AgentDef, Limits
from gateway.domain.ids import AgentId
from gateway.domain.sessions import (
    USER_LIMITS,
    UserSettings,
    effective,
    problem_with,
    with_settings,
)

SECOND = AgentDef(AgentId("a"), "p2", "second", context_window=8_000)
AGENT = AgentDef(AgentId("a"), "p1", "first", fallback=SECOND, limits=Limits(max_iterations=9))
NOTHING = UserSettings()

own = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(int(BOUNDS[name][0]), int(BOUNDS[name][1])) for name in USER_LIMITS
    },
)
asked_for = st.fixed_dictionaries({}, optional=dict.fromkeys(USER_LIMITS, st.integers(1, 300_000)))


def test_every_limit_has_bounds_and_its_default_is_within_them() -> None:
    assert set(BOUNDS) == {one.name for one in fields(Limits)}
    for name, (least, most) in BOUNDS.items():
        assert least <= getattr(Limits(), name) <= most
    assert set(USER_LIMITS) <= set(BOUNDS)


@pytest.mark.requirement("S-001-Config-12")
@pytest.mark.parametrize("name", [*USER_LIMITS, "librarian_timeout", "max_context_nodes"])
def test_a_number_is_whole_and_within_its_bounds(name: str) -> None:
    least, most = BOUNDS.get(name, {"librarian_timeout": (1, 86_400)}.get(name, (1, 10_000)))

    assert [problem_with(name, value) for value in (least, most)] == [None, None]
    for wrong in (least - 1, most + 1, float(least), True, str(least), [least]):
        assert f"from {least} to {most}" in str(problem_with(name, wrong))


@pytest.mark.parametrize(
    ("name", "value", "is_fine"),
    [
        ("oracle_model", "m", True),
        ("oracle_model", "", False),
        ("oracle_model", "m" * 257, False),
        ("oracle_model", 1, False),
        ("subagent_model", "m", True),
        ("subagent_model", {}, False),
        ("thinking_enabled", False, True),
        ("thinking_enabled", 0, False),
        ("error_limit", "not a user's to set: kept as anything unknown", True),
        ("theme", {"dark": [1, None]}, True),
    ],
)
def test_other_settings_have_their_types_and_unknown_ones_any(
    name: str, value: object, is_fine: bool
) -> None:
    assert (problem_with(name, value) is None) is is_fine


@pytest.mark.requirement("S-001-Config-10", "S-001-Settings-01")
def test_a_record_of_before_has_the_agents_values_for_what_it_lacks() -> None:
    old = UserSettings(
        {
            "oracle_model": "x",
            "thinking_enabled": True,
            "librarian_timeout": 600,
            "max_context_nodes": 40,
            "theme": "dark",
        }
    )

    assert old.shown(AGENT) == {
        "max_iterations": 9,
        "soft_warning_percent": 70,
        "token_budget": 50_000,
        "token_warning_percent": 80,
        "timeout_seconds": 120,
        "max_tool_calls_per_turn": 5,
        "max_parallel_tools": 3,
        "oracle_model": "x",
        "subagent_model": None,
        "thinking_enabled": True,
        "librarian_timeout": 600,
        "max_context_nodes": 40,
        "theme": "dark",
    }
    assert NOTHING.shown(AGENT)["oracle_model"] == "first"
    assert NOTHING.shown(AGENT)["librarian_timeout"] == 1200
    assert NOTHING.shown(AGENT)["max_context_nodes"] == 30


def test_a_patch_changes_what_it_names_and_null_takes_back() -> None:
    before = UserSettings({"max_iterations": 3, "theme": "dark", "font": 1})

    after = before.patched({"max_iterations": None, "font": 2, "never set": None})

    assert after.kept == {"theme": "dark", "font": 2}
    assert before.kept == {"max_iterations": 3, "theme": "dark", "font": 1}


def test_what_could_not_be_set_any_more_counts_as_not_set() -> None:
    stale = UserSettings(
        {"max_iterations": 5_000, "thinking_enabled": "yes", "token_budget": 2_000}
    )

    assert effective(Limits(), stale, {}) == Limits(token_budget=2_000)
    assert stale.shown(AGENT)["max_iterations"] == 9
    assert with_settings(AGENT, stale, {}).thinking is False


@pytest.mark.parametrize(
    ("settings", "asked", "expected"),
    [
        ({}, {}, 9),
        ({"max_iterations": 40}, {}, 40),
        ({"max_iterations": 4}, {}, 4),
        ({}, {"max_iterations": 3}, 3),
        ({}, {"max_iterations": 10}, 9),
        ({"max_iterations": 40}, {"max_iterations": 30}, 30),
        ({"max_iterations": 4}, {"max_iterations": 30}, 4),
    ],
)
def test_settings_go_before_the_configuration_and_a_request_only_tightens(
    settings: dict[str, object], asked: dict[str, int], expected: int
) -> None:
    limits = effective(AGENT.limits, UserSettings(settings), asked)

    assert limits == replace(AGENT.limits, max_iterations=expected)


def test_a_requests_budget_alone_may_be_below_what_can_be_set() -> None:
    limits = effective(Limits(), NOTHING, dict.fromkeys(USER_LIMITS, 1))

    assert limits == Limits(
        max_iterations=1,
        soft_warning_percent=50,
        token_budget=1,
        token_warning_percent=50,
        timeout_seconds=10,
        max_tool_calls_per_turn=1,
        max_parallel_tools=1,
    )


@given(own, asked_for)
def test_no_request_gets_more_than_it_had_without_asking(
    kept: dict[str, object], asked: dict[str, int]
) -> None:
    settings = UserSettings(kept)

    without = effective(Limits(), settings, {})
    limits = effective(Limits(), settings, asked)

    for one in fields(Limits):
        name, value = one.name, getattr(limits, one.name)
        least = 1 if name == "token_budget" else BOUNDS[name][0]
        assert least <= value <= getattr(without, name)
        assert name in asked or value == getattr(without, name)
        assert name in kept or getattr(without, name) == getattr(Limits(), name)


def test_a_user_chooses_among_the_models_that_are_configured() -> None:
    assert with_settings(AGENT, NOTHING, {}) == AGENT

    second = with_settings(AGENT, UserSettings({"oracle_model": "second"}), {})
    unknown = with_settings(AGENT, UserSettings({"oracle_model": "the dearest of all"}), {})

    assert second == replace(SECOND, limits=AGENT.limits)
    assert unknown == AGENT


def test_thinking_is_the_users_to_choose() -> None:
    thinks = with_settings(AGENT, UserSettings({"thinking_enabled": True}), {})
    silent = with_settings(
        replace(AGENT, thinking=True), UserSettings({"thinking_enabled": False}), {}
    )

    assert (thinks.thinking, silent.thinking) == (True, False)
