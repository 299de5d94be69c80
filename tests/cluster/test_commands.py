"""What somebody does at one gateway holds at all of them: commands, choices, subscriptions, reloads."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from gateway.domain.cluster import partition_of
from gateway.domain.ids import AgentId, SessionKey
from tests.fakes.client import Client, http
from tests.fakes.fleet import POLL_S, SHARED_S, Fleet, fleet
from tests.fakes.model_server import Asked, Reply
from tests.fakes.nats import NatsServer, nats_binary, running_nats
from tests.fakes.surreal import SurrealDatabase
from tests.scenarios.test_channel_webhook import Program

HINTS = pytest.mark.parametrize("nats", ["polling", "nats"], indirect=True)
LATE_S = POLL_S + 1  # a change holds everywhere
WAIT_S, PAUSE_S = 15, 0.3  # for what comes by a hint
BACKED = """
[agent.fallback]
provider = "fake"
model = "m2"
"""


@pytest.fixture
def nats(request: pytest.FixtureRequest) -> Iterator[NatsServer | None]:
    if getattr(request, "param", "polling") == "polling":
        yield None
        return
    with running_nats(nats_binary()) as server:
        yield server


async def owner_of(nodes: Fleet, key: SessionKey) -> tuple[str, str]:
    """The gateway that works on a session, and the other one."""
    async with nodes.client("a") as client:
        told = await client.call("cluster.status")
    [lease] = [one for one in told["partitions"] if one["partition"] == partition_of(key, 8)]
    return ("a", "b") if lease["node"].startswith("a-") else ("b", "a")


async def said_by(chat: Program, text: str) -> None:
    """Once the answer has come."""
    with anyio.fail_after(20):
        await chat.sees(text)


@HINTS
async def test_a_command_stops_a_run_at_the_other_gateway(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer | None
) -> None:
    came = anyio.Event()

    def script(asked: Asked) -> Reply:
        if asked.last_text != "begin":
            return Reply("again")
        came.set()
        return Reply("never", gate=anyio.Event())

    chat = Program("build", "build", "nightly", listed=True)
    async with (
        chat.open(),
        fleet(tmp_path, script, surreal_database, nats, "a", "b", rest=chat.toml) as nodes,
    ):
        await anyio.sleep(SHARED_S)
        _, other = await owner_of(nodes, SessionKey(AgentId("main"), "ci", "default", "build"))
        chat.gateway = nodes.nodes[other].url
        await chat.say("begin")
        with anyio.fail_after(20):
            await came.wait()
        began = anyio.current_time()
        await chat.say("/status")
        await said_by(chat, "1 running, 0 queued")
        await chat.say("/stop")
        await said_by(chat, "Stopped: 1 message.")
        await chat.say("go on")
        await said_by(chat, "again")

    assert anyio.current_time() - began < 15


@HINTS
async def test_a_model_that_is_chosen_at_one_gateway_answers_at_the_other(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer | None
) -> None:
    def script(asked: Asked) -> Reply:
        return Reply(f"{asked.body['model']} says {asked.last_text}")

    chat = Program("build", "build", "nightly", listed=True)
    async with (
        chat.open(),
        fleet(
            tmp_path, script, surreal_database, nats, "a", "b", rest=chat.toml, agent=BACKED
        ) as nodes,
    ):
        await anyio.sleep(SHARED_S)
        owner, other = await owner_of(nodes, SessionKey(AgentId("main"), "ci", "default", "build"))
        chat.gateway = nodes.nodes[other].url
        await chat.say("one")
        await said_by(chat, "m says one")
        await chat.say("/model m2")
        await said_by(
            chat,
            "The model is `m2` from your next message on. This applies to this chat until `/new`.",
        )
        chat.gateway = nodes.nodes[owner].url  # which has not looked yet
        await chat.say("/queue collect")
        await said_by(chat, "The queue mode is now `collect`.")
        await chat.say("two")
        await said_by(chat, "m2 says two")
        chat.gateway = nodes.nodes[other].url

        nodes.nodes[owner].kill()  # whoever takes the session over knows it too
        await chat.say("three")
        await said_by(chat, "m2 says three")
        await chat.say("/new")
        await said_by(chat, "starts a new conversation")
        await anyio.sleep(LATE_S if nats is None else 0.5)
        await chat.say("four")
        await said_by(chat, "m says four")


@pytest.mark.parametrize("nats", ["nats"], indirect=True)
async def test_whoever_subscribes_at_one_gateway_hears_of_the_runs_of_all(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer
) -> None:
    async with fleet(tmp_path, [Reply("Yes.")], surreal_database, nats, "a", "b") as nodes:
        await anyio.sleep(SHARED_S)
        async with nodes.client("a") as first, nodes.client("b") as second:
            for client in (first, second):
                await client.call("events.subscribe", types=["session.end"])
            await anyio.sleep(0.5)  # the wish is on its way
            sent = [await first.send("hello", peer=f"p{number}") for number in range(8)]
            for client in (first, second):
                await heard(client, {one["run_id"] for one in sent})

        async with nodes.client("a") as client:
            told = await client.call("cluster.status")
    assert len({one["node"] for one in told["partitions"]}) == 2


async def heard(client: Client, runs: set[str]) -> None:
    """Each once."""
    told = await client.until_told(lambda told: len(told) >= len(runs))
    assert sorted(one["run_id"] for one in told) == sorted(runs)
    assert {one["session_key"].rpartition(":")[0] for one in told} == {"main:websocket:local"}


@pytest.mark.parametrize("nats", ["nats"], indirect=True)
async def test_a_gateway_looks_at_its_own_files_when_another_one_is_told_to_reload(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer
) -> None:
    quiet = "watch = false\n"
    async with fleet(
        tmp_path, [Reply("Yes.")], surreal_database, nats, "a", "b", gateway=quiet
    ) as nodes:
        await anyio.Path(tmp_path / "b" / "soul.md").write_text("You changed.")
        async with nodes.client("a") as first, nodes.client("b") as second:
            before = (await second.call("status"))["generation"]
            told = await first.call("config.reload")
            await anyio.sleep(LATE_S)
            after = (await second.call("status"))["generation"]

    assert (told["changed"], after) == ([], before + 1)


@pytest.mark.parametrize("nats", ["nats"], indirect=True)
async def test_tokens_and_raises_hold_at_the_other_gateway_long_before_it_looks(
    tmp_path: Path, surreal_database: SurrealDatabase, nats: NatsServer
) -> None:
    limit = "\n[budgets.daily]\ntokens = 1000000\n"
    async with fleet(tmp_path, [Reply("Yes.")], surreal_database, nats, rest=limit) as nodes:
        for name in ("a", "b"):
            await nodes.start(name, poll_s=60)
        async with nodes.client("a") as first, nodes.client("b") as second:
            made = await first.call("token.create", name="phone", scopes=["chat"])
            await answers(nodes.nodes["b"].url, made["token"], 200)
            await first.call("token.revoke", name="phone")
            await answers(nodes.nodes["b"].url, made["token"], 401)
            await first.call("budget.raise", scope="daily", by=500, today=True)
            await raised(second, 500)


async def answers(url: str, token: str, status: int) -> None:
    """As soon as the gateway knows of the token, or of its end. Whoever guesses often is answered late."""
    with anyio.fail_after(WAIT_S):
        while (await http(f"{url}/api/sessions", token=token)).status != status:  # noqa: ASYNC110
            await anyio.sleep(PAUSE_S)


async def raised(client: Client, by: int) -> None:
    with anyio.fail_after(WAIT_S):
        while True:
            told = await client.call("budget.status")
            if by in {one.get("raised_by") for one in told["budgets"]}:
                return
            await anyio.sleep(PAUSE_S)
