"""The words for each reason and each failure are there, and are those that were agreed."""

from typing import get_args

import pytest

from gateway.agent.output import BROKEN, STOPS, WARNINGS, LimitReading, stop_text
from gateway.domain.agents import Limits
from gateway.domain.errors import FailureKind
from gateway.domain.events import kind_named
from gateway.domain.messages import DoneReason


def test_every_reason_to_stop_has_its_words() -> None:
    assert STOPS.keys() == set(get_args(DoneReason)) - {"answered", "merged"}


def test_every_failure_of_a_model_has_its_words() -> None:
    assert BROKEN.keys() == set(get_args(FailureKind))


def test_every_event_of_a_limit_is_one_that_is_known() -> None:
    named = [event for event, _ in WARNINGS.values()] + [
        stop.event for stop in STOPS.values() if stop.event
    ]

    assert all(kind_named(name) for name in named)


@pytest.mark.requirement("S-001-System-05")
@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("max_iterations", "Maximum iterations reached. Saving partial response."),
        ("no_progress", "No progress detected - same action attempted 5 times."),
        ("error_limit", "Tool calls failed in 2 turns in a row. Saving partial response."),
        ("cancelled", "Cancelled by user"),
    ],
)
def test_the_agreed_words_name_the_configured_limit(reason: DoneReason, text: str) -> None:
    limits = Limits(no_progress_repeats=5, error_limit=2)

    assert stop_text(reason, limits) == text


@pytest.mark.requirement("S-001-System-05")
@pytest.mark.parametrize(("current", "most"), [(7, 10), (10, 15), (2, 3), (40_000, 50_000)])
def test_numbers_are_written_out(current: int, most: int) -> None:
    _, text = WARNINGS["max_iterations"]

    said = text.format(current=current, limit=most)

    assert said == f"Approaching iteration limit ({current}/{most}). Consider wrapping up."


@pytest.mark.parametrize(
    ("current", "limit", "percent"), [(1, 3, 33.3), (0, 5, 0.0), (5, 5, 100.0), (1, 0, 100.0)]
)
def test_a_reading_has_its_percentage(current: float, limit: float, percent: float) -> None:
    assert LimitReading("x", current, limit).percent == percent
