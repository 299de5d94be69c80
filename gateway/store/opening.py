"""The data directory: private, locked by one process, and holding the configured store."""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anyio import CancelScope, to_thread

from gateway.domain.errors import DataDirInUse, StoreRefused
from gateway.domain.ports import Clock, Stores
from gateway.store.faults import file_faults
from gateway.store.sqlite import FILE, open_sqlite
from gateway.store.writer import OnCommit

LOCK = "lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
RESTORING = ".restoring"  # suffix of a data directory that is being restored
COPYING = "store.copying"  # a folder in it that holds an unfinished copy of a store
_TRIES, _BETWEEN_S = 4, 0.05  # `read_owner` holds the lock for a moment


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds the data directory. `url` is set once its gateway listens, `node` if
    it shares a store. `place` distinguishes this directory from copies of it."""

    pid: int
    url: str | None = None
    node: str = ""
    place: str = ""


def make_private(path: Path) -> None:
    """Raises StoreUnavailable if the directory cannot be made or entered."""
    with file_faults(str(path)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[Owner | None]:
    """Locks the directory until the end, and yields its previous owner. Raises DataDirInUse with
    the owner."""
    path = data_dir / LOCK
    with file_faults(str(path)):
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _try_lock(lock):
            owner = _parse_owner(path)
            where = f" ({owner.url})" if owner and owner.url else ""
            who = f"process {owner.pid}{where}" if owner else "another process"
            raise DataDirInUse(str(data_dir), who)
        last = _parse_owner(path)
        # Keeps the node until another one is noted: this process may end before.
        kept = (last.node, last.place) if last else ("", "")
        _write_owner(lock, Owner(os.getpid(), None, *kept), str(path))
        yield last
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    for pause_s in (*[_BETWEEN_S] * (_TRIES - 1), 0.0):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause_s)
        else:
            return True
    return False


def _write_owner(lock: int, owner: Owner, where: str) -> None:
    facts = {name: one for name, one in asdict(owner).items() if one or name == "url"}
    text = json.dumps(facts).encode()
    with file_faults(where):
        os.pwrite(lock, text.ljust(os.fstat(lock).st_size), 0)
        os.ftruncate(lock, len(text))


def _place(lock: Path) -> str:
    """Identifies a lock file on this machine until the next boot."""
    with contextlib.suppress(OSError):
        status, boot = lock.stat(), _BOOT.read_text(encoding="ascii")
        return f"{boot.strip()} {status.st_dev} {status.st_ino}"
    return ""


def _parse_owner(path: Path) -> Owner | None:
    try:
        facts = json.loads(path.read_bytes())
        more = (facts.get("node", ""), facts.get("place", ""))
        return Owner(int(facts["pid"]), facts["url"], *more)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_owner(data_dir: Path) -> Owner | None:
    """Returns the process that holds the directory now; None if it is not locked."""
    path = data_dir / LOCK
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _parse_owner(path)
    else:
        return None
    finally:
        os.close(lock)


def write_owner(data_dir: Path, **facts: Any) -> None:
    """Adds facts to the lock. Must be called by the process that holds it."""
    path = data_dir / LOCK
    with file_faults(str(path)):
        lock = os.open(path, os.O_RDWR)
    try:
        _write_owner(lock, replace(_parse_owner(path) or Owner(os.getpid()), **facts), str(path))
    finally:
        os.close(lock)


async def note_owner(data_dir: Path, url: str) -> None:
    """Writes the address of this gateway beside its pid, for the command line."""
    await to_thread.run_sync(lambda: write_owner(data_dir, url=url))


async def note_node(data_dir: Path, node: str) -> None:
    """Writes the node of this gateway in a shared store, so that the next owner of the lock knows
    that this node has ended."""

    await to_thread.run_sync(
        lambda: write_owner(data_dir, node=node, place=_place(data_dir / LOCK))
    )


# --- the store -----------------------------------------------------------------------------------
TEMPORARY = "temporary"  # the folder of a temporary store; a killed process leaves it behind


@contextlib.asynccontextmanager
async def open_store(
    url: str,
    data_dir: Path,
    *,
    clock: Clock,
    accept_loss: bool = False,
    on_commit: OnCommit | None = None,
) -> AsyncIterator[Stores]:
    """Locks the directory (also for `memory`: the command line finds the process by its lock).

    Raises DataDirInUse, StoreRefused or StoreUnavailable, each with one sentence.
    """
    async with own_data_dir(data_dir):
        await to_thread.run_sync(_remove, data_dir / TEMPORARY)
        if url == "embedded":
            await to_thread.run_sync(_require_copied, data_dir)
            async with open_sqlite(
                data_dir, clock=clock, accept_loss=accept_loss, on_commit=on_commit
            ) as stores:
                yield stores
        elif url == "memory":
            folder = data_dir / TEMPORARY
            async with _open_temporary(folder, clock, on_commit) as stores:
                yield stores
        else:
            raise StoreRefused(f"[store] url {url!r} is unknown: use 'embedded' or 'memory'")


@contextlib.asynccontextmanager
async def open_memory(clock: Clock) -> AsyncIterator[Stores]:
    """Yields a store of its own that exists until the context ends."""
    folder = Path(await to_thread.run_sync(lambda: tempfile.mkdtemp(prefix="exogate-")))
    async with _open_temporary(folder, clock) as stores:
        yield stores


@contextlib.asynccontextmanager
async def _open_temporary(
    folder: Path, clock: Clock, on_commit: OnCommit | None = None
) -> AsyncIterator[Stores]:
    """Yields a store in files without fsync that are deleted at the end."""
    try:
        await to_thread.run_sync(make_private, folder)
        async with open_sqlite(folder, clock=clock, durable=False, on_commit=on_commit) as stores:
            yield stores
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(_remove, folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _require_copied(data_dir: Path) -> None:
    """Raises StoreRefused if a copy of a store into the directory is unfinished."""
    if (data_dir / COPYING / FILE).exists():
        raise StoreRefused(
            f"a copy of a store to {data_dir} was not finished: run `exogate store copy` again, or remove "
            f"{data_dir / COPYING} to start without it"
        )


def _require_restored(data_dir: Path) -> None:
    """Raises StoreRefused if a restore into the directory is unfinished."""
    folder = data_dir.resolve()
    building = folder.with_name(folder.name + RESTORING)
    if folder.name.endswith(RESTORING) or building.is_dir():
        raise StoreRefused(
            f"a restore into {str(folder).removesuffix(RESTORING)} was not finished: run `exogate backup "
            f"restore` again, or remove the folder that ends in {RESTORING} to start without it"
        )


@contextlib.asynccontextmanager
async def own_data_dir(data_dir: Path) -> AsyncIterator[str | None]:
    """Locks the directory, and yields the node of its previous process, which has ended."""
    with contextlib.ExitStack() as held:

        def lock() -> str | None:
            _require_restored(data_dir)
            make_private(data_dir)
            last = held.enter_context(locked(data_dir))
            is_ours = last is not None and last.place == _place(data_dir / LOCK)
            return last.node or None if last and is_ours else None

        ended = await to_thread.run_sync(lock)
        try:
            yield ended
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(held.close)
