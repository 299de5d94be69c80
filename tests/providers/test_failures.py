"""A refusal becomes a kind that says what to do, and a detail that is safe to show."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.failures import DETAIL_CAP, MAX_WAIT_S, Scrub, failure_of, retry_after_s
from tests.providers.asking import KEY

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def kind(status: int, body: object = "") -> str:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return failure_of("p", status, {}, data, scrub=Scrub(), now=NOW).kind


@pytest.mark.requirement("S-002-LLM-04")
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "bad_request"),
        (401, "auth"),
        (402, "auth"),
        (403, "auth"),
        (404, "not_found"),
        (405, "bad_request"),
        (408, "timeout"),
        (409, "overloaded"),
        (413, "context_overflow"),
        (422, "bad_request"),
        (425, "overloaded"),
        (429, "rate"),
        (500, "server"),
        (502, "server"),
        (503, "overloaded"),
        (504, "server"),
        (529, "overloaded"),
    ],
)
def test_a_status_has_its_kind(status: int, expected: str) -> None:
    assert kind(status) == expected


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 8192 tokens", "code": "context_length_exceeded"},
        {"type": "invalid_request_error", "message": "prompt is too long: 215000 tokens > 200000 maximum"},
        {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed"},
        {"message": "input length and `max_tokens` exceed context limit: 190000 + 20000"},
        {"message": "the request exceeds the available context size, try increasing it"},
        {"message": "Please reduce the length of the messages"},
    ],
)  # fmt: skip
def test_a_prompt_that_is_too_long_is_recognised_by_words_and_codes(error: object) -> None:
    assert kind(400, {"error": error}) == "context_overflow"


def test_a_spent_account_is_no_rate_limit() -> None:
    assert kind(429, {"error": {"code": "insufficient_quota", "message": "pay"}}) == "auth"


def test_whoever_says_when_to_come_back_has_no_spent_account() -> None:
    details = [
        {"@type": "type.googleapis.com/google.rpc.Help"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"},
    ]
    error = {"code": 429, "message": "check your plan and billing", "status": "RESOURCE_EXHAUSTED"}
    body = json.dumps([{"error": {**error, "details": details}}]).encode()

    failed = failure_of("gemini", 429, {}, body, scrub=Scrub(), now=NOW)
    earlier = failure_of("gemini", 429, {"retry-after": "2"}, body, scrub=Scrub(), now=NOW)

    assert (failed.kind, failed.retry_after_s) == ("rate", 37.5)
    assert earlier.retry_after_s == 2.0


@pytest.mark.parametrize("delay", ["", "s", "-1s", "1e9s", "nans", "9" * 400 + "s", 5, None, "1m"])
def test_any_other_delay_in_an_error_is_no_wait_and_no_crash(delay: object) -> None:
    body = json.dumps({"error": {"message": "m", "details": [{"retryDelay": delay}, 1, None]}})

    failed = failure_of("p", 429, {}, body.encode(), scrub=Scrub(), now=NOW)

    assert (failed.kind, failed.retry_after_s) == ("rate", None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "no such model"}}, "no such model"),
        ([{"error": {"message": "as a list", "status": "INVALID_ARGUMENT"}}], "as a list"),
        ({"type": "error", "error": {"type": "x", "message": "nested"}}, "nested"),
        ({"error": "a word"}, "a word"),
        ({"message": "plain"}, "plain"),
        ({"detail": "of a framework"}, "of a framework"),
        (b"upstream connect error", "upstream connect error"),
        (b"<html>502</html>", "without an explanation"),
        (b"", "without an explanation"),
        (b"\xff\xfe", "HTTP 400"),
        ([], "without an explanation"),
        ({"error": {"message": ["odd"]}}, "odd"),
    ],
)
def test_the_providers_own_words_are_found(body: object, said: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    failed = failure_of("p", 400, {}, data, scrub=Scrub(), now=NOW)

    assert said in failed.detail
    assert failed.status == 400
    assert not failed.started


def test_a_redirect_says_what_to_do_about_it() -> None:
    failed = failure_of("p", 302, {"location": "http://evil"}, b"", scrub=Scrub(), now=NOW)

    assert "base_url" in failed.detail
    assert not failed.retryable


@given(st.text(max_size=700), st.text(max_size=700))
def test_no_detail_holds_the_key_or_is_long_or_breaks_a_line(before: str, after: str) -> None:
    said = Scrub((KEY,))(before + KEY + after)

    assert KEY not in said
    assert len(said) <= DETAIL_CAP
    assert said.isprintable() or not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in said)


def test_a_scrub_never_prints_what_it_hides() -> None:
    assert KEY not in repr(Scrub((KEY,)))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "7"}, 7.0),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e308"}, MAX_WAIT_S),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, MAX_WAIT_S),
        ({"retry-after": f"Thu, {'1' * 500} Jan 2026 12:00:30 GMT"}, None),
        ({"retry-after": f"Thu, 01 Jan 2026 12:00:30 +{'9' * 400}"}, None),
    ],
)
def test_a_wait_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW) == seconds


@given(st.text())
def test_any_other_header_is_no_wait_and_no_crash(text: str) -> None:
    assert retry_after_s({"retry-after": text}, NOW) is None or text
