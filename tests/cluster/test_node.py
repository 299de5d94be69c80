"""Ownership of partitions: several nodes over one store, with every kind of fault, in simulated time. And a running
node: what it reports to its lanes, and when."""

import heapq
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cluster.node import (
    MARGIN_S,
    Acquire,
    ClusterNode,
    ClusterSettings,
    Drain,
    Drop,
    Effect,
    Ownership,
    Release,
    Start,
    fair_share,
)
from gateway.domain.cluster import FREE, Lease, Presence, Renewal, StoreInUse, partition_of
from gateway.domain.errors import StoreRefused
from gateway.domain.ids import AgentId, SessionKey
from tests.fakes.clock import FakeClock
from tests.fakes.cluster import FakeHints, FakeLeases, FakeWork, LeaseTable

# --- ownership -----------------------------------------------------------------------------------
LEASE_S = 15.0


class World:
    """The store and the time; every call of the store is carried out at one moment."""

    def __init__(self, partitions: int, random: Random) -> None:
        self.now, self.random = 0.0, random
        self.table = LeaseTable(lambda: self.now)
        self.table.prepare(partitions)
        self.rows = self.table.rows
        self.nodes: list[SimulatedNode] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.is_faulty = False
        self.heard = 0.5  # of all hints
        self.epochs: Counter[tuple[int, int]] = Counter()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._order), what))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
            self.check()
        self.now = until

    def check(self) -> None:
        owners = [
            (partition, epoch)
            for node in self.nodes
            if not node.is_dead
            for partition in range(len(self.rows))
            if (epoch := node.ownership.epoch(partition, node.clock())) is not None
        ]
        partitions = Counter(partition for partition, _ in owners)
        assert not [one for one, count in partitions.items() if count > 1], (self.now, owners)
        for partition, epoch in owners:
            assert epoch <= self.rows[partition].epoch

    def owned(self) -> dict[str, int]:
        return {
            node.name: sum(
                node.ownership.epoch(partition, node.clock(), starting=True) is not None
                for partition in range(len(self.rows))
            )
            for node in self.nodes
            if not node.is_dead
        }

    def acquire(self, name: str, partitions: Iterable[int]) -> list[Lease]:
        taken = self.table.acquire(name, partitions, LEASE_S)
        self.epochs.update((lease.partition, lease.epoch) for lease in taken)
        return taken


@dataclass
class SimulatedNode:
    """Does what `ClusterNode` does: one call at a time, each of which may be slow, lost, or late."""

    world: World
    name: str
    drain_s: float = 0.0
    offset: float = 0.0
    wanted: deque[Effect] = field(default_factory=deque)
    started: set[Lease] = field(default_factory=set)
    is_dead: bool = False
    is_calling: bool = False
    is_asked_to_stop: bool = False
    paused_until: float = 0.0
    calls: int = 0

    def __post_init__(self) -> None:
        world = self.world
        self.ownership = Ownership(self.name, len(world.rows), LEASE_S)
        self.ownership.renew_at = self.clock()
        world.nodes.append(self)
        world.at(world.now, self.step)

    def clock(self) -> float:
        return self.world.now + self.offset

    def when_awake(self, what: Callable[[], None]) -> None:
        """Now, or when the process goes on; never if it is dead."""

        def later() -> None:
            if self.is_dead:
                return
            if self.world.now < self.paused_until:
                self.world.at(self.paused_until, later)
            else:
                what()

        later()

    def step(self) -> None:
        self.when_awake(self._step)

    def _step(self) -> None:
        if self.is_calling:
            return
        now = self.clock()
        if self.is_asked_to_stop and not self.ownership.is_stopping:
            self.carry_out(self.ownership.stop(now))
        if self.ownership.is_done:
            self.world.table.leave(self.name)
            return
        self.carry_out(self.ownership.drop_expired(now))
        if self.wanted:
            self.call(self.wanted.popleft())
        elif now >= self.ownership.renew_at:
            self.call(None)
        else:
            deadline = self.ownership.next_deadline
            wake = min(self.ownership.renew_at, deadline if deadline is not None else 1e9)
            self.world.at(self.world.now + max(wake - now, 0.001), self.step)

    def call(self, effect: Effect | None) -> None:
        world, number = self.world, self.calls
        self.is_calling, sent_at = True, self.clock()
        there, back = self._delays()
        presence = Presence(self.name, is_leaving=self.ownership.is_stopping)

        def execute() -> None:
            match effect:
                case None:
                    renewal = world.table.renew(presence, LEASE_S)
                    answer(lambda: self.ownership.apply_renewal(renewal, sent_at))
                case Acquire(partitions):
                    taken = world.acquire(self.name, partitions)
                    answer(lambda: self.ownership.apply_acquired(taken, sent_at))
                case Release(leases):
                    world.table.release(self.name, leases)
                    answer(lambda: self._released(leases))

        def answer(then: Callable[[], Iterable[Effect]]) -> None:
            world.at(world.now + back, lambda: self.when_awake(lambda: end(then)))

        def end(then: Callable[[], Iterable[Effect]]) -> None:
            if self.calls == number:
                self.calls, self.is_calling = number + 1, False
                self.carry_out(then())
                self._step()

        def fail() -> Iterable[Effect]:
            self.wanted.clear()
            self.ownership.retry_soon(self.clock())
            return ()

        if there is not None:
            world.at(world.now + there, execute)
        world.at(world.now + LEASE_S / 3, lambda: self.when_awake(lambda: end(fail)))

    def _released(self, leases: Iterable[Lease]) -> Iterable[Effect]:
        self.ownership.confirm_release(tuple(leases))
        for node in self.world.nodes:
            if self.world.random.random() < self.world.heard:
                node.ownership.renew_soon(node.clock())
                self.world.at(self.world.now, node.step)
        return ()

    def _delays(self) -> tuple[float | None, float]:
        """Until a call is carried out, None if it never is, and until its answer comes."""
        random = self.world.random
        if self.world.is_faulty and random.random() < 0.3:
            longest = LEASE_S * 1.5
            there = None if random.random() < 0.3 else random.uniform(0, longest)
            return there, random.uniform(0, longest)
        return random.uniform(0, 0.05), random.uniform(0, 0.05)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(lease):
                    assert lease not in self.started
                    self.started.add(lease)
                case Drop(lease):
                    self.started.remove(lease)
                case Drain(lease):
                    assert lease in self.started
                    self._drain(lease)
                case Acquire() | Release():
                    self.wanted.append(effect)

    def _drain(self, lease: Lease) -> None:
        def drained() -> None:
            effects = self.ownership.release_drained(lease)
            if effects:
                self.started.remove(lease)
                self.carry_out(effects)
                self._step()

        drain_s = self.world.random.uniform(0, self.drain_s)
        self.world.at(self.world.now + drain_s, lambda: self.when_awake(drained))

    def stop(self) -> None:
        self.is_asked_to_stop = True
        self.world.at(self.world.now, self.step)

    def pause(self, seconds: float) -> None:
        self.paused_until = self.world.now + seconds


def require_fair_shares(world: World) -> None:
    owned = world.owned()
    working = [one for one in world.nodes if not one.is_dead and not one.is_asked_to_stop]
    if working:
        usual, rest = divmod(len(world.rows), len(working))
        counts = [owned[node.name] for node in working]
        assert sum(counts) == len(world.rows), owned
        assert set(counts) <= {usual, usual + bool(rest)}, owned


@given(
    seed=st.integers(0, 2**32),
    partitions=st.sampled_from([1, 3, 8, 16]),
    count=st.integers(1, 4),
    faults=st.lists(
        st.tuples(
            st.floats(0.5, 20),
            st.sampled_from(["kill", "pause", "long pause", "stop", "join", "faults", "calm"]),
        ),
        max_size=12,
    ),
)
def test_two_nodes_never_own_a_partition_whatever_happens(
    seed: int, partitions: int, count: int, faults: list[tuple[float, str]]
) -> None:
    random = Random(seed)
    world = World(partitions, random)
    names = (f"node{number}-{random.random()}" for number in itertools.count())

    def join() -> None:
        SimulatedNode(
            world, next(names), drain_s=random.uniform(0, 20), offset=random.uniform(-1e6, 1e6)
        )

    for _ in range(count):
        join()
    for wait_s, fault in faults:
        world.run(world.now + wait_s)
        alive = [one for one in world.nodes if not one.is_dead]
        node = random.choice(alive) if alive else None
        match fault:
            case "kill" if node is not None:
                node.is_dead = True
            case "pause" if node is not None:
                node.pause(random.uniform(0, LEASE_S))
            case "long pause" if node is not None:
                node.pause(random.uniform(LEASE_S, 3 * LEASE_S))
            case "stop" if node is not None:
                node.stop()
            case "join":
                join()
            case "faults" | "calm":
                world.is_faulty = fault == "faults"
    world.is_faulty = False
    world.run(world.now + 12 * LEASE_S)

    require_fair_shares(world)
    assert not [one for one, count in world.epochs.items() if count > 1]
    stopped = [one for one in world.nodes if one.is_asked_to_stop and not one.is_dead]
    assert all(node.ownership.is_done and not node.started for node in stopped)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 5))
def test_the_partitions_of_a_dead_node_are_taken_over_in_time(seed: int, count: int) -> None:
    random = Random(seed)
    world = World(64, random)
    nodes = [SimulatedNode(world, f"node{number}") for number in range(count)]
    world.run(40 + random.uniform(0, LEASE_S))
    require_fair_shares(world)

    nodes[0].is_dead = True
    world.run(world.now + LEASE_S * 4 / 3 + 1)

    require_fair_shares(world)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_a_new_node_has_its_share_soon(seed: int, count: int) -> None:
    random = Random(seed)
    world = World(64, random)
    for number in range(count):
        SimulatedNode(world, f"node{number}")
    world.run(40 + random.uniform(0, LEASE_S))

    SimulatedNode(world, "new")
    world.run(world.now + LEASE_S * 2 / 3 + 1)

    require_fair_shares(world)


@pytest.mark.parametrize(("heard", "within_s"), [(1.0, 4.0), (0.0, 3.0 + LEASE_S * 2 / 3 + 1.0)])
def test_a_node_that_stops_gives_everything_back_and_the_others_take_it(
    heard: float, within_s: float
) -> None:
    world = World(16, Random(1))
    world.heard = heard
    leaving = SimulatedNode(world, "leaving", drain_s=3.0)
    SimulatedNode(world, "other")
    world.run(25)
    require_fair_shares(world)

    leaving.stop()
    world.run(world.now + within_s)

    assert leaving.ownership.is_done
    assert leaving.started == set()
    assert world.owned() == {"leaving": 0, "other": 16}


def test_a_lease_is_good_until_a_second_before_the_store_may_give_it_away() -> None:
    ownership = Ownership("me", 1, LEASE_S)
    ownership.apply_renewal(Renewal([Lease(0, 7)], [], {"me"}), sent_at=100.0)

    assert ownership.epoch(0, 100.0) == 7
    assert ownership.epoch(0, 100.0 + LEASE_S - MARGIN_S - 0.001) == 7
    assert ownership.epoch(0, 100.0 + LEASE_S - MARGIN_S) is None
    assert ownership.next_deadline == 100.0 + LEASE_S - MARGIN_S


def test_a_partition_that_is_drained_starts_no_turn_and_ends_those_that_run() -> None:
    ownership = Ownership("me", 2, LEASE_S)
    mine = [Lease(0, 1), Lease(1, 1)]
    ownership.apply_renewal(Renewal(mine, [], {"me"}), sent_at=0.0)

    effects = ownership.apply_renewal(Renewal(mine, [], {"me", "other"}), sent_at=5.0)

    assert effects == [Drain(Lease(1, 1))]
    assert ownership.epoch(1, 6.0) == 1
    assert ownership.epoch(1, 6.0, starting=True) is None
    assert ownership.epoch(0, 6.0, starting=True) == 1
    assert ownership.release_drained(Lease(1, 1)) == [Release((Lease(1, 1),))]
    assert ownership.epoch(1, 6.0) is None


def test_a_release_without_an_answer_is_repeated_and_the_lease_is_not_used_again() -> None:
    ownership = Ownership("me", 2, LEASE_S)
    mine = [Lease(0, 1), Lease(1, 1)]
    ownership.apply_renewal(Renewal(mine, [], {"me"}), sent_at=0.0)
    ownership.apply_renewal(Renewal(mine, [], {"me", "other"}), sent_at=5.0)
    ownership.release_drained(Lease(1, 1))
    ownership.retry_soon(7.0)

    effects = ownership.apply_renewal(Renewal(mine, [], {"me"}), sent_at=8.0)

    assert Release((Lease(1, 1),)) in effects
    assert Start(Lease(1, 1)) not in effects
    assert ownership.epoch(1, 9.0) is None


def test_what_is_not_renewed_in_time_is_dropped_and_starts_again_if_it_is_good_still() -> None:
    ownership = Ownership("me", 1, LEASE_S)
    ownership.apply_renewal(Renewal([Lease(0, 3)], [], {"me"}), sent_at=0.0)

    assert ownership.drop_expired(13.9) == []
    assert ownership.drop_expired(14.0) == [Drop(Lease(0, 3))]
    assert ownership.apply_renewal(Renewal([Lease(0, 3)], [], {"me"}), 14.5) == [Start(Lease(0, 3))]


def test_hints_cost_a_look_a_quarter_of_a_second_at_most() -> None:
    ownership = Ownership("me", 2, LEASE_S)
    ownership.apply_renewal(Renewal([Lease(0, 1)], [], {"me"}), sent_at=10.0)

    ownership.renew_soon(10.1)
    assert ownership.renew_at == 10.25
    ownership.renew_soon(10.2)
    assert ownership.renew_at == 10.25
    ownership.retry_soon(10.3)
    ownership.renew_soon(10.4)
    assert ownership.renew_at == 10.55


def test_a_node_that_got_less_than_its_share_looks_again_soon() -> None:
    ownership = Ownership("me", 2, LEASE_S)
    effects = ownership.apply_renewal(Renewal([], [0, 1], {"me"}), sent_at=10.0)
    ownership.apply_acquired([Lease(0, 1)], sent_at=10.1)

    assert effects == [Acquire((0, 1))]
    assert ownership.renew_at == 10.25


@pytest.mark.parametrize(("partitions", "count"), [(64, 3), (4, 3), (2, 5), (1024, 7), (1, 1)])
def test_the_shares_are_all_partitions(partitions: int, count: int) -> None:
    members = {f"node{number}" for number in range(count)}

    shares = [fair_share(node, members, partitions) for node in members]

    assert sum(shares) == partitions
    assert max(shares) - min(shares) <= 1
    assert fair_share("somebody else", members, partitions) == 0


def test_a_session_is_always_at_home_in_the_same_partition() -> None:
    key = SessionKey(AgentId("main"), "telegram", "default", "123")

    assert partition_of(key, 64) == partition_of("main:telegram:default:123", 64) == 33
    found = Counter(partition_of(f"a:b:c:{number}", 16) for number in range(1_600))
    assert len(found) == 16
    assert max(found.values()) < 160


# --- the node ------------------------------------------------------------------------------------
class Node:
    """A node with a store of its own unless it shares the table of another."""

    def __init__(self, name: str = "me", other: "Node | None" = None, **more: Any) -> None:
        self.clock: FakeClock = other.clock if other else FakeClock()
        self.hints: FakeHints = other.hints if other else FakeHints()
        self.table: LeaseTable = other.table if other else LeaseTable(self.clock.monotonic)
        self.leases, self.work = FakeLeases(self.table), FakeWork()
        self.node = ClusterNode(
            lambda: Presence(name, is_alone=more.get("is_alone", False)),
            ClusterSettings(more.get("partitions", 4), lease_s=15.0),
            self.leases,
            self.hints,
            self.work,
            self.clock,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.node.join()
        async with anyio.create_task_group() as group:
            group.start_soon(self.node.run)
            await anyio.wait_all_tasks_blocked()
            yield
            group.cancel_scope.cancel()

    async def wait(self, seconds: float) -> None:
        for _ in range(round(seconds * 4)):
            self.clock.move(0.25)
            await anyio.wait_all_tasks_blocked()

    def owned(self) -> list[int]:
        return [one for one in range(4) if self.node.epoch(one) is not None]


async def test_a_node_alone_works_on_everything() -> None:
    me = Node()
    async with me.running():
        await me.wait(60)

        assert me.work.told == [("start", Lease(number, 1)) for number in range(4)]
        assert [me.node.epoch(number, starting=True) for number in range(4)] == [1] * 4
        assert 12 <= me.leases.calls <= 16  # a renewal in five seconds


async def test_the_number_of_partitions_is_that_of_the_first_node() -> None:
    me = Node(partitions=4)
    await me.node.join()

    with pytest.raises(StoreRefused, match=r"partitions is 8, and the store was made for 4"):
        await Node("other", me, partitions=8).node.join()

    assert list(me.table.members) == ["me"]


async def test_a_node_that_does_not_run_yet_has_no_share() -> None:
    me = Node()
    await me.node.join()

    assert me.table.renew(Presence("other"), 15.0).members == ["other"]


async def test_a_node_that_is_alone_takes_the_partitions_that_there_are() -> None:
    me = Node(partitions=4)
    await me.node.join()
    await me.leases.leave("me")
    alone = Node("alone", me, partitions=None, is_alone=True)
    async with alone.running():
        await alone.wait(1)

        assert alone.owned() == [0, 1, 2, 3]
        with pytest.raises(StoreInUse, match="in use by gateway alone"):
            await me.node.join()


async def test_a_node_that_was_alone_and_late_ends_if_another_one_came() -> None:
    late = Node("late", is_alone=True)
    other = Node("other", late, is_alone=True)

    async def be_late() -> None:
        async with late.running():
            late.leases.silence = anyio.Event()
            await late.wait(16)
            assert late.owned() == []
            async with other.running():
                late.leases.silence.set()
                await late.wait(2)

    with pytest.raises(ExceptionGroup) as ended:
        await be_late()

    assert ended.group_contains(StoreInUse, match="by gateway other")


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "gone"])
async def test_without_the_store_everything_is_dropped_in_time_and_starts_again_with_it(
    is_silent: bool,
) -> None:
    me = Node()
    async with me.running():
        await me.wait(0.25)
        me.leases.silence = anyio.Event() if is_silent else None
        me.leases.is_gone = not is_silent
        me.work.told.clear()
        await me.wait(13.5)
        assert me.owned() == [0, 1, 2, 3]
        assert me.work.told == []
        await me.wait(0.5)
        assert me.owned() == []
        assert me.work.told == [("drop", Lease(number, 1)) for number in range(4)]

        me.leases.is_gone = False
        if me.leases.silence is not None:
            me.leases.silence.set()
        me.work.told.clear()
        await me.wait(5)
        assert len(me.owned()) == 4
        assert {what for what, _ in me.work.told} == {"start"}
        assert me.work.running == {lease for _, lease in me.work.told}


async def test_a_new_node_gets_its_share_after_the_old_one_has_drained() -> None:
    old = Node("old")
    new = Node("new", old)
    async with old.running():
        old.work.ends = anyio.Event()
        async with new.running():
            await old.wait(10)
            assert len(old.owned()) == 4
            assert [what for what, _ in old.work.told].count("drain") == 2
            assert new.owned() == []

            old.work.ends.set()
            await old.wait(0.5)  # by the hint
            assert len(old.owned()) == 2
            assert len(new.owned()) == 2
            assert {lease.epoch for _, lease in new.work.told} == {2}
    assert (FREE, {"node": "old"}) in old.hints.published


async def test_a_node_that_stops_drains_gives_everything_back_and_leaves() -> None:
    me = Node()
    await me.node.join()
    me.work.ends = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(me.node.run)
        await anyio.wait_all_tasks_blocked()
        me.node.stop()
        await me.wait(20)
        draining = me.table.renew(Presence("other"), 15.0)
        assert me.owned() == [0, 1, 2, 3]
        assert me.node.epoch(0, starting=True) is None
        me.work.ends.set()
        with anyio.fail_after(60):
            while me.work.running:
                await me.wait(0.25)

    assert draining.members == ["other"]
    assert draining.free == []
    assert me.table.renew(Presence("other"), 15.0).free == [0, 1, 2, 3]
    assert list(me.table.members) == ["other"]


async def test_a_drain_ends_with_a_lease_that_is_lost() -> None:
    old = Node("old")
    new = Node("new", old)
    async with old.running():
        old.work.ends = anyio.Event()
        async with new.running():
            await old.wait(6)
            old.leases.is_gone = True
            await old.wait(15)
            old.work.ends.set()
            old.leases.is_gone = False
            await old.wait(6)

            assert len(old.owned()) == 2
            assert len(new.owned()) == 2
            assert not set(old.owned()) & set(new.owned())
            assert ("drained", Lease(3, 1)) not in old.work.told
            assert old.work.running == {
                lease for lease in old.work.running if lease.partition in old.owned()
            }
