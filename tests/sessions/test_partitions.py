"""What a node does for its partitions: when it looks for work, and what it remembers of what others want."""

from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from gateway.domain.cluster import AT_ONCE, Lease, NoHints, OpenRuns, partition_of, work_subject
from gateway.domain.ids import RunId
from gateway.domain.inbox import Entry
from gateway.sessions.partitions import MOST_WANTED, PartitionedWork
from gateway.sessions.runs import LiveRuns
from tests.fakes.clock import FakeClock
from tests.fakes.cluster import FakeHints
from tests.fakes.store import an_entry, session_key

WAIT_S = 20
NOTHING = OpenRuns(frozenset(), {}, frozenset())
ENTRY = Entry(an_entry("a"), 1, "queued", 0)
RUN, OURS = ENTRY.new.run_id, partition_of(session_key(), 8)
OTHER = (OURS + 1) % 8


@dataclass
class Runs:
    """Of SharedRuns what is asked of partitions. `found` says what is there; its session is opened once it
    may be."""

    found: Callable[[Sequence[int]], OpenRuns]
    asked: list[Set[int]] = field(default_factory=list)
    may_open: anyio.Event = field(default_factory=anyio.Event)

    async def open_runs(self, numbers: Sequence[int], known: Set[RunId]) -> OpenRuns:
        await anyio.lowlevel.checkpoint()
        self.asked.append({*numbers})
        return self.found(numbers)

    async def open_session(self, tenure: object) -> Sequence[Entry]:
        await self.may_open.wait()
        return [ENTRY]

    async def choices(self, after: int) -> tuple[int, dict[Any, Any]]:
        return 0, {}

    async def until_asked(self, times: int) -> None:
        """And until what was found is heard of."""
        with anyio.fail_after(WAIT_S):
            while len(self.asked) < times:
                await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()


@dataclass
class Neighbours:
    """The queues and the mirrors: what they are told."""

    joined: anyio.Event = field(default_factory=anyio.Event)
    stopped: anyio.Event = field(default_factory=anyio.Event)
    forwarded: list[tuple[str, int]] = field(default_factory=list)

    async def run(self) -> None:
        await anyio.sleep_forever()

    def join(self, run: object, *, wait: bool) -> None:
        self.joined.set()

    def stop(self, run: object, *, at_once: bool) -> None:
        self.stopped.set()

    def withdraw(self, is_lost: object, *, with_taken: bool = False) -> Sequence[Any]:
        return ()

    def forward(self, run: object, to: str, after: int) -> None:
        self.forwarded.append((to, after))


@asynccontextmanager
async def at_work(
    runs: Any, hints: Any, around: Any, poll_s: float = 60.0
) -> AsyncIterator[PartitionedWork]:
    """With leases of both partitions, and subscribed."""
    work = PartitionedWork(runs, LiveRuns(), hints, FakeClock(), 8, poll_s, lambda *_, **__: 1)
    work.mirrors = work.queues = around
    async with anyio.create_task_group() as group:
        await work.open()
        for one in (OURS, OTHER):
            work.start(Lease(one, 1))
        group.start_soon(work.run)
        await runs.until_asked(1)
        yield work
        group.cancel_scope.cancel()


def queued(numbers: Sequence[int]) -> OpenRuns:
    """Somebody has asked for its end."""
    if OURS not in numbers:
        return NOTHING
    return OpenRuns({ENTRY.new.session_key}, {RUN: AT_ONCE}, {RUN})


def test_a_partition_that_is_lost_before_the_gateway_is_open_harms_nobody() -> None:
    no_runs: Any = None
    work = PartitionedWork(no_runs, {}, NoHints(), FakeClock(), 8, 1.0, lambda *_, **__: None)
    lease = Lease(1, 1)

    work.start(lease)
    work.drop(lease)

    assert not work.holds("ci")


async def test_all_partitions_are_looked_at_in_time_however_often_one_has_news() -> None:
    full = anyio.Event()

    def found(numbers: Sequence[int]) -> OpenRuns:
        if len(runs.asked) > 1 and {*numbers} == {OURS, OTHER}:
            full.set()
        if started:
            started[0].read_soon(OURS)  # there is always news
        return NOTHING

    runs, started = Runs(found), list[PartitionedWork]()
    async with at_work(runs, NoHints(), Neighbours(), poll_s=0.1) as work:
        started.append(work)
        work.read_soon(OURS)
        with anyio.fail_after(WAIT_S):
            await full.wait()


async def test_a_queued_run_is_stopped_whatever_is_looked_at_before_it_is_taken_up() -> None:
    runs, around = Runs(queued), Neighbours()
    async with at_work(runs, NoHints(), around) as work:
        work.read_soon(OTHER)
        await runs.until_asked(2)
        runs.may_open.set()
        with anyio.fail_after(WAIT_S):
            await around.stopped.wait()

    assert runs.asked == [{OURS, OTHER}, {OTHER}]


async def test_of_very_many_runs_that_others_follow_early_the_last_ones_are_remembered() -> None:
    runs, around, hints = Runs(queued), Neighbours(), FakeHints()
    async with at_work(runs, hints, around):
        for run in (*(f"other-{number}" for number in range(MOST_WANTED)), RUN):
            hints.publish(work_subject(OURS), {"run": run, "to": "b", "after": 3})
        runs.may_open.set()
        with anyio.fail_after(WAIT_S):
            await around.joined.wait()

    assert around.forwarded == [("b", 3)]


async def test_whoever_followed_a_run_is_forgotten_with_the_lease() -> None:
    runs, around, hints = Runs(queued), Neighbours(), FakeHints()
    async with at_work(runs, hints, around) as work:
        hints.publish(work_subject(OURS), {"run": RUN, "to": "b", "after": 3})
        work.drop(Lease(OURS, 1))
        work.start(Lease(OURS, 1))
        runs.may_open.set()
        with anyio.fail_after(WAIT_S):
            await around.joined.wait()

    assert around.forwarded == []
