"""Packing: the soul first, the question last, whole exchanges between, within the allowance."""

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import AgentDef, ContextRules, Soul, Template, compile_prompt
from gateway.domain.facts import Fact, Recalled
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.messages import Message, Node, ToolCall, ToolResult, estimate_tokens
from gateway.domain.model import ToolSpec
from gateway.domain.sessions import Summary
from gateway.memory.context import (
    RECALL_TOKENS,
    RESULTS,
    Context,
    ContextExtras,
    Packer,
    Window,
    message_tokens,
)

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
    context = Packer().pack(AGENT, SOUL, window(exchange(1)), QUESTION, ())

    assert context.system == "I am.\n\nBe kind."
    assert context.messages[-1] is QUESTION
    assert len(context.messages) == 3


def test_a_fresh_session_has_the_soul_and_the_question() -> None:
    assert Packer().pack(AGENT, SOUL, (), QUESTION, ()).messages == (QUESTION,)
    assert Packer().pack(replace(AGENT, system_prompt=""), None, (), QUESTION, ()).system == ""


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

    context = Packer().pack(agent, SOUL, window(*exchanges), QUESTION, (tool,))

    shown = context.messages[:-1]
    whole = [tuple(node.message for node in nodes) for nodes in exchanges]
    count = next(n for n in range(len(whole) + 1) if _joined(whole[len(whole) - n :]) == shown)
    empty = Packer().pack(agent, SOUL, (), QUESTION, (tool,))
    assert count <= turns
    assert context.tokens <= max(budget, empty.tokens)
    if count < min(turns, len(whole)):
        more = sum(message_tokens(m) for m in whole[len(whole) - count - 1])
        assert context.tokens + more > budget


def _joined(groups: list[tuple[Message, ...]]) -> tuple[Message, ...]:
    return tuple(message for group in groups for message in group)


def test_the_models_window_bounds_what_is_sent_as_well() -> None:
    small = replace(AGENT, context_window=5_000, max_tokens=4_900)

    context = Packer().pack(small, SOUL, window(exchange(1, size=9000)), QUESTION, ())

    assert context.messages == (QUESTION,)


@pytest.mark.requirement("S-003-Message-06")
@given(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 40))
def test_a_history_that_goes_on_from_anywhere_has_a_result_for_every_call(
    tools: list[int], cut: int
) -> None:
    nodes = window(*(exchange(n, tools=count) for n, count in enumerate(tools)))[:cut]

    shown = Packer().pack(AGENT, SOUL, nodes, QUESTION, ()).messages

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


KEY = SessionKey(AGENT.id, "websocket", "p")
LISTED = tuple(
    Recalled(kind, kind, f"{kind}:\n- {{soul}} {{{{", 0.0, "2 of them", KEY, NOW)
    for kind in ("notes", "threads")
)
EVERYTHING = compile_prompt(
    "# Who\n{soul}\n{system_prompt}\n\n{notes}\n{threads}\n{tools}\n\n{facts}\n{summary}\n"
)


def a_fact(n: int, size: int = 10) -> Recalled:
    fact = Fact(
        *(f"f{n}", str(KEY), "fact", "user", f"thing_{n}", "v" * size),
        functional=True,
        confidence=1.0,
        session_key=KEY,
        learned_at=NOW,
        valid_from=NOW,
    )
    return Recalled("fact", f"f{n}", "", 1.0, f"thing {n}", KEY, NOW, fact=fact)


def a_turn(n: int, size: int = 10, message_id: str | None = None) -> Recalled:
    return Recalled("turn", f"t{n}", "w" * size, 1.0, "words", KEY, NOW, message_id=message_id)


def talk(turns: int, *, size: int = 40, result: int = 0) -> tuple[Node, ...]:
    """A conversation as a store gives it: numbered, each node the parent of the next."""
    nodes = window(*(exchange(n, size=size, tools=1 if result else 0) for n in range(turns)))
    parents = (None, *(node.id for node in nodes))
    return tuple(
        replace(node, parent_id=parent, seq=seq)
        for seq, (node, parent) in enumerate(zip(nodes, parents, strict=False), 1)
    )


@given(
    st.integers(0, 20),
    st.integers(1, 2_000),
    st.lists(st.integers(0, 900), max_size=20),
    st.lists(st.integers(0, 4_000), max_size=20),
    st.integers(0, 3_000),
    st.integers(0, 9_000),
    st.sampled_from([None, EVERYTHING, compile_prompt("{facts}{notes}"), compile_prompt("Hi")]),
)
def test_with_all_that_is_remembered_it_fits_and_its_parts_add_up(
    turns: int,
    size: int,
    facts: list[int],
    found: list[int],
    goal: int,
    budget: int,
    template: Template | None,
) -> None:
    recalled = [*LISTED, *map(a_fact, range(99), facts), *map(a_turn, range(99), found)]
    summary = Summary(NodeId("before"), goal="g" * goal, decisions=("d" * 50,) * 9)
    extras = ContextExtras(summary if goal else None, recalled, question_id="m1", template=template)
    alone = ContextExtras(recalled=LISTED, template=template)
    agent = replace(AGENT, context=ContextRules(budget, 12, facts=5))
    tool = ToolSpec("echo", "Echoes.")

    context = Packer().pack(agent, SOUL, talk(turns, size=size), QUESTION, (tool,), extras=extras)

    least = Packer().pack(agent, SOUL, (), QUESTION, (tool,), extras=alone).tokens
    assert context.messages[-1] is QUESTION
    assert context.tokens <= max(budget, least)
    assert sum(tokens for _, tokens, _ in context.parts) == context.tokens
    assert all(tokens >= 0 for _, tokens, _ in context.parts)
    real = sum(map(message_tokens, context.messages)) + estimate_tokens(context.system)
    assert real <= context.tokens
    shown = {kind: (tokens, items) for kind, tokens, items in context.parts}
    assert len(shown["facts"][1]) <= 5
    assert shown["recall"][0] <= min(RECALL_TOKENS, max(0, budget // 5))
    assert shown["summary"][0] <= max(0, budget // 4)


@pytest.mark.requirement("S-003-Memory-09")
def test_fifty_turns_with_a_fact_from_long_ago_take_less_than_five_thousand_tokens() -> None:
    extras = ContextExtras(
        recalled=[*map(a_fact, range(12)), *(a_turn(n, 2_000) for n in range(5))]
    )

    context = Packer().pack(AGENT, SOUL, talk(50, size=300), QUESTION, (), extras=extras)

    assert context.tokens < 5_000
    assert context.memory is not None
    assert "- user thing_0 vvvvvvvvvv (since 2026-01-01, told 2026-01-01)" in context.memory.text


def test_what_is_remembered_stands_right_before_the_question_and_the_summary_first() -> None:
    extras = ContextExtras(
        Summary(NodeId("0"), goal="fly"), [a_fact(1), a_turn(1)], earlier=[QUESTION]
    )

    messages = Packer().pack(AGENT, SOUL, talk(2), QUESTION, (), extras=extras).messages

    assert messages[0].text == "<summary>\nGoal: fly\n</summary>"
    assert messages[-3:] == (QUESTION, messages[-2], QUESTION)
    assert messages[-2].text.splitlines() == [
        "<memory>",
        "- user thing_1 vvvvvvvvvv (since 2026-01-01, told 2026-01-01)",
        "- user said 2026-01-01: wwwwwwwwww",
        "</memory>",
    ]


def test_names_of_notes_and_threads_stand_at_the_end_of_the_system_text() -> None:
    context = Packer().pack(AGENT, SOUL, (), QUESTION, (), extras=ContextExtras(recalled=LISTED))

    system = next(items for kind, _, items in context.parts if kind == "system")
    assert context.system == ("I am.\n\nBe kind.\n\nnotes:\n- {soul} {{\n\nthreads:\n- {soul} {{")
    assert [(name, why) for name, _, why in system] == [
        ("system_prompt", "the agent's system_prompt"),
        ("notes", "what the agent's tools can read"),
        ("threads", "what the agent's tools can read"),
    ]
    assert context.messages == (QUESTION,)


@pytest.mark.requirement("S-002-Query-06")
def test_a_template_says_where_everything_stands() -> None:
    extras = ContextExtras(
        Summary(NodeId("0"), goal="fly"),
        [*LISTED, a_fact(1), a_turn(1)],
        template=EVERYTHING,
    )
    tools = (ToolSpec("echo", "Says it\nagain."), ToolSpec("time", "Tells it."))

    context = Packer().pack(AGENT, SOUL, talk(1), QUESTION, tools, extras=extras)

    items = {kind: [name for name, _, _ in items] for kind, _, items in context.parts}
    own, about = context.system.rsplit("\n\n", 1)
    assert about == RESULTS
    assert own.splitlines() == [
        "# Who",
        "I am.",
        "Be kind.",
        "",
        "notes:",
        "- {soul} {{",
        "threads:",
        "- {soul} {{",
        "- echo: Says it again.",
        "- time: Tells it.",
        "",
        "<memory>",
        "- user thing_1 vvvvvvvvvv (since 2026-01-01, told 2026-01-01)",
        "</memory>",
        "<summary>",
        "Goal: fly",
        "</summary>",
    ]
    assert [message.text[:8] for message in context.messages[-2:]] == ["<memory>", "and now?"]
    assert "thing_1" not in context.messages[-2].text
    assert len(context.messages) == 4
    assert items["soul"] == ["soul.md"]
    assert items["system"] == ["template", "system_prompt", "notes", "threads", "tools", "results"]
    assert (items["facts"], items["recall"]) == (["f1"], ["t1"])


def test_what_a_template_leaves_out_is_left_out_but_for_facts_and_summary() -> None:
    extras = ContextExtras(
        Summary(NodeId("0"), goal="fly"), [*LISTED, a_fact(1)], template=compile_prompt(" Hi {{. ")
    )

    context = Packer().pack(AGENT, SOUL, (), QUESTION, (), extras=extras)

    assert context.system == "Hi {."
    assert [message.text[:9] for message in context.messages[:2]] == ["<summary>", "<memory>\n"]


def test_a_turn_that_stands_in_the_window_is_not_recalled_again() -> None:
    nodes = talk(30)
    here, gone = nodes[-1].id, nodes[0].id
    extras = ContextExtras(recalled=[replace(a_turn(1), id=one) for one in (here, gone)])

    context = Packer().pack(AGENT, SOUL, nodes, QUESTION, (), extras=extras)

    found = next(items for kind, _, items in context.parts if kind == "recall")
    assert [name for name, _, _ in found] == [gone]
    assert context.memory is not None
    assert context.memory.text.count("- user said") == 1


def test_in_a_long_conversation_most_requests_begin_like_the_one_before() -> None:
    nodes = talk(200)
    shown = [Packer().pack(AGENT, SOUL, nodes[: 2 * n], QUESTION, ()).history for n in range(201)]

    slid = [later[: len(one)] != one for one, later in pairwise(shown)]

    assert slid.count(True) <= 200 * 2 // 5
    assert all(2 * min(n, 8) <= len(one) <= 24 for n, one in enumerate(shown))


@given(st.integers(0, 60), st.integers(3, 15), st.booleans())
def test_the_next_request_begins_like_this_one_while_all_is_shown(
    turns: int, recent: int, with_tools: bool
) -> None:
    agent = replace(AGENT, context=ContextRules(90_000, recent))
    nodes = talk(turns + 3, result=5 * with_tools)
    exchange_size = 4 if with_tools else 2

    def begins(count: int) -> tuple[Message, ...]:
        said = nodes[: count * exchange_size]
        extras = ContextExtras(recalled=[a_fact(count)])
        return Packer().pack(agent, SOUL, said, QUESTION, (), extras=extras).history

    shown = [begins(turns + n) for n in range(4)]
    slid = sum(later[: len(one)] != one for one, later in pairwise(shown))

    if turns + 3 <= recent:
        assert slid == 0
    assert all(len(one) // exchange_size >= min(turns, recent // 2) for one in shown)


def test_many_long_results_at_once_do_not_hide_what_was_said_with_them() -> None:
    agent = replace(AGENT, context=ContextRules(5_000, 12))
    long = Message("tool", result=ToolResult("0", "echo", "r" * 3_200))
    question, call, _, answer = talk(1, result=1)
    results = [
        replace(question, id=NodeId(f"r{n}"), message=long, token_count=message_tokens(long))
        for n in range(5)
    ]
    nodes = (question, call, *results, answer)

    messages = Packer().pack(agent, SOUL, nodes, QUESTION, ()).messages

    assert messages[0] == question.message
    assert messages[-2] == answer.message


def test_old_results_are_cut_when_the_allowance_is_nearly_used_and_the_newest_are_not() -> None:
    agent = replace(AGENT, context=ContextRules(5_000, 12))
    long = Message("tool", result=ToolResult("0", "echo", "begin" + "r" * 3_000 + "end"))
    nodes = tuple(
        replace(node, message=long, token_count=message_tokens(long))
        if node.message.result
        else node
        for node in talk(5, result=1)
    )

    context = Packer().pack(agent, SOUL, nodes, QUESTION, ())
    roomy = Packer().pack(
        replace(agent, context=ContextRules(16_000, 12)), SOUL, nodes, QUESTION, ()
    )

    def results(context: Context) -> list[str]:
        return [one.result.for_model for one in context.messages if one.result]

    assert [len(text) < 1_000 for text in results(context)] == [True, True, True, False, False]
    assert results(context)[0].startswith("begin")
    assert results(context)[0].endswith("end")
    assert "2208 characters left out" in results(context)[0]
    assert results(roomy) == [node.message.result.content for node in nodes if node.message.result]
    assert not roomy.is_crowded
    assert Packer().pack(agent, SOUL, talk(12, size=800), QUESTION, ()).is_crowded


def calls_of(work: Callable[[], object]) -> int:
    """Python functions that it calls."""
    count = 0

    def hook(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(hook)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_packing_a_warm_session_costs_the_same_however_much_is_shown() -> None:
    agent = replace(AGENT, context=ContextRules(900_000, 1_000))
    short, long = Window(talk(20)), Window(talk(900))
    tools = (ToolSpec("echo", "Says it."), ToolSpec("time", "Tells it."))
    packer = Packer()

    def packed(window: Window) -> Context:
        return packer.pack(agent, SOUL, window, QUESTION, tools)

    packed(short)

    assert len(packed(long).history) == 1_800
    assert calls_of(lambda: packed(long)) <= calls_of(lambda: packed(short)) + 1  # items summed up
    assert calls_of(lambda: packed(short)) <= 20


@given(st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=30), st.integers(0, 30))
def test_a_window_that_grew_is_the_one_that_is_read_at_once(roles: list[str], at: int) -> None:
    nodes = [
        Node(NodeId(f"n{n}"), None, RunId("r"), Message(role), NOW, n)  # type: ignore[arg-type]
        for n, role in enumerate(roles)
    ]

    grown, whole = Window(nodes[at:], after=Window(nodes[:at])), Window(nodes)

    assert grown == whole
    assert (grown.begins, grown.tokens, grown.weight) == (whole.begins, whole.tokens, whole.weight)
