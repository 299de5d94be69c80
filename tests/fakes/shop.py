"""A shop on the network, and a plugin `pay` whose tool pays there: a side effect that can be counted."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio import to_thread

from tests.fakes.model_server import Asked, ModelServer, Reply, Script, scripted_server
from tests.fakes.wat import kept, posting

PAYING = Reply("", calls=[("c", "pay", "{}")])
PLAIN = {"content-type": "text/plain"}


@dataclass(frozen=True)
class Shop:
    """`rest` is the plugin in a configuration; the agent lists it as `pay`."""

    books: ModelServer
    rest: str

    @property
    def paid(self) -> int:
        return len(self.books.requests)


def stalling(asked: Asked) -> Reply:
    """The first payment is written down, and never answered."""
    return Reply(body=b"paid", headers=PLAIN, gate=anyio.Event() if asked.number == 1 else None)


@asynccontextmanager
async def shop(
    folder: Path, annotations: Mapping[str, bool], script: Script = stalling
) -> AsyncIterator[Shop]:
    async with scripted_server(script) as books:
        site = books.url.removesuffix("/v1")
        wasm = await to_thread.run_sync(lambda: posting(f"{site}/pay", **annotations))
        path = await to_thread.run_sync(kept, folder, "pay", wasm)
        rest = f"""
[[plugins]]
name = "pay"
path = "{path}"
capabilities = ["http:{site}"]
"""
        yield Shop(books, rest)
