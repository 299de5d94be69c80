"""What a run has used is counted, warned of once, and shown."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import ContextRules, Limits
from gateway.domain.messages import Message, Spent, Usage
from tests.agent.paper import AGENT, SHIPPED, Paper, call

SMALL = replace(AGENT, context_window=100)


@pytest.mark.requirement("S-002-Budget-05", "S-002-Budget-06")
@pytest.mark.parametrize("plan", SHIPPED)
def test_a_window_that_fills_up_is_warned_of_once_and_ends_nothing(plan: str) -> None:
    paper = Paper(plan, agent=SMALL).begin().round(call("0"))

    paper.reply("", call("1")).give("1", "x" * 200)
    paper.reply("", call("2")).give("2", "x" * 200)
    paper.reply("done")

    [warning] = paper.of("system")
    assert warning["system_type"] == "limit_warning"
    assert warning["system_message"].startswith("Approaching the model's context window (")
    assert warning["metadata"]["limit_type"] == "context_window"
    [told] = paper.told_of("context.approaching_limit")
    assert told["max"] == 100
    assert told["current"] >= 70
    assert told["message"] == warning["system_message"]
    assert paper.reason == "answered"


@pytest.mark.requirement("S-002-Budget-07")
@pytest.mark.parametrize(("percent", "is_warned"), [(27, True), (28, False)])
def test_when_the_window_is_warned_of_is_configured(percent: int, *, is_warned: bool) -> None:
    agent = replace(SMALL, context=ContextRules(warning_percent=percent))

    paper = Paper(agent=agent).begin()

    assert bool(paper.told_of("context.approaching_limit")) == is_warned


def test_what_is_told_of_after_the_end_counts_and_is_warned_of_no_more() -> None:
    paper = Paper(limits=Limits(token_budget=100)).begin()
    paper.stop()

    paper.turn.state.spend(Spent(Usage(90, 5), "p", "small"))

    assert paper.turn.state.usage.total >= 95
    assert paper.told_of("budget.token.warning") == []
    assert paper.of("usage")[-1]["model"] == "small"


@pytest.mark.requirement("S-002-Budget-02", "S-001-System-06")
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_tokens_are_warned_of_once_when_they_reach_their_share(pieces: list[int]) -> None:
    """In the middle of replies or at their end, however they come; what is sent counts with it."""
    paper = Paper(limits=Limits(token_budget=1_000, max_iterations=50)).begin()
    course = paper.turn.state

    for number, tokens in enumerate(pieces):
        if paper.turn.end is None:
            paper.round(call(str(number)), tokens=10 * tokens)
    by_now = course.usage.total + course.context_tokens

    assert len(paper.told_of("budget.token.warning")) == (by_now >= 800)
    assert (paper.reason == "token_budget") == (by_now >= 1_000)
    assert len(paper.told_of("budget.token.exceeded")) == (by_now >= 1_000)


def test_a_call_whose_input_alone_passes_the_budget_is_not_made() -> None:
    input_tokens = Paper().begin().turn.state.context_tokens

    papers = [Paper(limits=Limits(token_budget=input_tokens + n)).begin() for n in (0, 1)]

    assert [paper.reason for paper in papers] == ["token_budget", None]
    assert [len(paper.asked) for paper in papers] == [0, 1]
    assert papers[1].turn.state.reading("token_budget").current == input_tokens


SENT = 27  # tokens of the first call of these


def test_an_estimate_gives_way_to_what_the_provider_says() -> None:
    paper = Paper(limits=Limits(token_budget=SENT + 100)).begin().hear("x" * 250)

    paper.reply("", call("0"), tokens=20)

    assert paper.turn.state.usage == Usage(10, 10)
    assert paper.turn.state.reading("token_budget").current == 20


def test_time_never_goes_back() -> None:
    paper = Paper().begin()
    paper.pass_time(5.0)

    paper.pass_time(-3.0)

    assert paper.turn.state.snapshot().elapsed_seconds == 5.0


@pytest.mark.requirement("S-001-Config-05")
def test_a_policy_sees_the_time_that_has_passed() -> None:
    paper = Paper(limits=Limits(timeout_seconds=10)).begin().reply("", call("0"))

    paper.at = 10.0
    paper.give_all()

    assert paper.reason == "timeout"
    assert paper.system == ["Time limit reached. Saving partial response."]


@pytest.mark.requirement("S-001-State-07")
def test_how_far_a_run_is_can_be_seen() -> None:
    paper = Paper(limits=Limits(max_iterations=4, token_budget=1_000)).begin()
    paper.at = 1.5

    paper.round(call("0"), tokens=250, is_error=True).round(call("1"), tokens=50)

    view = dict(paper.turn.state.view())
    actions = view.pop("recent_actions")
    assert isinstance(actions, list)
    assert len(actions) == 2
    assert view == {
        "turn": 2,
        "tokens_used": 300,
        "iteration_percent": 50.0,
        "token_percent": 30.0,
        "elapsed_seconds": 1.5,
        "consecutive_errors": 0,
        "warned": ["max_iterations"],
        "reason": None,
    }


def test_verdicts_are_kept_for_whoever_inspects_the_run() -> None:
    paper = Paper(limits=Limits(max_iterations=3)).begin()

    for number in range(3):
        paper.reply("", call(str(number), "{}")).give_all("same")

    assert [(one["kind"], one["turn"]) for one in paper.turn.output.verdicts] == [
        ("budget.iteration.warning", 1),
        ("agent.loop.detected", 2),
        ("stop", 3),
    ]


def test_a_history_counts_into_the_window() -> None:
    history = [Message("user", "a"), Message("assistant", "b")]

    paper = Paper(history=history).begin()

    assert paper.of("context_update")[0]["context_tokens"] == 47
