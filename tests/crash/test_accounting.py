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


def test_messages_that_went_as_they_should_are_valid() -> None:
    closed = books(answered("a"), answered("b", sent_at=2, acked_at=3), Record("never sent", "p"))

    assert closed.is_valid
    assert (closed.attempted, closed.acknowledged, closed.answered) == (2, 2, 2)


def test_an_acknowledged_message_without_an_answer_is_lost() -> None:
    closed = books(answered("a"), audits={"a": replace(audit("a"), log=())})

    assert closed.lost == ["a"]


def test_an_answer_that_is_in_no_history_is_lost() -> None:
    assert books(answered("a"), history=[]).lost == ["a"]


def test_the_answer_to_another_message_is_no_answer() -> None:
    assert books(answered("a"), audits={"a": replace(audit("a"), log=told("b"))}).lost == ["a"]


def test_a_message_that_was_never_acknowledged_is_not_lost() -> None:
    closed = books(Record("a", "p", sent_at=0, frames=1))

    assert closed.is_valid
    assert (closed.attempted, closed.acknowledged) == (1, 0)


@pytest.mark.parametrize(
    "log",
    [
        [*told("a"), done("a", seq=3)],
        told("a", number=2),
        [event("content", 1, content="x"), done("a", seq=7)],
    ],
)
def test_two_ends_of_one_message_are_a_duplicate(log: Sequence[Message]) -> None:
    closed = books(answered("a"), audits={"a": replace(audit("a"), log=log)})

    assert closed.duplicated == ["a"]


def test_other_ids_for_a_copy_are_a_duplicate() -> None:
    closed = books(answered("a"), audits={"a": replace(audit("a"), ids=("m-2", "r-2"))})

    assert closed.duplicated == ["a"]


def test_a_question_that_stands_twice_in_the_history_is_a_duplicate() -> None:
    assert books(answered("a"), history=exchange("a") * 2).duplicated == ["a"]


def test_a_question_that_nobody_asked_is_unexpected() -> None:
    history = [*exchange("a"), *exchange("x")]

    assert books(answered("a"), history=history).unexpected == ["x"]


def test_a_message_whose_acknowledgement_was_lost_is_recovered() -> None:
    record = Record("a", "p", sent_at=0, frames=2)
    record.acknowledge(ack("a", duplicate=True), 1)
    for heard in told("a"):
        record.hear(heard)

    closed = books(record)

    assert closed.is_valid
    assert closed.recovered == 1


def test_half_a_frame_that_became_a_message_is_a_broken_promise() -> None:
    record = Record("a", "p", sent_at=0, frames=1, half_sent=True)
    record.acknowledge(ack("a", duplicate=True), 1)

    assert "half a frame" in str(books(record).problems)


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


def test_a_message_that_overtakes_an_earlier_one_is_a_broken_promise() -> None:
    first, second = answered("a"), answered("b", sent_at=2, acked_at=3)
    swapped = [*exchange("b"), *exchange("a")]

    assert books(first, second, history=swapped).problems == ["p: b overtook a"]


def test_messages_that_were_on_their_way_together_have_no_order() -> None:
    first, second = answered("a", acked_at=5), answered("b", sent_at=2, acked_at=3)

    assert books(first, second, history=[*exchange("b"), *exchange("a")]).is_valid


def call(*, result: bool) -> list[Message]:
    asked = {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}
    ended = {"role": "tool", "content": "now", "tool_calls": None, "tool_call_id": "c"}
    question, answer = exchange("a")
    return [question, asked, *([ended] if result else []), answer]


def test_a_call_with_its_result_is_as_it_should_be() -> None:
    assert books(answered("a"), history=call(result=True)).is_valid


def test_a_call_without_a_result_is_a_broken_promise() -> None:
    assert books(answered("a"), history=call(result=False)).problems


def test_a_question_without_an_answer_is_a_broken_promise() -> None:
    assert books(answered("a"), history=exchange("a")[:1]).problems


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


def test_messages_that_one_answer_names_are_answered() -> None:
    records, audits, history = together("a", "b", "c")

    closed = books(*records, audits=audits, history=history)

    assert closed.is_valid
    assert (closed.answered, closed.merged) == (3, 2)


def test_a_merged_message_that_the_answer_does_not_name_is_lost() -> None:
    records, audits, history = together("a", "b", "c")
    forgets = {**audits["c"].log[0], "response": "answer 1 to b c"}
    audits["c"] = replace(audits["c"], log=[forgets])
    records[2].ends = [forgets]

    assert books(*records, audits=audits, history=history).lost == ["a"]


def test_a_message_that_was_merged_into_nothing_is_lost() -> None:
    records, audits, history = together("a", "b", into="x")

    assert books(*records, audits=audits, history=history).lost == ["a", "b"]


def superseded(name: str) -> tuple[Record, Audit]:
    record = answered(name)
    end = event("done", 1, reason="superseded", response="stopped", message_id="m", partial=True)
    record.ends = [end]
    return record, Audit([end], (f"m-{name}", f"r-{name}"))


def test_a_superseded_message_with_a_newer_one_behind_it_is_not_lost() -> None:
    record, its = superseded("a")
    newer = answered("b", sent_at=2, acked_at=3)

    closed = books(record, newer, audits={"a": its})

    assert closed.is_valid
    assert (closed.answered, closed.superseded) == (1, 1)


def test_a_message_that_nothing_superseded_is_a_broken_promise() -> None:
    record, its = superseded("a")

    assert books(record, audits={"a": its}).problems == ["a: nothing came after it"]


def test_two_questions_in_a_row_are_a_broken_promise_unless_they_were_merged() -> None:
    history = [exchange("a")[0], *exchange("b")]

    assert books(answered("a"), answered("b", sent_at=2, acked_at=3), history=history).problems


def test_a_call_that_was_skipped_and_is_made_after_all_has_run_once() -> None:
    record = Record("a", "p")
    for result in (SKIPPED, "noon"):
        made = {"id": "c", "result": result, "duration_ms": 0.1}
        record.hear(event("tool_result", record.last_seq + 1, tool_call=made))

    assert record.tools == {"c": [("noon", 0.1)]}
