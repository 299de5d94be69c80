"""A client that reads slowly gets everything."""

import json
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from websockets.asyncio.client import ClientConnection, connect

from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server

ANSWERS, PIECES, PIECE = 100, 10, 5_000  # 50 KB each
SMALL = 16_384  # bytes that the kernel keeps for the client, about: the gateway has to wait for it
PAUSE_S = 0.005  # between two frames; two hundred of 5 KB a second


def answer(asked: Asked) -> Reply:
    """Another text for each question, so that no piece can stand for another."""
    return Reply([f"{asked.last_text} {n} ".ljust(PIECE, "x") for n in range(PIECES)])


@asynccontextmanager
async def slow_client(url: str) -> AsyncIterator[ClientConnection]:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        await to_thread.run_sync(own.connect, (host, int(port)))
        own.setblocking(False)
        async with connect(
            f"ws://{host}:{port}/ws", sock=own, max_queue=1, compression=None, close_timeout=0.1
        ) as client:
            yield client


def frame(id_: int, method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})


class Heard:
    """What one connection was told, and whether all of it came in order."""

    def __init__(self) -> None:
        self.results: dict[int, Any] = {}
        self.events: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    @property
    def ended(self) -> int:
        return sum(events[-1]["type"] == "done" for events in self.events.values())

    def hear(self, text: str | bytes) -> None:
        told = json.loads(text)
        if "method" in told:
            self.events[told["params"]["run_id"]].append(told["params"])
        else:
            self.results[told["id"]] = told["result"]

    def require_whole(self, run_id: str, question: str) -> None:
        events = self.events[run_id]
        said = "".join(one["content"] for one in events if one["type"] == "content")

        assert [one["seq"] for one in events] == list(range(1, len(events) + 1))
        assert [one["type"] for one in events].count("done") == 1
        assert said == "".join(f"{question} {n} ".ljust(PIECE, "x") for n in range(PIECES))


@pytest.mark.parametrize("pause_s", [0.0, PAUSE_S], ids=["as fast as it can", "slowly"])
async def test_a_hundred_answers_arrive_whole_and_in_order_at_a_client_that_reads(
    tmp_path: Path, pause_s: float
) -> None:
    heard = Heard()
    async with (
        scripted_server(answer) as model,
        running(Setup(model.url), tmp_path) as site,
        slow_client(site.url) as client,
    ):
        for number in range(ANSWERS):
            question = {"content": f"question-{number}", "peer": f"p{number}"}
            await client.send(frame(number, "chat.send", **question))
        with anyio.fail_after(60):
            while heard.ended < ANSWERS:
                heard.hear(await client.recv())
                await anyio.sleep(pause_s)

    for number in range(ANSWERS):
        heard.require_whole(heard.results[number]["run_id"], f"question-{number}")


async def test_a_run_that_ended_is_told_again_whole_to_a_client_that_reads_slowly(
    tmp_path: Path,
) -> None:
    heard = Heard()
    async with (
        scripted_server(answer) as model,
        running(Setup(model.url), tmp_path) as site,
        slow_client(site.url) as client,
        slow_client(site.url) as again,
    ):
        first = Heard()
        for number in range(30):
            sent = {"content": f"question-{number}", "peer": f"p{number}"}
            await client.send(frame(number, "chat.send", **sent))
        with anyio.fail_after(60):
            while first.ended < 30:
                first.hear(await client.recv())
        runs = [first.results[number]["run_id"] for number in range(30)]
        for number, run_id in enumerate(runs):
            await again.send(frame(number, "chat.resume", run_id=run_id, after_seq=0))
        with anyio.fail_after(60):
            while len(heard.results) < 30:
                heard.hear(await again.recv())
                await anyio.sleep(PAUSE_S)

    for number, run_id in enumerate(runs):
        heard.require_whole(run_id, f"question-{number}")


async def read_all(client: ClientConnection, answers: list[Any]) -> None:
    with anyio.fail_after(60):
        for _ in range(ANSWERS):
            answers.append(json.loads(await client.recv()))
            await anyio.sleep(PAUSE_S)


async def test_a_client_that_asks_much_at_once_and_reads_slowly_gets_each_answer(
    tmp_path: Path,
) -> None:
    async with (
        scripted_server(answer) as model,
        running(Setup(model.url), tmp_path) as site,
        slow_client(site.url) as client,
    ):
        heard = Heard()
        await client.send(frame(0, "chat.send", content="question", peer="p"))
        while not heard.ended:
            heard.hear(await client.recv())
        key = {"session_key": "main:websocket:local:p"}
        answers: list[Any] = []
        async with anyio.create_task_group() as group:
            group.start_soon(read_all, client, answers)
            for number in range(ANSWERS):
                await client.send(frame(number, "chat.history", **key))

    assert sorted(one["id"] for one in answers) == list(range(ANSWERS))
    assert {len(one["result"]["messages"][1]["content"]) for one in answers} == {PIECES * PIECE}
