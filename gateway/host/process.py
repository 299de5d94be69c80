"""The process: its signals, its limit of open files, and its garbage collection."""

import contextlib
import gc
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path

LISTENS = "0A"  # the state of a socket in /proc/net/tcp
# New objects before a collection. Python's default of 700 costs a busy gateway a tenth of its time, and so does
# 10,000 with 256 running turns: each collection visits all live objects and finds no garbage.
YOUNG = 50_000


def has_terminal() -> bool:
    """True if the process has a terminal, whose closing sends SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def hold_hangup() -> None:
    """Keeps SIGHUP from ending the process before the gateway handles it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and not has_terminal():
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def allow_open_files() -> None:
    """Raises the limit of open files to what the system allows without privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listener_on(port: int) -> int | None:
    """Returns the process that listens on a port, if this user may see it. Linux only."""
    inodes = set[str]()
    for table in ("/proc/net/tcp", "/proc/net/tcp6") if port else ():
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(table).read_text(encoding="ascii").splitlines()]
            inodes |= {f"socket:[{row[9]}]" for row in rows if _listens(row, port)}
    for folder in Path("/proc").glob("[0-9]*/fd") if inodes else ():
        with contextlib.suppress(OSError):
            if any(str(one.readlink()) in inodes for one in folder.iterdir()):
                return int(folder.parent.name)
    return None


def _listens(row: Sequence[str], port: int) -> bool:
    return row[3] == LISTENS and int(row[1].rpartition(":")[2], 16) == port


def settle() -> None:
    """Excludes all present objects from garbage collection, because they live until the end. There is no last
    collection before: it would take a tenth of the start and find almost nothing."""
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)
