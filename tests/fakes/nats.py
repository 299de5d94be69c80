"""A real NATS server for tests."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fakes.surreal import free_port

MISSING = "no NATS server: set EXOGATE_NATS_BIN, or put `nats-server` on the PATH"


def nats_binary() -> str:
    """Skips the test that needs it where there is none."""
    binary = os.environ.get("EXOGATE_NATS_BIN") or shutil.which("nats-server")  # noqa: TID251  # of the test's machine
    return binary or pytest.skip(MISSING)


class NatsServer:
    def __init__(self, binary: str, *options: str) -> None:
        self._binary, self._options = binary, options
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it listens."""
        command = (self._binary, "-a", "127.0.0.1", "-p", str(self.port), *self._options)
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 30.0
        while not self._listens():
            assert self._process.poll() is None, "the NATS server ended"
            assert time.monotonic() < end, "the NATS server does not start"
            time.sleep(0.02)

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as line:
                return line.recv(4) == b"INFO"
        except OSError:
            return False

    def pause(self) -> None:
        """Returns when it stands still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=30.0)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


@contextmanager
def running_nats(binary: str, *options: str) -> Iterator[NatsServer]:
    server = NatsServer(binary, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
