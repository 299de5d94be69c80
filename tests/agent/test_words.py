import pytest

from gateway.agent.words import WARNINGS, Reading
from gateway.control.policy import warning_at


@pytest.mark.parametrize("kind", sorted(WARNINGS))
def test_a_warning_tells_large_numbers_in_all_their_digits(kind: str) -> None:
    _, text = WARNINGS[kind]
    reading = Reading(kind, warning_at(1_048_576, 70), 1_048_576)

    assert "(734003/1048576" in text.format(current=reading.current, limit=reading.limit)
