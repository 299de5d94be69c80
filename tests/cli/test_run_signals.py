"""`exogate run` ends when it is told to, and only then, whatever its streams are connected to.

Where the terminal or Python's own start matters, it is a process from its first instruction on.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from gateway.store.opening import read_owner
from tests.fakes.commands import Forked, commands
from tests.fakes.compiled import compiled
from tests.fakes.gateway import ROOT, START_S
from tests.forms import is_long

RUN = "from gateway.launcher import main; main()"
# As from a shell, whatever started the tests.
HEEDING = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
# The process leads a session of its own, whose terminal is its stdin.
IN_TERMINAL = (
    f"{HEEDING}; import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    f"{{first}}; {RUN}"
)
CONFIG = """
[gateway]
port = 0
data_dir = "{folder}/data"
drain_s = 2
[agent]
id = "demo"
provider = "demo"
model = "demo"
tools = ["time"]
[[plugins]]
name = "time"
path = "bundled:time"
capabilities = ["host_function:clock"]
[observability]
log_level = "debug"
log_format = "console"
"""


class Site:
    """A gateway as a process; whoever asks it is another one."""

    def __init__(self, process: "Forked | subprocess.Popen[bytes]", config: Path) -> None:
        self.process, self._config = process, config

    def ready(self) -> None:
        data = self._config.parent / "data"
        until(lambda: self.process.poll() is not None or has_address(data))
        assert self.process.poll() is None
        self.answers()

    def answers(self) -> None:
        """A whole turn, by a client."""
        asked = ("--json", "--config", str(self._config), "chat", "-m", "hi", "--peer", "p")
        done = commands().run(asked, env=environment(self._config))
        assert done.code == 0, done.err
        assert "response" in done.json

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        return self.process.wait(START_S)


def has_address(data: Path) -> bool:
    owner = read_owner(data)
    return owner is not None and owner.url is not None


def until(is_so: Callable[[], bool]) -> None:
    """Another process has no event for us."""
    between = threading.Event()
    for _ in range(int(START_S / 0.05)):
        if is_so():
            return
        between.wait(0.05)
    raise AssertionError("it did not come to that in time")


def environment(config: Path) -> dict[str, str]:
    return {"PATH": os.defpath, "HOME": str(config.parent)}


def written(folder: Path) -> Path:
    """Its plugin is compiled."""
    path = folder / "config.toml"
    path.write_text(CONFIG.format(folder=folder), encoding="utf-8")
    compiled(folder / "data", "time")
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path)


@contextmanager
def started(
    config: Path,
    code: str = "",
    *,
    stdin: int | None = None,
    out: int | None = None,
    err: int | None = None,
) -> Iterator[Site]:
    """By Python with this code, if there is any; a stream that is not given leads nowhere."""
    words = ["--config", str(config), "run"]
    with Path(os.devnull).open("r+b") as nothing:
        files = [nothing.fileno() if one is None else one for one in (stdin, out, err)]
        process = beginning(code, words, config, files)
        try:
            yield Site(process, config)
        finally:
            process.kill()
            process.wait()


def beginning(
    code: str, words: list[str], config: Path, files: list[int]
) -> "Forked | subprocess.Popen[bytes]":
    if not code:
        return commands().begin(words, environment(config), files)
    (stdin, out, err), real = files, [sys.executable, "-c", code, *words]
    return subprocess.Popen(
        real, cwd=ROOT, env=environment(config), stdin=stdin, stdout=out, stderr=err
    )


# --- SIGHUP ------------------------------------------------------------------------------------


def test_a_hangup_without_a_terminal_reloads(config: Path) -> None:
    log = config.parent / "log.txt"
    alone = f"{HEEDING}; import os; os.setsid(); {RUN}"
    with log.open("wb") as err, started(config, alone, err=err.fileno()) as site:
        site.ready()
        for _ in range(3):
            site.tell(signal.SIGHUP)
        site.answers()
        site.tell(signal.SIGTERM)
        code = site.code()

    assert code == 0
    assert "config_unchanged" in log.read_text(encoding="utf-8")  # signals may come as one


@contextmanager
def in_terminal(config: Path, first: str) -> Iterator[tuple[Site, Callable[[], None]]]:
    """And what closes the terminal."""
    near, far = os.openpty()

    def close() -> None:
        for end in (far, near):
            with suppress(OSError):
                os.close(end)

    code = IN_TERMINAL.format(first=first)
    try:
        with started(config, code, stdin=far, out=far, err=far) as site:
            yield site, close
    finally:
        close()


def test_a_terminal_that_closes_stops_it_in_good_order(config: Path) -> None:
    with in_terminal(config, "0") as (site, close):
        site.ready()
        close()
        code = site.code()

    assert code == 0


def test_a_terminal_that_closes_does_not_stop_what_runs_under_nohup(config: Path) -> None:
    nohup = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    with in_terminal(config, nohup) as (site, close):
        site.ready()
        close()
        site.tell(signal.SIGHUP)
        site.answers()
        site.tell(signal.SIGTERM)
        code = site.code()

    assert code == 0


# --- stdout and stderr -------------------------------------------------------------------------


@contextmanager
def stream(state: str) -> Iterator[int]:
    """What stdout and stderr are."""
    with ExitStack() as stack:
        if state == "no room":
            yield stack.enter_context(Path("/dev/full").open("wb")).fileno()
            return
        out, into = os.pipe()
        stack.callback(os.close, into)
        if state == "nobody is left":
            os.close(out)
        else:
            stack.callback(os.close, out)
            fill(into)
            os.set_blocking(into, state == "full pipe")
        yield into


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)


STATES = ["full pipe", "full pipe that never blocks", "no room", "nobody is left"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize("state", STATES)
def test_it_serves_and_stops_whatever_stdout_and_stderr_are(config: Path, state: str) -> None:
    with stream(state) as given, started(config, out=given, err=given) as site:
        site.ready()
        site.tell(signal.SIGTERM)
        code = site.code()

    assert code == 0


def test_streams_that_nobody_reads_hold_up_the_end_once_and_shortly(config: Path) -> None:
    took_s = []
    with stream("full pipe") as full, Path(os.devnull).open("wb") as nothing:
        for given in (nothing.fileno(), full):
            with started(config, out=given, err=given) as site:
                site.ready()
                begun = time.monotonic()
                site.tell(signal.SIGTERM)
                assert site.code() == 0
                took_s.append(time.monotonic() - begun)

    usual_s, held_s = took_s
    assert held_s < 3 * usual_s + 1.5  # far from two seconds, one for each of them


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("closed", [(0, 1, 2), (1,), (2,)][: None if is_long() else 1])
def test_it_serves_and_stops_without_streams_and_no_file_takes_their_place(
    config: Path, closed: tuple[int, ...]
) -> None:
    # Python itself has to find them closed.
    launcher = (
        f"import os, sys; [os.close(number) for number in {closed}];"
        f"os.execv(sys.executable, [sys.executable, '-c', {RUN!r}, *sys.argv[1:]])"
    )
    with started(config, launcher) as site:
        site.ready()
        files = [Path(f"/proc/{site.process.pid}/fd/{number}").readlink() for number in range(3)]
        site.tell(signal.SIGTERM)
        code = site.code()

    assert set(map(str, files)) == {"/dev/null"}
    assert code == 0


def test_a_start_that_is_refused_ends_although_nobody_reads_why(config: Path) -> None:
    config.write_text("[gateway]\nprot = 1\n", encoding="utf-8")

    with stream("full pipe") as given, started(config, out=given, err=given) as site:
        code = site.code()

    assert code == 78


def test_what_it_says_is_whole_and_in_order_when_it_is_read_late(config: Path) -> None:
    out, into = os.pipe()
    with started(config, out=into, err=into) as site, os.fdopen(out, "rb") as reader:
        os.close(into)
        site.ready()
        site.tell(signal.SIGTERM)
        code = site.code()
        said = reader.read().decode()

    lines = said.splitlines()
    assert code == 0
    assert any("Ctrl+C" in line for line in lines)
    assert any("draining" in line for line in lines)
