"""Packing: the soul first, the question last, whole exchanges between, within the allowance."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import AgentDef, ContextRules
from gateway.domain.ids import AgentId, NodeId, RunId
from gateway.domain.messages import Message, Node, ToolCall, ToolResult
from gateway.domain.model import ToolSpec
from gateway.domain.souls import Soul
from gateway.memory.context import pack
from gateway.memory.window import message_tokens

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AGENT = AgentDef(AgentId("a"), "p", "m", system_prompt="Be kind.", context_window=100_000)
SOUL = Soul(AGENT.id, "I am.", 2, "soul.md", NOW)
QUESTION = Message("user", "and now?")


def exchange(run: int, *, size: int = 10, tools: int = 0) -> list[Node]:
    messages = [Message("user", "q" * size)]
    for n in range(tools):
        messages.append(Message("assistant", "", (ToolCall(str(n), "echo"),)))
        messages.append(Message("tool", result=ToolResult(str(n), "echo", "r" * min(size, 700))))
    messages.append(Message("assistant", "a" * size))
    return [
        Node(NodeId(f"{run}.{n}"), None, RunId(str(run)), message, NOW, message_tokens(message))
        for n, message in enumerate(messages)
    ]


def window(*exchanges: list[Node]) -> tuple[Node, ...]:
    return tuple(node for nodes in exchanges for node in nodes)


@pytest.mark.requirement("S-003-Soul-02", "S-003-AgentDef-09", "S-002-Query-07")
def test_the_soul_comes_first_then_the_instructions_and_the_question_last() -> None:
    context = pack(AGENT, SOUL, window(exchange(1)), QUESTION, ())

    assert context.system == "I am.\n\nBe kind."
    assert context.messages[-1] is QUESTION
    assert len(context.messages) == 3


def test_a_fresh_session_has_the_soul_and_the_question() -> None:
    assert pack(AGENT, SOUL, (), QUESTION, ()).messages == (QUESTION,)
    assert pack(replace(AGENT, system_prompt=""), None, (), QUESTION, ()).system == ""


@pytest.mark.requirement("S-004-ACtx-04", "S-003-Session-07")
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3)), max_size=20),
    st.integers(0, 12_000),
    st.integers(0, 30),
)
def test_exchanges_are_whole_newest_first_and_fit(
    shapes: list[tuple[int, int]], budget: int, turns: int
) -> None:
    exchanges = [exchange(n, size=size, tools=tools) for n, (size, tools) in enumerate(shapes)]
    agent = replace(AGENT, context=ContextRules(budget, turns))
    tool = ToolSpec("echo", "Echoes.")

    context = pack(agent, SOUL, window(*exchanges), QUESTION, (tool,))

    shown = context.messages[:-1]
    whole = [tuple(node.message for node in nodes) for nodes in exchanges]
    count = next(n for n in range(len(whole) + 1) if _joined(whole[len(whole) - n :]) == shown)
    empty = pack(agent, SOUL, (), QUESTION, (tool,))
    assert count <= turns
    assert context.tokens <= max(budget, empty.tokens)
    if count < min(turns, len(whole)):
        more = sum(message_tokens(m) for m in whole[len(whole) - count - 1])
        assert context.tokens + more > budget


def _joined(groups: list[tuple[Message, ...]]) -> tuple[Message, ...]:
    return tuple(message for group in groups for message in group)


def test_the_models_window_bounds_what_is_sent_as_well() -> None:
    small = replace(AGENT, context_window=5_000, max_tokens=4_900)

    context = pack(small, SOUL, window(exchange(1, size=1000)), QUESTION, ())

    assert context.messages == (QUESTION,)


@pytest.mark.requirement("S-003-Message-06")
@given(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 40))
def test_a_history_that_goes_on_from_anywhere_has_a_result_for_every_call(
    tools: list[int], cut: int
) -> None:
    nodes = window(*(exchange(n, tools=count) for n, count in enumerate(tools)))[:cut]

    shown = pack(AGENT, SOUL, nodes, QUESTION, ()).messages

    waiting: set[str] = set()
    for message in shown:
        if message.result is not None:
            assert message.result.call_id in waiting
            waiting.remove(message.result.call_id)
        else:
            assert not waiting
            waiting = {call.id for call in message.tool_calls}
    assert not waiting
    assert [m for m in shown if m.role != "tool"] == [
        *(n.message for n in nodes if n.message.role != "tool"),
        QUESTION,
    ]
