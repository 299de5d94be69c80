"""The check that every HTTP test relies on does find what is wrong."""

import json
from typing import Any

import pytest

from tests.fakes.described import check

JSON = {"Content-Type": "application/json"}
ERROR = {"type": "forbidden", "code": "forbidden", "message": "no", "retryable": False}
PART = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
STREAM = {"Content-Type": "text/event-stream", "X-Exogate-Run": "r"}


def told(status: int, value: Any, path: str = "/healthz", headers: Any = JSON) -> None:
    method = "POST" if path.endswith("completions") else "GET"
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    check(method, f"http://127.0.0.1:1{path}?x=1", status, headers, body)


def test_what_is_described_passes() -> None:
    told(200, {"status": "ok"})
    told(403, {"error": ERROR})
    told(404, {"error": ERROR}, "/api/conversations/a/b/messages")
    told(418, b"teapot", "/webhooks/x/y", {"content-type": "text/plain"})
    stream = f"data: {json.dumps(PART)}\n\ndata: [DONE]\n\n"
    told(200, stream.encode(), "/v1/chat/completions", STREAM)
    told(200, {}, "/nobody/knows")


@pytest.mark.parametrize(
    ("status", "value", "path", "headers"),
    [
        (200, {"status": "ok", "more": 1}, "/healthz", JSON),
        (200, {"status": "fine"}, "/healthz", JSON),
        (200, {}, "/healthz", JSON),
        (201, {"status": "ok"}, "/healthz", JSON),
        (200, b"ok", "/healthz", {"Content-Type": "text/plain"}),
        (403, {"error": {**ERROR, "hint": "none"}}, "/healthz", JSON),
        (401, {"error": {**ERROR}}, "/readyz", JSON),
        (200, b'data: {"id":"x"}\n\n', "/v1/chat/completions", STREAM),
        (200, b"data: [DONE]\n\n", "/v1/chat/completions", {"Content-Type": "text/event-stream"}),
    ],
)
def test_what_differs_is_found(status: int, value: Any, path: str, headers: Any) -> None:
    with pytest.raises(AssertionError):
        told(status, value, path, headers)
