"""The real clock is aware of its zone and never goes back."""

from datetime import timedelta

from gateway.host.clock import SystemClock


async def test_it_tells_utc_and_time_goes_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0)

    assert clock.now().utcoffset() == timedelta(0)
    assert clock.monotonic() >= before
