"""An end has its nodes in a chain, one terminal event, and says what it is."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.agent.effects import Fail, Finish, Moment, RunResult
from gateway.domain.ids import AgentId, MessageId, NodeId, RunId, SessionKey
from gateway.domain.inbox import Entry, NewEntry
from gateway.domain.messages import Message, NodeStatus, ToolCall, ToolResult, Usage
from gateway.domain.model import FinishReason
from gateway.sessions.lanes import TurnBatch
from gateway.sessions.runs import LiveRun
from gateway.sessions.worker import SHOWN_TEXT, RunEnd, end_with, merged_chunk, refused_end

AT = datetime(2026, 1, 1, tzinfo=UTC)
KEY = SessionKey(AgentId("a"), "c", "p")
NOW = Moment(AT, 12.0)
SAID = (
    Message("assistant", "look", (ToolCall("1", "t"),)),
    Message("tool", result=ToolResult("1", "t", "ok")),
    Message("assistant", "done"),
)


def asked(name: str) -> LiveRun:
    new = NewEntry(MessageId(f"m-{name}"), RunId(f"r-{name}"), KEY, name, AT)
    return LiveRun(Entry(new, 1, "running", 1))


def end_of(result: RunResult, parent: NodeId | None = None) -> RunEnd:
    return end_with(TurnBatch(asked("hi")), parent, result, NOW)


def answer(end: Finish | Fail, *said: Message) -> RunResult:
    return RunResult(end, said or (Message("assistant", end.text),), Usage(3, 4), "m", "p")


def test_each_message_is_the_parent_of_the_next() -> None:
    end = end_of(answer(Finish("answered", "done"), *SAID), NodeId("before"))

    assert [node.id for node in end.nodes] == ["m-hi", "m-hi.1", "m-hi.2", "m-hi.3"]
    assert [node.parent_id for node in end.nodes] == ["before", "m-hi", "m-hi.1", "m-hi.2"]
    assert end.terminal.data["message_id"] == "m-hi.3"
    assert end.terminal.data["tokens_used"] == 7
    assert [node.model for node in end.nodes] == [None, "m", None, "m"]


@pytest.mark.parametrize(
    ("finish", "outcome", "status"),
    [
        (Finish("answered", "x"), "answered", "complete"),
        (Finish("cancelled", "x", partial=True), "cancelled", "cancelled"),
        (Finish("timeout", "x", partial=True), "timeout", "partial"),
        (Fail("sorry", "sorry"), "failed", "error"),
        (Fail("sorry", "half"), "failed", "partial"),
    ],
)
def test_the_last_message_has_the_status_of_the_end(
    finish: Finish | Fail, outcome: str, status: NodeStatus
) -> None:
    end = end_of(answer(finish))

    assert (end.outcome, end.nodes[-1].status) == (outcome, status)
    assert end.nodes[0].status == "complete"
    assert end.terminal.type == ("done" if isinstance(finish, Finish) else "error")


def test_a_refusal_keeps_the_question_and_says_why() -> None:
    end = refused_end(TurnBatch(asked("hi")), None, "config_error", "gone", NOW)

    assert [node.message.text for node in end.nodes] == ["hi", "gone"]
    assert (end.terminal.type, end.terminal.data["message"]) == ("error", "gone")


@pytest.mark.parametrize(
    ("finish", "marks"),
    [("stop", set()), ("length", {"cut"}), ("content_filter", {"filtered"})],
)
def test_a_model_that_had_more_to_say_is_told_of(finish: FinishReason, marks: set[str]) -> None:
    told = replace(answer(Finish("answered", "so")), finish=finish)

    end = end_of(told).terminal.data

    assert {"cut", "filtered"} & end.keys() == marks


def test_a_very_long_answer_is_cut_in_the_last_event_only() -> None:
    text = "x" * (SHOWN_TEXT + 1)

    end = end_of(answer(Finish("answered", text)))

    assert end.terminal.data["truncated"] is True
    assert len(str(end.terminal.data["response"])) == SHOWN_TEXT
    assert end.nodes[-1].message.text == text


def test_each_question_is_a_message_by_itself_with_its_own_id_and_run() -> None:
    batch = TurnBatch(asked("b"), [asked("a")], took=[asked("c")])
    said = (*SAID[:2], Message("user", "c"), Message("assistant", "done"))

    end = end_with(batch, None, answer(Finish("answered", "done"), *said), NOW)

    shown = [(node.id, node.run_id, node.message.role) for node in end.nodes]
    assert shown == [
        ("m-a", "r-a", "user"),
        ("m-b", "r-b", "user"),
        ("m-b.1", "r-b", "assistant"),
        ("m-b.2", "r-b", "tool"),
        ("m-c", "r-c", "user"),
        ("m-b.4", "r-b", "assistant"),
    ]
    assert [node.parent_id for node in end.nodes[1:]] == [node.id for node in end.nodes[:-1]]


def test_a_merged_run_says_which_one_answered_it() -> None:
    data = merged_chunk(RunId("r-b"), NodeId("m-b.1"), AT).data

    assert (data["reason"], data["merged_into"], data["message_id"]) == ("merged", "r-b", "m-b.1")
    assert data["response"] == ""
