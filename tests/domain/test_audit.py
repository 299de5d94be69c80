"""What recurs is worth few entries, however many things recur."""

from datetime import timedelta

from gateway.domain.events import MOST_APART, Recurrences
from tests.fakes.store import NOON


def test_the_first_and_then_every_tenfold_time_of_a_day_is_worth_an_entry() -> None:
    recurrences = Recurrences()

    worth = [times for _ in range(1_500) if (times := recurrences.worth("a", NOON))]
    other = recurrences.worth("b", NOON)
    tomorrow = recurrences.worth("a", NOON + timedelta(days=1))

    assert (worth, other, tomorrow) == ([1, 10, 100, 1000], 1, 1)


def test_however_many_things_recur_the_entries_of_a_day_are_bounded() -> None:
    recurrences = Recurrences()

    worth = [recurrences.worth(f"{number}", NOON) for number in range(50 * MOST_APART)]

    assert len([times for times in worth if times]) == MOST_APART + len("49000")
