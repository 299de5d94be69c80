"""Leases, in a SurrealDB database and in the fake that tests of nodes have; and what fences the commits of a node that lost one."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random

import anyio
import pytest

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from gateway.domain.cluster import Lease, Leases, Presence, StoreInUse
from gateway.store.sharing import SurrealLeases
from gateway.store.surreal_connection import (
    RecordID,
    StatementRefused,
    SurrealConnection,
    TransactionConflict,
)
from tests.fakes.cluster import FakeLeases, LeaseTable
from tests.fakes.surreal import SurrealDatabase


@contextlib.asynccontextmanager
async def connected(place: SurrealDatabase) -> AsyncIterator[SurrealConnection]:
    connection = await place.connected()
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        yield connection
        group.cancel_scope.cancel()


Open = Callable[[int], AbstractAsyncContextManager[Leases]]


@pytest.fixture(params=["fake", "surreal"])
def leases_of(request: pytest.FixtureRequest) -> Open:
    """Opens an empty store with so many partitions."""
    place = None if request.param == "fake" else request.getfixturevalue("surreal_database")

    @contextlib.asynccontextmanager
    async def opened(partitions: int) -> AsyncIterator[Leases]:
        if place is None:
            leases = FakeLeases(LeaseTable(time.monotonic))
            leases.table.prepare(partitions)
            yield leases
            return
        async with connected(place) as connection:
            shared = SurrealLeases(connection, deadline_s=5.0)
            assert await shared.join(Presence("first"), partitions, 15.0) == partitions
            await shared.leave("first")
            yield shared

    return opened


A, B = Presence("a"), Presence("b")


async def test_the_first_node_chooses_the_number_of_partitions(
    surreal_database: SurrealDatabase,
) -> None:
    found: list[int] = []

    async def join(leases: SurrealLeases, partitions: int) -> None:
        node = Presence(f"node{partitions}")
        found.append(await leases.join(node, partitions, 15.0))

    async with connected(surreal_database) as connection:
        leases = SurrealLeases(connection, deadline_s=5.0)
        async with anyio.create_task_group() as group:
            for partitions in (4, 5, 6, 7):
                group.start_soon(join, leases, partitions)
        state = await leases.state()

    assert len(found) == 4
    assert len(set(found)) == 1
    assert [row.lease for row in state.leases] == [Lease(number, 0) for number in range(found[0])]


ALONE = Presence("alone", is_alone=True)


async def test_a_gateway_that_is_alone_lets_no_other_join(leases_of: Open) -> None:
    async with leases_of(4) as leases:
        await leases.join(ALONE, 4, 15.0)
        await leases.join(ALONE, 4, 15.0)
        for other in (A, Presence("other", is_alone=True)):
            with pytest.raises(StoreInUse, match="by gateway alone"):
                await leases.join(other, 4, 15.0)
        await leases.leave("alone")
        await leases.join(A, 4, 15.0)
        await leases.join(B, 4, 15.0)
        with pytest.raises(StoreInUse, match="by gateway (a|b)"):
            await leases.join(ALONE, 4, 15.0)


async def test_a_gateway_that_was_alone_and_late_is_so_only_if_no_other_came(
    leases_of: Open,
) -> None:
    async with leases_of(4) as leases:
        await leases.join(ALONE, 4, 0.1)
        await leases.acquire("alone", [0], 15.0)
        await anyio.sleep(0.15)
        renewal = await leases.renew(ALONE, 0.1)
        await anyio.sleep(0.15)
        await leases.join(A, 4, 15.0)
        with pytest.raises(StoreInUse, match="by gateway a"):
            await leases.renew(ALONE, 0.1)

    assert list(renewal.mine) == [Lease(0, 1)]


async def test_of_gateways_that_want_to_be_alone_one_is(surreal_database: SurrealDatabase) -> None:
    refused: list[str] = []

    async def join(leases: SurrealLeases, name: str) -> None:
        try:
            await leases.join(Presence(name, is_alone=True), 4, 15.0)
        except StoreInUse as error:
            refused.append(error.owner)

    async with connected(surreal_database) as connection:
        leases = SurrealLeases(connection, deadline_s=5.0)
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(join, leases, f"node{number}")

    assert len(refused) == 5
    assert len(set(refused)) == 1


async def test_a_free_lease_is_taken_with_a_new_epoch_and_only_once(leases_of: Open) -> None:
    async with leases_of(4) as leases:
        assert await leases.acquire("a", [0, 1], 15.0) == [Lease(0, 1), Lease(1, 1)]
        assert await leases.acquire("b", [0, 1, 2], 15.0) == [Lease(2, 1)]
        renewal = await leases.renew(A, 15.0)
        state = await leases.state()

    assert list(renewal.mine) == [Lease(0, 1), Lease(1, 1)]
    assert list(renewal.free) == [3]
    assert [row.node for row in state.leases] == ["a", "a", "b", None]


async def test_a_lease_that_was_not_renewed_may_be_taken_and_its_owner_finds_out(
    leases_of: Open,
) -> None:
    async with leases_of(4) as leases:
        await leases.acquire("a", [0], 0.1)
        await leases.acquire("a", [1], 15.0)
        await anyio.sleep(0.15)
        before = await leases.renew(A, 15.0)
        taken = await leases.acquire("b", [0, 1], 15.0)
        after = await leases.renew(A, 15.0)

    assert list(before.mine) == [Lease(1, 1)]
    assert list(before.free) == [0, 2, 3]
    assert taken == [Lease(0, 2)]
    assert list(after.mine) == [Lease(1, 1)]
    assert list(after.free) == [2, 3]


async def test_a_release_frees_the_lease_of_its_epoch_alone(leases_of: Open) -> None:
    async with leases_of(4) as leases:
        [first] = await leases.acquire("a", [0], 15.0)
        await leases.release("b", [first])
        await leases.release("a", [first])
        await leases.release("a", [first])
        [second] = await leases.acquire("b", [0], 15.0)
        await leases.release("a", [first, second])
        await leases.release("b", [first])
        renewal = await leases.renew(B, 15.0)

    assert second == Lease(0, 2)
    assert list(renewal.mine) == [second]


async def test_the_members_are_those_who_were_seen_and_do_not_leave(leases_of: Open) -> None:
    async with leases_of(4) as leases:
        await leases.renew(Presence("old"), 0.1)
        await anyio.sleep(0.3)
        await leases.renew(Presence("leaving", is_leaving=True), 15.0)
        await leases.renew(Presence("gone"), 15.0)
        await leases.leave("gone")
        await leases.renew(Presence("b", is_ready=False, config="x"), 15.0)
        renewal = await leases.renew(A, 15.0)
        state = await leases.state()

    assert set(renewal.members) == {"a", "b"}
    assert {one.presence for one in state.members} == {
        A,
        Presence("b", is_ready=False, config="x"),
        Presence("leaving", is_leaving=True),
    }


async def test_nodes_that_want_the_same_partitions_get_each_of_them_once(leases_of: Open) -> None:
    taken: list[Lease] = []

    async def acquire(leases: Leases, node: str, wanted: list[int]) -> None:
        taken.extend(await leases.acquire(node, wanted, 15.0))

    random = Random(1)
    async with leases_of(64) as leases, anyio.create_task_group() as group:
        for number in range(8):
            wanted = random.sample(range(64), 48)
            group.start_soon(acquire, leases, f"node{number}", wanted)

    assert len({lease.partition for lease in taken}) == len(taken)
    assert len(taken) > 60


# The race of a turn's commit against a take-over. A breach: the commit of the old owner became visible after
# the new owner had taken over and looked.

_WRITE = "SLEEP 3ms; CREATE type::record('entry', [$key, 1]) SET at = time::now() RETURN NONE; RETURN true"
_READ = "LET $l = (SELECT VALUE epoch FROM ONLY $lease); IF $l != 1 { THROW 'exogate:fenced' }"
_SAME = "LET $l = (UPDATE ONLY $lease SET epoch = epoch WHERE epoch = 1 RETURN epoch)"
_COUNT = "LET $l = (UPDATE ONLY $lease SET commits += 1 WHERE epoch = 1 RETURN epoch)"
_SESSION = "LET $l = (UPDATE ONLY $talk SET next += 1 WHERE epoch = 1 RETURN epoch)"
_FENCE = "IF $l == NONE { THROW 'exogate:fenced' }"
_TAKE_OVER = """{
  UPDATE ONLY $lease SET epoch = 2 RETURN NONE;
  UPDATE ONLY $talk SET epoch = 2 WHERE epoch <= 2 RETURN NONE;
  RETURN true; }"""

UNSAFE = {"the lease is only read": _READ, "the lease is written unchanged": f"{_SAME}; {_FENCE}"}
SAFE = {
    "the lease is changed": f"{_COUNT}; {_FENCE}",
    "the session is changed": f"{_SESSION}; {_FENCE}",
}


@dataclass
class Race:
    """Many rounds, each with records of its own."""

    connection: SurrealConnection
    fence: str
    random: Random
    committed: int = 0
    refused: int = 0
    conflicts: int = 0
    breaches: int = 0
    rounds: int = 0

    async def run(self, rounds: int, *, until_breach: bool = False) -> None:
        """A dozen rounds at a time."""

        async def some() -> None:
            while self.rounds < rounds and not (until_breach and self.breaches):
                self.rounds += 1
                await self.round(self.rounds)

        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(some)

    async def round(self, number: int) -> None:
        params = {
            "lease": RecordID("fence", number),
            "talk": RecordID("talk", number),
            "key": str(number),
        }
        make = "CREATE $lease SET epoch = 1, commits = 0; CREATE $talk SET epoch = 1, next = 0"
        await self.connection.query(make, params)
        seen: list[bool] = []
        has_committed: list[bool] = []

        async def old_owner() -> None:
            try:
                await self.connection.query(f"{{ {self.fence}; {_WRITE}; }}", params)
                has_committed.append(True)
            except StatementRefused:
                self.refused += 1
            except TransactionConflict:
                self.conflicts += 1

        async def new_owner() -> None:
            await anyio.sleep(self.random.uniform(0, 0.006))
            await self.connection.commit(_TAKE_OVER, params)
            [found] = await self.connection.query("SELECT * FROM entry:[$key, 1]", params)
            seen.append(bool(found))

        async with anyio.create_task_group() as group:
            group.start_soon(old_owner)
            group.start_soon(new_owner)
        self.committed += bool(has_committed)
        self.breaches += bool(has_committed and not seen[0])


@contextlib.asynccontextmanager
async def race(place: SurrealDatabase, fence: str) -> AsyncIterator[Race]:
    async with connected(place) as connection:
        await connection.query("DEFINE TABLE fence; DEFINE TABLE talk; DEFINE TABLE entry")
        yield Race(connection, fence, Random(1))


@pytest.mark.parametrize("fence", UNSAFE.values(), ids=UNSAFE.keys())
async def test_a_commit_that_changes_nothing_of_what_a_take_over_writes_is_not_fenced(
    surreal_database: SurrealDatabase, fence: str
) -> None:
    """Were these forms safe here, then the race below would not be run."""
    async with race(surreal_database, fence) as found:
        await found.run(4_000, until_breach=True)

    assert found.breaches > 0, found


@pytest.mark.parametrize("fence", SAFE.values(), ids=SAFE.keys())
async def test_a_commit_that_changes_what_a_take_over_writes_is_fenced(
    surreal_database: SurrealDatabase, fence: str
) -> None:
    async with race(surreal_database, fence) as found:
        await found.run(600)

    assert found.breaches == 0, found
    assert found.committed > 20, found  # before the take-over
    assert found.conflicts > 20, found  # during it
    assert found.refused + found.conflicts + found.committed == found.rounds, found
