"""The benchmark of `exogate store copy`: copies a store of 100,000 messages, 10,000 facts, a ledger and an audit chain to a
SurrealDB server and back.

    python -m bench.copying [--quick] [--json FILE]

Needs the server (EXOGATE_SURREAL_BIN). The counts and digests of all tables must be equal on both sides.
"""

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from bench import targets
from bench.cluster import BASE, PLAIN, STORE
from bench.command import run
from bench.conversations import BEGIN, Said
from bench.ledger import measure_metering
from bench.marks import Figure, marked
from bench.memory import fill
from bench.recall import key_of, say
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Stores
from gateway.host.clock import SystemClock
from gateway.store.opening import open_store
from tests.fakes.surreal import running_surreal, surreal_binary

LONGEST_S = 300.0
TEXT = (
    "It rained in {} for {} days, and {} asked me whether the boat would still leave on Thursday."
)


@dataclass(frozen=True, slots=True)
class Sizes:
    sessions: int = 100
    messages: int = 1_000  # of each session
    facts: int = 10_000
    calls: int = 2_000  # a round
    deeds: int = 1_000


QUICK = Sizes(sessions=20)
MICRO = Sizes(sessions=2, messages=4, facts=10, calls=1, deeds=2)


async def _fill(stores: Stores, sizes: Sizes) -> None:
    async with anyio.create_task_group() as group:
        for number in range(sizes.sessions):
            turns = [
                Said("user" if one % 2 else "assistant", TEXT.format(number, one, one % 7), at)
                for one in range(sizes.messages)
                for at in [BEGIN + timedelta(minutes=one)]
            ]
            group.start_soon(say, stores, key_of(number), turns)
    await fill(stores.facts, 0, sizes.facts)
    await measure_metering(stores, sizes.calls)
    for number in range(sizes.deeds):
        await stores.audit.append(AuditEvent(BEGIN, "budget.refused", "bench", {"number": number}))


async def _filled(data_dir: Path, sizes: Sizes) -> None:
    async with open_store("embedded", data_dir, clock=SystemClock()) as stores:
        await _fill(stores, sizes)


def _copied(config: Path, source: str, target: str) -> tuple[float, list[Mapping[str, Any]]]:
    """Returns the seconds of a copy and its report on each table."""
    command = [*targets.exogate(), "--config", str(config), "--json", "store", "copy"]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--from", source, "--to", target], stdout=subprocess.PIPE, check=True
    )
    return time.perf_counter() - began, json.loads(done.stdout)["tables"]


def _config(home: Path, url: str) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    file, data = home / "bench.toml", json.dumps(str(home / "data"))
    store = STORE.format(url=url, database="copy")
    file.write_text(PLAIN.format(data_dir=data, model_port=1, token="x" * 20) + store)
    return file


def measure(sizes: Sizes, home: Path) -> Iterator[Figure]:
    with running_surreal(surreal_binary(), f"surrealkv://{home / 'surreal'}?sync=every") as server:
        here, there = _config(home / "here", server.url), _config(home / "there", server.url)
        began = time.perf_counter()
        asyncio.run(_filled(home / "here" / "data", sizes))
        filled_s = time.perf_counter() - began
        out_s, out = _copied(here, "embedded", server.url)
        back_s, back = _copied(there, server.url, "embedded")
    if out != back:
        raise RuntimeError(f"the tables came back otherwise: {out} and {back}")
    rows = sum(one["rows"] for one in out)
    yield Figure("rows", "", rows)
    yield Figure("filling the store", "s", filled_s)
    yield marked(Figure("copied to SurrealDB", "s", out_s), LONGEST_S)
    yield marked(Figure("copied back", "s", back_s), LONGEST_S)
    yield Figure("rows a second, to SurrealDB", "rows/s", rows / out_s)
    yield Figure("rows a second, back", "rows/s", rows / back_s)


if __name__ == "__main__":
    run(__doc__, BASE, lambda quick, home: measure(QUICK if quick else Sizes(), home))
