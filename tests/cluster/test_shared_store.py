"""Several nodes over a real SurrealDB server: who works on what, and that no acknowledged commit is lost."""

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import pytest
from anyio import CancelScope
from anyio.abc import TaskGroup

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from gateway.cluster.node import ClusterNode, ClusterSettings
from gateway.domain.cluster import Lease, Presence
from gateway.domain.errors import GatewayError
from gateway.domain.ids import Secret
from gateway.host.clock import SystemClock
from gateway.store.sharing import SurrealLeases
from gateway.store.surreal_connection import (
    ConnectionSettings,
    Credentials,
    RecordID,
    StatementRefused,
    SurrealConnection,
)
from tests.fakes.clock import now_about
from tests.fakes.cluster import FakeHints
from tests.fakes.surreal import PASSWORD, USER, SurrealServer

PARTITIONS, LEASE_S = 8, 3.0
QUICK = ConnectionSettings(call_s=1.0, ping_every_s=0.2, retry_s=0.02, longest_retry_s=0.2)

OPEN = """{
  LET $l = (SELECT node, epoch FROM ONLY $lease);
  IF $l.node != $me OR $l.epoch != $epoch { THROW 'exogate:fenced' };
  LET $s = (UPSERT ONLY $talk SET epoch = $epoch, next += 0 WHERE epoch = NONE OR epoch <= $epoch RETURN next);
  IF $s == NONE { THROW 'exogate:fenced' };
  RETURN $s.next; }"""
COMMIT = """{
  LET $s = (UPDATE ONLY $talk SET next += 1 WHERE epoch = $epoch AND next = $base RETURN next);
  IF $s == NONE { THROW 'exogate:fenced' };
  CREATE type::record('entry', [$key, $base]) SET epoch = $epoch, mark = $mark RETURN NONE;
  RETURN true; }"""


@dataclass
class History:
    acknowledged: dict[tuple[int, int], str] = field(default_factory=dict)  # place -> mark
    refused: int = 0  # commits of zombies
    started: dict[int, float] = field(default_factory=dict)  # when a partition was opened last


class Turns:
    """The port PartitionWork: one session a partition, and turn after turn in it. A zombie never notices that
    it has lost a lease, and goes on."""

    def __init__(
        self, connection: SurrealConnection, name: str, group: TaskGroup, history: History
    ) -> None:
        self.connection, self.name, self.group, self.history = connection, name, group, history
        self.is_zombie = False
        self.may: Callable[[int], int | None] = lambda partition: None
        self._scopes: dict[Lease, CancelScope] = {}
        self._draining: dict[Lease, anyio.Event] = {}
        self._marks = (f"{name}-{number}" for number in itertools.count())

    def start(self, lease: Lease) -> None:
        self._scopes[lease] = CancelScope()
        self.group.start_soon(self._work, lease, self._scopes[lease])

    async def drain(self, lease: Lease) -> None:
        self._draining[lease] = anyio.Event()
        await self._draining[lease].wait()

    def drop(self, lease: Lease) -> None:
        if not self.is_zombie:
            self._scopes.pop(lease).cancel()

    async def _work(self, lease: Lease, scope: CancelScope) -> None:
        params: dict[str, object] = {
            "lease": RecordID("lease", lease.partition),
            "talk": RecordID("talk", lease.partition),
            "key": lease.partition,
            "me": self.name,
            "epoch": lease.epoch,
        }
        with scope:
            base: int | None = None
            while lease not in self._draining:
                if self.is_zombie or self.may(lease.partition) == lease.epoch:
                    base = await self._turn(lease.partition, base, params)
                await anyio.sleep(0.02)
        if lease in self._draining:
            self._draining.pop(lease).set()

    async def _turn(
        self, partition: int, base: int | None, params: dict[str, object]
    ) -> int | None:
        """The next place; None if it is to be looked up."""
        mark = next(self._marks)
        try:
            if base is None:
                if self.is_zombie:  # it looks the right place up, but keeps its epoch
                    [base] = await self.connection.query("RETURN $talk.next", params)
                else:
                    [base] = await self.connection.commit(OPEN, params)
                    self.history.started[partition] = time.monotonic()
            await self.connection.commit(COMMIT, {**params, "base": base, "mark": mark})
        except StatementRefused:
            self.history.refused += 1
            return None
        except GatewayError:  # the outcome may be unknown: the place is looked up
            return None
        assert base is not None
        assert (partition, base) not in self.history.acknowledged
        self.history.acknowledged[partition, base] = mark
        return base + 1


@dataclass
class Cluster:
    server: SurrealServer
    group: TaskGroup
    hints: FakeHints = field(default_factory=FakeHints)
    history: History = field(default_factory=History)
    nodes: dict[str, tuple[ClusterNode, Turns, CancelScope]] = field(default_factory=dict)

    async def connect(self) -> SurrealConnection:
        credentials = Credentials(USER, Secret(PASSWORD))
        connection = SurrealConnection(self.server.url, "tests", "main", credentials, QUICK)
        await connection.open()
        self.group.start_soon(connection.run)
        return connection

    async def join(self, name: str) -> None:
        turns = Turns(await self.connect(), name, self.group, self.history)
        leases = SurrealLeases(await self.connect(), deadline_s=LEASE_S / 3)
        node = ClusterNode(
            lambda: Presence(name),
            ClusterSettings(PARTITIONS, LEASE_S),
            leases,
            self.hints,
            turns,
            SystemClock(),
        )
        turns.may = node.epoch
        await node.join()
        self.nodes[name] = (node, turns, CancelScope())
        self.group.start_soon(self._run, name)

    async def _run(self, name: str) -> None:
        node, _, scope = self.nodes[name]
        with scope:
            await node.run()

    def kill(self, name: str) -> None:
        """Like a process that ends: nothing is given back."""
        _, turns, scope = self.nodes.pop(name)
        scope.cancel()
        turns.may = lambda partition: None

    def shares(self) -> list[int]:
        return sorted(
            sum(node.epoch(number) is not None for number in range(PARTITIONS))
            for node, _, _ in self.nodes.values()
        )

    async def until_shared(self, *shares: int, within_s: float) -> None:
        with anyio.fail_after(now_about(within_s)):
            while self.shares() != sorted(shares):  # noqa: ASYNC110  # the store is waited for
                await anyio.sleep(0.02)


async def test_nodes_share_the_work_through_deaths_pauses_and_zombies(
    own_surreal_server: SurrealServer,
) -> None:
    async with anyio.create_task_group() as group:
        cluster = Cluster(own_surreal_server, group)
        looking = await cluster.connect()
        await looking.query("DEFINE TABLE talk; DEFINE TABLE entry")
        for name in ("a", "b", "c"):
            await cluster.join(name)
        await cluster.until_shared(3, 3, 2, within_s=LEASE_S * 2 / 3 + 2)

        cluster.nodes["a"][1].is_zombie = True  # its leases expire, its turns go on
        began = time.monotonic()
        cluster.kill("a")
        await cluster.until_shared(4, 4, within_s=LEASE_S * 4 / 3 + 1)
        took_s = time.monotonic() - began

        cluster.nodes["b"][0].stop()
        await cluster.until_shared(0, 8, within_s=2.0)
        del cluster.nodes["b"]

        await cluster.join("d")
        await cluster.until_shared(4, 4, within_s=LEASE_S * 2 / 3 + 2)

        own_surreal_server.pause()  # for longer than a lease
        await cluster.until_shared(0, 0, within_s=LEASE_S)
        own_surreal_server.resume()
        await cluster.until_shared(4, 4, within_s=LEASE_S + 2)
        await anyio.sleep(1.0)
        for node, _, _ in cluster.nodes.values():
            node.stop()
        await cluster.until_shared(0, 0, within_s=2.0)

        entries, talks = await looking.query(
            "SELECT * FROM entry ORDER BY id; SELECT * FROM talk ORDER BY id"
        )
        group.cancel_scope.cancel()

    history = cluster.history
    found = {(row["id"].id[0], row["id"].id[1]): row for row in entries}
    assert took_s > 1.0
    assert {place: found[place]["mark"] for place in history.acknowledged} == history.acknowledged
    assert Counter(place[0] for place in found) == {row["id"].id: row["next"] for row in talks}
    for (partition, base), row in found.items():
        later = found.get((partition, base + 1))
        assert later is None or later["epoch"] >= row["epoch"]
    assert history.refused > 10  # of the zombie
    assert len(history.acknowledged) > 100
