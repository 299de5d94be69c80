"""Processes of a benchmark: started, asked for their CPU time and memory, and ended."""

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
    """A process that said where it listens."""

    pid: int
    port: int


@contextmanager
def started(command: Sequence[str], *, find_port: Callable[[str], int | None]) -> Iterator[Started]:
    """Runs it until the context is left. Raises RuntimeError if it ends without naming its port."""
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
    """A process and all that it started and that still live."""
    pids = [pid]
    for known in pids:  # grows while it is walked
        for children in Path(f"/proc/{known}/task").glob("*/children"):
            pids += [int(child) for child in children.read_text().split()]
    return pids


def cpu_ns(pids: Sequence[int]) -> int:
    """CPU time that these processes have used so far, finished threads included."""
    # Linux' clock of another process: the inverted id, shifted, and 2 for the scheduler's clock.
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids)


def rss_kb(pid: int) -> int:
    """Memory that a process and its children hold."""
    total = 0
    for each in tree(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total


def other_cores(seconds: float = 0.3) -> float:
    """How many cores are busy now: measured while none of our processes works, this is noise."""
    before, began = _busy_ticks(), time.perf_counter()
    time.sleep(seconds)
    return (_busy_ticks() - before) / 100 / (time.perf_counter() - began)


def _busy_ticks() -> int:
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    values = [int(field) for field in fields]
    return sum(values[:8]) - values[3] - values[4]
