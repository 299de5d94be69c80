"""Words in messages."""

from datetime import UTC, datetime

import pytest

from gateway.domain.text import meant, moment_ago, nearest, short


def test_the_nearest_word_is_found_whatever_its_case() -> None:
    assert nearest("Sequnce", ["sequence", "selector"]) == "sequence"
    assert nearest("xyz", ["sequence"]) is None
    assert meant("selektor", ["selector"]) == '; did you mean "selector"?'


def test_what_is_shown_is_short_and_on_one_line() -> None:
    assert short("a\nb\0c") == "a b?c"
    assert len(short("x" * 500)) == 60


NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", "2026-11-19T11:58:30+00:00"),
        ("15m", "2026-11-19T11:45:00+00:00"),
        ("1h", "2026-11-19T11:00:00+00:00"),
        ("7d", "2026-11-12T12:00:00+00:00"),
        ("1w", "2026-11-12T12:00:00+00:00"),
        ("2026-11-19T10:00:00Z", "2026-11-19T10:00:00+00:00"),
        ("2026-11-19", "2026-11-19T00:00:00+00:00"),
    ],
)
def test_a_time_is_an_age_or_a_moment(text: str, expected: str) -> None:
    assert moment_ago(text, NOW).isoformat() == expected


@pytest.mark.parametrize("text", ["", "7", "-1h", "tomorrow", "9999999999w", "36526d", "1h1h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time; write|is longer than a hundred years"):
        moment_ago(text, NOW)
