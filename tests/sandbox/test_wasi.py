"""Clocks, chance and sleep of a call."""

import pytest

from gateway.sandbox.calls import GuestEnded, core_engine, open_store
from gateway.sandbox.wasi import MOST_RANDOM_BYTES, elapsed_ns, random_bytes, sleep, wall_ns
from tests.fakes.guests import call_of


def test_what_is_not_granted_is_none_and_says_what_to_grant() -> None:
    said: list[tuple[str, ...]] = []
    with open_store(core_engine(), call_of(said)):
        assert (wall_ns(), random_bytes(4)) == (None, None)

    assert said == [("clock.now",), ("random.bytes", "4"), ("log", "error", "not granted")]


def test_too_many_random_bytes_are_not_asked_for() -> None:
    said: list[tuple[str, ...]] = []
    with open_store(core_engine(), call_of(said)):
        assert random_bytes(MOST_RANDOM_BYTES + 1) is None

    assert said == []


def test_nobody_sleeps_beyond_the_end_of_the_call() -> None:
    call = call_of([], seconds=0.02)
    with open_store(core_engine(), call):
        sleep(-1.0)
        with pytest.raises(GuestEnded):
            sleep(3600.0)
        assert elapsed_ns() < 3_600_000_000_000

    assert call.why == "timeout"
