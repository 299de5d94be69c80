"""The store cannot commit while the gateway runs: nothing is acknowledged that is not kept."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from tests.fakes.client import (
    Client,
    Disconnected,
    HttpAnswer,
    RpcError,
    connected,
    http,
    post_chat,
    texts_of,
)
from tests.fakes.clock import now_about
from tests.fakes.commands import Forked
from tests.fakes.gateway import START_S, Command, Setup, command
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import echo, shown

PROBED_S = 20.0  # the store is probed every few seconds
TOLD_S = 2.0  # a second is promised


@asynccontextmanager
async def small_disk(folder: Path, size: str) -> AsyncIterator[Path]:
    """A file system of its own, of that size; skips where it may not be mounted."""
    await anyio.Path(folder).mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = await anyio.run_process(mount, check=False)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.run_process(["umount", str(folder)])


async def fill(disk: Path) -> anyio.Path:
    """Takes all the room there is."""
    ballast = anyio.Path(disk / "ballast")
    async with await ballast.open("wb", buffering=0) as file:
        try:
            while True:
                await file.write(b"\0" * 4096)
        except OSError:
            return ballast


async def until_ready(url: str, wanted: int, wait_s: float = PROBED_S) -> None:
    with anyio.fail_after(wait_s):
        # Another process has no event for us.
        while (await http(f"{url}/readyz")).status != wanted:  # noqa: ASYNC110  # see above
            await anyio.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs")
@pytest.mark.requirement("S-004-Flow-03")
async def test_a_full_disk_is_told_honestly_and_it_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        if asked.last_text == "held":
            return Reply(["held ", "back"], gates={2: gate})
        return echo(asked)

    async with small_disk(tmp_path / "disk", "4m") as disk, scripted_server(script) as model:
        config = await Setup(model.url).written(disk)
        async with command(config) as site, connected(site.url, wait_s=PROBED_S) as client:
            await client.ask("before")
            held = await client.send("held", peer="b")
            await client.until(held["run_id"], texts_of)
            ballast = await fill(disk)
            await until_ready(site.url, 503, now_about(TOLD_S))  # before any message fails
            errors = [
                await client.refused("chat.send", content=f"{number}", idempotency_key="k")
                for number in range(5)
            ]
            over_http = await post_chat(site.url, "meanwhile")
            gate.set()
            await until_ready(site.url, 503)
            reasons = (await http(f"{site.url}/readyz")).json["reasons"]
            page = await client.call("chat.history", session_key="main:websocket:local:main")
            while_full = [event["type"] for event in client.events[held["run_id"]]]
            await ballast.unlink()
            end = (await client.ended(held["run_id"]))[-1]
            await until_ready(site.url, 200)
            after = await client.ask("0", idempotency_key="k")
            whole = await client.call("chat.history", session_key="main:websocket:local:main")

    assert {error.code for error in errors} == {-32005}
    assert {error.data["retryable"] for error in errors} == {True}
    assert (over_http.status, over_http.json["error"]["type"]) == (503, "unavailable")
    assert int(over_http.headers["Retry-After"]) > 0
    assert "full" in str(reasons)
    assert shown(page) == [("user", "before"), ("assistant", "answer to before")]
    assert "done" not in while_full
    assert end["response"] == "held back"
    assert after["response"] == "answer to 0"
    assert [text for role, text in shown(whole) if role == "user"] == ["before", "0"]
    assert "meanwhile" not in {asked.last_text for asked in model.requests}


LOCKING = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def lock_of(database: Path) -> AsyncIterator[None]:
    """As a database shell would hold it that somebody forgot."""
    holder = [sys.executable, "-c", LOCKING, str(database)]
    async with await anyio.open_process(holder) as shell:
        assert shell.stdout is not None
        assert shell.stdin is not None
        with anyio.fail_after(START_S):
            assert b"locked" in await shell.stdout.receive()
        yield
        await shell.stdin.aclose()


async def test_a_store_that_somebody_else_locks_is_told_and_used_again_afterwards(
    tmp_path: Path,
) -> None:
    async with scripted_server(echo) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url, wait_s=PROBED_S) as client:
            await client.ask("before")
            async with lock_of(tmp_path / "data" / "store.db"):
                error = await client.refused("chat.send", content="meanwhile")
            after = await client.ask("after")

    assert (error.code, error.data["type"]) == (-32005, "unavailable")
    assert after["response"] == "answer to after"
    assert [asked.last_text for asked in model.requests] == ["before", "after"]


async def test_readiness_follows_the_store_within_a_second_both_ways_without_any_message(
    tmp_path: Path,
) -> None:
    async with scripted_server(echo) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site:
            before = await http(f"{site.url}/readyz")
            async with lock_of(tmp_path / "data" / "store.db"):
                await until_ready(site.url, 503, now_about(TOLD_S))
                silent = await http(f"{site.url}/readyz")
                alive = await http(f"{site.url}/healthz")
            await until_ready(site.url, 200)
            after = await http(f"{site.url}/readyz")

    assert (before.status, after.json) == (200, {"status": "ready"})
    assert "store" in str(silent.json["reasons"])
    assert alive.status == 200


@asynccontextmanager
async def limited(site: Command, size: int) -> AsyncIterator[None]:
    """No file of it may grow beyond that."""
    await _limit(site, size)
    try:
        yield
    finally:
        await _limit(site, resource.RLIM_INFINITY)


async def _limit(site: Command, size: int) -> None:
    limits = (size, resource.RLIM_INFINITY)
    await to_thread.run_sync(resource.prlimit, site.process.pid, resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
@pytest.mark.parametrize("size", [0, 8192, 20_000])
async def test_files_that_may_not_grow_are_told_honestly_and_it_goes_on_once_they_may(
    tmp_path: Path, size: int
) -> None:
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        if asked.last_text == "held":
            return Reply(["held ", "back"], gates={2: gate})
        return echo(asked)

    async with scripted_server(script) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url, wait_s=PROBED_S) as client:
            for number in range(5):
                await client.ask(f"before {number}")
            held = await client.send("held", peer="b")
            await client.until(held["run_id"], texts_of)
            async with limited(site, size):
                errors = [await client.refused("chat.send", content="meanwhile") for _ in range(10)]
                over_http = await post_chat(site.url, "meanwhile")
                gate.set()
                await until_ready(site.url, 503)
                while_limited = [event["type"] for event in client.events[held["run_id"]]]
            end = (await client.ended(held["run_id"]))[-1]
            await until_ready(site.url, 200)
            after = await client.ask("after")
            site.tell(signal.SIGTERM)
            code = await site.exit_code()

    assert {(error.code, error.data["retryable"]) for error in errors} == {(-32005, True)}
    assert over_http.status == 503
    assert int(over_http.headers["Retry-After"]) > 0
    assert "done" not in while_limited
    assert end["response"] == "held back"
    assert after["response"] == "answer to after"
    assert code == 0
    assert "meanwhile" not in {asked.last_text for asked in model.requests}


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
async def test_a_ledger_that_cannot_be_written_is_our_fault_and_may_be_tried_again(
    tmp_path: Path,
) -> None:
    asked = {"model": "main", "messages": [{"role": "user", "content": "hi"}]}

    async def complete(url: str) -> HttpAnswer:
        where, kind = f"{url}/v1/chat/completions", {"Content-Type": "application/json"}
        body = json.dumps(asked).encode()
        return await http(where, method="POST", headers=kind, body=body, wait_s=PROBED_S)

    async with scripted_server(echo) as model:
        config = await Setup(model.url, provider="max_retries = 0").written(tmp_path)
        async with command(config) as site:
            async with limited(site, 0):
                failed = await complete(site.url)
                requests = len(model.requests)
            answered = await complete(site.url)

    assert requests == 0
    assert (failed.status, failed.json["error"]["code"]) == (500, "internal_error")
    assert int(failed.headers["Retry-After"]) > 0
    assert answered.status == 200


async def test_a_ledger_that_is_away_for_a_moment_costs_no_answer(tmp_path: Path) -> None:
    asked = {"model": "main", "messages": [{"role": "user", "content": "hi"}]}
    answers: list[int] = []
    async with scripted_server(echo) as model:
        config = await Setup(model.url, provider="max_retries = 10").written(tmp_path)
        async with command(config) as site, anyio.create_task_group() as group:

            async def complete() -> None:
                where, kind = (
                    f"{site.url}/v1/chat/completions",
                    {"Content-Type": "application/json"},
                )
                body = json.dumps(asked).encode()
                answer = await http(where, method="POST", headers=kind, body=body, wait_s=PROBED_S)
                answers.append(answer.status)

            async with limited(site, 0):
                group.start_soon(complete)
                await until_ready(site.url, 503)

    assert answers == [200]


@asynccontextmanager
async def failing_syncs(site: Command) -> AsyncIterator[None]:
    """Its disk fails, as far as it can tell; skips where that may not be played."""
    inject = ("-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO")
    words = ["strace", "-f", "-o", "/dev/null", *inject, "-p", str(site.process.pid)]
    async with await anyio.open_process(words, stdout=None) as tracer:
        assert tracer.stderr is not None
        with anyio.fail_after(START_S):
            told = await tracer.stderr.receive()
        if b"attached" not in told:
            pytest.skip("no other process may be traced here")
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                tracer.terminate()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_a_disk_that_fails_again_and_again_ends_the_process_and_loses_nothing(
    tmp_path: Path,
) -> None:
    """The kernel may have dropped what it could not write: only a new start knows what is there."""
    accepted: dict[str, dict[str, object]] = {}
    async with scripted_server(echo) as model:
        config = await Setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            await send_until_it_fails(client, accepted, 30)
            async with failing_syncs(site):
                await send_until_it_fails(client, accepted, 1_000)
                code = await ended_by_itself(site.process)
        async with command(config) as site, connected(site.url) as client:
            for content, sent in accepted.items():
                await client.call("chat.resume", run_id=sent["run_id"], after_seq=0)
                end = (await client.ended(str(sent["run_id"])))[-1]

                assert end["response"] == f"answer to {content}"

    assert len(accepted) >= 30
    assert code not in {0, None}


async def send_until_it_fails(
    client: Client, accepted: dict[str, dict[str, object]], most: int
) -> None:
    for _ in range(most):
        content = f"message {len(accepted)}"
        try:
            accepted[content] = await client.send(content)
        except (RpcError, Disconnected):
            return


async def ended_by_itself(process: Forked | subprocess.Popen[bytes]) -> int | None:
    """Its exit code; None if it goes on and on."""
    with anyio.move_on_after(PROBED_S / 2):
        return await to_thread.run_sync(process.wait, abandon_on_cancel=True)
    return None
