"""Checks with strace that no accept is acknowledged before its fsync.

    python -m bench.fsync [--messages 100]

One client sends successive messages to the gateway under strace. In the trace, an fsync of the
write-ahead log must stand between the read of a message and the answer to its `chat.send`.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import targets
from bench.process import Started
from bench.targets import ModelPlan, load

CALLS = "trace=openat,pwrite64,fsync,fdatasync,read,recvfrom,write,writev,sendto,sendmsg"
SHOWN = 12  # lines of the trace around the first accept
ATTACHED_WITHIN_S = 30


@dataclass(slots=True)
class Account:
    """The counts of a trace, read line by line."""

    accepts: int = 0  # answers to chat.send
    unsynced: int = 0  # answers without an fsync after the read of their message
    syncs: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)
    _is_synced: bool = False

    def read_line(self, line: str) -> None:
        """Reads one line. A call that another thread interrupts counts when it resumes."""
        if _is_sync(line):
            self.syncs[_synced_file(line)] += 1
            self._is_synced = True
        elif "chat.send" in line or _reads_frame(line):
            self._is_synced = False
        elif "message_id" in line and '\\"result\\"' in line:
            self.accepts += 1
            self.unsynced += not self._is_synced
        else:
            return
        if len(self.first) < SHOWN:
            self.first.append(line.rstrip()[:150])

    @property
    def holds(self) -> bool:
        return self.accepts > 0 and self.unsynced == 0


def _is_sync(line: str) -> bool:
    return re.search(r"\bf(data)?sync\b.*= 0$", line.rstrip()) is not None


def _synced_file(line: str) -> str:
    found = re.search(r"sync\(\d+<([^>]*)>", line)
    return Path(found[1]).name if found else "(resumed)"


def _reads_frame(line: str) -> bool:
    """True for a masked text frame from a client, whose first byte is 0x81."""
    return re.search(r'\b(read|recvfrom)(\(| resumed).*"\\(x81|201)', line) is not None


def account(lines: Iterable[str]) -> Account:
    told = Account()
    for line in lines:
        told.read_line(line)
    return told


@contextmanager
def _traced(server: Started, trace: Path) -> Iterator[None]:
    command = ["strace", "-f", "-y", "-s", "96", "-e", CALLS, "-o", str(trace)]
    tracer = subprocess.Popen(
        [*command, "-p", str(server.pid)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert tracer.stderr is not None
    try:
        tracer.stderr.readline()  # "attached"
        yield
    finally:
        tracer.terminate()
        tracer.communicate(timeout=ATTACHED_WITHIN_S)


def trace_gateway(messages: int, home: Path) -> Account:
    """Runs the gateway under strace while one client sends the given number of messages."""
    trace = home / "trace"
    with (
        targets.model(ModelPlan()) as model,
        targets.gateway(model.port, home / "gateway") as server,
    ):
        with _traced(server, trace):
            load(server, sessions=1, warm_up=0, messages=messages)
        return account(trace.read_text(errors="replace").splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100)
    args = parser.parse_args()
    if shutil.which("strace") is None:
        sys.exit("strace is not installed, so this cannot be shown here")
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        told = trace_gateway(args.messages, Path(home))
    print(*told.first, sep="\n")
    print(f"fsyncs: {sum(told.syncs.values())} ({dict(told.syncs)})")
    print(f"accepts acknowledged: {told.accepts}, of these before an fsync: {told.unsynced}")
    print("holds" if told.holds else "DOES NOT HOLD")
    sys.exit(0 if told.holds else 1)


if __name__ == "__main__":
    main()
