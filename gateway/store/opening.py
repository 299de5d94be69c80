"""The store that a configuration asks for, in a data directory that is ours alone."""

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from anyio import CancelScope, to_thread

from gateway.domain.errors import StoreRefused
from gateway.domain.ports import Clock, Stores
from gateway.store import data_dir as directory
from gateway.store.data_dir import Owner, read_owner
from gateway.store.sqlite import look_over, open_sqlite

__all__ = ["Owner", "look_over", "note_owner", "open_memory", "open_store", "read_owner"]

TEMPORARY = "temporary"  # the folder of a store that keeps nothing; a kill leaves it behind


@contextlib.asynccontextmanager
async def open_store(
    url: str, data_dir: Path, *, clock: Clock, accept_loss: bool = False
) -> AsyncIterator[Stores]:
    """Locks the directory (also for `memory`: the lock tells the command line who runs here).

    Raises DataDirInUse, StoreRefused or StoreUnavailable, each with one sentence.
    """
    async with _ours_alone(data_dir):
        await to_thread.run_sync(_remove, data_dir / TEMPORARY)
        if url == "embedded":
            async with open_sqlite(data_dir, clock=clock, accept_loss=accept_loss) as stores:
                yield stores
        elif url == "memory":
            async with _open_temporary(data_dir / TEMPORARY, clock) as stores:
                yield stores
        else:
            raise StoreRefused(f"[store] url {url!r} is not known: use 'embedded' or 'memory'")


@contextlib.asynccontextmanager
async def open_memory(clock: Clock) -> AsyncIterator[Stores]:
    """A store of its own that nobody else has and that is gone at the end."""
    folder = Path(await to_thread.run_sync(lambda: tempfile.mkdtemp(prefix="exogate-")))
    async with _open_temporary(folder, clock) as stores:
        yield stores


@contextlib.asynccontextmanager
async def _open_temporary(folder: Path, clock: Clock) -> AsyncIterator[Stores]:
    """The store in files that are not fsynced and go at the end."""
    try:
        await to_thread.run_sync(directory.make_private, folder)
        async with open_sqlite(folder, clock=clock, durable=False) as stores:
            yield stores
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(_remove, folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def _ours_alone(data_dir: Path) -> AsyncIterator[None]:
    with contextlib.ExitStack() as held:
        await to_thread.run_sync(_take, held, data_dir)
        try:
            yield
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(held.close)


def _take(held: contextlib.ExitStack, data_dir: Path) -> None:
    directory.make_private(data_dir)
    held.enter_context(directory.locked(data_dir))


async def note_owner(data_dir: Path, url: str) -> None:
    """Writes the address of our gateway beside our pid, for the command line to find."""
    await to_thread.run_sync(directory.write_address, data_dir, url)
