"""A guess at a prompt is the same for everybody, and learns from what providers report."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.budgets import FIRST, KEPT, Estimates, prompt_tokens
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.domain.model import ModelRequest, ToolSpec
from tests.fakes.store import session_key

HERE = session_key()
LONG = "word " * 100
BARE = ModelRequest("fake", "m", "", (Message("user", "hi"),))


def with_last(message: Message) -> ModelRequest:
    return replace(BARE, messages=(*BARE.messages, message))


@pytest.mark.parametrize(
    ("fuller", "emptier"),
    [
        (replace(BARE, system=LONG), BARE),
        (replace(BARE, tools=(ToolSpec("t", LONG, "{}"),)), BARE),
        (replace(BARE, tools=(ToolSpec("t", "", f'{{"description": "{LONG}"}}'),)), BARE),
        (with_last(Message("user", LONG)), with_last(Message("user"))),
        (with_last(Message("assistant", thinking=LONG)), with_last(Message("assistant"))),
        (
            with_last(Message("assistant", tool_calls=(ToolCall("c", "t", LONG),))),
            with_last(Message("assistant", tool_calls=(ToolCall("c", "t", ""),))),
        ),
        (
            with_last(Message("tool", result=ToolResult("c", "t", LONG))),
            with_last(Message("tool", result=ToolResult("c", "t", ""))),
        ),
    ],
    ids=["system", "description", "parameters", "text", "thinking", "arguments", "result"],
)
def test_every_part_that_is_sent_counts(fuller: ModelRequest, emptier: ModelRequest) -> None:
    assert prompt_tokens(fuller) - prompt_tokens(emptier) > 90


def test_a_first_guess_is_rather_too_high() -> None:
    assert Estimates().of(1_000, HERE, "m") == 1_000 * FIRST


def test_a_new_session_begins_with_what_its_model_has_taught() -> None:
    estimates = Estimates()

    estimates.learn(100, HERE, "m", 300)

    assert estimates.of(100, session_key("another"), "m") == 300
    assert estimates.of(100, session_key("another"), "other") == 100 * FIRST


def test_a_short_prompt_says_little_of_the_long_ones_of_others() -> None:
    estimates = Estimates()

    estimates.learn(8, HERE, "m", 2_000)

    assert estimates.of(8, HERE, "m") >= 400
    assert estimates.of(400, session_key("other"), "m") < 10_000


def test_what_is_cheap_to_read_does_not_make_a_dense_prompt_cheap() -> None:
    estimates = Estimates()

    for _ in range(50):
        estimates.learn(10_000, HERE, "m", 400)

    assert estimates.of(10_000, HERE, "m") == 5_000


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**9)), min_size=1, max_size=20))
def test_after_a_report_a_like_prompt_is_guessed_no_lower_unless_out_of_bounds(
    reports: list[tuple[int, int]],
) -> None:
    estimates = Estimates()

    for raw, reported in reports:
        estimates.learn(raw, HERE, "m", reported)

        assert estimates.of(raw, HERE, "m") >= min(reported, 50 * raw) - 1
        assert estimates.of(raw, HERE, "m") <= 50 * raw + 1


@pytest.mark.parametrize(("raw", "reported"), [(0, 10), (10, 0), (10, -5), (-1, 10)])
def test_a_report_that_cannot_be_teaches_nothing(raw: int, reported: int) -> None:
    estimates = Estimates()

    estimates.learn(raw, HERE, "m", reported)

    assert estimates.of(100, HERE, "m") == 125


def test_only_so_many_sessions_are_remembered() -> None:
    estimates = Estimates()
    estimates.learn(100, HERE, "first", 900)

    for number in range(KEPT):
        estimates.learn(100, session_key(str(number)), "m", 300)

    assert estimates.of(100, HERE, "first") == 125
    assert estimates.of(100, session_key(str(KEPT - 1)), "m") == 300
