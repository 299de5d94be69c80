"""The gateway is told to stop: what is at work ends, what waits is kept, what comes is refused."""

import signal
from pathlib import Path

import anyio
import pytest

from tests.fakes.client import (
    WAIT_S,
    Client,
    Disconnected,
    RpcError,
    connected,
    http,
    post_chat,
    texts_of,
)
from tests.fakes.gateway import Command, Setup, command
from tests.fakes.model_server import Asked, Reply, scripted_server

pytestmark = pytest.mark.shared_store

LATE = "perhaps too late"


async def refusing(client: Client) -> RpcError:
    """How a message is refused once the gateway has heard that it should stop; before, it may still
    be accepted."""
    with anyio.fail_after(WAIT_S):
        while True:
            try:
                await client.send(LATE, peer="late", idempotency_key="late")
            except RpcError as error:
                return error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_it_ends_the_running_turn_and_keeps_what_waits(
    tmp_path: Path, number: signal.Signals
) -> None:
    rest = anyio.Event()

    def script(asked: Asked) -> Reply:
        return Reply([f"answer to {asked.last_text}", "."], gates={2: rest})

    async with scripted_server(script) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            runs = await client.send("running", peer="a")
            waits = await client.send("waiting", peer="a")
            await client.until(runs["run_id"], texts_of)
            site.tell(number)
            error = await refusing(client)
            ready = await http(f"{site.url}/readyz")
            over_http = await post_chat(site.url, "too late")
            rest.set()
            end = (await client.ended(runs["run_id"]))[-1]
            with anyio.fail_after(WAIT_S):
                await client.closed.wait()
            code = await site.exit_code()
            unheard = list(client.events[waits["run_id"]])
        async with command(config) as site, connected(site.url) as client:
            await client.call("chat.resume", run_id=waits["run_id"], after_seq=0)
            later = (await client.ended(waits["run_id"]))[-1]
            banner = await site.said()

    assert error.code == -32005
    assert error.data["retry_after_s"] > 0
    assert (ready.status, over_http.status) == (503, 503)
    assert int(over_http.headers["Retry-After"]) > 0
    assert end["response"] == "answer to running."
    assert code == 0
    assert unheard == []
    assert later["response"] == "answer to waiting."
    assert b"unanswered" in banner
    asked = [one.last_text for one in model.requests]
    assert [text for text in asked if text != LATE] == ["running", "waiting"]


async def test_whoever_is_connected_is_told_that_it_restarts(tmp_path: Path) -> None:
    async with scripted_server([Reply("x")]) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            site.tell(signal.SIGTERM)
            with anyio.fail_after(WAIT_S):
                await client.closed.wait()

            assert client.socket.close_code == 1012
            assert await site.exit_code() == 0


async def test_a_turn_that_outlasts_the_grace_is_made_again_after_the_start(
    tmp_path: Path,
) -> None:
    def script(asked: Asked) -> Reply:
        if asked.number == 1:
            return Reply(["half ", "."], gates={2: anyio.Event()})
        return Reply("whole")

    async with scripted_server(script) as model:
        config = await Setup(model.url, gateway="drain_s = 0.2").written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            sent = await client.send("hi")
            await client.until(sent["run_id"], texts_of)
            site.tell(signal.SIGTERM)
            code = await site.exit_code()
        async with command(config) as site, connected(site.url) as client:
            await client.call("chat.resume", run_id=sent["run_id"], after_seq=0)
            end = (await client.ended(sent["run_id"]))[-1]

    assert code == 0
    assert end["response"] == "whole"
    assert len(model.requests) == 2


async def test_told_twice_it_stops_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    def script(asked: Asked) -> Reply:
        if asked.number == 1:
            return Reply(["half ", "."], gates={2: anyio.Event()})
        return Reply("whole")

    async with scripted_server(script) as model:
        config = await Setup(model.url, gateway="drain_s = 600").written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            sent = await client.send("hi")
            await client.until(sent["run_id"], texts_of)
            site.tell(signal.SIGTERM)
            await refusing(client)
            site.tell(signal.SIGTERM)
            with anyio.fail_after(WAIT_S):
                await site.exit_code()
                await client.closed.wait()
        async with command(config) as site, connected(site.url) as client:
            await client.call("chat.resume", run_id=sent["run_id"], after_seq=0)
            end = (await client.ended(sent["run_id"]))[-1]

    assert end["response"] == "whole"


async def test_stopped_under_load_every_accepted_message_is_answered_once(tmp_path: Path) -> None:
    accepted: dict[str, dict[str, object]] = {}

    async def load_until_stopped(client: Client, site: Command) -> None:
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as group:
                for peer in "abcdefgh":
                    group.start_soon(keep_sending, client, peer)
                await model.wait_for(50)
                site.tell(signal.SIGTERM)

    async def keep_sending(client: Client, peer: str) -> None:
        for number in range(10_000):
            content = f"{peer}-{number}"
            try:
                sent = await client.send(content, peer=peer, idempotency_key=content)
            except (RpcError, Disconnected):
                return
            accepted[content] = sent

    def script(asked: Asked) -> Reply:
        return Reply(f"answer to {asked.last_text}")

    async with scripted_server(script) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            await load_until_stopped(client, site)
            code = await site.exit_code()
        async with command(config) as site, connected(site.url) as client:
            for sent in accepted.values():
                await client.call("chat.resume", run_id=sent["run_id"], after_seq=0)
                await client.ended(str(sent["run_id"]))
            events = {name: client.events[str(sent["run_id"])] for name, sent in accepted.items()}
            pages = [
                await client.call("chat.history", session_key=f"main:websocket:local:{peer}")
                for peer in "abcdefgh"
            ]

    assert code == 0
    assert len(accepted) >= 50
    for name, told in events.items():
        ends = [event for event in told if event["type"] == "done"]
        assert [end["response"] for end in ends] == [f"answer to {name}"]
    for page in pages:
        asked = [one["content"] for one in page["messages"] if one["role"] == "user"]
        assert len(asked) == len(set(asked))


async def test_told_to_stop_as_soon_as_it_says_that_it_is_ready_it_stops_in_good_order(
    tmp_path: Path,
) -> None:
    async with scripted_server([Reply("x")]) as model:
        config = await Setup(model.url).written(tmp_path)
        codes = []
        for _ in range(5):  # it is a matter of a moment
            async with command(config) as site:
                site.tell(signal.SIGTERM)
                codes.append(await site.exit_code())

    assert codes == [0] * 5
