"""Runs the accepting program, and looks at what is left after it."""

import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio

from gateway.domain.ports import Stores
from gateway.store.opening import open_store
from tests.fakes.clock import FakeClock

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "tests.store.accepting")


def embedded(data_dir: Path, *, accept_loss: bool = False) -> AbstractAsyncContextManager[Stores]:
    return open_store("embedded", data_dir, clock=FakeClock(), accept_loss=accept_loss)


def start(*arguments: str, under: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*under, *PROGRAM, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


async def accepted(data_dir: Path, *, accept_loss: bool = False) -> list[str]:
    """Ids of all accepted and unfinished runs, in order."""
    with anyio.fail_after(10):
        async with embedded(data_dir, accept_loss=accept_loss) as stores:
            return [str(entry.new.run_id) for entry in await stores.inbox.unfinished()]
