"""Dates as people say them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.wording import TimeWord, named, parse

NOW = datetime(2026, 11, 18, 15, 30, tzinfo=UTC)  # a Wednesday

SAID = {
    "since March 2023": "2023-03-01",
    "since 3rd of May 2021": "2021-05-03",
    "on 3 May": "2026-05-03",
    "on December 24th": "2025-12-24",  # this year's is still to come
    "on May 3, 2024": "2024-05-03",
    "on 2024-05-03": "2024-05-03",
    "in 2019": "2019-01-01",
    "in early 2020": "2020-01-01",
    "back in January 2020": "2020-01-01",
    "in March": "2026-03-01",
    "since December": "2025-12-01",
    "last week": "2026-11-09",
    "last month": "2026-10-01",
    "last year": "2025-01-01",
    "last Monday": "2026-11-16",
    "this year": "2026-01-01",
    "yesterday": "2026-11-17",
    "today": "2026-11-18",
    "two years ago": "2024-11-18",
    "a month ago": "2026-10-18",
    "10 days ago": "2026-11-08",
}


def find(text: str, said_at: datetime) -> TimeWord | None:
    """What a text names, if it is not still to come."""
    when = named(text, said_at)
    return None if when is None or when.at > said_at else when


@pytest.mark.parametrize(("said", "day"), SAID.items())
def test_a_date_is_resolved_against_the_time_of_the_message(said: str, day: str) -> None:
    text = f"I moved {said}, you know"

    when = find(text, NOW)

    assert when is not None
    assert when.at == datetime.fromisoformat(f"{day}T00:00:00+00:00")
    assert text[when.start : when.end].strip() == said


@pytest.mark.parametrize(
    "said", ["on 3 May 2030", "on 31 February 2020", "on 03/04/2024", "next week", "I may go", ""]
)
def test_what_is_unclear_in_the_future_or_never_was_is_no_date(said: str) -> None:
    assert find(said, NOW) is None


def test_the_last_day_of_a_shorter_month_stands_for_one_that_it_lacks() -> None:
    when = find("a month ago", datetime(2026, 3, 31, tzinfo=UTC))

    assert when is not None
    assert when.at == datetime(2026, 2, 28, tzinfo=UTC)


@given(st.text(max_size=300), st.datetimes(timezones=st.just(UTC)))
def test_no_text_breaks_it_and_no_date_is_in_the_future(text: str, now: datetime) -> None:
    when = find(f"{text} 12 months ago in 2019", now)

    assert when is None or when.at <= now


@given(st.text(max_size=60) | st.none() | st.integers() | st.dates().map(str))
def test_an_iso_date_is_read_and_anything_else_is_none(value: object) -> None:
    at = parse(value, NOW)

    assert at is None or at <= NOW
    assert parse("2024-05-03", NOW) == datetime(2024, 5, 3, tzinfo=UTC)
    assert parse("2030-05-03", NOW) is None
