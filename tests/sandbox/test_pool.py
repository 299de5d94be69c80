"""Worker processes die, hang, lie and are busy: each call has an end, and the next one works."""

import json
import os
import select
import signal
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from gateway.domain.plugins import PluginLimits
from gateway.sandbox.plugins import Loaded
from gateway.sandbox.pool import (
    CALLS_AT_ONCE,
    PAUSE_S,
    WAITING_OF_ONE_PROGRAM,
    WORKER,
    Outcome,
    Pool,
)
from gateway.sandbox.protocol import Bounds, Program
from tests.fakes.clock import FakeClock
from tests.fakes.fetch import FakeFetch
from tests.fakes.sandbox import Stage, a_stage, means
from tests.fakes.wat import ECHO, RELAY, handling

ROOT = Path(__file__).parent.parent.parent
SPIN = handling("(loop $on (br $on)) (unreachable)")
OF_ONE_PROGRAM = PluginLimits().concurrency
ASKING = 'h{"url":"https://example.com/"}'
PROGRAM = Program("/nowhere.cwasm", "exogate", Bounds(1 << 20, 10**9, 1 << 20))


class Quiet:
    """Serves nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def log(self, level: str, message: str) -> None:
        self.asked.append(message)

    async def answer(self, function: str, arguments: Sequence[str]) -> tuple[str, ...]:
        self.asked.append(function)
        return "err", "no"


@asynccontextmanager
async def a_pool(
    folder: Path,
    command: Sequence[str] = WORKER,
    *,
    start_s: float = 5.0,
    clock: FakeClock | None = None,
) -> AsyncIterator[Pool]:
    async with anyio.create_task_group() as group:
        yield Pool(
            group, folder, workers=1, clock=clock or FakeClock(), command=command, start_s=start_s
        )
        group.cancel_scope.cancel()


def acting(script: str) -> tuple[str, ...]:
    """A worker that says what the script says; `call()` waits for a call and gives its number."""
    return (
        sys.executable,
        "-c",
        f"""
import socket, struct, sys
sys.path.insert(0, {str(ROOT)!r})
from gateway.sandbox.protocol import Kind, Reader, encode
gateway = socket.socket(fileno=int(sys.argv[1]))
reader = Reader()
def say(kind, call, *texts): gateway.sendall(encode(kind, call, texts))
def frames():
    while data := gateway.recv(65536): yield from reader.feed(data)
came = frames()
def call(): return next(one.call for one in came if one.kind is Kind.CALL)
{script}
""",
    )


async def ask(pool: Pool, *, timeout_s: float = 5.0, service: Quiet | None = None) -> Outcome:
    return await pool.call(PROGRAM, "describe", "", service or Quiet(), timeout_s=timeout_s)


async def gone(pid: int) -> bool:
    """Once the process is no more; false if it is still there after a while."""

    def wait() -> bool:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        ready, _, _ = select.select([watched], [], [], 5)
        os.close(watched)
        return bool(ready)

    return await to_thread.run_sync(wait)


READY = 'say(Kind.READY, 0, "{}")'


async def test_a_worker_that_ends_at_once_is_told_and_not_tried_for_a_moment(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"
    clock = FakeClock()
    command = acting(f"open({str(starts)!r}, 'a').write('x'); sys.exit(3)")
    with anyio.fail_after(60):
        async with a_pool(tmp_path, command, clock=clock) as pool:
            told = [await ask(pool) for _ in range(5)]
            clock.move(PAUSE_S)
            await ask(pool)

    assert {one.status for one in told} == {"down"}
    assert (
        "no process for plugins can be started: it ended with code 3 before it was ready"
        in told[0].text
    )
    assert sys.executable in told[0].text
    assert await anyio.Path(starts).read_text() == "xx"


async def test_a_worker_that_is_never_ready_is_given_up_once_for_all_who_wait(
    tmp_path: Path,
) -> None:
    told: list[Outcome] = []

    async def one(pool: Pool) -> None:
        told.append(await ask(pool))

    with anyio.fail_after(60):
        async with (
            a_pool(tmp_path, acting("gateway.recv(1)"), start_s=0.3) as pool,
            anyio.create_task_group() as group,
        ):
            for _ in range(20):
                group.start_soon(one, pool)

    assert len(told) == 20
    assert {one.status for one in told} == {"down"}
    assert "it is not ready after 0.3 s" in told[0].text


async def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_pool(tmp_path, ["/nowhere/python"]) as pool:
            told = await ask(pool)

    assert told.status == "down"
    assert "/nowhere/python" in told.text


async def test_a_caller_who_leaves_during_the_start_leaves_no_process(tmp_path: Path) -> None:
    name = tmp_path / "pid"
    script = f"import os; open({str(name)!r}, 'w').write(str(os.getpid())); gateway.recv(1)"
    os.mkfifo(name)
    with anyio.fail_after(60):
        async with a_pool(tmp_path, acting(script)) as pool, anyio.create_task_group() as group:
            group.start_soon(ask, pool)
            pid = int(await anyio.Path(name).read_text())
            group.cancel_scope.cancel()

        assert await gone(pid)


ASKS = """n = call()
for _ in range({count}):
    say(Kind.HOST, n, {call})
    next(came)"""
LIES = {
    "bytes that are no frame": "call(); gateway.sendall(bytes([255]) * 64)",
    "a frame that never ends": "call(); gateway.sendall(struct.pack('<IBI', 2**31, 6, 1))",
    "a kind that only we say": "say(Kind.CANCEL, call())",
    "a result without its figures": "say(Kind.RESULT, call(), 'ok', 'x')",
    "figures that are none": "say(Kind.RESULT, call(), 'ok', 'x', 'a', 'b', 'c')",
    "a host call of nothing": "say(Kind.HOST, call())",
    "a log without its text": "say(Kind.HOST, call(), 'log')",
    "two host calls at once": "n = call(); gateway.sendall(2 * encode(Kind.HOST, n, ('a.b',)))",
    "ready in depth": "call(); say(Kind.READY, 0, '[' * 100000)",
    "ready without words": "call(); say(Kind.READY, 0)",
    "nothing, and leaves": "call(); sys.exit()",
    "an end that there is none of": "say(Kind.RESULT, call(), 'busy', 'x', '1', '1', '1')",
    "a time that there is none of": "say(Kind.RESULT, call(), 'ok', 'x', 'nan', '1', '1')",
    "a figure without end": "say(Kind.RESULT, call(), 'ok', 'x', '1', '9' * 4000, '1')",
    "more than it may answer": "say(Kind.RESULT, call(), 'ok', 'x' * (1_100_000), '1', '1', '1')",
    "a large answer to come": "gateway.sendall(struct.pack('<IBI', 2_000_000, 7, call())); call()",
    "a large host call to come": "gateway.sendall(struct.pack('<IBI', 9_000_000, 6, call())); call()",
    "a large greeting to come": "call(); gateway.sendall(struct.pack('<IBI', 99_999, 1, 0)); call()",
    "for nobody a large answer": "gateway.sendall(struct.pack('<IBI', 9_000, 7, call() + 9)); call()",
    "a large log line": "say(Kind.HOST, call(), 'log', 'info', 'x' * 10_000)",
    "a log line that is large in bytes": "say(Kind.HOST, call(), 'log', 'info', chr(128512) * 3_000)",
    "a large key": "say(Kind.HOST, call(), 'store.get', 'n', 'x' * 300_000)",
    "nothing, many times": "gateway.sendall(struct.pack('<IBI', 4_000, 6, call()) + bytes(4_000))",
    "too many log lines": "n = call()\nfor _ in range(201): say(Kind.HOST, n, 'log', 'info', 'x')",
    "too many host calls": ASKS.format(count=1_001, call="'clock.now'"),
    "too many requests": ASKS.format(count=21, call="'http.request', '{}'"),
    "a value that is large in bytes": "say(Kind.HOST, call(), 'store.set', 'n', 'k', chr(128512) * 90_000)",
    "too many bytes": ASKS.format(count=300, call="'store.set', 'n', 'k', 'x' * 190_000"),
}


async def test_a_worker_that_lies_is_replaced(tmp_path: Path) -> None:
    """The next one answers a call before it tells a lie of its own."""
    script = f"""
import pathlib
{READY}
say(Kind.RESULT, call(), 'ok', 'honest', '1.5', '2', '3')
starts = pathlib.Path({str(tmp_path / "starts")!r})
starts.open('a').write('x')
exec({list(LIES.values())!r}[len(starts.read_text()) - 1])
call()  # it does not leave by itself
"""
    with anyio.fail_after(60):
        async with a_pool(tmp_path, acting(script)) as pool:
            for lie in LIES:
                assert await ask(pool) == Outcome("ok", "honest", 1.5, 2, 3), f"before {lie}"
                assert (await ask(pool)).status == "crashed", lie


async def test_a_worker_that_reads_nothing_has_nothing_pile_up_for_it(tmp_path: Path) -> None:
    script = f"""{READY}
n = call()
for _ in range(2_000):
    say(Kind.RESULT, n, 'ok', 'unread', '1', '1', '1')
    n += 1
gateway.settimeout(60); import time; time.sleep(60)
"""
    told: list[str] = []
    text = "x" * 500_000

    async def one(pool: Pool) -> None:
        outcome = await pool.call(PROGRAM, "describe", text, Quiet(), timeout_s=0.5)
        told.append(outcome.status)

    with anyio.fail_after(60):
        async with a_pool(tmp_path, acting(script)) as pool:
            await one(pool)
            with traced():
                await side_by_side(60, partial(one, pool))
                _, peak = tracemalloc.get_traced_memory()

    assert len(told) == 61
    assert "timeout" in told
    assert peak < 5_000_000


async def test_so_many_calls_of_a_plugin_run_at_once_as_its_limits_say(
    cache: Path, tmp_path: Path
) -> None:
    fetch = FakeFetch(gate=anyio.Event())
    told: list[Outcome] = []
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path, means(fetch=fetch)) as stage:
            limits = PluginLimits(concurrency=2)
            guest = await stage.load(RELAY, "http:example.com", deny_unused=True, limits=limits)
            other = await stage.load(ECHO, name="other")
            async with anyio.create_task_group() as group:
                group.start_soon(run_many, stage, guest, 5, told)
                await until_asked(fetch, limits.concurrency)
                assert (await stage.run(other)).status == "ok"
                assert len(fetch.asked) == 2
                fetch.open()

    assert Counter(one.status for one in told) == {"ok": 5}


async def test_a_worker_that_leaves_before_the_call_reaches_it_costs_that_call(
    tmp_path: Path,
) -> None:
    with anyio.fail_after(60):
        async with a_pool(tmp_path, acting(READY)) as pool:
            told = [(await ask(pool)).status for _ in range(3)]

    assert set(told) <= {"crashed", "down"}


async def test_what_a_worker_says_of_unknown_calls_is_nothing(tmp_path: Path) -> None:
    script = f"""{READY}
n = call()
say(Kind.RESULT, n + 7, 'ok', 'x', '1', '1', '1')
say(Kind.HOST, n + 7, 'http.request', 'x')
say(Kind.HOST, n, 'log', 'info', 'hello')
say(Kind.RESULT, n, 'ok', 'right', '1', '1', '1')
say(Kind.RESULT, n, 'ok', 'again', '1', '1', '1')
gateway.recv(1)
"""
    service = Quiet()
    with anyio.fail_after(60):
        async with a_pool(tmp_path, acting(script)) as pool:
            told = await ask(pool, service=service)

    assert told.text == "right"
    assert service.asked == ["hello"]


async def test_a_worker_that_does_not_end_a_call_is_killed(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_pool(tmp_path, acting(f"{READY}\nimport signal\nsignal.pause()")) as pool:
            told = await ask(pool, timeout_s=0.01)
            process = pool._places[0].process
            assert process is not None
            assert await gone(process.pid)

    assert (told.status, told.text) == ("timeout", "it did not end in time")


async def run_many(stage: Stage, guest: Loaded, count: int, told: list[Outcome]) -> None:
    async def one() -> None:
        told.append(await stage.run(guest, ASKING))

    await side_by_side(count, one)


async def side_by_side(count: int, one: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(one)


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


async def until_asked(fetch: FakeFetch, count: int = OF_ONE_PROGRAM) -> None:
    """All that one plugin may do at once is under way."""
    while len(fetch.asked) < count:
        await fetch.came.wait()
        await anyio.lowlevel.checkpoint()


@pytest.mark.requirement("S-003-Plugin-14")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
async def test_a_worker_killed_in_the_middle_of_fifty_calls_costs_those_it_was_at(
    cache: Path, tmp_path: Path, number: signal.Signals
) -> None:
    fetch = FakeFetch(gate=anyio.Event())
    told: list[Outcome] = []
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path, means(fetch=fetch)) as stage:
            guest = await stage.load(RELAY, "http:example.com", deny_unused=True)
            async with anyio.create_task_group() as group:
                group.start_soon(run_many, stage, guest, 50, told)
                await until_asked(fetch)
                link = stage.sandbox.pool._places[0].link
                assert link is not None
                os.kill(stage.worker, number)
                await link.lost.wait()
                fetch.open()
            after = await stage.run(guest, ASKING)

    assert Counter(one.status for one in told) == {"crashed": OF_ONE_PROGRAM, "ok": 42}
    assert after.status == "ok"
    assert fetch.cancelled == OF_ONE_PROGRAM


@pytest.mark.requirement("S-003-Plugin-14")
async def test_a_cancelled_caller_has_its_guest_ended_and_its_place_freed(
    cache: Path, tmp_path: Path
) -> None:
    limits = PluginLimits(timeout_s=60, fuel=2**62)
    told: list[Outcome] = []
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            guest = await stage.load(SPIN, limits=limits)
            for _ in range(3):  # the second time would wait for ever if no place was free
                await cancel_all(stage, guest, told)

    assert told == []


async def cancel_all(stage: Stage, guest: Loaded, told: list[Outcome]) -> None:
    link = stage.sandbox.pool._places[0].link
    assert link is not None
    async with anyio.create_task_group() as group:
        group.start_soon(run_many, stage, guest, OF_ONE_PROGRAM, told)
        while len(link.pending) < OF_ONE_PROGRAM:
            await anyio.lowlevel.checkpoint()
        pending = list(link.pending.values())
        group.cancel_scope.cancel()
    for one in pending:
        await one.done.wait()
        assert one.outcome is not None
        assert one.outcome.status == "cancelled"


async def test_a_call_cancelled_in_a_host_call_ends_that_too(cache: Path, tmp_path: Path) -> None:
    fetch = FakeFetch(gate=anyio.Event())
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path, means(fetch=fetch)) as stage:
            guest = await stage.load(RELAY, "http:example.com", deny_unused=True)
            async with anyio.create_task_group() as group:
                group.start_soon(stage.run, guest, ASKING)
                await fetch.came.wait()
                link = stage.sandbox.pool._places[0].link
                assert link is not None
                (pending,) = link.pending.values()
                group.cancel_scope.cancel()
            await pending.done.wait()
            assert (await stage.run(guest, "q")).status == "trap"

    assert pending.outcome is not None
    assert pending.outcome.status == "cancelled"
    assert fetch.cancelled == 1


async def test_a_host_call_lasts_no_longer_than_its_call(cache: Path, tmp_path: Path) -> None:
    fetch = FakeFetch(gate=anyio.Event())
    limits = PluginLimits(timeout_s=0.2)
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path, means(fetch=fetch)) as stage:
            guest = await stage.load(RELAY, "http:example.com", deny_unused=True, limits=limits)
            told = await stage.run(guest, ASKING)

    assert told.status == "timeout"
    assert fetch.cancelled == 1


async def test_a_busy_plugin_keeps_no_other_waiting(cache: Path, tmp_path: Path) -> None:
    fetch = FakeFetch(gate=anyio.Event())
    told: list[Outcome] = []
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path, means(fetch=fetch)) as stage:
            greedy = await stage.load(RELAY, "http:example.com", name="greedy", deny_unused=True)
            good = await stage.load(ECHO, name="good")
            async with anyio.create_task_group() as group:
                group.start_soon(run_many, stage, greedy, 300, told)
                await until_asked(fetch)
                beside = [(await stage.run(good)).status for _ in range(20)]
                assert len(fetch.asked) == OF_ONE_PROGRAM
                fetch.open()

    beyond = 300 - WAITING_OF_ONE_PROGRAM - OF_ONE_PROGRAM
    assert beside == ["ok"] * 20
    assert Counter(one.status for one in told) == {"ok": 300 - beyond, "busy": beyond}
    assert CALLS_AT_ONCE >= 4 * OF_ONE_PROGRAM


async def test_an_idle_worker_ends_and_another_is_started_when_needed(
    cache: Path, tmp_path: Path
) -> None:
    clock = FakeClock()
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path, means(clock=clock)) as stage:
            good = await stage.load(ECHO, name="good")
            first = stage.worker
            for _ in range(3):
                await clock.until_someone_sleeps()
                clock.move(75)
            assert (await stage.run(good)).status == "ok"
            assert stage.worker == first
            for _ in range(4):
                await clock.until_someone_sleeps()
                clock.move(75)
            assert await gone(first)

            assert (await stage.run(good)).status == "ok"

            assert stage.worker != first


async def test_two_workers_share_the_calls(cache: Path, tmp_path: Path) -> None:
    fetch = FakeFetch(gate=anyio.Event())
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path, means(fetch=fetch), workers=2) as stage:
            guest = await stage.load(RELAY, "http:example.com", deny_unused=True)
            async with anyio.create_task_group() as group:
                group.start_soon(run_many, stage, guest, OF_ONE_PROGRAM, [])
                await until_asked(fetch)
                links = [place.link for place in stage.sandbox.pool._places]
                shares = [len(link.pending) for link in links if link is not None]
                fetch.open()

    assert shares == [OF_ONE_PROGRAM // 2] * 2


async def test_what_keeps_a_worker_in_is_known(cache: Path, tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with a_stage(cache, tmp_path) as stage:
            await stage.load(ECHO)
            link = stage.sandbox.pool._places[0].link
            assert link is not None
            assert set(json.loads(json.dumps(link.confinement))) == {"seccomp", "landlock"}
