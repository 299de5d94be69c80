"""A call counts what its guest asks for, and every wait in it has an end."""

import json
import threading
import time

import pytest

from gateway.sandbox.calls import GuestCall, GuestEnded
from gateway.sandbox.protocol import Bounds
from tests.fakes.guests import call_of

BOUNDS = Bounds(memory_bytes=1, fuel=1, output_bytes=1)
REQUEST = json.dumps({"url": "https://x/", "body": ""})


def silent(*, seconds: float = 5.0, bounds: Bounds = BOUNDS) -> GuestCall:
    """A gateway that never answers."""
    call = call_of([], seconds=seconds, bounds=bounds)
    call.say = lambda *_: None
    return call


def answering(said: list[tuple[str, ...]], **bounds: int) -> GuestCall:
    changed = Bounds(memory_bytes=1, fuel=1, output_bytes=1, **bounds)
    return call_of(said, lambda _: ("ok", "yes"), bounds=changed)


def test_an_answer_comes_back() -> None:
    said: list[tuple[str, ...]] = []

    assert answering(said).ask("store.get", "notes", "k") == ("ok", "yes")
    assert said == [("store.get", "notes", "k")]


def test_too_many_host_calls_end_the_call() -> None:
    call = answering([], host_calls=3)
    for _ in range(3):
        call.ask("clock.now")

    with pytest.raises(GuestEnded):
        call.ask("clock.now")

    assert call.why == "host_calls"


def test_too_many_requests_are_told_so() -> None:
    said: list[tuple[str, ...]] = []
    call = call_of(
        said, lambda _: ("ok", '{"body": "body"}', "x"), bounds=Bounds(1, 1, 1, http_calls=2)
    )

    told = [call.ask("http.request", REQUEST) for _ in range(3)]

    assert [status for status, _ in told] == ["ok", "ok", "err"]
    assert "at most 2 requests" in told[2][1]
    assert len(said) == 2


@pytest.mark.parametrize(
    ("function", "most"), [("host.call", 192 * 1024), ("http.request", 1536 * 1024)]
)
def test_what_is_too_large_never_reaches_the_gateway(function: str, most: int) -> None:
    said: list[tuple[str, ...]] = []
    call = call_of(said, lambda _: ("ok", '{"body": "body"}', "x"))
    request = json.dumps({"url": "", "body": "x" * (most - len('{"url": "", "body": ""}'))})
    assert len(request) == most

    assert call.ask(function, request)[0] == "ok"
    status, text = call.ask(function, request + " ")

    assert (status, f"at most {most // 1024} KiB" in text) == ("err", True)
    assert len(said) == 1


def test_many_large_things_end_the_call() -> None:
    call = answering([])
    large = "x" * (192 * 1024)

    told = [call.ask("host.call", large)[0] for _ in range(85)]
    with pytest.raises(GuestEnded):
        call.ask("host.call", large)

    assert told == ["ok"] * 85
    assert call.why == "host_calls"


def test_a_request_of_odd_shape_never_reaches_the_gateway() -> None:
    said: list[tuple[str, ...]] = []
    call = call_of(said, lambda _: ("ok", "x"))

    status, text = call.ask("http.request", '{"url": [[[]]]}')

    assert (status, "nested" in text) == ("err", True)
    assert said == []


def test_an_http_answer_is_put_together_here() -> None:
    head = json.dumps({"status": 200, "headers": {}, "body": "body"})
    call = call_of([], lambda _: ("ok", head, 'x"y'))

    status, text = call.ask("http.request", REQUEST)

    assert (status, json.loads(text)) == ("ok", {"status": 200, "headers": {}, "body": 'x"y'})


def test_a_host_call_ends_with_its_call() -> None:
    call = silent(seconds=0.05)

    with pytest.raises(GuestEnded):
        call.ask("store.get", "notes", "k")

    assert call.why == "timeout"
    assert call.is_over


def test_a_cancelled_call_wakes_whoever_waits_in_it() -> None:
    call = silent()
    waker = threading.Timer(0, call.cancel)
    waker.start()

    with pytest.raises(GuestEnded):
        call.ask("store.get", "notes", "k")

    waker.join(5)
    assert call.why == "cancelled"
    with pytest.raises(GuestEnded):
        call.ask("clock.now")


def test_the_first_reason_counts() -> None:
    call = silent()
    call.stop("fuel")
    call.stop("denied")
    call.cancel()

    assert call.why == "fuel"


def test_long_lines_are_cut_between_characters_and_many_are_dropped() -> None:
    said: list[tuple[str, ...]] = []
    call = answering(said, log_lines=2, log_bytes=5)
    for _ in range(4):
        call.log("info", "éééé")

    assert said == [("log", "info", "éé")] * 2


def test_what_it_used_is_told() -> None:
    call = answering([])
    call.ask("clock.now")
    call.fuel_used = 7

    wall_ms, fuel, calls = call.usage()

    assert float(wall_ms) >= 0
    assert (fuel, calls) == ("7", "1")


def test_whoever_calls_the_host_very_often_lets_others_run() -> None:
    call = call_of([], seconds=60)
    for _ in range(2_000):
        call.throttle()
    slept_at = time.monotonic()
    for _ in range(20):
        call.throttle()

    assert time.monotonic() - slept_at >= 0.02
