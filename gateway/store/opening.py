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
RESTORING = ".restoring"  # behind the name of a data directory: one that is being made
COPYING = "store.copying"  # a folder in it: with a store that is being copied there
_TRIES, _BETWEEN_S = 4, 0.05  # a command that asks for the owner holds the lock for a moment


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds the data directory. `url` is set once its gateway listens, `node` if it
    shares a store. `place` tells this very directory from copies of it."""

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
    """Locks the directory until the end, and gives its last owner. Raises DataDirInUse with the owner."""
    path = data_dir / LOCK
    with file_faults(str(path)):
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _taken(lock):
            owner = _parsed(path)
            where = f" ({owner.url})" if owner and owner.url else ""
            who = f"process {owner.pid}{where}" if owner else "another process"
            raise DataDirInUse(str(data_dir), who)
        last = _parsed(path)
        # The node stays until another one is noted: we may end before.
        kept = (last.node, last.place) if last else ("", "")
        _write_owner(lock, Owner(os.getpid(), None, *kept), str(path))
        yield last
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
    told = {name: one for name, one in asdict(owner).items() if one or name == "url"}
    text = json.dumps(told).encode()
    with file_faults(where):
        os.pwrite(lock, text.ljust(os.fstat(lock).st_size), 0)
        os.ftruncate(lock, len(text))


def _place(lock: Path) -> str:
    """Of a lock on this machine since it was started."""
    with contextlib.suppress(OSError):
        status, boot = lock.stat(), _BOOT.read_text(encoding="ascii")
        return f"{boot.strip()} {status.st_dev} {status.st_ino}"
    return ""


def _parsed(path: Path) -> Owner | None:
    try:
        said = json.loads(path.read_bytes())
        more = (said.get("node", ""), said.get("place", ""))
        return Owner(int(said["pid"]), said["url"], *more)
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
    _note(data_dir, url=url)


def _note(data_dir: Path, **what: Any) -> None:
    path = data_dir / LOCK
    with file_faults(str(path)):
        lock = os.open(path, os.O_RDWR)
    try:
        _write_owner(lock, replace(_parsed(path) or Owner(os.getpid()), **what), str(path))
    finally:
        os.close(lock)


async def note_owner(data_dir: Path, url: str) -> None:
    """Writes the address of our gateway beside our pid, for the command line to find."""
    await to_thread.run_sync(write_address, data_dir, url)


async def note_node(data_dir: Path, node: str) -> None:
    """Writes what our gateway is called where it shares a store: who holds the lock after us knows that
    this node is no more."""

    await to_thread.run_sync(lambda: _note(data_dir, node=node, place=_place(data_dir / LOCK)))


# --- the store in it -----------------------------------------------------------------------------
TEMPORARY = "temporary"  # the folder of a store that keeps nothing; a kill leaves it behind


@contextlib.asynccontextmanager
async def open_store(
    url: str,
    data_dir: Path,
    *,
    clock: Clock,
    accept_loss: bool = False,
    on_commit: OnCommit | None = None,
) -> AsyncIterator[Stores]:
    """Locks the directory (also for `memory`: the lock tells the command line who runs here).

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
            raise StoreRefused(f"[store] url {url!r} is not known: use 'embedded' or 'memory'")


@contextlib.asynccontextmanager
async def open_memory(clock: Clock) -> AsyncIterator[Stores]:
    """A store of its own that nobody else has and that is gone at the end."""
    folder = Path(await to_thread.run_sync(lambda: tempfile.mkdtemp(prefix="exogate-")))
    async with _open_temporary(folder, clock) as stores:
        yield stores


@contextlib.asynccontextmanager
async def _open_temporary(
    folder: Path, clock: Clock, on_commit: OnCommit | None = None
) -> AsyncIterator[Stores]:
    """The store in files that are not fsynced and go at the end."""
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
    """Nor does a copy. Raises StoreRefused."""
    if (data_dir / COPYING / FILE).exists():
        raise StoreRefused(
            f"a copy of a store to {data_dir} was begun and not finished: run `exogate store copy` again; "
            f"to start without it, remove {data_dir / COPYING}"
        )


def _require_restored(data_dir: Path) -> None:
    """A restore that was killed leaves nothing that starts. Raises StoreRefused."""
    folder = data_dir.resolve()
    building = folder.with_name(folder.name + RESTORING)
    if folder.name.endswith(RESTORING) or building.is_dir():
        raise StoreRefused(
            f"a restore into {str(folder).removesuffix(RESTORING)} was not finished: run `exogate backup "
            f"restore` again; to start without what it brings, remove the folder that ends in {RESTORING}"
        )


@contextlib.asynccontextmanager
async def own_data_dir(data_dir: Path) -> AsyncIterator[str | None]:
    """Locks the directory, and gives the node of the process that held it last: it has ended."""
    with contextlib.ExitStack() as held:

        def take() -> str | None:
            _require_restored(data_dir)
            make_private(data_dir)
            last = held.enter_context(locked(data_dir))
            is_ours = last is not None and last.place == _place(data_dir / LOCK)
            return last.node or None if last and is_ours else None

        ended = await to_thread.run_sync(take)
        try:
            yield ended
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(held.close)
