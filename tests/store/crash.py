"""Runs the programs that are killed, and looks at what is left after them."""

import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio

from gateway.domain.ports import Stores
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock

ROOT = Path(__file__).parents[2]
ACCEPTING = "tests.store.accepting"
KEEPING = "tests.store.keeping"


def embedded(data_dir: Path, *, accept_loss: bool = False) -> AbstractAsyncContextManager[Stores]:
    return open_store("embedded", data_dir, clock=FakeClock(), accept_loss=accept_loss)


def start(
    *arguments: str, under: tuple[str, ...] = (), program: str = ACCEPTING
) -> "subprocess.Popen[str]":
    command = [*under, sys.executable, "-m", program, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


async def accepted(data_dir: Path, *, accept_loss: bool = False) -> list[str]:
    """Ids of all accepted and unfinished runs, in order."""
    with anyio.fail_after(60):
        async with embedded(data_dir, accept_loss=accept_loss) as stores:
            return [str(entry.new.run_id) for entry in await stores.inbox.unfinished()]
