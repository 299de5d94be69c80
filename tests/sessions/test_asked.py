"""Two requests are told apart by the first part that differs, by name."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from gateway.domain.ids import RunId
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.domain.model import ModelRequest, ToolSpec
from gateway.sessions.journal import (
    NO_REQUEST,
    RecordedJournal,
    parts_after,
    parts_of,
    request_difference,
)
from tests.fakes.clock import FakeClock
from tests.fakes.journal import FakeJournal

TOOLS = (ToolSpec("a", "does a"), ToolSpec("b", "does b"))
CALL = ToolCall("c1", "a", "{}")
SAID = (
    Message("user", "hi"),
    Message("assistant", "", (CALL,)),
    Message("tool", result=ToolResult("c1", "a", "done", duration_ms=5.0)),
)
REQUEST = ModelRequest("p", "m", "You are brief.", SAID, TOOLS)

REQUESTS = st.builds(
    ModelRequest,
    st.sampled_from("pq"),
    st.sampled_from("mn"),
    st.text(max_size=2),
    st.lists(st.sampled_from(SAID), max_size=4).map(tuple),
    st.sampled_from([(), TOOLS, TOOLS[:1]]),
)


def changed(place: int, message: Message) -> tuple[Message, ...]:
    return (*SAID[:place], message, *SAID[place + 1 :])


CHANGES: dict[str, ModelRequest] = {
    "call 1: the setting model": replace(REQUEST, model="other"),
    "call 1: the setting temperature": replace(REQUEST, temperature=0.5),
    "call 1: the system text (soul s.md), character 9": replace(REQUEST, system="You are long."),
    "call 1: the tools offered": replace(REQUEST, tools=TOOLS[::-1]),
    "call 1: the description or the parameters of the tool b": replace(
        REQUEST, tools=(TOOLS[0], ToolSpec("b", "does more"))
    ),
    "call 1: message 1 of the request": replace(
        REQUEST, messages=changed(0, Message("user", "ho"))
    ),
    "call 1: message 2 of the request": replace(
        REQUEST, messages=changed(1, Message("assistant", "", (replace(CALL, arguments="[]"),)))
    ),
    "call 1: message 3 of the request": replace(
        REQUEST, messages=changed(2, Message("tool", result=ToolResult("c1", "a", "undone")))
    ),
    "call 1: message 4 of the request": replace(REQUEST, messages=(*SAID, Message("user", "."))),
}


@pytest.mark.parametrize("at", CHANGES)
def test_the_first_part_that_differs_is_named(at: str) -> None:
    found = request_difference("call 1", parts_of(REQUEST), parts_of(CHANGES[at]), "s.md")

    assert found is not None
    assert found.at == at
    assert found.recorded != found.now


def test_what_a_model_is_not_told_makes_no_difference() -> None:
    slower = Message("tool", result=ToolResult("c1", "a", "done", duration_ms=9.0))
    other = replace(REQUEST, messages=changed(2, slower), deadline_s=1.0)

    assert request_difference("call 1", parts_of(REQUEST), parts_of(other), "s.md") is None


@given(st.lists(REQUESTS, max_size=4))
def test_requests_that_are_written_as_changes_are_read_as_they_were(
    requests: list[ModelRequest],
) -> None:
    journal = RecordedJournal(RunId("r"), FakeClock(), FakeJournal())
    for request in requests:
        journal.asks(request)

    read, before = [], NO_REQUEST
    for kind, changes in from_json(to_json(journal.lines)):
        before = parts_after(before, changes[0])
        read.append((kind, before))

    assert read == [("ask", parts_of(request)) for request in requests]


@pytest.mark.parametrize("told", [{}, {"kept": "x", "messages": []}, {"kept": 0, "messages": 1}])
def test_what_is_no_request_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="invalid request"):
        parts_after(NO_REQUEST, told)
