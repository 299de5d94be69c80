"""The books find every way in which a message can go wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.crash.accounting import SKIPPED, Account, Audit, Record, account

Message = dict[str, Any]


def event(kind: str, seq: int, **more: object) -> dict[str, Any]:
    return {"type": kind, "seq": seq, **more}


def done(name: str, seq: int = 2, number: int = 1) -> dict[str, Any]:
    said = f"answer {number} to {name}"
    return event("done", seq, response=said, message_id=f"m-{name}.1")


def told(name: str, number: int = 1) -> list[dict[str, Any]]:
    return [event("content", 1, content=f"answer {number} to {name}"), done(name, number=number)]


def answered(name: str, *, sent_at: int = 0, acked_at: int = 1) -> Record:
    """A message that went as it should."""
    record = Record(name, "p", sent_at=sent_at, frames=1)
    record.acknowledge(ack(name), acked_at)
    for heard in told(name):
        record.hear(heard)
    return record


def ack(name: str, *, duplicate: bool = False) -> dict[str, Any]:
    return {"message_id": f"m-{name}", "run_id": f"r-{name}", "duplicate": duplicate}


def audit(name: str) -> Audit:
    return Audit(told(name), (f"m-{name}", f"r-{name}"))


def exchange(name: str) -> list[Message]:
    return [
        {"role": "user", "content": name, "tool_calls": None},
        {"role": "assistant", "content": f"answer 1 to {name}", "tool_calls": None},
    ]


def books(
    *records: Record,
    audits: Mapping[str, Audit] | None = None,
    history: Sequence[Message] | None = None,
) -> Account:
    """As it should be, but for what is given."""
    usual = {one.name: audit(one.name) for one in records if one.ids}
    kept = [message for one in records if one.ids for message in exchange(one.name)]
    found = {**usual, **(audits or {})}
    return account(records, found, {"p": kept if history is None else history})


@pytest.mark.parametrize(
    ("field", "audits", "history"),
    [
        pytest.param("lost", {"a": Audit((), audit("a").ids)}, None, id="no answer"),
        pytest.param("lost", None, [], id="an answer that is in no history"),
        pytest.param("lost", {"a": replace(audit("a"), log=told("b"))}, None, id="of another"),
        *(
            pytest.param("duplicated", {"a": replace(audit("a"), log=log)}, None, id="two ends")
            for log in (
                [*told("a"), done("a", seq=3)],
                told("a", number=2),
                [event("content", 1, content="x"), done("a", seq=7)],
            )
        ),
        pytest.param(
            "duplicated", {"a": replace(audit("a"), ids=("m-2", "r-2"))}, None, id="other ids"
        ),
        pytest.param("duplicated", None, exchange("a") * 2, id="a question that stands twice"),
    ],
)
def test_what_is_lost_or_duplicated_is_found(
    field: str, audits: Mapping[str, Audit] | None, history: Sequence[Message] | None
) -> None:
    assert getattr(books(answered("a"), audits=audits, history=history), field) == ["a"]


def test_what_went_as_it_should_is_valid_and_what_was_never_acknowledged_is_not_lost() -> None:
    closed = books(answered("a"), answered("b", sent_at=2, acked_at=3), Record("never sent", "p"))
    unheard = books(Record("a", "p", sent_at=0, frames=1))

    assert closed.is_valid
    assert unheard.is_valid
    assert (closed.attempted, closed.acknowledged, closed.answered) == (2, 2, 2)
    assert (unheard.attempted, unheard.acknowledged) == (1, 0)


def test_a_question_that_nobody_asked_is_unexpected() -> None:
    assert books(answered("a"), history=[*exchange("a"), *exchange("x")]).unexpected == ["x"]


@pytest.mark.parametrize("half_sent", [False, True])
def test_a_message_whose_acknowledgement_was_lost_is_recovered_unless_half_of_it_was_sent(
    half_sent: bool,
) -> None:
    record = Record("a", "p", sent_at=0, frames=1 if half_sent else 2, half_sent=half_sent)
    record.acknowledge(ack("a", duplicate=True), 1)
    for heard in told("a"):
        record.hear(heard)

    closed = books(record)

    assert closed.is_valid != half_sent
    assert ("half a frame" in str(closed.problems), closed.recovered) == (half_sent, 1)


@pytest.mark.parametrize("seq", [1, 3, 9])
def test_a_gap_or_a_repetition_is_a_broken_promise(seq: int) -> None:
    record = Record("a", "p")
    record.hear(event("content", 1, content="x"))
    record.hear(event("content", seq, content="y"))

    assert record.problems == [f"seq {seq} came after 1"]


def test_after_a_notice_the_numbers_go_on_higher_and_what_was_heard_counts_no_more() -> None:
    record = Record("a", "p", sent_at=0, frames=1)
    record.acknowledge(ack("a"), 1)
    record.hear(event("content", 1, content="half of"))
    record.hear(event("system", 50, metadata={"discard_from_seq": 1}))
    record.hear(event("content", 51, content="whole"))
    record.hear(event("done", 52, response="whole", message_id="m"))

    assert record.problems == []


def test_an_end_that_says_other_things_than_were_heard_is_a_broken_promise() -> None:
    record = Record("a", "p")
    record.hear(event("content", 1, content="this"))
    record.hear(event("done", 2, response="that", message_id="m"))

    assert record.problems == ["what was heard is not the answer that is kept"]


@pytest.mark.parametrize(("acked_at", "problems"), [(1, ["p: b overtook a"]), (5, [])])
def test_a_message_overtakes_only_one_that_was_not_on_its_way_with_it(
    acked_at: int, problems: Sequence[str]
) -> None:
    first, second = answered("a", acked_at=acked_at), answered("b", sent_at=2, acked_at=3)

    assert books(first, second, history=[*exchange("b"), *exchange("a")]).problems == problems


def call(*, result: bool) -> list[Message]:
    asked = {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}
    ended = {"role": "tool", "content": "now", "tool_calls": None, "tool_call_id": "c"}
    question, answer = exchange("a")
    return [question, asked, *([ended] if result else []), answer]


def test_a_history_without_a_result_an_answer_or_an_order_is_a_broken_promise() -> None:
    assert books(answered("a"), history=call(result=True)).is_valid
    assert books(answered("a"), history=call(result=False)).problems
    assert books(answered("a"), history=exchange("a")[:1]).problems
    two = [exchange("a")[0], *exchange("b")]  # in a row, and not merged
    assert books(answered("a"), answered("b", sent_at=2, acked_at=3), history=two).problems


def test_a_finished_tool_that_is_told_again_is_fine_and_one_that_ran_again_is_not() -> None:
    again, anew = answered("a"), answered("b", sent_at=2, acked_at=3)
    again.tools = {"c": [("noon", 0.1), ("noon", 0.1)]}
    anew.tools = {"d": [("noon", 0.1), ("noon", 0.2)]}

    closed = books(again, anew)

    assert closed.tools_told_again == 2
    assert closed.tools_run_again == ["b: d"]


def together(*names: str, into: str = "c") -> tuple[list[Record], dict[str, Audit], list[Message]]:
    """Messages that one answer names, told by the run of `into`."""
    said = f"answer 1 to {' '.join(names)}"
    records, audits = [], {}
    for number, name in enumerate(names):
        record = answered(name, sent_at=2 * number, acked_at=2 * number + 1)
        end = event(
            "done", 1, reason="merged", response="", merged_into=f"r-{into}", message_id="m"
        )
        if name == into:
            end = event("done", 1, reason="answered", response=said, message_id="m")
        record.ends = [end]
        records.append(record)
        audits[name] = Audit([end], (f"m-{name}", f"r-{name}"))
    questions = [exchange(name)[0] for name in names]
    return records, audits, [*questions, exchange(names[-1])[1]]


def test_messages_that_one_answer_names_are_answered_and_others_lost() -> None:
    records, audits, history = together("a", "b", "c")
    closed = books(*records, audits=audits, history=history)
    forgets = {**audits["c"].log[0], "response": "answer 1 to b c"}
    audits["c"] = replace(audits["c"], log=[forgets])
    records[2].ends = [forgets]
    nowhere, into_nothing, asked = together("a", "b", into="x")

    assert closed.is_valid
    assert (closed.answered, closed.merged) == (3, 2)
    assert books(*records, audits=audits, history=history).lost == ["a"]
    assert books(*nowhere, audits=into_nothing, history=asked).lost == ["a", "b"]


def superseded(name: str) -> tuple[Record, Audit]:
    record = answered(name)
    end = event("done", 1, reason="superseded", response="stopped", message_id="m", partial=True)
    record.ends = [end]
    return record, Audit([end], (f"m-{name}", f"r-{name}"))


def test_a_superseded_message_has_a_newer_one_behind_it_and_is_not_lost() -> None:
    record, its = superseded("a")
    closed = books(record, answered("b", sent_at=2, acked_at=3), audits={"a": its})

    assert closed.is_valid
    assert (closed.answered, closed.superseded) == (1, 1)
    assert books(record, audits={"a": its}).problems == ["a: nothing came after it"]


def test_a_call_that_was_skipped_and_is_made_after_all_has_run_once() -> None:
    record = Record("a", "p")
    for result in (SKIPPED, "noon"):
        made = {"id": "c", "result": result, "duration_ms": 0.1}
        record.hear(event("tool_result", record.last_seq + 1, tool_call=made))

    assert record.tools == {"c": [("noon", 0.1)]}
