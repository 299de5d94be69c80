"""What a command writes is in force at once where a gateway runs, or is taken back."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.cli.conftest import Shell, end, written
from tests.fakes.gateway import spawn


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(written(tmp_path))
    gateway = spawn(shell.config)
    assert anyio.run(gateway.ready)
    yield shell
    end(gateway)


def test_a_value_that_is_set_is_in_force_at_once(live: Shell) -> None:
    ran = live("config", "set", "agent.max_tokens", "500", "--yes")

    assert ran.code == 0
    assert "uses it as generation 2." in ran.out
    assert live("--json", "status").json["generation"] == 2


def test_what_needs_a_restart_is_said(live: Shell) -> None:
    ran = live("config", "set", "sandbox.workers", "2", "--yes")

    assert "after a restart: sandbox.workers" in ran.out
    assert live("status").code == 1


def test_what_the_running_gateway_cannot_use_is_taken_back(live: Shell) -> None:
    before = live.config.read_text(encoding="utf-8")

    ran = live("config", "set", "plugins.time.sha256", "0" * 64, "--yes")

    assert ran.code == 78
    assert "nothing was changed: the running gateway cannot use it" in ran.err
    assert live.config.read_text(encoding="utf-8") == before
    assert live("status").code == 0
