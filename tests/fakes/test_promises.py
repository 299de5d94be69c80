"""The check that every test of a conversation relies on does find what is wrong."""

from typing import Any

import pytest
from jsonschema_rs import ValidationError

from tests.fakes.promises import require_promised, require_promised_answer

EVENT = {"run_id": "r", "session_key": "a:b:c:d", "seq": 1, "type": "content", "content": "x"}


def told(**event: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "chat.event", "params": {**EVENT, **event}}


def refusal(code: int, **data: Any) -> dict[str, Any]:
    shown = {"type": "busy", "code": "busy", "message": "full", "retryable": True, **data}
    return {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "full", "data": shown}}


def test_what_is_promised_passes() -> None:
    require_promised("chat.event", told())
    require_promised_answer("ping", {"jsonrpc": "2.0", "id": 1, "result": "pong"})
    require_promised_answer("ping", refusal(-32005, retry_after_s=1.5))


@pytest.mark.parametrize(
    "event",
    [
        told(extra=1),
        told(content=None),
        told(seq=0),
        told(type="other"),
        told(type="thinking", source={}),
        {"jsonrpc": "2.0", "method": "event", "params": EVENT},
    ],
)
def test_an_event_that_differs_is_found(event: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        require_promised("chat.event", event)


@pytest.mark.parametrize(
    "answer",
    [
        {"jsonrpc": "2.0", "id": 1, "result": "ping"},
        {"jsonrpc": "2.0", "result": "pong"},
        refusal(-32004),
        refusal(-32005, hint="none"),
    ],
)
def test_an_answer_that_differs_is_found(answer: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        require_promised_answer("ping", answer)


def test_a_time_has_to_be_one() -> None:
    row = {"seq": 1, "at": "yesterday", "kind": "k", "actor": "a", "detail": {}, "hash": "h"}
    page = {"entries": [row], "more": False}

    with pytest.raises(ValidationError, match="date-time"):
        require_promised_answer("audit.tail", {"jsonrpc": "2.0", "id": 1, "result": page})
