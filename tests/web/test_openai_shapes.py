"""Requests, answers and errors in the form of OpenAI's chat API."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.declarations import plain
from gateway.api.errors import Forbidden, InvalidParams, TooManyFailures, Unauthorized
from gateway.api.openai import Completion
from gateway.domain.errors import Busy, Conflict, NotFound
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.web.openai import (
    AnswerText,
    BadParam,
    earlier_of,
    instructions_of,
    question_of,
    refuse_unsupported,
)
from gateway.web.responses import OpenAiFailure
from gateway.web.rpc import validate

HI = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "there"}


def asked(*messages: object, **more: object) -> Completion:
    return validate(Completion, {"model": "a", "messages": [*messages, HI], **more})


def refused(*messages: object, **more: object) -> OpenAiFailure:
    try:
        body = asked(*messages, **more)
        refuse_unsupported(body)
        earlier_of(body)
    except (BadParam, InvalidParams) as error:
        return OpenAiFailure.of_request(error)
    raise AssertionError("it was taken")


def test_a_conversation_is_taken_apart_into_what_each_of_it_is_for() -> None:
    body = asked(
        {"role": "system", "content": "one"},
        HI,
        CALLING,
        RESULT,
        {"role": "developer", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": ""},
    )

    assert instructions_of(body) == "one\n\ntwo"
    assert question_of(body) == "hi"
    assert earlier_of(body) == [
        Message("user", "hi"),
        Message("assistant", "", (ToolCall("c1", "look", "{}"),)),
        Message("tool", result=ToolResult("c1", "look", "there")),
    ]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([CALLING], "messages.1"),
        ([RESULT], "messages.0.tool_call_id"),
        ([CALLING, HI, RESULT], "messages.1"),
        ([CALLING, RESULT, RESULT], "messages.2.tool_call_id"),
        ([{**CALLING, "tool_calls": [CALL, CALL]}, RESULT], "messages.0.tool_calls"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content"),
        ([{"role": "robot", "content": "hi"}], "messages.0.role"),
        ([HI] * 1000, "messages"),
        (
            [{**CALLING, "tool_calls": [{**CALL, "function": 1}]}],
            "messages.0.tool_calls.0.function",
        ),
    ],
)
def test_what_nobody_can_go_on_from_is_refused_where_it_is(
    messages: list[object], param: str
) -> None:
    failed = refused(*messages)

    assert (failed.status, failed.error.param) == (400, param)
    assert failed.error.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("functions", [{"name": "f"}]),
        ("n", 2),
        ("n", [1]),
        ("response_format", {"type": "json_object"}),
        ("response_format", "text"),
        ("stop", ["."]),
        ("logprobs", True),
        ("audio", {"voice": "a"}),
        ("n", True),
        ("tools", ""),
        ("response_format", {}),
        ("stop", 0),
        ("audio", False),
        ("temperature", 2.1),
        ("max_tokens", 0),
        ("max_completion_tokens", 0.5),
        ("stream", "yes"),
        ("stream_options", []),
    ],
)
def test_what_would_be_ignored_is_refused_by_its_name(param: str, value: object) -> None:
    failed = refused(**{param: value})

    assert (failed.status, failed.error.param) == (400, param)


def test_what_asks_for_nothing_special_is_taken() -> None:
    body = asked(
        tools=[],
        functions=[],
        n=1,
        response_format={"type": "text"},
        stop=[],
        logprobs=False,
        audio=None,
        user="me",
        seed=1,
        max_tokens=9.0,
        max_completion_tokens=5,
    )

    refuse_unsupported(body)
    assert body.most_tokens == 5


def test_instructions_without_an_end_are_refused() -> None:
    half = {"role": "system", "content": "x" * 200_000}

    with pytest.raises(BadParam) as caught:
        instructions_of(asked(half, half))

    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("last", "param"),
    [
        ({"role": "assistant", "content": "hi"}, "messages.1"),
        ({"role": "user", "content": " "}, "messages.1.content"),
        ({"role": "user", "content": None}, "messages.1.content"),
        ({"role": "user", "content": "x" * 400_001}, "messages.1.content"),
    ],
)
def test_the_last_message_has_to_be_a_question(last: dict[str, Any], param: str) -> None:
    body = validate(Completion, {"model": "a", "messages": [HI, last]})

    with pytest.raises(BadParam) as caught:
        question_of(body)

    assert caught.value.param == param


def content(text: str) -> dict[str, Any]:
    return {"type": "content", "content": text}


def done(response: str, **more: object) -> dict[str, Any]:
    return {"type": "done", "reason": "answered", "response": response, **more}


USED = {"type": "usage", "input_tokens": 3, "output_tokens": 2}


def told(*events: dict[str, Any]) -> tuple[AnswerText, str]:
    """And what was told in pieces."""
    telling = AnswerText()
    deltas = [delta for event in events for delta in telling.add(event)]
    return telling, "".join(delta.content or "" for delta in deltas)


def test_thinking_is_told_apart_and_the_usage_of_all_calls_is_one() -> None:
    thinking = {"type": "thinking", "content": "hm"}
    telling, pieces = told(thinking, content("a"), USED, USED, done("a"))

    assert plain(telling.add(thinking)) == [{"reasoning_content": "hm"}]
    assert pieces == telling.text == "a"
    assert plain(telling.usage) == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}


def test_what_was_said_around_tools_stands_apart() -> None:
    telling, pieces = told(
        content("look"), {"type": "tool_result"}, content("found"), done("found")
    )

    assert pieces == telling.text == "look\n\nfound"


def test_the_words_of_a_limit_are_told_as_well() -> None:
    telling, pieces = told(content("so"), done("that was too much", reason="max_iterations"))

    assert pieces == telling.text == "so\n\nthat was too much"
    assert telling.finish == "length"


@pytest.mark.parametrize(
    ("end", "finish"),
    [
        ({}, "stop"),
        ({"reason": "cancelled"}, "stop"),
        ({"reason": "timeout"}, "length"),
        ({"reason": "token_budget"}, "length"),
        ({"cut": True}, "length"),
        ({"filtered": True}, "content_filter"),
    ],
)
def test_the_reason_says_whether_a_limit_ended_it(end: dict[str, Any], finish: str) -> None:
    assert told(content("a"), done("a", **end))[0].finish == finish


@given(st.lists(st.text(min_size=1).map(content) | st.just({"type": "tool_result"})))
def test_the_pieces_put_together_are_the_whole(events: list[dict[str, Any]]) -> None:
    last = next((one["content"] for one in reversed(events) if "content" in one), "nothing")

    telling, pieces = told(*events, done(last))

    assert pieces == telling.text
    assert pieces.endswith(last)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (Unauthorized(), 401, "authentication_error", "unauthorized"),
        (Forbidden(), 403, "permission_error", "forbidden"),
        (NotFound("x"), 404, "invalid_request_error", "not_found"),
        (Conflict("x"), 409, "invalid_request_error", "conflict"),
        (TooManyFailures(3.0), 429, "rate_limit_error", "too_many_failures"),
        (Busy("x"), 503, "server_error", "busy"),
        (RuntimeError("secret"), 500, "server_error", "internal_error"),
    ],
)
def test_an_error_is_told_in_the_shape_that_sdks_know(
    error: Exception, status: int, kind: str, code: str
) -> None:
    failed = OpenAiFailure.of_request(error)

    assert (failed.status, failed.error.type, failed.error.code) == (status, kind, code)
    assert "secret" not in str(failed.error)
    assert ("retry-after" in failed.headers) == (status in {429, 503})
    assert ("x-should-retry" in failed.headers) == (status == 409)


@pytest.mark.parametrize(
    ("end", "status", "kind"),
    [
        ({"error_type": "budget_exceeded", "retry_after_s": 1.5}, 429, "insufficient_quota"),
        ({"error_type": "provider_error", "retry_after_s": 1.5}, 502, "server_error"),
    ],
)
def test_what_would_only_cost_more_is_not_to_be_tried_again(
    end: dict[str, Any], status: int, kind: str
) -> None:
    failed = OpenAiFailure.of_run({**end, "message": "m"}, status)

    assert failed.headers == {"retry-after": "2", "x-should-retry": "false"}
    assert plain(failed.error) == {
        "message": "m",
        "type": kind,
        "param": None,
        "code": end["error_type"],
    }
