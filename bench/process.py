"""Starts and ends the processes of a benchmark, and reads their CPU time and memory."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

END_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Started:
    """A process that has printed its port."""

    pid: int
    port: int


@contextmanager
def started(command: Sequence[str], *, find_port: Callable[[str], int | None]) -> Iterator[Started]:
    """Runs a process until the context ends. Raises RuntimeError if it ends without printing its port."""
    with TemporaryFile("w+") as complaints:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True)
        try:
            port = _port(process, find_port)
            if port is None:
                complaints.seek(0)
                raise RuntimeError(f"{command} did not say where it listens: {complaints.read()}")
            yield Started(process.pid, port)
        finally:
            _end(process)


def _port(process: subprocess.Popen[str], find_port: Callable[[str], int | None]) -> int | None:
    assert process.stdout is not None
    for line in process.stdout:
        port = find_port(line)
        if port is not None:
            return port
    return None


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def tree(pid: int) -> list[int]:
    """Returns a process and its live descendants."""
    pids = [pid]
    for known in pids:  # grows during the iteration
        for children in Path(f"/proc/{known}/task").glob("*/children"):
            pids += [int(child) for child in children.read_text().split()]
    return pids


def cpu_ns(pids: Sequence[int]) -> int:
    """Returns the CPU time of these processes, finished threads included."""
    # Linux' clock id of another process: the inverted pid, shifted, and 2 for the scheduler's clock.
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids)


def rss_kb(pid: int) -> int:
    """Returns the memory of a process and its children."""
    total = 0
    for each in tree(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total


def other_cores(seconds: float = 0.3) -> float:
    """Returns the number of busy cores; noise if measured while no process of the benchmark works."""
    before, began = _busy_ticks(), time.perf_counter()
    time.sleep(seconds)
    return (_busy_ticks() - before) / 100 / (time.perf_counter() - began)


def _busy_ticks() -> int:
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    values = [int(field) for field in fields]
    return sum(values[:8]) - values[3] - values[4]
