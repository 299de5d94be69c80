"""The common parts of the plugin benchmark's scenarios: an open sandbox, clocks and sizes."""

import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from bench import ways
from bench.process import rss_kb, tree
from gateway.sandbox.plugins import Sandbox, open_sandbox

Call = Callable[[], Coroutine[Any, Any, object]]
KB, MB = 1_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements."""

    rounds: int = 5
    calls: int = 1_000
    seconds: float = 2.0
    starts: int = 5
    many: int = 10_000
    spins: int = 20
    large: int = 12 * MB
    kills: int = 5


QUICK = Sizes(
    rounds=2, calls=300, seconds=0.7, starts=2, many=2_000, spins=8, large=4 * MB, kills=2
)
MICRO = Sizes(rounds=1, calls=10, seconds=0.05, starts=1, many=20, spins=2, large=20_000, kills=1)


@dataclass(frozen=True, slots=True)
class Bench:
    """An open sandbox and the folder of its guests."""

    sandbox: Sandbox
    home: Path

    async def gated(self, name: str, wasm: bytes | Path, **options: object) -> ways.Gated:
        return await ways.gated(self.sandbox, ways.plugin(name, wasm, self.home, **options))  # type: ignore[arg-type]  # its options


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Bench]:
    """Opens a sandbox with the compiled modules of earlier ones."""
    async with open_sandbox(home / "cache", ways.means()) as sandbox:
        yield Bench(sandbox, home)


def quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / median(values)


async def timed(call: Call, times: int) -> list[float]:
    """Returns the milliseconds of each call."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        took.append((time.perf_counter() - began) * 1000)
    return took


async def at_once(count: int, call: Call) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(call)


def worker() -> int:
    """Returns the process id of the single worker."""
    for pid in tree(os.getpid())[1:]:
        with suppress(OSError):  # the process has ended
            if b"gateway.sandbox.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise RuntimeError("there is no worker")


def rss_mb(pid: int) -> float:
    """Returns the RSS of a process without its children."""
    return (rss_kb(pid) - sum(rss_kb(child) for child in tree(pid)[1:])) / 1024


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Collects the gaps, in milliseconds, of a loop that should tick every millisecond."""
    gaps = [0.0]

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await anyio.sleep(0.001)
            now = time.perf_counter()
            gaps.append((now - last) * 1000)
            last = now

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        yield gaps
        group.cancel_scope.cancel()
