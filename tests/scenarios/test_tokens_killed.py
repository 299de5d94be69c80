"""The gateway is killed at each step of making a token, of raising a limit and of revoking: it is done or it is not."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cli.conftest import Shell, end, written
from tests.fakes.client import post_chat
from tests.fakes.gateway import ENGINE, START_S, Command, spawn
from tests.forms import is_long

pytestmark = pytest.mark.shared_store
Step = tuple[str, str, int]
# Killed before this system call on a file of the store, or on a socket.
EMBEDDED: tuple[Step, ...] = (
    ("store.db-wal", "pwrite64", 6),  # in the middle of the commit
    ("store.mark", "pwrite64", 1),  # it is committed, and not in force
    ("", "write", 2),  # the answer: it is in force, and nobody knows
)
if is_long():
    EMBEDDED += (
        ("", "write", 1),  # the handshake: nothing was asked yet
        ("store.db-wal", "pwrite64", 1),
        ("store.db-wal", "fdatasync", 1),
    )
SHARED: tuple[Step, ...] = tuple(("", "write", when) for when in range(2, 7, 1 if is_long() else 2))


@contextmanager
def struck(gateway: Command, data: Path, file: str, call: str, when: int) -> Iterator[None]:
    """Kills a gateway at that system call of one of its threads."""
    where = ["-f", "-P", str(data / file)] if file else []  # without -f: the thread of the loop
    inject = f"inject={call}:signal=KILL:when={when}"
    tracing = ["-e", f"trace={call}", "-e", inject, "-o", "/dev/null"]
    under = ["strace", *where, *tracing, "-p", str(gateway.process.pid)]
    with subprocess.Popen(under, stderr=subprocess.PIPE) as strace:
        assert strace.stderr is not None
        assert b"attached" in strace.stderr.readline()
        try:
            yield
            assert gateway.process.wait(START_S) == -9
        finally:
            strace.terminate()


def found(shell: Shell) -> tuple[dict[str, str], int, Counter[str]]:
    """The states of all tokens, by how much the day is raised, and how often the audit tells what."""
    tokens = shell("--json", "token", "list").json["tokens"]
    budgets = shell("--json", "budget", "status").json["budgets"]
    audit: list[dict[str, Any]] = shell("--json", "audit", "tail", "--limit", "99").json["entries"]
    (raised,) = (one.get("raised_by", 0) for one in budgets if one["scope"] == "daily")
    states = {one["name"]: one["state"] for one in tokens}
    return states, raised, Counter(one["kind"] for one in audit)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("token.created", ("token", "create", "new{}")),
        ("budget.raised", ("budget", "raise", "daily", "+7", "--today")),
        ("token.revoked", ("token", "revoke", "old{}")),
    ],
)
def test_what_a_kill_cuts_off_is_done_and_audited_or_is_not_there(
    tmp_path: Path, kind: str, words: Sequence[str]
) -> None:
    shell = Shell(written(tmp_path))
    with shell.config.open("a") as file:
        file.write(f"[budgets]\ndaily = 1_000_000\n{ENGINE.of(tmp_path)}")
    secrets: dict[str, str] = {}
    least = most = 0  # how often it is done
    for number, step in enumerate((*(SHARED if ENGINE.section else EMBEDDED), None)):
        gateway = spawn(shell.config)
        try:
            assert anyio.run(gateway.ready)
            states, raised, audited = found(shell)
            assert least <= audited[kind] <= most
            assert len(states) == audited["token.created"]
            assert [*states.values()].count("revoked") == audited["token.revoked"]
            assert raised == 7 * audited["budget.raised"]
            for name, secret in secrets.items():
                answer = anyio.run(partial(post_chat, gateway.url, "hi", token=secret))
                assert (name, answer.status) == (name, 200 if states[name] == "active" else 401)
            if step is None:
                break
            old = f"old{number}"
            secrets[old] = shell("token", "create", old).out.strip()
            least = audited[kind] + (kind == "token.created")
            with struck(gateway, tmp_path / "data", *step):
                ended = shell(*(word.format(number) for word in words))
            if ended.code == 0 and kind == "token.created":
                secrets[f"new{number}"] = ended.out.strip()
            most, least = least + 1, least + (ended.code == 0)
        finally:
            end(gateway)
