"""Commands as processes of their own that need not import the command line again.

A process that has imported it all forks for each command: the child gets the command's words, variables,
folder and files, and ends as a command does. What a start costs and imports is tested elsewhere, with
real starts.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).parents[2]
START = (
    "from tests.fakes.commands import serve; serve({!r}); from gateway.launcher import main; main()"
)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


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

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(10)
        self._process.stdout.close()
        self._folder.cleanup()

    def run(
        self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path = ROOT, typed: str = ""
    ) -> Ended:
        """Raises TimeoutError after 30 seconds; the command is killed then."""
        said = json.dumps({"words": [*words], "env": {**env}, "cwd": str(cwd)}).encode()
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            socket.socket(socket.AF_UNIX) as server,
        ):
            given.write(typed.encode())
            given.seek(0)
            server.settimeout(30)
            server.connect(self._address)
            socket.send_fds(server, [b"3"], [given.fileno(), out.fileno(), err.fileno()])
            server.sendall(said)
            server.shutdown(socket.SHUT_WR)
            lines = server.makefile()
            pid = int(lines.readline())
            try:
                code = int(lines.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
            return Ended(code, _text(out), _text(err))


@cache
def commands() -> Commands:
    """Those of this process; they end with it."""
    made = Commands()
    atexit.register(made.close)
    return made


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()
