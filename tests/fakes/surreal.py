"""A real SurrealDB server for tests."""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from gateway.domain.ids import Secret
from gateway.store.surreal_connection import ConnectionSettings, Credentials, SurrealConnection

USER, PASSWORD = "root", "a password of the tests"
ROOT = Credentials(USER, Secret(PASSWORD))
# Of the password, made with the least work that Argon2 knows: the usual hash costs 20 ms at each sign-in.
HASH = (
    "$argon2id$v=19$m=8,t=1,p=1$c2FsdC1vZi10aGUtdGVzdHM$LVX3XoYGr+QuYYoYqjpfLpXBaTtgm1ANSh1FuUkJW1g"
)
# A server on a busy machine may take its time for an answer.
PATIENT = ConnectionSettings(connect_s=60, call_s=60, silent_s=60, lost_s=60)
PLACE = "DEFINE NAMESPACE IF NOT EXISTS tests; USE NS tests; DEFINE DATABASE IF NOT EXISTS `{0}`; USE DB `{0}`; "
# The row of `schema` says that the tables are there.
WITHOUT_ROWS = """FOR $table IN object::keys((INFO FOR DB).tables) {
    IF $table != 'schema' { DELETE type::table($table) }
}"""
MISSING = "no SurrealDB server: set EXOGATE_SURREAL_BIN, or put `surreal` on the PATH"


def surreal_binary() -> str:
    """Skips the test that needs it where there is none."""
    binary = os.environ.get("EXOGATE_SURREAL_BIN") or shutil.which("surreal")  # noqa: TID251  # of the test's machine
    return binary or pytest.skip(MISSING)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


class SurrealServer:
    """`storage` is `memory`, or an address such as `surrealkv:///DIR?sync=every`."""

    def __init__(self, binary: str, storage: str = "memory") -> None:
        self._binary, self._storage = binary, storage
        self.port = free_port()
        self.url = f"ws://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it answers."""
        bind = ("--bind", f"127.0.0.1:{self.port}")
        user = ("--user", USER, "--pass", PASSWORD)
        command = (self._binary, "start", "--no-banner", "--log", "error", *user, *bind)
        self._process = subprocess.Popen((*command, self._storage), stdout=subprocess.DEVNULL)
        end = time.monotonic() + 30.0
        while not self._answers():
            assert self._process.poll() is None, "the SurrealDB server ended"
            assert time.monotonic() < end, "the SurrealDB server does not start"
            time.sleep(0.02)
        self._make_signing_in_cheap()

    def _make_signing_in_cheap(self) -> None:
        self._run(f"DEFINE USER OVERWRITE {USER} ON ROOT PASSHASH '{HASH}' ROLES OWNER")

    def empty(self, database: str) -> "SurrealDatabase":
        """A database with all tables of a store and no row: to make them costs more than most tests."""
        self._run(PLACE.format(database) + WITHOUT_ROWS)
        return SurrealDatabase(self.url, "tests", database)

    def _run(self, statements: str) -> None:
        told = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/sql",
            statements.encode(),
            {"Authorization": f"Basic {told}", "Accept": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=30.0) as got:
            assert {one["status"] for one in json.loads(got.read())} == {"OK"}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1.0) as got:
                return bool(got.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """Like a power cut for the process; returns when it is gone."""
        self._signal(signal.SIGKILL)
        self._wait()

    def pause(self) -> None:
        """Returns when it stands still."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.resume()
            self._signal(signal.SIGTERM)
            self._wait()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(timeout=30.0)


@contextmanager
def running_surreal(binary: str, storage: str = "memory") -> Iterator[SurrealServer]:
    server = SurrealServer(binary, storage)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass(frozen=True, slots=True)
class SurrealDatabase:
    """An empty database of the server."""

    url: str
    namespace: str
    database: str

    async def connected(self, settings: ConnectionSettings = PATIENT) -> SurrealConnection:
        """It is to be run."""
        place = (self.url, self.namespace, self.database)
        return await SurrealConnection(*place, ROOT, settings).open()
