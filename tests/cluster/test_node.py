"""A node of the cluster at work: what it tells its lanes, and when."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from gateway.cluster.node import ClusterNode, ClusterSettings
from gateway.domain.cluster import FREE, Lease, Presence, StoreInUse
from gateway.domain.errors import StoreRefused
from tests.fakes.clock import FakeClock
from tests.fakes.cluster import FakeHints, FakeLeases, FakeWork, LeaseTable


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
