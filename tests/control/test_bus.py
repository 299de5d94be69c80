"""The bus tells everything once, in order, to everybody, and ends what causes itself."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.notices import MAX_CAUSED, MAX_CHAIN, MAX_WAITING, Bus
from gateway.domain.events import SEVERITIES, Event, Severity

AT = datetime(2026, 1, 1, tzinfo=UTC)


def event(type_: str = "query.start", severity: Severity = "info", **payload: object) -> Event:
    return Event(type_, severity, "test", AT, None, None, payload)


def test_everybody_hears_every_event_of_the_types_they_asked_for() -> None:
    bus = Bus()
    everything: list[Event] = []
    starts: list[Event] = []
    bus.subscribe(everything.append)
    bus.subscribe(starts.append, types=frozenset({"query.start"}))

    first, second = event(), event("session.end")
    bus.publish(first)
    bus.publish(second)

    assert everything == [first, second]
    assert starts == [first]


def test_who_has_stopped_hears_nothing_more_not_even_of_the_same_event() -> None:
    bus = Bus()
    heard: list[Event] = []
    bus.subscribe(lambda _: stop())
    stop = bus.subscribe(heard.append)

    bus.publish(event())
    stop()

    assert heard == []


def test_who_subscribes_while_an_event_is_told_hears_the_next() -> None:
    bus = Bus()
    late: list[Event] = []

    def early(_: Event) -> None:
        stop()
        bus.subscribe(late.append)

    stop = bus.subscribe(early)
    bus.publish(event(n=1))
    bus.publish(event(n=2))

    assert [one.payload["n"] for one in late] == [2]


def test_a_listener_that_fails_disturbs_no_other_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus()
    heard: list[Event] = []

    def fails(_: Event) -> None:
        raise RuntimeError("no")

    bus.subscribe(fails)
    bus.subscribe(heard.append)
    bus.publish(event())
    bus.publish(event())

    assert len(heard) == 2
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


@given(
    st.recursive(
        st.just(()), lambda below: st.lists(below, max_size=3).map(tuple), max_leaves=30
    ).filter(bool)
)
def test_what_listeners_cause_is_told_in_the_order_of_its_publication(causes: tuple) -> None:  # type: ignore[type-arg]  # a tree of tuples
    bus = Bus()
    published: list[object] = []
    told: dict[str, list[object]] = {"one": [], "two": []}

    def publish(caused: tuple, depth: int) -> None:  # type: ignore[type-arg]  # see above
        for below in caused if depth <= MAX_CHAIN else ():
            name = len(published)
            published.append(name)
            bus.publish(event(name=name, below=below, depth=depth))

    def causing(one: Event) -> None:
        below, depth = one.payload["below"], one.payload["depth"]
        assert isinstance(below, tuple)
        assert isinstance(depth, int)
        told["one"].append(one.payload["name"])
        publish(below, depth + 1)

    bus.subscribe(causing)
    bus.subscribe(lambda one: told["two"].append(one.payload["name"]))
    publish(causes, 1)

    assert told["one"] == told["two"] == sorted(told["one"], key=published.index)
    assert sorted(told["one"], key=str) == sorted(published, key=str)


def test_an_event_that_causes_itself_ends_at_the_depth_and_the_bus_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus()
    heard: list[Event] = []
    bus.subscribe(heard.append)
    stop = bus.subscribe(lambda one: bus.publish(event(one.type, "critical")))

    bus.publish(event("loop", "critical"))
    stop()
    bus.publish(event("after"))

    assert [one.type for one in heard] == ["loop"] * MAX_CHAIN + ["after"]
    assert "event_chain_cut" in caplog.text


@given(
    st.lists(
        st.tuples(st.sampled_from(SEVERITIES), st.sampled_from(["x", "session.end"])), max_size=40
    ),
    st.integers(0, 60),
)
def test_overflow_drops_only_the_oldest_of_what_may_be_missed_and_says_how_much(
    mixed: list[tuple[Severity, str]], more: int
) -> None:
    bus = Bus()
    heard: list[Event] = []
    filling = [event("x", "info", n=n) for n in range(MAX_WAITING - 20)]
    caused = [event(type_, severity, n=-n) for n, (severity, type_) in enumerate(mixed)]
    caused = [*filling, *caused, *(event("x", "debug", n=n) for n in range(more))]

    def flood(one: Event) -> None:
        if one.type == "start":
            for another in caused:
                bus.publish(another)

    bus.subscribe(flood)
    bus.subscribe(heard.append)
    bus.publish(event("start"))

    droppable = [
        one for one in caused if one.severity in {"debug", "info"} and one.type != "session.end"
    ]
    dropped = max(0, len(caused) - MAX_WAITING)
    gone = {id(one) for one in droppable[:dropped]}
    last = heard.pop() if dropped else None
    assert [id(one) for one in heard[1:]] == [id(one) for one in caused if id(one) not in gone]
    if dropped:
        assert last is not None
        assert (last.type, last.severity, last.payload) == (
            "bus.dropped",
            "warning",
            {"n": dropped},
        )


def test_errors_are_all_told_however_many_are_caused_at_once() -> None:
    bus = Bus()
    heard: list[Event] = []
    errors = [event("x", "error", n=n) for n in range(MAX_WAITING + 5)]

    def flood(one: Event) -> None:
        for error in errors if one.type == "start" else ():
            bus.publish(error)

    bus.subscribe(flood)
    bus.subscribe(heard.append)
    bus.publish(event("start"))

    assert heard[1:] == errors


@pytest.mark.parametrize("severity", ["info", "error"])
def test_events_that_each_cause_many_end_and_what_was_dropped_is_said(severity: Severity) -> None:
    bus = Bus()
    heard: list[Event] = []

    def breed(one: Event) -> None:
        for _ in range(10 if one.type != "bus.dropped" else 0):
            bus.publish(event("x", severity))

    bus.subscribe(heard.append)
    bus.subscribe(breed)
    bus.publish(event("x", severity))
    told = len(heard)
    bus.publish(event("x", severity))

    assert told <= MAX_CAUSED + 2
    assert len(heard) == 2 * told
    assert ("bus.dropped" in {one.type for one in heard}) is (severity == "info")


def test_a_flood_that_answers_to_its_own_overflow_ends() -> None:
    bus = Bus()
    heard: list[str] = []

    def flood(one: Event) -> None:
        heard.append(one.type)
        if one.type in {"start", "bus.dropped"}:
            for _ in range(MAX_WAITING + 1):
                bus.publish(event("x", "debug"))

    bus.subscribe(flood)
    bus.publish(event("start"))
    floods = heard.count("bus.dropped")
    bus.publish(event("after"))

    assert 1 <= floods <= MAX_CHAIN
    assert heard[-1] == "after"
