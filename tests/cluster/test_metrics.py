"""What gateways that share a store measure of it and of each other, as Prometheus reads it."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from tests.fakes.client import http
from tests.fakes.fleet import LEASE_S, SHARED_S, Fleet, fleet
from tests.fakes.model_server import Asked, Reply
from tests.fakes.nats import NatsServer, nats_binary, running_nats
from tests.fakes.surreal import SurrealDatabase, SurrealServer

READY_S = 3.0  # until /readyz says that the store is away


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    with running_nats(nats_binary()) as server:
        yield server


def echo(asked: Asked) -> Reply:
    return Reply(text="yes")


async def scraped(nodes: Fleet, name: str) -> dict[str, float]:
    answer = await http(f"{nodes.nodes[name].url}/metrics")
    assert answer.status == 200
    lines = answer.body.decode().splitlines()
    pairs = (line.removeprefix("exogate_").rsplit(" ", 1) for line in lines if line[0] != "#")
    return {one: float(value) for one, value in pairs}


async def test_two_gateways_measure_leases_hints_the_store_and_how_far_they_lag(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer
) -> None:
    async with (
        fleet(tmp_path, echo, surreal_database, nats, "a", "b") as nodes,
        nodes.client("a") as client,
    ):
        await anyio.sleep(SHARED_S)
        for number in range(12):
            assert (await client.ask("hi", peer=f"p{number}"))["type"] == "done"
        both = [await scraped(nodes, name) for name in "ab"]

    for found in both:
        assert (found["cluster_nodes"], found["cluster_leases"]) == (2, 4)
        assert found['cluster_lease_changes_total{change="taken"}'] >= 4
        assert (found["cluster_lag_seconds"], found["cluster_fenced_total"]) == (0, 0)
        assert found['store_requests_total{outcome="answered"}'] > 12
        assert found["store_request_duration_seconds_count"] >= 12
        assert found["store_commit_operations_count"] > 0
        assert found['cluster_hints_total{outcome="received"}'] > 0
        assert found["sessions"] == 12
    # All were accepted at one of them, and followed there when the other one worked on them.
    ended = [sum(n for name, n in one.items() if name.startswith("runs_total")) for one in both]
    assert sum(ended) == 12
    assert ended[1] > 0 < both[0]["cluster_follow_delay_seconds_count"]


async def test_a_gateway_that_was_paused_counts_the_leases_and_turns_that_it_lost(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    gate = anyio.Event()

    def slow(asked: Asked) -> Reply:
        return Reply(text=["one ", "two"], gates={} if gate.is_set() else {2: gate})

    async with (
        fleet(tmp_path, slow, surreal_database, None, "a") as nodes,
        nodes.client("a") as client,
    ):
        told = await client.send("hello")
        await client.until(told["run_id"], lambda events: any("one " in str(one) for one in events))
        nodes.stop("a")
        await anyio.sleep(LEASE_S + 0.5)
        nodes.go_on("a")
        gate.set()
        await client.ended(told["run_id"])
        found = await scraped(nodes, "a")

    assert found['cluster_lease_changes_total{change="lost"}'] == 8
    assert found["cluster_turns_lost_total"] == 1


async def test_a_scrape_says_that_the_store_is_away(
    tmp_path: Path, own_surreal_server: SurrealServer
) -> None:
    database = SurrealDatabase(own_surreal_server.url, "tests", "away")
    async with fleet(tmp_path, echo, database, None, "a") as nodes:
        before = await scraped(nodes, "a")
        await to_thread.run_sync(own_surreal_server.kill)
        await anyio.sleep(READY_S)
        after = await scraped(nodes, "a")

    assert (before["ready"], before["sessions"]) == (1, 0)
    assert after["connections"] == 0
    assert not {"sessions", "cluster_nodes", "cluster_lag_seconds"} & {*after}
    assert after['store_requests_total{outcome="unavailable"}'] > 0
