"""The service manager is told over its socket, and programs that are started do not inherit the socket."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from gateway.config.environment import pop_service_variables
from gateway.host.notify import Notifier
from tests.fakes.clock import FakeClock


class Manager:
    """What a service manager hears."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.settimeout(20)

    def heard(self) -> dict[str, str]:
        lines = self._socket.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = f"@exogate-test-{os.getpid()}"
    with closing(Manager(name if request.param == "abstract" else str(tmp_path / "n"))) as made:
        yield made


def test_each_state_is_one_datagram(manager: Manager) -> None:
    notify = Notifier.of({"NOTIFY_SOCKET": manager.address})

    notify.ready("serving\nat http://127.0.0.1:1")
    notify.reloading()
    notify.stopping()

    assert manager.heard() == {"READY": "1", "STATUS": "serving at http://127.0.0.1:1"}
    assert int(manager.heard().pop("MONOTONIC_USEC")) > 0
    assert manager.heard()["STOPPING"] == "1"


@pytest.mark.parametrize(
    ("variables", "beat_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_of_this_process(variables: dict[str, str], beat_s: float | None) -> None:
    assert Notifier.of({"NOTIFY_SOCKET": "/s", **variables}).beat_s == beat_s
    assert Notifier.of(variables).beat_s is None


async def test_the_watchdog_hears_of_us_only_while_all_is_well(manager: Manager) -> None:
    clock, states = FakeClock(), iter([False, True])
    notify = Notifier(manager.address, beat_s=15.0)

    async with anyio.create_task_group() as group:
        group.start_soon(notify.beat, clock, lambda: next(states))
        for _ in range(2):
            await clock.until_someone_sleeps()
            clock.move(15.0)
        await clock.until_someone_sleeps()
        group.cancel_scope.cancel()

    assert await to_thread.run_sync(manager.heard) == {"WATCHDOG": "1"}
    assert next(states, None) is None


async def test_a_loop_that_was_late_once_is_not_taken_for_dead(manager: Manager) -> None:
    clock, notify = FakeClock(), Notifier(manager.address, beat_s=0.5)

    async with anyio.create_task_group() as group:
        group.start_soon(notify.beat, clock, lambda: True)
        await clock.until_someone_sleeps()
        clock.move(0.9)  # of the second that a watchdog waits
        await clock.until_someone_sleeps()
        group.cancel_scope.cancel()

    assert await to_thread.run_sync(manager.heard) == {"WATCHDOG": "1"}


def test_a_manager_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "gone")).ready("serving")


def test_programs_do_not_inherit_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/s")
    monkeypatch.setenv("WATCHDOG_USEC", "1")

    taken = pop_service_variables()
    printing = [sys.executable, "-c", "import os; print(sorted(os.environ))"]
    inherited = subprocess.run(printing, capture_output=True, text=True, timeout=20).stdout

    assert taken == {"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "1"}
    assert "NOTIFY_SOCKET" not in inherited
    assert "WATCHDOG" not in inherited
