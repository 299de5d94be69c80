"""Several gateways over one SurrealDB server, with or without NATS: commands of their own, as users start them."""

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from tests.fakes.client import Client, connected
from tests.fakes.gateway import NO_VARIABLES, Command, Setup, command
from tests.fakes.model_server import Script, scripted_server
from tests.fakes.nats import NatsServer
from tests.fakes.surreal import PASSWORD, USER, SurrealDatabase

LEASE_S, POLL_S = 3.0, 0.5
TAKE_OVER_S = LEASE_S * 4 / 3 + 1
SHARED_S = LEASE_S * 2 / 3 + 0.5  # until a new gateway has its share
WAIT_S = 20.0


def shared(
    store: SurrealDatabase, nats: NatsServer | None, way: str | None = None, **keys: object
) -> str:
    """The sections of a gateway that shares the store, which it may reach by a `way` of its own."""
    settings = {"lease_s": LEASE_S, "poll_s": POLL_S, "partitions": 8, **keys}
    url = "" if nats is None else f'url = "{nats.url}"'
    told = "\n".join(f"{name} = {value}" for name, value in settings.items())
    return f"""
[store]
url = "{way or store.url}"
namespace = "{store.namespace}"
database = "{store.database}"
username = "{USER}"
password = "{PASSWORD}"
[cluster]
{url}
{told}
"""


@dataclass
class Fleet:
    folder: Path
    model_url: str
    store: SurrealDatabase
    nats: NatsServer | None
    stack: AsyncExitStack
    more: dict[str, Any] = field(default_factory=dict)  # as in Setup
    ways: Mapping[str, str] = field(default_factory=dict)  # of some to the store
    own: Mapping[str, str] = field(default_factory=dict)  # what only their configuration says
    nodes: dict[str, Command] = field(default_factory=dict)

    async def start(self, name: str, **keys: object) -> Command:
        """Again, if it has run before: with the same data directory."""
        way = self.ways.get(name)
        rest = shared(self.store, self.nats, way, **{"node": f'"{name}"', **keys})
        more = {**self.more, "rest": rest + self.more.get("rest", "") + self.own.get(name, "")}
        place = self.folder / name
        await anyio.Path(place).mkdir(exist_ok=True)
        config = await Setup(self.model_url, **more).written(place)
        started = self.nodes[name] = await self.stack.enter_async_context(command(config))
        return started

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[Client]:
        async with connected(self.nodes[name].url, wait_s=WAIT_S) as client:
            yield client

    def stop(self, name: str) -> None:
        self.nodes[name].tell(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.nodes[name].tell(signal.SIGCONT)


@asynccontextmanager
async def fleet(
    folder: Path,
    script: Script,
    store: SurrealDatabase,
    nats: NatsServer | None,
    *names: str,
    ways: Mapping[str, str] = NO_VARIABLES,
    own: Mapping[str, str] = NO_VARIABLES,
    **more: Any,
) -> AsyncIterator[Fleet]:
    """These gateways, each ready."""
    async with scripted_server(script) as model, AsyncExitStack() as stack:
        made = Fleet(folder, model.url, store, nats, stack, more, ways, own)
        for name in names:
            await made.start(name)
        yield made
