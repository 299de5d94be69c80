"""A policy of one's own judges a run; what it does wrong ends the run and nothing else."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gateway.agent.effects import Fail
from gateway.agent.limits import PolicyBroke
from gateway.agent.output import DEFECT
from gateway.control.policy import AgentConfig, AgentState, DefaultDecisionTree
from gateway.domain.agents import Limits
from tests.agent.paper import ANSWERED, EXECUTE, SHIPPED, Paper, call, looped, tree

ONE_ROUND = "(sequence (llm-call) " + EXECUTE + ' (action :fn "oracle.append_tool_results"))'
# Trees that take a failure for nothing: they must not go on with a policy that is broken.
STUBBORN = {
    "forced": looped(
        f"""(sequence
              (force-success (condition :fn "decision.should_continue"))
              (force-success (action :fn "decision.on_turn_start"))
              (force-success {ONE_ROUND}) {ANSWERED})"""
    ),
    "retried": looped(
        f"""(retry :max 1000 (sequence
              (condition :fn "decision.should_continue") (action :fn "decision.on_turn_start")
              {ONE_ROUND} {ANSWERED}))"""
    ),
}


class Own(DefaultDecisionTree):
    """One method is replaced."""


def with_method(name: str, answer: Any) -> Any:
    """A policy whose method gives this, or what it gives when it is called."""

    def method(self: object, *given: Any) -> Any:
        return answer(*given) if callable(answer) else answer

    return type("Own", (Own,), {name: method})


def raising(*_: Any) -> Any:
    raise RuntimeError("secret")


METHODS = ("should_continue", "on_turn_start", "on_tool_result")


@pytest.mark.requirement("S-001-Tree-07")
@pytest.mark.parametrize("plan", [*SHIPPED, *STUBBORN])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("answer", [raising, None, 5, "rubbish", (1, 2, 3)])
def test_a_policy_that_fails_ends_the_run_at_once(method: str, answer: Any, plan: str) -> None:
    paper = Paper(STUBBORN.get(plan, plan), decision=with_method(method, answer)).begin()

    if paper.turn.end is None:
        paper.round(call("0"))

    assert paper.turn.end == Fail(DEFECT, DEFECT, "internal_error")
    assert paper.turn.end_event is not None
    assert paper.open == {}
    assert paper.said[-1].role == "assistant"


@pytest.mark.requirement("S-001-Tree-07")
@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize(
    "wrong", [{"warnings": frozenset({1, "a"})}, {"circles": None}, {"termination_reason": 5}]
)
def test_a_state_that_no_run_can_be_in_is_a_policys_failure(
    wrong: Mapping[str, Any], plan: str
) -> None:
    def spoiled(state: AgentState, *_: object) -> AgentState:
        return state.evolve(**wrong)

    paper = Paper(plan, decision=with_method("on_turn_start", spoiled)).begin()

    assert paper.turn.end == Fail(DEFECT, DEFECT, "internal_error")
    assert paper.turn.state.view()["warned"] == []


@pytest.mark.requirement("S-001-Tree-07")
@pytest.mark.parametrize("answer", [raising, None, "rubbish"])
def test_limits_that_a_policy_cannot_give_keep_the_run_from_beginning(answer: Any) -> None:
    with pytest.raises(PolicyBroke, match="get_config"):
        Paper(decision=with_method("get_config", answer))


def test_what_a_policy_raised_is_in_the_log_and_nowhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)

    paper = Paper(decision=with_method("on_turn_start", raising)).begin()

    assert "secret" in caplog.text
    assert "secret" not in str((paper.chunks, paper.events, paper.turn.end))


@pytest.mark.parametrize("plan", SHIPPED)
def test_a_policy_that_fails_while_the_run_is_stopped_changes_nothing(plan: str) -> None:
    paper = Paper(plan, decision=with_method("on_tool_result", raising)).begin()

    paper.reply("", call("0"), call("1")).give("0").stop()

    assert paper.reason == "cancelled"


@dataclass(frozen=True)
class Short(DefaultDecisionTree):
    """Goes on for two turns at most, and wants impossible limits."""

    def should_continue(self, state: AgentState) -> tuple[bool, str]:
        return (False, "timeout") if state.turn >= 2 else (True, "")

    def get_config(self) -> AgentConfig:
        return replace(self.config, max_iterations=1_000, max_tool_calls_per_turn=1)


@pytest.mark.requirement("S-001-Tree-06", "S-001-Tree-01")
@pytest.mark.parametrize("plan", SHIPPED)
def test_a_policy_of_ones_own_stops_earlier(plan: str) -> None:
    paper = Paper(plan, decision=Short).begin()

    paper.round(call("0")).round(call("1"), call("2"))

    assert paper.reason == "timeout"
    assert paper.called == ["0", "1"]
    assert "at most 1 tool calls" in paper.results[-1][1]


@dataclass(frozen=True)
class Boundless(DefaultDecisionTree):
    """Never stops by itself, forgets what was used, and wants impossible limits."""

    def should_continue(self, state: AgentState) -> tuple[bool, str]:
        return True, ""

    def on_turn_start(self, state: AgentState) -> AgentState:
        return replace(state, turn=0, tokens_used=0, warnings=frozenset(), config=Limits())

    def on_tool_result(self, state: AgentState, result: Mapping[str, object]) -> AgentState:
        return state

    def get_config(self) -> AgentConfig:
        limits = Limits.__slots__
        return Limits(**dict.fromkeys(limits, 10**9))


@pytest.mark.requirement("S-001-Tree-08", "S-001-System-06")
@pytest.mark.parametrize("plan", SHIPPED)
@pytest.mark.parametrize(
    ("limits", "tokens", "reason"),
    [
        (Limits(max_iterations=3), 10, "max_iterations"),
        (Limits(token_budget=10_000), 4_500, "token_budget"),
    ],
)
def test_no_policy_lifts_a_budget(limits: Limits, tokens: int, reason: str, plan: str) -> None:
    paper = Paper(plan, limits, decision=Boundless).begin()

    for number in range(3):
        paper.round(call(str(number)), tokens=tokens)

    assert paper.reason == reason
    assert len(paper.asked) == 3
    assert len(paper.system) == len(set(paper.system))


@dataclass(frozen=True)
class Outspoken(DefaultDecisionTree):
    """Warns and stops in words of its own, and counts in a place of its own."""

    def on_turn_start(self, state: AgentState) -> AgentState:
        count = len(state.extensions) + 1
        kept = {**state.extensions, f"turn {count}": True}
        return state.evolve(warnings=state.warnings | {"It is getting late."}, extensions=kept)

    def should_continue(self, state: AgentState) -> tuple[bool, str]:
        return len(state.extensions) < 2, "Enough for today."


@pytest.mark.requirement("S-001-Tree-02", "S-001-State-06")
@pytest.mark.parametrize("plan", SHIPPED)
def test_a_policy_warns_and_stops_in_its_own_words(plan: str) -> None:
    paper = Paper(plan, decision=Outspoken).begin()

    paper.round(call("0")).round(call("1"))

    assert paper.system == ["It is getting late.", "Enough for today."]
    assert paper.reason == "cancelled"
    assert len(paper.asked) == 2


@pytest.mark.parametrize(
    ("said", "reason"), [("token_budget", "token_budget"), ("mine", "cancelled")]
)
@pytest.mark.parametrize("method", ["on_turn_start", "on_tool_result"])
def test_a_policy_may_end_the_run_in_the_state_that_it_gives(
    method: str, said: str, reason: str
) -> None:
    def ended(state: AgentState, *_: object) -> AgentState:
        return state.evolve(termination_reason=said)

    paper = Paper(decision=with_method(method, ended)).begin()
    if paper.turn.end is None:
        paper.round(call("0"), call("1"))

    assert paper.reason == reason


@pytest.mark.requirement("S-001-Tree-03")
def test_a_policy_hears_each_result_in_the_order_of_the_calls() -> None:
    heard: list[Mapping[str, Any]] = []

    def listen(state: AgentState, result: Mapping[str, Any]) -> AgentState:
        heard.append(result)
        return state

    paper = Paper(
        limits=Limits(max_tool_calls_per_turn=3),
        decision=with_method("on_tool_result", listen),
    ).begin()
    calls = (call("0"), call("1", name="other"), call("2", "{"), call("3"))
    paper.reply("", *calls).give("2", is_error=True).give("1").give("0")

    assert [(one["tool"], one["call_id"], one["is_error"]) for one in heard] == [
        ("echo", "0", False),
        ("other", "1", False),
        ("echo", "2", True),
    ]
    assert all(one["signature"].startswith(f"{one['tool']}:") for one in heard)


def test_a_turn_without_calls_is_no_loop() -> None:
    plan = looped('(sequence (llm-call) (action :fn "decision.detect_loop"))')
    paper = Paper(plan, Limits(max_iterations=5)).begin()

    for _ in range(5):
        paper.reply("nothing to do")

    assert paper.told_of("agent.loop.detected") == []


def test_a_tree_of_ones_own_needs_no_loop_guard_to_be_bounded() -> None:
    paper = Paper(looped(ONE_ROUND), Limits(max_iterations=4)).begin()

    for number in range(4):
        paper.reply("", call(str(number), "{}")).give_all("same")

    assert paper.reason == "max_iterations"
    assert paper.told_of("agent.loop.detected") == []
    assert len(paper.told_of("agent.no_progress")) == 1


def test_reasons_are_only_looked_for_where_there_is_no_answer() -> None:
    plan = tree(f"(sequence {ONE_ROUND} (llm-call))")
    paper = Paper(plan, Limits(max_iterations=2)).begin()

    paper.round(call("0")).reply("done")

    assert paper.reason == "answered"
