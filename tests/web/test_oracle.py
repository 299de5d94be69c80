"""A conversation as an OracleContext: its fields, its bounds, and a lossless way back."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.api.conversations import OracleContext
from gateway.domain.agents import AgentDef, ContextRules
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.messages import Message, Node, ToolCall, ToolResult
from gateway.domain.sessions import SessionRecord, Summary
from gateway.memory.context import message_tokens
from gateway.web.responses import encode
from gateway.web.sessions import export_context, messages_in, summary_from

CONTEXT: TypeAdapter[OracleContext] = TypeAdapter(OracleContext)
NOW = datetime(2025, 1, 15, 10, 30, tzinfo=UTC)
AGENT = AgentDef(AgentId("a"), "p", "m")
RECORD = SessionRecord(
    SessionKey(AgentId("a"), "websocket", "ann"), NOW, NOW, 2, 1, 1, None, "active", NodeId("n")
)
SUMMARY = Summary(
    NodeId("2"),
    "learn",
    ("Using JWT",),
    ("24 hours",),
    key_insight="Auth uses JWT",
    files=("a.py",),
)
FOUND = ToolResult("call_1", "search_code", "Found 3 files...", duration_ms=234.4)
CALL = ToolCall("call_1", "search_code", '{"query": "authentication"}')
SAID = (
    Message("user", "How does authentication work?"),
    Message("assistant", "Based on `AuthService` in auth.py"),
    Message("user", "And here?"),
    Message("assistant", "Let me see.", (CALL,)),
    Message("tool", result=FOUND),
    Message("assistant", "In jwt.py."),
)


def nodes_of(*said: Message, model: str = "m") -> tuple[Node, ...]:
    return tuple(
        Node(
            *(NodeId(str(n)), None, RunId("r"), message, NOW, message_tokens(message)),
            model=model if message.role == "assistant" else None,
        )
        for n, message in enumerate(said, 1)
    )


def view(*said: Message, agent: AgentDef = AGENT, model: str = "m") -> OracleContext:
    return export_context(RECORD, nodes_of(*said, model=model), SUMMARY, agent)


@pytest.mark.requirement("S-000-Json-01", "S-000-Context-02", "S-000-Model-01")
def test_a_conversation_is_exported_in_the_documented_form() -> None:
    plain: dict[str, Any] = json.loads(encode(view(*SAID)))

    exchanges = plain.pop("recent_exchanges")
    assert UUID(plain.pop("id"))
    assert plain.pop("tokens_used") > sum(one["token_count"] for one in exchanges)
    assert plain == {
        "user_id": "ann",
        "project_id": "default",
        "session_start": "2025-01-15T10:30:00Z",
        "last_activity": "2025-01-15T10:30:00Z",
        "last_model": "m",
        "token_budget": 16_000,
        "compressed_summary": "Goal: learn\nInsight: Auth uses JWT\nFacts:\n- 24 hours",
        "key_decisions": ["Using JWT"],
        "mentioned_symbols": "AuthService",
        "mentioned_files": "a.py, auth.py, jwt.py",
        "status": "active",
        "compression_count": 1,
    }
    assert exchanges[1]["key_insight"] == "Auth uses JWT"
    assert exchanges[0]["tool_calls"] is None
    assert exchanges[3] == {
        "id": "6",
        "role": "assistant",
        "content": "Let me see.\n\nIn jwt.py.",
        "timestamp": "2025-01-15T10:30:00Z",
        "token_count": sum(map(message_tokens, SAID[3:])),
        "tool_calls": [
            {
                "id": "call_1",
                "name": "search_code",
                "arguments": {"query": "authentication"},
                "result": "Found 3 files...",
                "status": "success",
                "duration_ms": 234,
            }
        ],
        "tool_call_id": None,
        "key_insight": None,
        "mentioned_symbols": [],
        "mentioned_files": ["jwt.py"],
    }


texts = st.text(min_size=1, max_size=60).filter(str.strip)
arguments = st.sampled_from(["{}", '{"a": [1, "x"]}', "not json", "[1]"])
talks = st.lists(
    st.tuples(texts, texts, st.lists(st.tuples(arguments, texts, st.booleans()), max_size=3))
)


@pytest.mark.requirement("S-000-Json-01", "S-000-Json-02")
@given(talks, st.booleans())
def test_what_is_exported_can_be_imported_and_is_the_same(
    talk: list[tuple[str, str, list[tuple[str, str, bool]]]], with_summary: bool
) -> None:
    said: list[Message] = []
    for number, (question, answer, calls) in enumerate(talk):
        names = [f"{number}.{n}" for n in range(len(calls))]
        made = [ToolCall(name, "t", one[0]) for name, one in zip(names, calls, strict=True)]
        results = [
            ToolResult(name, "t", text, is_error=is_error, duration_ms=1.0)
            for name, (_, text, is_error) in zip(names, calls, strict=True)
        ]
        asked = [Message("assistant", "", tuple(made))] if made else []
        told = [Message("tool", result=one) for one in results]
        said += [Message("user", question), *asked, *told, Message("assistant", answer)]
    summary = SUMMARY if with_summary else None
    context = export_context(RECORD, nodes_of(*said), summary, AGENT)

    read = CONTEXT.validate_python(json.loads(encode(context)))

    assert read == context
    again = [message for _, _, message in messages_in(read)]
    assert [(one.role, one.text, one.result) for one in again] == [
        (one.role, one.text, one.result) for one in said
    ]
    kept = [
        json.loads(call.arguments)
        for one in again
        for call in one.tool_calls
        if call.arguments[0] == "{"
    ]
    assert kept == [json.loads(one) for *_, calls in talk for one, *_ in calls if one[0] == "{"]
    if with_summary:
        carried = summary_from(read, NodeId("s"))
        assert carried is not None
        later = export_context(RECORD, nodes_of(*again), carried, AGENT)
        assert later.compressed_summary == context.compressed_summary
        assert (later.key_decisions, later.compression_count) == (context.key_decisions, 1)
    else:
        assert summary_from(read, NodeId("s")) is None


def plain_context(**changes: object) -> dict[str, object]:
    plain: dict[str, object] = json.loads(encode(view(*SAID)))
    return {**plain, **changes}


def plain_exchange(**changes: object) -> list[object]:
    return [
        {
            "id": "x",
            "role": "user",
            "content": "hi",
            "timestamp": "2025-01-15T10:30:00Z",
            "token_count": 1,
            **changes,
        }
    ]


@pytest.mark.requirement(
    "S-000-Context-05", "S-000-Context-06", "S-000-Context-07", "S-000-Exchange-03"
)
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_budget": 3_999}, "token_budget"),
        ({"token_budget": 128_001}, "token_budget"),
        ({"token_budget": True}, "token_budget"),
        ({"tokens_used": 17_601}, "tokens_used"),
        ({"status": "open"}, "status"),
        ({"id": ""}, "id"),
        ({"session_start": "noon"}, "session_start"),
        ({"key_decisions": "one"}, "key_decisions"),
        ({"key_decisions": [1]}, "key_decisions.0"),
        ({"odd": 1}, "odd"),
        ({"recent_exchanges": plain_exchange(role="system")}, "recent_exchanges.0.role"),
        ({"recent_exchanges": plain_exchange(role="tool")}, "recent_exchanges.0.tool_call_id"),
        ({"recent_exchanges": plain_exchange(token_count=0)}, "recent_exchanges.0.token_count"),
        ({"recent_exchanges": plain_exchange(content=" ")}, "recent_exchanges.0.content"),
        (
            {"recent_exchanges": plain_exchange(tool_calls=[{"id": "1"}])},
            "recent_exchanges.0.tool_calls.0.name",
        ),
        ({"recent_exchanges": [1]}, "recent_exchanges.0"),
        ({"recent_exchanges": [{}]}, "recent_exchanges.0.id"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        CONTEXT.validate_python(plain_context(**changes))

    assert ".".join(map(str, refusal.value.errors()[0]["loc"])) == field


@pytest.mark.requirement("S-000-Context-05", "S-000-Context-06")
@pytest.mark.parametrize("budget", [4_000, 128_000])
def test_the_bounds_themselves_are_allowed(budget: int) -> None:
    changes = {"token_budget": budget, "tokens_used": budget * 11 // 10}

    assert CONTEXT.validate_python(plain_context(**changes)).token_budget == budget


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda one: (
            st.lists(one)
            | st.dictionaries(st.sampled_from(["id", "status", "recent_exchanges", "x"]), one)
        ),
    )
)
def test_nothing_else_is_ever_raised(plain: object) -> None:
    with pytest.raises(ValidationError):
        CONTEXT.validate_python(plain)


def test_the_newest_exchanges_stay_within_the_budget() -> None:
    agent = replace(AGENT, context=ContextRules(token_budget=4_000))
    said = [
        one
        for n in range(40)
        for one in (Message("user", f"{n} " + "q" * 900), Message("assistant", "a"))
    ]

    context = view(*said, agent=agent)

    assert 3_500 < context.tokens_used <= 4_400
    assert context.recent_exchanges[-2].content.startswith("39 ")
    assert context.recent_exchanges[0].role == "user"


@pytest.mark.requirement("S-000-Context-04", "S-000-Context-07")
def test_a_conversation_with_another_model_is_suspended_until_its_next_turn() -> None:
    changed = view(*SAID, model="old")

    assert (changed.status, changed.last_model) == ("suspended", "old")
    closed = export_context(replace(RECORD, state="closed"), (), None, AGENT)
    assert (closed.status, closed.recent_exchanges) == ("closed", ())


@pytest.mark.requirement("S-000-Model-01")
def test_what_is_absent_takes_its_default() -> None:
    least = {"id": "x", "user_id": "u", "project_id": "p", "session_start": "2025-01-15T10:30:00"}

    assert json.loads(encode(CONTEXT.validate_python(least))) == {
        **least,
        "session_start": "2025-01-15T10:30:00Z",
        "last_activity": None,
        "last_model": None,
        "token_budget": 16_000,
        "tokens_used": 0,
        "compressed_summary": None,
        "recent_exchanges": [],
        "key_decisions": [],
        "mentioned_symbols": None,
        "mentioned_files": None,
        "status": "active",
        "compression_count": 0,
    }


def test_results_that_stand_by_themselves_find_their_calls() -> None:
    call: dict[str, object] = {
        "id": "c",
        "name": "t",
        "arguments": {},
        "result": None,
        "status": "pending",
    }
    exchanges = [
        *plain_exchange(),
        *plain_exchange(role="assistant", content="wait", tool_calls=[call]),
        *plain_exchange(role="tool", content="found", tool_call_id="c"),
    ]

    read = CONTEXT.validate_python(plain_context(recent_exchanges=exchanges))

    (result,) = [message.result for _, _, message in messages_in(read) if message.result]
    assert (result.name, result.content, result.is_error) == ("t", "found", False)
