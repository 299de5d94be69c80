"""Live runs: whoever listens, from whenever on, hears every event once and in order."""

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.effects import Moment, Steered
from gateway.domain.ids import AgentId, MessageId, RunId, SessionKey
from gateway.domain.inbox import Entry, NewEntry
from gateway.domain.messages import Chunk
from gateway.sessions.journal import RecordedJournal
from gateway.sessions.runs import LiveRun
from tests.fakes.clock import FakeClock
from tests.fakes.journal import FakeJournal

KEY = SessionKey(AgentId("a"), "c", "p")


def live(attempt: int = 1) -> LiveRun:
    new = NewEntry(MessageId("m"), RunId("r"), KEY, "hi", datetime(2026, 1, 1, tzinfo=UTC))
    run = LiveRun(Entry(new, 1, "running", 1))
    run.start(attempt, Moment(datetime(2026, 1, 1, tzinfo=UTC), 0.0))
    return run


@given(st.integers(0, 6), st.integers(0, 8), st.integers(1, 3))
def test_a_listener_that_comes_late_misses_nothing(
    before: int, after_seq: int, attempt: int
) -> None:
    run, heard = live(attempt), list[int]()
    base = run.first_seq - 1
    for n in range(before):
        run.emit(Chunk("content", {"content": str(n)}))

    run.listen(lambda event, _: heard.append(json.loads(event)["seq"]), after_seq=base + after_seq)
    run.emit(Chunk("content", {"content": "live"}))
    run.seal(Chunk("done", {}))
    run.publish()

    emitted = before + (attempt > 1)  # a later attempt says first that it is one
    first, total = min(after_seq, emitted), emitted + 2
    assert heard == [base + n + 1 for n in range(first, total)]


def test_an_end_that_is_not_durable_is_told_to_nobody() -> None:
    run, early, late = live(), list[bytes](), list[bytes]()
    run.listen(lambda event, _: early.append(event))
    run.emit(Chunk("content", {"content": "x"}))
    run.seal(Chunk("done", {"reason": "answered"}))

    run.listen(lambda event, _: late.append(event))
    before = (len(early), len(late))
    run.publish()

    assert before == (1, 1)
    assert early == late == run.events


def test_the_last_event_says_so_and_then_nobody_listens() -> None:
    run, lasts = live(), list[bool]()
    stop = run.listen(lambda _, last: lasts.append(last))
    run.emit(Chunk("content", {"content": "x"}))
    run.seal(Chunk("done", {}))
    run.publish()
    stop()
    stop()

    assert lasts == [False, True]


def test_who_stops_listening_hears_no_more() -> None:
    run, heard = live(), list[bytes]()
    stop = run.listen(lambda event, _: heard.append(event))
    stop()
    run.emit(Chunk("content", {"content": "x"}))

    assert heard == []


def test_its_journal_has_what_others_wanted_of_it_also_before_it_began() -> None:
    run = live()
    run.control.steer(Steered(RunId("r_2"), "more"))
    journal = RecordedJournal(run.run_id, FakeClock(), FakeJournal())

    run.start(1, Moment(datetime(2026, 1, 1, tzinfo=UTC), 0.0), journal)
    run.stop("cancelled", at_once=True)

    assert journal.lines == [("said", ("r_2", "more")), ("stop", ("cancelled", True))]
