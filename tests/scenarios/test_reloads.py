"""Reloads under load, good and bad ones mixed: nothing is lost, doubled, or dropped, and nothing is left behind."""

import gc
import random
import resource
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import anyio
import pytest
from anyio import to_thread

from gateway.app.reloading import ReadyGeneration
from gateway.channels.delivery import PlatformClient
from gateway.sessions.worker import RunWorker
from gateway.tools import ToolGate
from gateway.web.rpc import Registry
from tests.fakes.client import Client, connected, http
from tests.fakes.gateway import Setup, Site, running
from tests.fakes.mcp_server import FakeMcp, serving
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.forms import is_long, keep
from tests.scenarios.test_channel_telegram import Telegram

pytestmark = pytest.mark.shared_store(only_long=True)

RELOADS = 777 if is_long() else 16
RATE = 20.0  # messages a second
PAUSE_S = 0.15  # between reloads
CALM_S = 20.0 if is_long() else 1.0  # before the first one
SAYS_EVERY = 8  # reloads; the platform wants a message a second in a chat at most
SOCKETS = 10
MODELS = ("one", "two", "three")


def script(asked: Asked) -> Reply:
    """Every fourth message asks the tool of the MCP server first."""
    if asked.last_text.startswith("tool:"):
        call = f'{{"text":"{asked.last_text.removeprefix("tool:")}"}}'
        return Reply(calls=[("c1", "books__echo", call)])
    return Reply(f"answer to {asked.last_text}")


@dataclass
class Load:
    """Clients who write at a steady pace, and how long each waited for the end of its run."""

    clients: list[Client]
    seconds: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    is_over: bool = False

    async def run(self) -> None:
        began = monotonic()
        async with anyio.create_task_group() as group:
            while not self.is_over:
                group.start_soon(self._one, self.sent)
                self.sent += 1
                await anyio.sleep(max(0.0, began + self.sent / RATE - monotonic()))

    async def ended(self, client: Client) -> None:
        while sum(self.answers.values()) < self.sent:
            await client.call("ping")

    async def _one(self, number: int) -> None:
        client, began = self.clients[number % len(self.clients)], monotonic()
        text = f"tool:{number}" if number % 4 == 0 else f"{number}"
        end = await client.ask(text, peer=f"p{number % SOCKETS}", idempotency_key=f"k{number}")
        self.seconds.append(monotonic() - began)
        self.answers[str(end.get("response", end))] += 1


@dataclass
class Operator:
    """Changes the file at random, and asks for it to be taken up."""

    folder: Path
    client: Client
    chat: Telegram
    text: str
    random: random.Random
    bad: int = 0
    good: int = 0
    changed: int = 0
    told: Counter[bool] = field(default_factory=Counter)

    async def change(self, number: int) -> None:
        text, soul = self.text, anyio.Path(self.folder / "soul.md")
        kind = self.random.choice(("model", "limits", "soul", "agent", "channel", "same", *BAD))
        match kind:
            case "model":
                text = text.replace('model = "m"', f'model = "{self.random.choice(MODELS)}"')
            case "limits":
                text += f"\n[limits]\nmax_iterations = {10 + number % 40}\n"
            case "agent":
                text += f'\n[[agents]]\nid = "a{number}"\nprovider = "fake"\nmodel = "m"\n'
            case "soul":
                await soul.write_text(f"You are number {number}.")
            case "channel":
                text = text.replace('username = "exo_bot"', f'username = "exo_{number}"')
        for old, new in (BAD.get(kind, ("", "")),):
            text = text.replace(old, new) if old else text
        await anyio.Path(self.folder / "config.toml").write_text(text)
        told = await self.client.call("config.reload")
        status = await self.client.call("status")
        is_bad = kind in BAD
        self.bad, self.good = self.bad + is_bad, self.good + (not is_bad)
        self.changed += bool(told["changed"])
        self.told[bool(told["errors"]) == is_bad == bool(status["config"]["errors"])] += 1


BAD = {
    "syntax": ("[agent]", "[agent"),
    "provider": ('provider = "fake"', 'provider = "gone"'),
    "plugin": ("[agent]", '[[plugins]]\nname = "x"\npath = "config.toml"\n[agent]'),
}


def memory() -> float:
    """MB in use by this process, which the gateway lives in."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def kept() -> Counter[str]:
    """How many there are of what is made anew for each generation. A socket may hold its last call, and so one."""
    gc.collect()
    made = (ReadyGeneration, Registry, RunWorker, ToolGate, PlatformClient)
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, made))


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100] if seconds else 0.0


@asynccontextmanager
async def many(url: str) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        opened = [connected(url, wait_s=60) for _ in range(SOCKETS)]
        yield [await stack.enter_async_context(one) for one in opened]


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[tuple[Site, Telegram, FakeMcp]]:
    chat = Telegram(person="7", direct="7", group="-100", listed=True)
    async with (
        chat.open(),
        serving(FakeMcp(is_legacy=True)) as books,
        scripted_server(script) as model,
    ):
        rest = f'{chat.toml}\n[mcp.servers.books]\nurl = "{books.url}"\n'
        setup = Setup(model.url, tools=("mcp:books",), rest=rest, gateway="watch = false")
        async with running(setup, folder) as site:
            yield site, chat, books


async def test_under_load_nothing_is_lost_doubled_or_dropped_and_nothing_is_left_behind(
    tmp_path: Path,
) -> None:
    file = anyio.Path(tmp_path / "config.toml")
    async with (
        staged(tmp_path) as (site, chat, books),
        many(site.url) as clients,
        connected(site.url, wait_s=60) as client,
        anyio.create_task_group() as group,
    ):
        load, said = Load(clients), 0
        group.start_soon(load.run)
        operator = Operator(tmp_path, client, chat, await file.read_text(), random.Random(7))
        await anyio.sleep(CALM_S)
        calm, before = list(load.seconds), await to_thread.run_sync(memory)
        for number in range(RELOADS):
            if number % SAYS_EVERY == 0:
                await chat.say(f"platform {number}")
                said += 1
            await operator.change(number)
            await anyio.sleep(PAUSE_S)
        load.is_over = True
        with anyio.fail_after(60):
            await load.ended(client)
            await chat.sees(f"platform {SAYS_EVERY * (said - 1)}")
            while b"exogate_generations 1\n" not in (await http(f"{site.url}/metrics")).body:
                await client.call("ping")
        after, left = await to_thread.run_sync(memory), kept()
        generation = (await client.call("status"))["generation"]
        are_open = not any(one.closed.is_set() for one in clients)
        connections = {one.get("mcp-session-id") for one in books.requests} - {None}

    busy = load.seconds[len(calm) :]
    wanted = Counter(
        f"answer to {'' if number % 4 else 'echo '}{number}" for number in range(load.sent)
    )
    shown = Counter(text for text in chat.texts() if text.startswith("answer to platform"))
    report = (
        f"{RELOADS} reloads ({operator.good} good, {operator.bad} bad, {generation - 1} swaps) under "
        f"{RATE:g} messages a second: {load.sent} messages, {sum(shown.values())} of the platform\n"
        f"p99 without {p99(calm) * 1000:.0f} ms, while reloading {p99(busy) * 1000:.0f} ms\n"
        f"memory of the gateway and of the test around it {before:.1f} -> {after:.1f} MB, MCP sessions {len(connections)}"
    )
    await to_thread.run_sync(keep, "reloads", report)
    assert load.answers == wanted
    assert shown == Counter(f"answer to platform {SAYS_EVERY * number}" for number in range(said))
    assert are_open
    assert operator.told == {True: RELOADS}
    assert generation - 1 == operator.changed
    assert max(left.values()) <= SOCKETS, left
