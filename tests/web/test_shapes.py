"""The fields, roles and times of messages and plugins in answers."""

import json
from datetime import UTC, datetime

import pytest

from gateway.api.declarations import plain
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.messages import Message, Node, ToolCall, ToolResult
from gateway.domain.model import ToolSpec
from gateway.domain.plugins import PluginInfo
from gateway.domain.sessions import SessionRecord
from gateway.web.chat import message
from gateway.web.responses import encode
from gateway.web.sessions import session
from gateway.web.status import describe_plugin

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
CALL = ToolCall("c1", "clock", '{"x":1}')
FIELDS = {
    "id",
    "seq",
    "role",
    "content",
    "tool_calls",
    "run_id",
    "parent_id",
    "status",
    "created_at",
    "token_count",
    "model",
    "metadata",
}


def node(said: Message) -> Node:
    return Node(NodeId("n"), NodeId("p"), RunId("r"), said, AT, 7, seq=3)


@pytest.mark.requirement(
    "S-003-Message-01",
    "S-003-Message-03",
    "S-003-Message-04",
    "S-004-Msg-01",
    "S-004-Msg-02",
    "S-000-Exchange-01",
    "S-000-Exchange-02",
    "S-000-Exchange-04",
)
def test_a_message_has_its_role_content_time_and_tokens() -> None:
    shown = plain(message(node(Message("user", "hi")), 100))

    assert set(shown) == FIELDS
    assert (shown["role"], shown["content"], shown["token_count"]) == ("user", "hi", 7)
    assert json.loads(encode(shown))["created_at"] == "2026-01-02T03:04:05.678000Z"
    assert shown["tool_calls"] is None
    assert shown["metadata"] == {"token_count": 7}


@pytest.mark.requirement("S-004-Msg-03", "S-000-Exchange-03")
def test_calls_have_the_usual_shape_and_a_result_names_its_call() -> None:
    asked = plain(message(node(Message("assistant", "look", (CALL,))), 100))
    result = plain(message(node(Message("tool", result=ToolResult("c1", "clock", "noon"))), 100))

    assert asked["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"x":1}'}}
    ]
    assert asked["metadata"] == {"token_count": 7, "tool_calls": asked["tool_calls"]}
    assert (result["role"], result["content"], result["tool_call_id"]) == ("tool", "noon", "c1")
    assert result["is_error"] is False


def test_a_text_that_is_too_long_is_cut_and_says_so() -> None:
    asked = plain(message(node(Message("user", "x" * 101)), 100))
    result = plain(message(node(Message("tool", result=ToolResult("1", "t", "y" * 101))), 100))

    assert (asked["content"], asked["truncated"]) == ("x" * 100, True)
    assert (result["content"], result["truncated"]) == ("y" * 100, True)


def test_arguments_count_and_are_cut_as_well() -> None:
    calls = (ToolCall("1", "t", "a" * 60), ToolCall("2", "t", "b" * 60))

    asked = plain(message(node(Message("assistant", "x" * 10, calls)), 100))

    assert asked["truncated"] is True
    assert len(json.dumps(asked["tool_calls"])) < 300


def test_a_session_is_shown_with_its_key_and_parts() -> None:
    key = SessionKey(AgentId("a"), "c", "p:q", "x")
    shown = plain(session(SessionRecord(key, AT, AT, 2, 3, 4, None, "active", NodeId("n"))))

    assert shown["session_key"] == "a:c:p%3Aq:x"
    assert (shown["account"], shown["message_count"]) == ("p:q", 2)
    assert shown["token_usage"] == {"input_tokens": 3, "output_tokens": 4, "cost_usd": None}


@pytest.mark.requirement("S-000-Tool-05")
def test_a_tool_is_told_in_whatever_category_it_says_it_is() -> None:
    categories = ["vault", "thread", "code", "web", "meta", "astronomy", None]
    tools = tuple(ToolSpec(f"t{c}", "", family="p", category=c) for c in categories)

    shown = plain(describe_plugin(PluginInfo("p", "loaded", tools=tools), {}))

    assert isinstance(shown["tools"], list)
    assert [tool["category"] for tool in shown["tools"]] == categories


def test_the_tools_of_a_plugin_that_is_not_loaded_are_not_told() -> None:
    info = PluginInfo("p", "refused", tools=(ToolSpec("t", "", "not JSON"),), why="too big")

    assert describe_plugin(info, {}).tools == []
