"""A messages request says what was asked, in the order and shape that the wire wants."""

import json
from typing import Any

import pytest

from gateway.domain.messages import Extras, Message, ToolCall, ToolResult
from gateway.domain.model import ModelRequest, ProviderDef, ToolSpec
from gateway.providers.wire_anthropic import AnthropicEncoder, thinking_of
from tests.providers.asking import a_request


def encoder(name: str = "custom") -> AnthropicEncoder:
    return AnthropicEncoder(ProviderDef(name, "anthropic", "https://api.example.com/v1"))


def body(request: ModelRequest, name: str = "custom") -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(encoder(name).body(request))
    return parsed


def test_a_request_has_its_fields_and_no_others() -> None:
    clock = ToolSpec("clock", "Tells the time.")

    assert body(a_request("hi", tools=(clock,), max_tokens=99, temperature=0.5)) == {
        "model": "mock-1",
        "max_tokens": 99,
        "stream": True,
        "temperature": 0.5,
        "system": "You are brief.",
        "tools": [
            {
                "name": "clock",
                "description": "Tells the time.",
                "input_schema": {"type": "object", "properties": {}},
            }
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }


def test_results_of_one_round_and_what_follows_are_one_message() -> None:
    calls = (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "f", "nonsense"))
    messages = (
        Message("user", "one"),
        Message("user", "two"),
        Message("assistant", "look", calls),
        Message("tool", result=ToolResult("a", "f", "fine")),
        Message("tool", result=ToolResult("b", "f", "bad", is_error=True)),
        Message("user", "and?"),
        Message("assistant", "so"),
        Message("assistant", "on"),
    )

    assert body(a_request(messages=messages))["messages"] == [
        {"role": "user", "content": [text("one"), text("two")]},
        {
            "role": "assistant",
            "content": [
                text("look"),
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                {
                    "type": "tool_use",
                    "id": "b",
                    "name": "f",
                    "input": {"invalid_arguments": "nonsense"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "fine"},
                {"type": "tool_result", "tool_use_id": "b", "content": "bad", "is_error": True},
                text("and?"),
            ],
        },
        {"role": "assistant", "content": [text("so"), text("on")]},
    ]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@pytest.mark.requirement("S-004-AMsg-03")
def test_empty_messages_never_reach_the_wire_as_empty_text() -> None:
    messages = (Message("user", " \n"), Message("assistant", " "), Message("user", "x"))

    assert body(a_request(messages=messages))["messages"] == [
        {"role": "user", "content": [text("(no text)"), text("x")]}
    ]


ADAPTIVE = {"type": "adaptive", "display": "summarized"}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
LAYOUT = json.dumps({"layout": [SIGNED, 2, None, 3]})


def reply(words: str = "ab" + "cde", extras: str = LAYOUT) -> Message:
    return Message("assistant", words, (ToolCall("t", "f"),), extras=Extras("custom", extras))


def test_a_reply_goes_back_to_its_provider_in_its_own_order() -> None:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}

    own = body(a_request(messages=(reply(),)))["messages"][0]["content"]
    foreign = body(a_request(messages=(reply(),)), "other")["messages"][0]["content"]

    assert own == [SIGNED, text("ab"), use, text("cde")]
    assert foreign == [text("abcde"), use]


def test_a_reply_that_was_changed_since_keeps_its_opaque_blocks_in_front() -> None:
    own = body(a_request(messages=(reply("shorter"),)))["messages"][0]["content"]

    assert own[:2] == [SIGNED, text("shorter")]


def test_the_same_message_is_kept_apart_for_its_own_and_for_other_providers() -> None:
    message = reply()
    encoder("custom").body(a_request(messages=(message,)))
    encoder("other").body(a_request(messages=(message,)))

    assert set(message.kept) == {"anthropic:other", "anthropic:custom"}
    assert b"c2ln" not in message.kept["anthropic:other"]


@pytest.mark.requirement("S-002-LLM-01")
@pytest.mark.parametrize(
    ("model", "max_tokens", "thinking"),
    [
        ("claude-3-5-sonnet-20241022", 4096, None),
        ("claude-3-opus-latest", 4096, None),
        ("claude-3-7-sonnet-20250219", 4096, {"type": "enabled", "budget_tokens": 2048}),
        ("claude-sonnet-4-20250514", 1500, {"type": "enabled", "budget_tokens": 1024}),
        ("claude-sonnet-4-5-20250929", 8192, {"type": "enabled", "budget_tokens": 4096}),
        ("claude-haiku-4-5", 1024, None),
        ("claude-opus-4-6", 1024, ADAPTIVE),
        ("claude-opus-4-7", 4096, ADAPTIVE),
        ("claude-opus-5", 4096, ADAPTIVE),
    ],
)
def test_a_model_is_asked_to_think_as_it_can(
    model: str, max_tokens: int, thinking: dict[str, Any] | None
) -> None:
    request = a_request(model=model, max_tokens=max_tokens, thinking=True, temperature=0.3)

    assert thinking_of(request) == thinking
    assert ("temperature" in body(request)) == (thinking is None)  # the wire takes one of the two


def test_without_the_flag_nobody_is_asked_to_think() -> None:
    assert thinking_of(a_request(model="claude-opus-5")) is None


def test_the_key_is_sent_in_its_own_header_and_only_if_there_is_one() -> None:
    assert encoder().headers("k")["x-api-key"] == "k"
    assert encoder().headers(None).keys() == {"content-type", "accept", "anthropic-version"}
