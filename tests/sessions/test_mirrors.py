"""Mirrors follow runs of other nodes from the point that a listener has reached; events of other nodes arrive once,
only while a node subscribes to them, and only if they are signed."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio
import pytest

from gateway.control.notices import Bus
from gateway.domain.cluster import Tenure, events_subject
from gateway.domain.events import Event
from gateway.domain.ids import RunId
from gateway.domain.inbox import Entry
from gateway.sessions.mirrors import INTEREST_LASTS_S, INTEREST_S, FarEvents, SharedRun
from tests.fakes.clock import FakeClock
from tests.fakes.cluster import FakeHints
from tests.fakes.store import an_entry, session_key


# --- runs ----------------------------------------------------------------------------------------
def chunk(seq: int) -> bytes:
    return b'{"run_id":"r","seq":%d}' % seq


def test_what_was_heard_at_another_node_is_not_told_again_when_it_comes_here() -> None:
    run, told = SharedRun(Entry(an_entry("a"), 1, "queued", 0)), list[bytes]()
    run.listen(lambda event, _: told.append(event), after_seq=2)
    for seq in (1, 2, 3):
        run.receive(chunk(seq), seq)

    assert told == [chunk(3)]


def test_what_was_heard_of_a_run_is_not_told_again_though_it_was_taken_up_here_meanwhile() -> None:
    entry, told = Entry(an_entry("a"), 1, "queued", 0), list[bytes]()
    run = SharedRun(entry)
    run.listen(lambda event, _: told.append(event))
    run.receive(chunk(1), 1)
    run.adopt(entry, Tenure(run.session_key, 2))
    run.detach()
    for seq in (1, 2):
        run.receive(chunk(seq), seq)

    assert told == [chunk(1), chunk(2)]


# --- events --------------------------------------------------------------------------------------
KEY = session_key()


def event(clock: FakeClock, type_: str = "session.end") -> Event:
    return Event(type_, "info", "agent", clock.now(), KEY, RunId("r"), {"n": [1, None]})


@dataclass
class Pair:
    hints: FakeHints = field(default_factory=FakeHints)
    clock: FakeClock = field(default_factory=FakeClock)
    told: list[Event] = field(default_factory=list)
    near: FarEvents = field(init=False)
    far: FarEvents = field(init=False)

    def __post_init__(self) -> None:
        self.near, self.far = (
            FarEvents(name, Bus(), self.hints, self.clock, b"key") for name in ("near", "far")
        )


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    async with anyio.create_task_group() as group:
        for one in (made.near, made.far):
            group.start_soon(one.run)
        await anyio.wait_all_tasks_blocked()
        yield made
        group.cancel_scope.cancel()


async def test_whoever_subscribes_hears_both_nodes_until_nobody_wants_it(pair: Pair) -> None:
    pair.far.bus.publish(event(pair.clock))
    stop = pair.near.subscribe(pair.told.append, types=frozenset({"session.end"}))
    ours, theirs = event(pair.clock), event(pair.clock)
    pair.near.bus.publish(ours)
    pair.far.bus.publish(theirs)
    pair.far.bus.publish(event(pair.clock, "tool.end"))
    stop()
    pair.far.bus.publish(event(pair.clock))
    pair.clock.move(2 * INTEREST_LASTS_S)
    await anyio.wait_all_tasks_blocked()

    assert pair.told == [ours, theirs]
    assert not pair.far.bus.has_listener("session.end")


async def test_a_node_forwards_only_the_types_that_somebody_wants(pair: Pair) -> None:
    bus, types = pair.far.bus, ("session.end", "tool.end", "tool.start")
    pair.near.subscribe(pair.told.append, types=frozenset({"session.end"}))
    one = [bus.has_listener(name) for name in types]
    stop = pair.near.subscribe(pair.told.append, types=frozenset({"tool.end"}))
    both = [bus.has_listener(name) for name in types]
    for name in types:
        bus.publish(event(pair.clock, name))
    stop()
    stop_all = pair.near.subscribe(pair.told.append)
    every = [bus.has_listener(name) for name in types]
    stop_all()
    pair.clock.move(INTEREST_S)
    await anyio.wait_all_tasks_blocked()

    assert (one, both) == ([True, False, False], [True, True, False])
    assert [told.type for told in pair.told] == ["session.end", "tool.end"]
    assert every == [True] * 3
    assert [bus.has_listener(name) for name in types] == one


async def test_a_node_is_sent_only_what_it_wants_itself(pair: Pair) -> None:
    other = FarEvents("other", Bus(), pair.hints, pair.clock, b"key")
    pair.near.subscribe(pair.told.append, types=frozenset({"session.end"}))
    other.subscribe(pair.told.append, types=frozenset({"tool.end"}))
    pair.far.bus.publish(event(pair.clock))

    sent = {subject for subject, hint in pair.hints.published if "event" in hint}
    assert sent == {events_subject("near")}


async def test_what_somebody_else_publishes_or_repeats_is_not_heard(pair: Pair) -> None:
    pair.near.subscribe(pair.told.append)
    pair.far.bus.publish(event(pair.clock))
    mine = events_subject("near")
    [told] = [hint for subject, hint in pair.hints.published if subject == mine]
    for hint in (told, {**told, "sign": "x"}, {"event": "{}", "sign": told["sign"]}, {}):
        pair.hints.publish(mine, hint)
    other = FarEvents("other", Bus(), pair.hints, pair.clock, b"another key")
    other._receive_interest({"node": "near"})
    other.bus.publish(event(pair.clock))

    assert len(pair.told) == 1
