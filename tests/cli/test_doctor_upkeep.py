"""What `exogate doctor` finds at a gateway that runs; the command of each finding is run, and mends it."""

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from gateway.domain.budgets import Limit, TokenBudget
from gateway.domain.events import AuditEvent
from gateway.domain.ports import Stores
from gateway.domain.tokens import CreatedToken, digest_of
from gateway.host.clock import SystemClock
from gateway.store.opening import open_store
from tests.cli.conftest import Shell, written
from tests.cli.test_doctor_fixes import as_typed, found, instead, more, run
from tests.fakes.gateway import START_S, Setup, command
from tests.fakes.model_server import Reply, scripted_server

LONG_AGO, NOW = datetime(2020, 1, 1, tzinfo=UTC), SystemClock().now()
BUDGET = TokenBudget(session=Limit(50), daily=Limit(1_000), monthly=Limit(9_000))


async def old_store(stores: Stores) -> None:
    await stores.audit.append(AuditEvent(LONG_AGO, "config.applied", "local", {"authority": {}}))


async def old_token(stores: Stores) -> None:
    event = AuditEvent(LONG_AGO, "token.created", "local", {})
    await stores.tokens.create(a_token(LONG_AGO), event, inherits=False)


async def short_token(stores: Stores) -> None:
    made = a_token(NOW, NOW + timedelta(days=2))
    await stores.tokens.create(made, AuditEvent(NOW, "token.created", "local", {}), inherits=False)


async def strong_token(stores: Stores) -> None:
    made = replace(a_token(NOW), scopes=frozenset({"chat", "impersonate", "agent:demo"}))
    await stores.tokens.create(made, AuditEvent(NOW, "token.created", "local", {}), inherits=False)


async def idle_token(stores: Stores) -> None:
    made = replace(a_token(NOW), scopes=frozenset({"impersonate", "agent:demo"}))
    await stores.tokens.create(made, AuditEvent(NOW, "token.created", "local", {}), inherits=False)


async def nothing(stores: Stores) -> None:
    """As it is."""


def a_token(at: datetime, expires_at: datetime | None = None) -> CreatedToken:
    scopes = frozenset({"chat", "read", "agent:demo"})
    return CreatedToken(digest_of("exo_x"), "ci", "exo_x", scopes, at, "local", BUDGET, expires_at)


SOON = (NOW + timedelta(days=3)).date().isoformat()
OF_FILE = f"""
[[tokens]]
name = "box"
token = "a-token-that-stands-here"
expires = {SOON}
"""


STRONG = """
[[tokens]]
name = "box"
token = "a-token-that-stands-here"
scopes = ["chat", "impersonate"]
budget = 1000
"""


@pytest.mark.parametrize(
    ("id_", "prepare", "text"),
    [
        ("backup.due", old_store, ""),
        ("token.unused", old_token, ""),
        ("token.expiring", short_token, ""),
        ("token.expiring", nothing, OF_FILE),
        ("token.unbound", strong_token, ""),
        ("token.unbound", idle_token, ""),
        ("token.unbound", nothing, STRONG),
    ],
    ids=["backup", "unused", "created", "of the file", "strong", "idle", "strong in the file"],
)
async def test_what_grew_old_is_found_and_mended_by_its_command(
    tmp_path: Path, id_: str, prepare: Callable[[Stores], Awaitable[None]], text: str
) -> None:
    async with open_store("embedded", tmp_path / "data", clock=SystemClock()) as stores:
        await prepare(stores)
    shell = await to_thread.run_sync(shell_in, tmp_path, text)
    async with command(shell.config):
        before = await to_thread.run_sync(found, shell)
        await to_thread.run_sync(run, shell, before[id_]["fix"])
        after = await to_thread.run_sync(found, shell)

    assert id_ not in after


@pytest.mark.parametrize("ends", [None, NOW + timedelta(days=200)], ids=["never", "some day"])
async def test_a_token_that_is_created_anew_ends_when_it_would_have(
    tmp_path: Path, ends: datetime | None
) -> None:
    async def prepare(stores: Stores) -> None:
        made = replace(a_token(NOW, ends), scopes=frozenset({"chat", "impersonate"}))
        await stores.tokens.create(
            made, AuditEvent(NOW, "token.created", "local", {}), inherits=False
        )

    async with open_store("embedded", tmp_path / "data", clock=SystemClock()) as stores:
        await prepare(stores)
    shell = await to_thread.run_sync(shell_in, tmp_path)
    async with command(shell.config):
        before = await to_thread.run_sync(found, shell)
        await to_thread.run_sync(run, shell, before["token.unbound"]["fix"])
        rows = (await to_thread.run_sync(shell, "--json", "token", "list")).json["tokens"]

    (row,) = (one for one in rows if one["state"] == "active")
    at = row["expires_at"] and datetime.fromisoformat(row["expires_at"])
    assert at == (ends and ends.replace(microsecond=0))


USD = (
    "[budgets]\ndaily = { usd = 0.0006 }",
    "[budgets]\nmonthly = { usd = 0.0006 }",
    "[budgets]\nper_agent = { usd = 0.0006 }",
    "[budgets.agent]\nmain = { usd = 0.0006 }",
)


async def test_a_limit_in_usd_that_is_nearly_used_is_found_and_raised_by_its_command(
    tmp_path: Path,
) -> None:
    prices = "prices = { m = { input = 1, output = 2 } }"
    async with scripted_server([Reply("hi", usage=(50, 250))]) as model:
        setup = Setup(model.url, provider=prices)
        shell = Shell(await setup.written(tmp_path))
        async with command(shell.config):
            await to_thread.run_sync(spent, shell)
            for before in await to_thread.run_sync(mended, shell, USD):
                assert "0.00055 of 0.0006 USD are used" in before["budget.near"]["message"]


async def test_a_limit_that_is_nearly_used_is_found_and_raised_by_its_command(
    tmp_path: Path,
) -> None:
    shell = await to_thread.run_sync(shell_in, tmp_path)
    async with command(shell.config):
        (used,) = {row["used"] for row in await to_thread.run_sync(spent, shell) if row["used"]}
        limits = [f"[budgets]\n{key} = {used + 1:.0f}" for key in ("daily", "monthly", "per_agent")]
        await to_thread.run_sync(mended, shell, limits)


def mended(shell: Shell, limits: Iterable[str]) -> list[dict[str, dict[str, str]]]:
    """What is found with each limit in turn, before its command is run."""
    text, findings = shell.config.read_text(encoding="utf-8"), []
    for limit in limits:
        shell.config.write_text(f"{text}\n{limit}\n", encoding="utf-8")
        shell("reload")
        findings.append(found(shell))
        assert "budget.near" in findings[-1], limit
        run(shell, findings[-1]["budget.near"]["fix"])
        assert "budget.near" not in found(shell), limit
    return findings


async def test_what_waits_for_a_restart_is_found_and_started_anew_by_its_command(
    tmp_path: Path,
) -> None:
    shell = await to_thread.run_sync(shell_in, tmp_path)
    async with command(shell.config) as site:
        await to_thread.run_sync(instead("[gateway]", "[sandbox]\nworkers = 3\n\n[gateway]"), shell)
        await to_thread.run_sync(shell, "reload")
        before = await to_thread.run_sync(found, shell)
        after = await to_thread.run_sync(started_anew, shell, before["restart.pending"]["fix"])
        assert await site.exit_code() == 0

    assert "restart.pending" not in after


def shell_in(folder: Path, text: str = "") -> Shell:
    shell = Shell(written(folder, with_plugin=False))
    more(text)(shell)
    shell.config.chmod(0o600)
    return shell


def spent(shell: Shell) -> list[dict[str, Any]]:
    """The budgets after a message."""
    assert shell("chat", "-m", "hello").code == 0
    rows: list[dict[str, Any]] = shell("--json", "budget", "status").json["budgets"]
    return rows


def started_anew(shell: Shell, fix: str) -> dict[str, dict[str, str]]:
    """What is found while the command runs: it is a gateway."""
    env = as_typed(shell) | {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    anew = subprocess.Popen(fix, shell=True, env=env, stdout=subprocess.PIPE)
    assert anew.stdout is not None
    try:
        assert any(b"Ctrl+C" in line for line in anew.stdout)
        after = found(shell)
        shell_pid = shell("--json", "status").json["pid"]
        os.kill(shell_pid, signal.SIGTERM)
        assert anew.wait(START_S) == 0
    finally:
        anew.kill()
        anew.stdout.close()
    return after
