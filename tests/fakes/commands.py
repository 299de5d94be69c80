"""Commands as processes of their own that need not import the command line again.

A process that has imported it all forks for each command: the child gets the command's words, variables,
folder and files, and ends as a command does. What a start costs and imports is tested elsewhere, with
real starts.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).parents[2]
# A command that another program types: it ends as the command does.
PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"3"], [0, 1, 2])
    command = dict(words=sys.argv[1:], env=dict(os.environ), cwd=os.getcwd())
    server.sendall(json.dumps(command).encode())
    server.shutdown(socket.SHUT_WR)
    _, code = map(int, server.makefile())
sys.exit(code if code >= 0 else 128 - code)
"""


# Gets the process of a command, which begins afterwards.
First = Callable[[int], object]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Forked:
    """A command at work: what tests need of subprocess.Popen."""

    def __init__(self, server: socket.socket, stdout: BinaryIO | None) -> None:
        self._server, self.stdout = server, stdout
        self._lines = server.makefile()
        self.pid = int(self._lines.readline())
        self._code: int | None = None
        self._reading = threading.Lock()

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._code is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        if self._code is None and select.select([self._server], [], [], 0)[0]:
            self.wait()
        return self._code

    def __del__(self) -> None:
        """Nobody need wait for a command."""
        self._lines.close()
        self._server.close()

    def wait(self, timeout: float | None = None) -> int:
        """Others may wait at the same time."""
        with self._reading:
            if self._code is None:
                self._server.settimeout(timeout)
                try:
                    self._code = int(self._lines.readline())
                except TimeoutError as error:
                    raise subprocess.TimeoutExpired("exogate", timeout or 0) from error
                self._lines.close()
                self._server.close()
            return self._code


class Commands:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._address = f"{self._folder.name}/commands"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.command_server", self._address],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={"PATH": os.defpath},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.programs = Path(self._folder.name, "bin")  # for a PATH
        self.program = self.programs / "exogate"
        self.programs.mkdir()
        text = PROGRAM.format(python=sys.executable, address=self._address)
        self.program.write_text(text, encoding="utf-8")
        self.program.chmod(0o755)

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(10)
        self._process.stdout.close()
        self._folder.cleanup()

    def run(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path = ROOT,
        typed: str | int = "",
        first: First | None = None,
    ) -> Ended:
        """The command is killed if it has not ended after a minute; a number is a terminal to read from."""
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            if isinstance(typed, str):
                given.write(typed.encode())
                given.seek(0)
            stdin = given.fileno() if isinstance(typed, str) else typed
            files = [stdin, out.fileno(), err.fileno()]
            forked = self.begin(words, env, files, cwd=cwd, first=first)
            try:
                code = forked.wait(60)
            except subprocess.TimeoutExpired:
                forked.kill()
                raise
            return Ended(code, _text(out), _text(err))

    def start(
        self, words: Sequence[str], *, env: Mapping[str, str], err: BinaryIO, cwd: Path = ROOT
    ) -> Forked:
        """What it says on stdout is to be read while it works."""
        read, write = os.pipe()
        with Path(os.devnull).open("rb") as nothing, os.fdopen(write, "wb") as out:
            files = [nothing.fileno(), out.fileno(), err.fileno()]
            return self.begin(words, env, files, cwd=cwd, stdout=os.fdopen(read, "rb"))

    def begin(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        files: Sequence[int],
        *,
        cwd: Path = ROOT,
        stdout: BinaryIO | None = None,
        first: First | None = None,
        module: str = "",
    ) -> Forked:
        """`files` are its stdin, stdout and stderr; `module` is run instead of `exogate`, as `python -m` does."""
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._address)
        socket.send_fds(server, [b"3"], files)
        command = {"words": [*words], "env": {**env}, "cwd": str(cwd), "module": module}
        server.sendall(json.dumps({**command, "waits": first is not None}).encode())
        server.shutdown(socket.SHUT_WR)
        forked = Forked(server, stdout)
        if first is not None:
            try:
                first(forked.pid)
            finally:
                forked.send_signal(signal.SIGCONT)
        return forked


@cache
def commands() -> Commands:
    """Those of this process; they end with it."""
    made = Commands()
    atexit.register(made.close)
    return made


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()
