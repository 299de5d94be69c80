"""The benchmark of plugins: a whole call against the same component without the gateway.

    python -m bench.sandbox [--quick] [--only SCENARIO] [--json FILE]

The ways alternate within one run; every figure is the median of its rounds unless its name says otherwise.
"""

import argparse
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median

import anyio
import anyio.lowlevel

from bench import guests, ways
from bench.marks import Figure, marked, report
from bench.measuring import (
    KB,
    MB,
    MICRO,
    QUICK,
    Call,
    Sizes,
    at_once,
    opened,
    quantile,
    rss_mb,
    spread,
    ticking,
    timed,
    worker,
)
from bench.process import other_cores

SPIN_S = 0.2
LONG = guests.SPINS_FROM  # characters of an argument that makes a spinner spin
_JUDGED = "host's share p99, 1 KB"
AT_ONCE = 8  # concurrent calls of one plugin; others wait


async def whole_way(sizes: Sizes, home: Path) -> list[Figure]:
    """Measures one caller. Rounds of the ways alternate, so that all have the same noise."""
    calls: dict[str, Call] = {
        "stock": _here(ways.raw_call(is_stock=True)),
        "raw": _here(ways.raw_call(is_stock=False)),
    }
    fresh = ways.extism_call()
    if fresh is not None:
        calls["extism"] = _here(fresh)
    took: dict[str, list[list[float]]] = {name: [] for name in (*calls, "ours")}
    async with opened(home) as bench:
        ours = await bench.gated("echo", guests.ECHO)
        calls["ours"] = partial(ours.succeed, KB)
        for call in calls.values():
            await timed(call, sizes.calls // 10)
        ours.watched.wall_ms.clear()
        for _ in range(sizes.rounds):
            for name, call in calls.items():
                took[name].append(await timed(call, sizes.calls))
        larger = {
            name: await timed(partial(ours.succeed, size), max(10, sizes.calls * KB // size))
            for size, name in ((64 * KB, "64 KB"), (MB - KB, "1 MB"))
        }
    middles = {name: [median(one) * 1000 for one in rounds] for name, rounds in took.items()}
    worked = iter(ours.watched.wall_ms)
    shares = [[whole - next(worked) for whole in one] for one in took["ours"]]
    return [
        *_against(middles),
        *tails("whole way", "1 KB", took["ours"]),
        *(
            marked(one, 1.0) if one.name == _JUDGED else one
            for one in tails("host's share", "1 KB", shares)
        ),
        *chain.from_iterable(tails("whole way", name, [each]) for name, each in larger.items()),
    ]


def _here(call: Callable[[str], object]) -> Call:
    """Measures a call in this process with the input of a guest."""
    text = ways.asked(KB)

    async def run() -> None:
        call(text)

    return run


def _against(middles: Mapping[str, Sequence[float]]) -> Iterator[Figure]:
    """Compares the whole way with the others."""
    mine = median(middles["ours"])
    whole = Figure("whole way, 1 KB", "us", mine, spread=spread(middles["ours"]))
    raw, stock = median(middles["raw"]), median(middles["stock"])
    yield marked(replace(whole, floor=raw, base="raw call"), 6, ratio=True)
    yield replace(whole, name=f"{whole.name}, against stock settings", floor=stock)
    if "extism" in middles:
        fresh = replace(
            whole, name=f"{whole.name}, against extism", floor=median(middles["extism"])
        )
        yield marked(replace(fresh, base="a fresh plugin"), 1.0, ratio=True)


def tails(what: str, size: str, rounds: Sequence[Sequence[float]]) -> Iterator[Figure]:
    for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        values = [quantile(one, part) for one in rounds]
        yield Figure(f"{what} {name}, {size}", "ms", median(values), spread=spread(values))


async def throughput(sizes: Sizes, home: Path) -> list[Figure]:
    """Measures callers that call again after each answer; 8 calls of one plugin run at a time."""
    found = []
    async with opened(home) as bench:
        ours = await bench.gated("echo", guests.ECHO)
        await timed(partial(ours.succeed, KB), sizes.calls // 10)
        for callers in (16, 64):
            rates = [await _rate(ours, callers, sizes.seconds) for _ in range(sizes.rounds)]
            name = f"throughput, {callers} callers"
            figure = Figure(name, "calls/s", median(rates), spread=spread(rates))
            found.append(marked(figure, 2_000, at_least=True))
    return found


async def _rate(ours: ways.Gated, callers: int, seconds: float) -> float:
    answers, end = 0, time.perf_counter() + seconds

    async def call() -> None:
        nonlocal answers
        while time.perf_counter() < end:
            await ours.succeed(KB)
            answers += 1

    began = time.perf_counter()
    await at_once(callers, call)
    return answers / (time.perf_counter() - began)


async def host_calls(sizes: Sizes, home: Path) -> list[Figure]:
    """Measures a `store.get` with a store that takes no time."""
    more = 100
    async with opened(home) as bench:
        granted = {"granted": "store:bench"}
        once = await bench.gated("once", guests.asker(1), **granted)
        often = await bench.gated("often", guests.asker(1 + more), **granted)
        each = []
        for _ in range(sizes.rounds):
            few = median(await timed(partial(once.succeed, 1), max(5, sizes.calls // 20)))
            many = median(await timed(partial(often.succeed, 1), max(5, sizes.calls // 20)))
            each.append((many - few) / more * 1000)
    return [Figure("a host call there and back", "us", median(each), spread=spread(each))]


async def starts(sizes: Sizes, home: Path) -> list[Figure]:
    """Measures the start of a worker and the load of a plugin that is compiled already."""
    async with opened(home) as bench:
        await bench.gated("echo", guests.ECHO)
    ready, loads, idle = [], [], []
    for _ in range(sizes.starts):
        async with opened(home) as bench:
            (first,) = await timed(partial(bench.gated, "echo", guests.ECHO), 1)
            (second,) = await timed(partial(bench.gated, "other", guests.ECHO), 1)
            ready.append(first - second)
            loads.append(second)
            idle.append(rss_mb(worker()))
    return [
        Figure("worker from start to ready", "ms", median(ready)),
        Figure("load of a cached plugin", "ms", median(loads)),
        marked(Figure("idle worker RSS", "MB", median(idle)), 60),
    ]


async def memory(sizes: Sizes, home: Path) -> list[Figure]:
    """Measures memory growth over many calls, after a tenth of them as a warm-up."""
    found = []
    async with opened(home) as bench:
        for kind, wasm in (("calls", guests.ECHO), ("trapping calls", guests.trapper())):
            guest = await bench.gated(kind.split()[0], wasm)
            await at_once(AT_ONCE, partial(_calls, guest, sizes.many // 10 // AT_ONCE + 1))
            before = _both_rss_mb()
            await at_once(AT_ONCE, partial(_calls, guest, sizes.many // AT_ONCE))
            for process, now, then in zip(
                ("worker", "gateway"), _both_rss_mb(), before, strict=True
            ):
                name = f"growth of the {process}, {sizes.many:,} {kind}"
                found.append(marked(Figure(name, "MB", now - then), 2.0))
    return found


def _both_rss_mb() -> tuple[float, float]:
    gc.collect()
    return rss_mb(worker()), rss_mb(os.getpid())


async def _calls(guest: ways.Gated, count: int) -> None:
    for _ in range(count):
        await guest.call(1)


async def spinning(sizes: Sizes, home: Path) -> list[Figure]:
    """Measures guests that never end: the time of the error, and the effect on other calls."""
    late: dict[int, list[float]] = {1: [], AT_ONCE: []}
    beside: list[float] = []
    async with opened(home) as bench:
        good = await bench.gated("echo", guests.ECHO)
        spinner = await bench.gated("spinner", guests.spinner(), timeout_s=SPIN_S)
        for count, found in late.items():
            while len(found) < sizes.spins:
                await at_once(count, partial(_late_ms, spinner, found))
        async with ticking() as idle:
            alone = await _timed_within(good, sizes.spins * SPIN_S / 4)
        async with ticking() as gaps:
            for _ in range(max(1, sizes.spins // 2)):
                beside += await _timed_beside(good, spinner)
    return [*_lateness(late), *_noticed((idle, gaps), (alone, beside))]


def _lateness(late: Mapping[int, Sequence[float]]) -> Iterator[Figure]:
    for count, found in late.items():
        yield Figure(f"deadline to error p50, {count} spinning", "ms", median(found))
        name = f"deadline to error at most, {count} spinning"
        yield marked(Figure(name, "ms", max(found)), 250)


Pair = tuple[Sequence[float], Sequence[float]]  # without and with spinning guests


def _noticed(gaps: Pair, calls: Pair) -> Iterator[Figure]:
    stall = Figure("loop stall at most, 8 spinning", "ms", max(gaps[1]), max(gaps[0]))
    yield marked(replace(stall, base="without"), 20)
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        without, beside = (quantile(each, part) for each in calls)
        yield Figure(f"others' calls {name}, 8 spinning", "ms", beside, without, base="without")


async def _timed_beside(good: ways.Gated, spinner: ways.Gated) -> list[float]:
    took: list[float] = []
    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(spinner.call, LONG)
        await anyio.sleep(SPIN_S / 10)
        took += await _timed_within(good, SPIN_S / 2)
    return took


async def _late_ms(spinner: ways.Gated, late: list[float]) -> None:
    began = time.perf_counter()
    result = await spinner.call(LONG)
    assert result.is_error
    late.append((time.perf_counter() - began - SPIN_S) * 1000)


async def _timed_within(good: ways.Gated, seconds: float) -> list[float]:
    end, took = time.perf_counter() + seconds, list[float]()
    while time.perf_counter() < end:
        took += await timed(partial(good.succeed, KB), 1)
    return took


async def compiling(sizes: Sizes, home: Path) -> list[Figure]:
    """Measures the event loop during the first compilation of a large component."""
    file, stalls, took = home / "large.wasm", [], []
    guests.large(sizes.large, file)
    async with opened(home) as bench:
        async with ticking() as idle:
            await anyio.sleep(sizes.seconds)
        for number in range(sizes.starts):
            with file.open("ab") as opened_file:
                opened_file.write(_custom(number))
            definition = ways.plugin("large", file, home)
            async with ticking() as gaps:
                took += await timed(partial(bench.sandbox.load, definition), 1)
            stalls.append(max(gaps))
    size = f"{file.stat().st_size / MB:.1f} MB"
    stall = Figure(f"loop stall at most, {size} compiled", "ms", max(stalls), max(idle))
    return [
        Figure(f"load of a new plugin of {size}", "ms", median(took)),
        marked(replace(stall, base="without"), 20),
    ]


def _custom(number: int) -> bytes:
    """Returns a section that changes only the hash of a component."""
    return bytes([0, 2, 1, number])


async def endings(sizes: Sizes, home: Path) -> list[Figure]:
    """Measures cancelled callers, and a worker that is killed during 50 calls."""
    async with opened(home) as bench:
        spinner = await bench.gated("spinner", guests.spinner())
        freed = [await _freed_ms(spinner) for _ in range(sizes.kills)]
        good = await bench.gated("echo", guests.ECHO)
        kills = [await _killed(good) for _ in range(sizes.kills)]
    results, lost, back = zip(*kills, strict=True)
    return [
        Figure("cancelled to free again at most", "ms", max(freed)),
        Figure("killed worker to next answer", "ms", median(back)),
        marked(
            Figure("results of 50 calls, worker killed", "calls", min(results)), 50, at_least=True
        ),
        marked(Figure("errors among them", "calls", max(lost)), AT_ONCE),
    ]


async def _freed_ms(spinner: ways.Gated) -> float:
    """Returns the time until a waiting caller has its answer after all running calls are cancelled."""
    async with anyio.create_task_group() as waiting, anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(spinner.call, LONG)
        await anyio.sleep(0.1)
        waiting.start_soon(spinner.succeed, 1)
        await anyio.sleep(0.05)
        began = time.perf_counter()
        group.cancel_scope.cancel()
    return (time.perf_counter() - began) * 1000


async def _killed(good: ways.Gated) -> tuple[int, int, float]:
    """Returns the numbers of results and errors of 50 calls, and milliseconds to the next answer."""
    ends: list[tuple[float, bool]] = []

    async def call() -> None:
        result = await good.call(64 * KB)
        ends.append((time.perf_counter(), result.is_error))

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(call)
        while len(ends) < AT_ONCE:
            await anyio.lowlevel.checkpoint()
        os.kill(worker(), signal.SIGKILL)
        killed = time.perf_counter()
    first = next((n for n, (_, failed) in enumerate(ends) if failed), len(ends))
    await good.succeed(1)
    back = next((end for end, failed in ends[first:] if not failed), time.perf_counter())
    return len(ends), sum(failed for _, failed in ends), (back - killed) * 1000


Scenario = Callable[[Sizes, Path], Awaitable[list[Figure]]]
SCENARIOS: tuple[Scenario, ...] = (
    whole_way,
    throughput,
    host_calls,
    starts,
    memory,
    spinning,
    compiling,
    endings,
)


async def measure(
    sizes: Sizes, home: Path, scenarios: Sequence[Scenario] = SCENARIOS
) -> list[Figure]:
    """Runs all scenarios."""
    figures = []
    for scenario in scenarios:
        print(f"{scenario.__name__}: other load: {other_cores():.2f} cores", file=sys.stderr)
        for figure in await scenario(sizes, home):
            print(f"  {figure.name}: {figure.gateway:.4g} {figure.unit}", file=sys.stderr)
            figures.append(figure)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--micro", action="store_true", help="only whether it runs")
    parser.add_argument("--json", type=Path, help="where to put the figures too")
    parser.add_argument("--only", action="append", help="a scenario by name", default=[])
    args = parser.parse_args()
    sizes = MICRO if args.micro else QUICK if args.quick else Sizes()
    scenarios = [s for s in SCENARIOS if not args.only or s.__name__ in args.only]
    if ways.extism_call() is None:
        print(ways.NO_EXTISM, file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        figures = anyio.run(
            measure, sizes, Path(home), scenarios, backend_options={"use_uvloop": True}
        )
    report(figures, args.json)


if __name__ == "__main__":
    main()
