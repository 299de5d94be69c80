"""The sandbox with a configuration's plugins in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from anyio import to_thread

from gateway.sandbox.compiling import Compiling
from gateway.sandbox.hosting import Means
from gateway.sandbox.plugins import Sandbox
from gateway.sandbox.pool import open_pool


@asynccontextmanager
async def open_sandbox(
    cache: Path, means: Means, *, workers: int = 1, idle_s: float = 300.0
) -> AsyncIterator[Sandbox]:
    """`cache` is made if it is not there; nobody else may write to it."""
    compiling = await to_thread.run_sync(_in_private, cache, means.clock.now())
    async with open_pool(cache, workers=workers, idle_s=idle_s, clock=means.clock) as pool:
        yield Sandbox(pool, compiling, means)


def _in_private(cache: Path, now: datetime) -> Compiling:
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    cache.chmod(0o700)
    compiling = Compiling(cache)
    compiling.tidy(now)
    return compiling
