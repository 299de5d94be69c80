"""Requests and answers take a form that the gateway reads at once."""

import json

import pytest

from gateway.sandbox.calls import MOST_HEADERS, flatten_request, join_answer


def test_only_what_the_gateway_looks_at_is_passed_on() -> None:
    asked: dict[str, object] = {
        "url": "https://x/",
        "headers": {"a": "b"},
        "body": "{}",
        "extra": [[[]]],
        "method": None,
    }

    assert json.loads(flatten_request(json.dumps(asked))) == {
        "url": "https://x/",
        "headers": {"a": "b"},
        "body": "{}",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Expecting value"),
        ("[]", "a request must be a JSON object"),
        ("[" * 100_000, "a request must be a JSON object"),
        ('{"url": ["x"]}', "may be nested in a request"),
        ('{"url": "x", "body": {}}', "may be nested in a request"),
        ('{"headers": []}', '"headers" must be'),
        ('{"headers": {"a": ["b"]}}', '"headers" must be'),
        (json.dumps({"headers": {str(n): "" for n in range(MOST_HEADERS + 1)}}), "at most 200"),
        ('{"timeout_ms": ' + "9" * 5000 + "}", "Exceeds the limit"),
    ],
)
def test_a_request_that_takes_long_to_read_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        flatten_request(text)


@pytest.mark.parametrize("key", ["body", "body_base64"])
def test_an_answer_is_put_together_again(key: str) -> None:
    head = json.dumps({"status": 200, "headers": {"a": "b"}, "body": key})

    assert json.loads(join_answer(head, 'x"\n')) == {
        "status": 200,
        "headers": {"a": "b"},
        key: 'x"\n',
    }
