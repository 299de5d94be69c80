"""The data directory: private, locked for one process, with the store that the configuration asks
for in it."""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from anyio import CancelScope, to_thread

from gateway.domain.errors import DataDirInUse, StoreRefused
from gateway.domain.ports import Clock, Stores
from gateway.store.faults import file_faults
from gateway.store.sqlite import open_sqlite

LOCK = "lock"
_TRIES, _BETWEEN_S = 4, 0.05  # a command that asks for the owner holds the lock for a moment


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds the data directory. `url` is set once its gateway listens."""

    pid: int
    url: str | None = None


def make_private(path: Path) -> None:
    """Raises StoreUnavailable if the directory cannot be made or entered."""
    with file_faults(str(path)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Locks the directory until the end. Raises DataDirInUse with the owner."""
    path = data_dir / LOCK
    with file_faults(str(path)):
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _taken(lock):
            owner = _parsed(path)
            where = f" ({owner.url})" if owner and owner.url else ""
            who = f"process {owner.pid}{where}" if owner else "another process"
            raise DataDirInUse(str(data_dir), who)
        _write_owner(lock, Owner(os.getpid()), str(path))
        yield
    finally:
        os.close(lock)


def _taken(lock: int) -> bool:
    for attempt in range(_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < _TRIES:
                time.sleep(_BETWEEN_S)
        else:
            return True
    return False


def _write_owner(lock: int, owner: Owner, where: str) -> None:
    text = json.dumps({"pid": owner.pid, "url": owner.url}).encode()
    with file_faults(where):
        os.pwrite(lock, text.ljust(os.fstat(lock).st_size), 0)
        os.ftruncate(lock, len(text))


def _parsed(path: Path) -> Owner | None:
    try:
        said = json.loads(path.read_bytes())
        return Owner(int(said["pid"]), said["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_owner(data_dir: Path) -> Owner | None:
    """The process that holds the directory now; None if it is not locked."""
    path = data_dir / LOCK
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _parsed(path)
    else:
        return None
    finally:
        os.close(lock)


def write_address(data_dir: Path, url: str) -> None:
    """Only for the process that holds the lock."""
    path = data_dir / LOCK
    with file_faults(str(path)):
        lock = os.open(path, os.O_RDWR)
    try:
        _write_owner(lock, Owner(os.getpid(), url), str(path))
    finally:
        os.close(lock)


async def note_owner(data_dir: Path, url: str) -> None:
    """Writes the address of our gateway beside our pid, for the command line to find."""
    await to_thread.run_sync(write_address, data_dir, url)


# --- the store in it -----------------------------------------------------------------------------
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
        await to_thread.run_sync(make_private, folder)
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

        def take() -> None:
            make_private(data_dir)
            held.enter_context(locked(data_dir))

        await to_thread.run_sync(take)
        try:
            yield
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(held.close)
