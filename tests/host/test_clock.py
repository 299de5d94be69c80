"""The real clock is aware of its zone and never goes back; ids sort by it and never repeat."""

from datetime import timedelta

from gateway.host.clock import SystemClock, TimeIds
from tests.fakes.clock import FakeClock


async def test_it_tells_utc_and_time_goes_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0)

    assert clock.now().utcoffset() == timedelta(0)
    assert clock.monotonic() >= before


def test_a_later_id_sorts_after_an_earlier_one_and_none_repeats() -> None:
    clock = FakeClock()
    ids = TimeIds(clock)
    early = {ids.new() for _ in range(1000)}
    clock.move(0.002)

    late = ids.new()

    assert len(early) == 1000
    assert all(len(one) == 26 and one < late for one in early)
