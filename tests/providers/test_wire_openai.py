"""A chat completions request says what was asked, and encodes each message once."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.domain.messages import Extras, Message, ToolCall, ToolResult
from gateway.domain.model import ModelRequest, ProviderDef, ToolSpec
from gateway.providers.wire_openai import OpenAiEncoder
from tests.providers.asking import a_request

CLOCK = ToolSpec("clock", "Tells the time.", '{"type":"object","properties":{}}')


def encoder(name: str = "custom") -> OpenAiEncoder:
    return OpenAiEncoder(ProviderDef(name, "openai", "https://api.example.com/v1"))


def body(request: ModelRequest, name: str = "custom") -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(encoder(name).body(request))
    return parsed


@pytest.mark.requirement("S-002-LLM-02")
def test_a_request_has_its_fields_and_no_others() -> None:
    assert body(a_request("hi", tools=(CLOCK,), max_tokens=99)) == {
        "model": "mock-1",
        "max_tokens": 99,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "clock",
                    "description": "Tells the time.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
        "messages": [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "hi"},
        ],
    }


def test_without_system_or_messages_it_is_still_json() -> None:
    assert body(a_request(system=""))["messages"] == [{"role": "user", "content": "hello"}]
    assert body(a_request(system="", messages=()))["messages"] == []
    assert len(body(a_request(messages=()))["messages"]) == 1


def test_temperature_and_stream_options_are_sent_only_where_they_are_asked_for() -> None:
    plain = body(a_request(stream=False))

    assert "temperature" not in plain
    assert "stream_options" not in plain
    assert body(a_request(temperature=0.0))["temperature"] == 0.0


@pytest.mark.requirement("S-002-LLM-01")
@pytest.mark.parametrize(
    ("name", "model", "sent"),
    [
        ("openai", "gpt-5-mini", {"reasoning_effort": "medium"}),
        ("openai", "gpt-4o", {}),
        ("gemini", "gemini-2.5-pro", {"reasoning_effort": "medium"}),
        ("openrouter", "x/y", {"reasoning": {"enabled": True}}),
        ("custom", "o3", {}),
    ],
)
def test_thinking_is_asked_for_only_where_it_is_understood(
    name: str, model: str, sent: dict[str, Any]
) -> None:
    asked = body(a_request(model=model, thinking=True), name)

    assert {k: asked[k] for k in ("reasoning", "reasoning_effort") if k in asked} == sent


def test_the_limit_has_the_name_that_the_provider_wants() -> None:
    assert "max_completion_tokens" in body(a_request(), "openai")
    assert "max_tokens" in body(a_request(), "gemini")


@pytest.mark.requirement("S-004-AMsg-01", "S-004-AMsg-02", "S-004-AMsg-04")
def test_a_round_of_tools_is_said_again() -> None:
    messages = (
        Message("user", "time?"),
        Message("assistant", "", (ToolCall("a", "clock", '{"zone": "UTC"}'),)),
        Message("tool", result=ToolResult("a", "clock", "noon")),
    )

    assert body(a_request(messages=messages))["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "clock", "arguments": '{"zone": "UTC"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ]


def test_arguments_that_are_no_object_are_wrapped_so_that_no_server_trips() -> None:
    said = Message("assistant", "", (ToolCall("a", "f", '{"x":'), ToolCall("b", "f", "[1]")))

    calls = body(a_request(messages=(said,)))["messages"][1]["tool_calls"]

    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        {"invalid_arguments": '{"x":'},
        {"invalid_arguments": "[1]"},
    ]


EXTRAS = (
    '{"calls":{"a":{"google":{"thought_signature":"c2ln"}}},"reasoning_details":[{"type":"t"}]}'
)


def test_extras_go_back_to_their_provider_and_to_nobody_else() -> None:
    said = Message("assistant", "ok", (ToolCall("a", "f"),), extras=Extras("gemini", EXTRAS))

    own = body(a_request(messages=(said,)), "gemini")["messages"][1]
    foreign = json.dumps(body(a_request(messages=(said,)), "custom"))

    assert own["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "c2ln"}}
    assert own["reasoning_details"] == [{"type": "t"}]
    assert "c2ln" not in foreign
    assert "reasoning_details" not in foreign


SIGNED = {"google": {"thought_signature": "c2ln"}}
FOREIGN = {"google": {"thought_signature": "skip_thought_signature_validator"}}


@pytest.mark.parametrize(
    ("name", "model", "extras", "expected"),
    [
        ("gemini", "gemini-3-pro", None, [FOREIGN, None]),
        ("gemini", "gemini-3-pro", Extras("other", EXTRAS), [FOREIGN, None]),
        ("gemini", "gemini-3-pro", Extras("gemini", EXTRAS), [SIGNED, None]),
        ("gemini", "gemini-2.5-flash", None, [None, None]),
        ("custom", "gemini-3-pro", None, [None, None]),
    ],
)
def test_calls_of_another_model_are_signed_for_a_model_that_needs_it(
    name: str, model: str, extras: Extras | None, expected: list[object]
) -> None:
    asking, calls = encoder(name), (ToolCall("a", "f"), ToolCall("b", "f"))
    messages = (Message("user", "hi"), Message("assistant", "ok", calls, extras=extras))
    request = replace(a_request(messages=messages), model=model)

    for sent in (asking.body(request), asking.body(request)):  # also what is kept
        made = json.loads(sent)["messages"][-1]["tool_calls"]
        assert [call.get("extra_content") for call in made] == expected
    unsigned = json.loads(encoder().body(request))["messages"][-1]["tool_calls"]
    assert not any("extra_content" in call for call in unsigned)


def test_a_message_is_encoded_once_and_its_bytes_are_kept() -> None:
    said = Message("user", "hi")
    asking = encoder()

    first = asking.body(a_request(messages=(said,)))
    kept = said.kept["openai:custom"]
    said.kept["openai:custom"] = b'{"role":"user","content":"kept"}'

    assert kept == b'{"role":"user","content":"hi"}'
    assert kept in first
    assert b"kept" in asking.body(a_request(messages=(said,)))


def test_text_that_no_wire_can_carry_is_mended() -> None:
    assert body(a_request("a\ud800b"))["messages"][1]["content"] == "a\ufffdb"


def test_another_system_text_is_never_answered_from_what_is_kept() -> None:
    asking = encoder()
    for number in range(200):
        sent = json.loads(asking.body(a_request(system=f"rule {number}")))
        assert sent["messages"][0]["content"] == f"rule {number}"


def test_a_server_that_refuses_a_field_is_asked_without_it_from_then_on() -> None:
    asking = encoder()

    assert asking.adapt("Unknown parameter: stream_options")
    assert not asking.adapt("Unknown parameter: stream_options")
    assert asking.adapt("'max_tokens' is not supported, use 'max_completion_tokens' instead")
    assert not asking.adapt("'max_completion_tokens' is not supported either")
    assert not asking.adapt("something else")

    sent = json.loads(asking.body(a_request(max_tokens=7)))
    assert "stream_options" not in sent
    assert sent["max_completion_tokens"] == 7
    assert "max_tokens" not in sent


def test_the_key_is_sent_as_a_bearer_and_only_if_there_is_one() -> None:
    assert encoder().headers("k")["authorization"] == "Bearer k"
    assert "authorization" not in encoder().headers(None)
