"""The pieces of an answer: sums, distinct ids, and the last word."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.limits import add_usage
from gateway.agent.turn import with_distinct_ids, with_last_word
from gateway.domain.messages import Message, ToolCall, ToolResult, Usage
from tests.fakes.model import says

costs = st.one_of(st.none(), st.floats(0, 10))
usages = st.builds(Usage, *[st.integers(0, 1000)] * 4, costs, st.booleans())


@given(usages, usages)
def test_sums_are_sums_and_an_unknown_cost_stays_unknown(one: Usage, other: Usage) -> None:
    total = add_usage(one, other)

    assert total.total == one.total + other.total
    assert (total.cost_usd is None) == (one.cost_usd is None and other.cost_usd is None)
    assert total.estimated == (one.estimated or other.estimated)


@given(st.lists(st.sampled_from("ab"), max_size=6), st.lists(st.sampled_from("ab"), max_size=6))
def test_ids_become_distinct_and_those_that_are_stay(before: list[str], now: list[str]) -> None:
    said = [Message("assistant", "", tuple(ToolCall(one, "t") for one in set(before)))]

    reply = with_distinct_ids(says("", *(ToolCall(one, "t") for one in now)), said)

    ids = [call.id for call in reply.tool_calls]
    assert len(set(ids) | set(before)) == len(ids) + len(set(before))
    assert [one.split("-")[0] for one in ids] == now


def test_the_last_word_stands_at_the_end_once() -> None:
    question, empty = Message("tool", result=ToolResult("a", "t", "")), Message("assistant")

    assert with_last_word([], "x") == (Message("assistant", "x"),)
    assert with_last_word([question], "x") == (question, Message("assistant", "x"))
    assert with_last_word([question, empty], "x") == (question, Message("assistant", "x"))
    assert with_last_word([Message("assistant", "x")], "x") == (Message("assistant", "x"),)
    assert with_last_word([Message("assistant", " \n")], "x") == (Message("assistant", "x"),)
    assert len(with_last_word([Message("assistant", "y")], "x")) == 2
