"""Values survive their way into columns and back."""

import sqlite3
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import to_micros, to_time
from gateway.domain.messages import Extras, Message, ToolCall, ToolResult
from gateway.store.tables import migrate
from gateway.store.transaction import pack_message, place_of, seq_of, unpack_message
from gateway.store.writer import WriteTransaction

texts = st.text()
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    text=texts,
    tool_calls=st.lists(st.builds(ToolCall, texts, texts, texts), max_size=3).map(tuple),
    result=st.none()
    | st.builds(ToolResult, texts, texts, texts, st.booleans(), st.floats(0, 1e9, allow_nan=False)),
    thinking=texts,
    extras=st.none() | st.builds(Extras, texts, texts),
    kept=st.just({}),
)


@given(messages)
def test_a_message_comes_back_equal(message: Message) -> None:
    assert unpack_message(message.role, message.text, pack_message(message)) == message


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2))])))
def test_a_time_of_any_zone_comes_back_to_the_microsecond(at: datetime) -> None:
    assert to_time(to_micros(at)) == at


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1))
def test_a_place_tells_session_and_number_and_fits_a_row_id(session: int, seq: int) -> None:
    place = place_of(session, seq)

    assert (place >> 32, seq_of(place)) == (session, seq)
    assert place < 2**63


@given(st.lists(st.integers(0, 50)))
def test_no_two_stamps_are_equal_and_none_is_early(times: list[int]) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    tx = WriteTransaction(db)

    taken = [tx.stamp(time) for time in times]
    db.close()

    assert len(set(taken)) == len(taken)
    assert all(stamp >= time for stamp, time in zip(taken, times, strict=True))


def test_a_clock_that_is_set_back_by_an_hour_is_believed() -> None:
    hour = 3_600_000_000
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    tx = WriteTransaction(db)
    tx.stamp(2 * hour)

    assert [tx.stamp(hour), tx.stamp(hour)] == [hour, hour + 1]


def test_a_term_matches_any_of_very_many_values() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    tx = WriteTransaction(db)
    for session in (7, 40_000, 90_000):
        tx.insert("turn_cursor", {"session": session, "upto": 1})

    found = tx.find("turn_cursor", {"session": tuple(range(50_000))}, "session")
    db.close()

    assert sorted(row["session"] for row in found) == [7, 40_000]
