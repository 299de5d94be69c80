"""Whole gateways that share one SurrealDB server: any of them takes anything, and one of them works on it."""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from gateway.app.shared_store import LEAVE_S
from tests.fakes.client import Client, Event, http, seqs_of, texts_of
from tests.fakes.clock import now_about
from tests.fakes.fleet import LEASE_S, POLL_S, SHARED_S, TAKE_OVER_S, fleet
from tests.fakes.model_server import Asked, Reply
from tests.fakes.nats import NatsServer, nats_binary, running_nats
from tests.fakes.surreal import SurrealDatabase

HINTS = pytest.mark.parametrize("nats", ["polling", "nats"], indirect=True)


@pytest.fixture
def nats(request: pytest.FixtureRequest) -> Iterator[NatsServer | None]:
    if getattr(request, "param", "polling") == "polling":
        yield None
        return
    with running_nats(nats_binary()) as server:
        yield server


def echo(asked: Asked) -> Reply:
    """The answer names the question, and how many were asked before in the conversation."""
    said = [one["content"] for one in asked.body["messages"] if one["role"] == "user"]
    return Reply(text=f"to {said[-1]} after {len(said) - 1}")


class Slow:
    """A model that says `to …` at the gate, until it opens; `asked` counts its questions."""

    def __init__(self) -> None:
        self.gate, self.came = anyio.Event(), anyio.Event()
        self.asked = Counter[str]()

    def __call__(self, request: Asked) -> Reply:
        said = request.body["messages"][-1]["content"]
        self.asked[said] += 1
        self.came.set()
        return Reply(text=["to ", said], gates={} if self.gate.is_set() else {2: self.gate})

    async def until_asked(self, count: int) -> None:
        with anyio.fail_after(60):
            while len(self.asked) < count:
                self.came = anyio.Event()
                await self.came.wait()


@HINTS
async def test_messages_at_either_gateway_are_answered_once_and_in_order(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer | None
) -> None:
    async with (
        fleet(tmp_path, echo, surreal_database, nats, "a", "b") as nodes,
        nodes.client("a") as first,
        nodes.client("b") as second,
    ):
        sent = list[tuple[Client, str]]()
        for number in range(12):
            client = (first, second)[number % 2]
            told = await client.send(f"m{number}", peer=f"p{number % 3}")
            sent.append((client, told["run_id"]))
        answers = [texts_of(await client.ended(run_id)) for client, run_id in sent]

        assert answers == [f"to m{number} after {number // 3}" for number in range(12)]
        for client, run_id in sent:
            seqs = seqs_of(client.events[run_id])
            assert seqs == list(range(1, len(seqs) + 1))
        for peer in range(3):
            page = await second.call("chat.history", session_key=f"main:websocket:local:p{peer}")
            said = [one["content"] for one in page["messages"] if one["role"] == "user"]
            assert said == [f"m{number}" for number in range(peer, 12, 3)]


async def test_a_key_that_was_used_at_another_gateway_is_a_duplicate(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    async with (
        fleet(tmp_path, echo, surreal_database, None, "a", "b") as nodes,
        nodes.client("a") as first,
        nodes.client("b") as second,
    ):
        one = await first.send("hello", idempotency_key="k")
        other = await second.send("hello", idempotency_key="k")
        refused = await second.refused("chat.send", content="other", idempotency_key="k")

    assert (other["run_id"], one["duplicate"], other["duplicate"]) == (one["run_id"], False, True)
    assert refused.code == -32006


@HINTS
async def test_the_sessions_of_a_killed_gateway_are_taken_over_in_time(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer | None
) -> None:
    slow = Slow()

    async with (
        fleet(tmp_path, slow, surreal_database, nats, "a") as nodes,
        nodes.client("a") as first,
    ):
        await nodes.start("b")
        async with nodes.client("b") as client:
            await anyio.sleep(SHARED_S)
            sent = [await client.send(f"m{number}", peer=f"p{number}") for number in range(12)]
            await slow.until_asked(12)
            slow.gate.set()
            nodes.nodes["a"].kill()
            killed = time.monotonic()
            await until_all_at(client, "b")
            owned_s = time.monotonic() - killed
            for number, told in enumerate(sent):
                events = await client.ended(told["run_id"])
                assert events[-1]["response"] == f"to m{number}"
            took_s = time.monotonic() - killed
            taken_over = [one for one in slow.asked if slow.asked[one] > 1]
            for told in sent:
                _require_whole(client.events[told["run_id"]])
        assert first.closed.is_set()

    assert taken_over, "the killed gateway had nothing of its own"
    assert max(slow.asked.values()) == 2
    assert owned_s <= now_about(TAKE_OVER_S)
    assert took_s <= now_about(TAKE_OVER_S + POLL_S + 2)


async def until_all_at(client: Client, name: str) -> None:
    """Until one gateway has all partitions."""
    while True:
        told = await client.call("cluster.status")
        if all(str(one["node"]).startswith(f"{name}-") for one in told["partitions"]):
            return
        await anyio.sleep(0.05)


def _require_whole(events: list[Event]) -> None:
    """Numbered without a gap; a jump is a notice that takes back what came before."""
    following = 1
    for event in events:
        if event["seq"] != following:
            assert event["metadata"]["discard_from_seq"] == 1
        following = event["seq"] + 1
    assert [one["type"] for one in events if one["type"] in {"done", "error"}] == ["done"]


async def test_a_gateway_that_was_paused_for_longer_than_a_lease_says_and_commits_nothing_more(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    slow = Slow()

    async with (
        fleet(tmp_path, slow, surreal_database, None, "a") as nodes,
        nodes.client("a") as first,
    ):
        sent = [await first.send(f"m{number}", peer=f"p{number}") for number in range(6)]
        await slow.until_asked(6)
        await nodes.start("b")
        nodes.stop("a")
        async with nodes.client("b") as second:
            await anyio.sleep(TAKE_OVER_S)
            slow.gate.set()
            for told in sent:
                await second.call("chat.resume", run_id=told["run_id"], after_seq=0)
                await second.ended(told["run_id"])
            nodes.go_on("a")
            for number, told in enumerate(sent):
                events = await first.ended(told["run_id"])
                assert events[-1]["response"] == f"to m{number}"
                _require_whole(events)
                key = f"main:websocket:local:p{number}"
                page = await second.call("chat.history", session_key=key)
                assert [one["role"] for one in page["messages"]] == ["user", "assistant"]


async def test_a_gateway_that_stops_gives_its_sessions_away_at_once(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    async with fleet(tmp_path, echo, surreal_database, None, "a", "b") as nodes:
        await anyio.sleep(SHARED_S)
        async with nodes.client("b") as client:
            nodes.nodes["a"].tell(signal.SIGTERM)
            assert await nodes.nodes["a"].exit_code() == 0
            began = time.monotonic()
            sent = [await client.send(f"m{number}", peer=f"p{number}") for number in range(8)]
            for told in sent:
                await client.ended(told["run_id"])

            assert time.monotonic() - began < now_about(LEASE_S + POLL_S + 1)


async def test_a_gateway_that_stops_waits_for_the_turns_of_all_its_partitions_and_no_longer(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    slow = Slow()

    async with (
        fleet(tmp_path, slow, surreal_database, None, "a") as nodes,
        nodes.client("a") as client,
    ):
        await anyio.sleep(SHARED_S)
        for number in range(6):
            await client.send(f"m{number}", peer=f"p{number}")
        await slow.until_asked(6)
        nodes.nodes["a"].tell(signal.SIGTERM)
        slow.gate.set()
        began = time.monotonic()
        assert await nodes.nodes["a"].exit_code() == 0

        assert time.monotonic() - began < now_about(LEAVE_S)
    assert max(slow.asked.values()) == 1


@HINTS
async def test_a_run_is_stopped_and_resumed_at_another_gateway(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer | None
) -> None:
    never = anyio.Event()

    def slow(request: Asked) -> Reply:
        return Reply(text=["one ", "two ", "three"], gates={3: never})

    async with (
        fleet(tmp_path, slow, surreal_database, nats, "a") as nodes,
        nodes.client("a") as first,
    ):
        told = await first.send("hello")
        await first.until(told["run_id"], lambda events: texts_of([*events]) == "one two ")
        await nodes.start("b")
        async with nodes.client("b") as second:
            resumed = await second.call("chat.resume", run_id=told["run_id"], after_seq=0)
            if nats is not None:
                await second.until(told["run_id"], lambda events: texts_of(events) == "one two ")
            aborted = await second.call("chat.abort", run_id=told["run_id"])
            events = await second.ended(told["run_id"])
            await first.ended(told["run_id"])

    assert resumed["live"]
    assert aborted["aborted"]
    assert (events[-1]["type"], events[-1]["reason"]) == ("done", "cancelled")
    _require_whole(events)
    assert [one["seq"] for one in events] == [one["seq"] for one in first.events[told["run_id"]]]


async def test_another_number_of_partitions_is_refused_with_both_numbers(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    async with fleet(tmp_path, echo, surreal_database, None, "a") as nodes:
        with pytest.raises(AssertionError, match=r"partitions is 9, and the store was made for 8"):
            await nodes.start("b", partitions=9)


async def test_every_gateway_tells_the_same_of_the_cluster(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    async with (
        fleet(tmp_path, echo, surreal_database, None, "a", "b") as nodes,
        nodes.client("a") as first,
        nodes.client("b") as second,
    ):
        await anyio.sleep(SHARED_S)
        told = await first.call("cluster.status")
        other = await second.call("cluster.status")
        answer = await http(f"{nodes.nodes['a'].url}/readyz")

    assert sorted(one["partitions"] for one in told["nodes"]) == [4, 4]
    assert [one["node"].rpartition("-")[0] for one in told["nodes"]] == ["a", "b"]
    assert len({one["config"] for one in told["nodes"]}) == 1
    assert [one["partition"] for one in told["partitions"]] == list(range(8))
    assert {one["node"] for one in told["partitions"]} == {one["node"] for one in told["nodes"]}
    names = ("node", "epoch", "pending")
    assert [[one[name] for name in names] for one in told["partitions"]] == [
        [one[name] for name in names] for one in other["partitions"]
    ]
    assert (told["lag_s"], told["degraded"]) == (0.0, [])
    assert (answer.status, answer.json) == (200, {"status": "ready"})


@pytest.mark.parametrize("nats", ["nats"], indirect=True)
async def test_without_nats_a_gateway_is_ready_and_says_that_it_is_degraded(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer
) -> None:
    async with (
        fleet(tmp_path, echo, surreal_database, nats, "a", "b") as nodes,
        nodes.client("a") as first,
        nodes.client("b") as second,
    ):
        await anyio.sleep(SHARED_S)
        await to_thread.run_sync(nats.kill)
        for number in range(6):
            client = (first, second)[number % 2]
            assert (await client.ask(f"m{number}", peer=f"p{number}"))["type"] == "done"
        answer = await http(f"{nodes.nodes['a'].url}/readyz")
        told = await first.call("cluster.status")

    assert (answer.status, answer.json) == (200, {"status": "ready", "degraded": ["nats"]})
    assert told["degraded"] == ["nats"]
