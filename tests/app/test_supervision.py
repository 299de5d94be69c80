"""Nothing ends the gateway quietly, whatever is cancelled in it."""

import asyncio
import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.app.running import EndedByItself, ProcessContext, Running, run
from gateway.cli.configuration import known_names
from gateway.config.load import load
from gateway.domain.version import VERSION
from gateway.host.logs import Log
from tests.fakes.client import connected, post_chat
from tests.fakes.gateway import Setup, running
from tests.fakes.mcp_server import FakeMcp, serving
from tests.fakes.model_server import Reply, scripted_server

CHANNEL = """
[channels.hook]
plugin = "webhook"
config = { scheme = "standard", reply_url = "http://127.0.0.1:9/answers" }
secrets = { secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZg==", reply_token = "a-token-of-the-test" }
[[plugins]]
name = "webhook"
path = "bundled:webhook"
capabilities = ["http:http://127.0.0.1:9"]
"""
# What the gateway does beside serving, by a part of the name of its task.
BESIDE = (
    "mcp:books", "Pool._keep", "kept part", "files", "sweep", "index", "idle workers",
    "supervision.contain", "connections", "channel:hook", "deliveries",
)  # fmt: skip


def tasks() -> Iterator[asyncio.Task[object]]:
    return (one for one in asyncio.all_tasks() if one is not asyncio.current_task())


def told(caplog: pytest.LogCaptureFixture) -> set[object]:
    words = "task_cancelled"
    return {getattr(one, "task", None) for one in caplog.records if one.message == words}


def cancel_beside() -> None:
    """As a library does it that cancels a task by itself: no scope of ours is cancelled."""
    for task in tasks():
        if any(name in task.get_name() for name in BESIDE):
            task.cancel()


async def test_a_task_that_is_cancelled_from_within_is_told_and_the_gateway_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    call = Reply(calls=[("c1", "books__echo", '{"text":"hello"}')])
    said: list[object] = []
    async with (
        scripted_server([Reply("One."), Reply("Two."), call, Reply("Three.")]) as model,
        serving(FakeMcp()) as books,
    ):
        rest = f'[mcp.servers.books]\nurl = "{books.url}"\ntimeout_s = 60\n{CHANNEL}'
        setup = Setup(model.url, tools=("calc", "mcp:books"), rest=rest)
        async with running(setup, tmp_path) as site:
            for text in ("Hello.", "Hello?", "Say hello."):
                said.append((await post_chat(site.url, text)).json["response"])
                cancel_beside()
            said.append(site.rooms.channels.statuses()[0].state != "refused")

    assert said == ["One.", "Two.", "Three.", True]
    assert [call.arguments for call in books.calls] == [{"text": "hello"}]
    assert told(caplog) >= {"mcp:books", "part", "files", "sweep", "index", "idle workers"}


async def test_calls_are_answered_whichever_of_their_tasks_is_cancelled(tmp_path: Path) -> None:
    gate = anyio.Event()

    def cancel_workers() -> None:
        for task in tasks():
            if task.get_name() == "rpc worker":
                task.cancel()

    async with (
        scripted_server([Reply("One."), Reply("Two."), Reply(gate=gate), Reply("Three.")]) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url) as client,
        anyio.create_task_group() as group,
    ):
        refused: list[str] = []

        async def try_a_provider() -> None:
            error = await client.refused("provider.test", provider="fake")
            refused.append(error.data["type"])

        said = [(await client.ask("Hello."))["response"]]
        cancel_workers()  # they are idle
        said.append((await client.ask("Hello?"))["response"])
        group.start_soon(try_a_provider)
        await model.wait_for(3)
        cancel_workers()  # one of them is at work
        said.append((await client.ask("And now?"))["response"])
        gate.set()

    assert said == ["One.", "Two.", "Three."]
    assert refused == ["internal_error"]


async def test_a_gateway_that_ends_by_itself_says_so_and_fails(tmp_path: Path) -> None:
    path = await Setup("http://127.0.0.1:9/v1").written(tmp_path)

    config = await to_thread.run_sync(
        lambda: load(path, environment={}, home=tmp_path, cwd=tmp_path, known=known_names())
    )

    def ready(told: Running) -> None:
        (serving_task,) = [one for one in tasks() if "WebServer.serve" in one.get_name()]
        serving_task.cancel()

    with anyio.fail_after(60), pytest.raises(EndedByItself, match="ended without a stop signal"):
        await run(config, version=VERSION, process=ProcessContext(Log(StringIO())), ready=ready)
