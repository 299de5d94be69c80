"""Ids sort by time and never repeat."""

from gateway.host.ids import TimeIds
from tests.fakes.clock import FakeClock


def test_a_later_id_sorts_after_an_earlier_one_and_none_repeats() -> None:
    clock = FakeClock()
    ids = TimeIds(clock)
    early = {ids.new() for _ in range(1000)}
    clock.move(0.002)

    late = ids.new()

    assert len(early) == 1000
    assert all(len(one) == 26 and one < late for one in early)
