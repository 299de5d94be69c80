"""A turn, told what happened, says what it wants."""

import pytest

from gateway.agent.turn import (
    BROKEN,
    STOPPED,
    AskModel,
    CallTools,
    Fail,
    Finish,
    ModelBroke,
    ModelReplied,
    Stopped,
    ToolsReturned,
    Turn,
)
from gateway.domain.agents import Limits
from gateway.domain.errors import RETRYABLE, ModelFailed
from gateway.domain.messages import ToolCall, ToolResult
from tests.fakes.model import says

ECHO = ToolCall("1", "echo", "{}")
BACK = ToolsReturned((ToolResult("1", "echo", "ok"),))


def test_an_answer_without_tools_finishes_the_turn() -> None:
    turn = Turn(Limits())

    assert turn.begin() == AskModel()
    assert turn.on(ModelReplied(says("hello"))) == Finish("answered", "hello")


@pytest.mark.requirement("S-004-Result-01")
def test_an_empty_answer_is_told_as_such() -> None:
    turn = Turn(Limits())
    turn.begin()

    assert turn.on(ModelReplied(says(""))) == Finish("answered", STOPPED["answered"])


def test_after_tools_the_model_is_asked_again() -> None:
    turn = Turn(Limits())
    turn.begin()

    assert turn.on(ModelReplied(says("let me look", ECHO))) == CallTools((ECHO,))
    assert turn.on(BACK) == AskModel()
    assert turn.on(ModelReplied(says("done"))) == Finish("answered", "done")


def test_calls_above_the_limit_are_answered_and_not_made() -> None:
    calls = tuple(ToolCall(str(n), "echo") for n in range(4))
    turn = Turn(Limits(max_tool_calls_per_turn=3))
    turn.begin()

    wish = turn.on(ModelReplied(says("", *calls)))

    assert isinstance(wish, CallTools)
    assert wish.calls == calls[:3]
    assert [(r.call_id, r.is_error) for r in wish.refused] == [("3", True)]


@pytest.mark.parametrize(
    ("limits", "tokens", "reason"),
    [
        (Limits(max_iterations=1), 1, "max_iterations"),
        (Limits(token_budget=1000), 999, None),
        (Limits(token_budget=1000), 1000, "token_budget"),
    ],
)
def test_a_limit_stops_the_turn_between_two_steps(
    limits: Limits, tokens: int, reason: str | None
) -> None:
    turn = Turn(limits)
    turn.begin()
    turn.on(ModelReplied(says("so far", ECHO, tokens=tokens)))

    wish = turn.on(BACK)

    if reason is None:
        assert wish == AskModel()
    else:
        assert isinstance(wish, Finish)
        assert (wish.reason, wish.text, wish.partial) == (reason, "so far", True)
        assert wish.notice


@pytest.mark.requirement("S-002-Cancel-03")
def test_stopping_keeps_what_was_heard() -> None:
    turn = Turn(Limits())
    turn.begin()

    end = turn.on(Stopped("cancelled", "half an ans"))

    assert end == Finish("cancelled", "half an ans", partial=True, notice="Cancelled by user")
    assert Turn(Limits()).on(Stopped("timeout")) == Finish(
        "timeout", STOPPED["timeout"], partial=True, notice=STOPPED["timeout"]
    )


@pytest.mark.requirement("S-004-Err-01")
@pytest.mark.parametrize("kind", list(BROKEN))
def test_a_broken_model_is_told_in_our_own_words(kind: str) -> None:
    failure = ModelFailed("acme", kind, "<b>secret sk-123</b>")  # type: ignore[arg-type]  # a parameter
    turn = Turn(Limits())
    turn.begin()

    end = turn.on(ModelBroke(failure))

    assert isinstance(end, Fail)
    assert "acme" in end.told
    assert "secret" not in end.told + end.text
    assert failure.retryable == (kind in RETRYABLE)


def test_text_heard_before_the_model_broke_is_kept() -> None:
    failure = ModelFailed("acme", "truncated", "no end", started=True)

    end = Turn(Limits()).on(ModelBroke(failure, "half"))

    assert isinstance(end, Fail)
    assert end.text == "half"
