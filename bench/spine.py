"""The benchmark of a whole message: the gateway against the floor, in the same run.

    python -m bench.spine [--quick] [--json FILE]

Rounds alternate between the two; every figure is the median of its rounds.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from bench import targets
from bench.conversations import BEGIN, Said
from bench.load import TEXT, ask_once
from bench.marks import Figure, marked, report
from bench.process import Started, other_cores, rss_kb
from bench.recall import key_of, say
from bench.targets import ModelPlan, load
from gateway.host.clock import SystemClock
from gateway.store.opening import open_store

Seen = dict[str, Any]
Runs = tuple[list[Seen], list[Seen]]  # of the floor, of the gateway


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements."""

    rounds: int = 5
    seconds: float = 2.0
    sessions: Sequence[int] = (1, 32, 256)
    slow_seconds: float = 6.0
    tokens: int = 400
    token_seconds: float = 9.0
    token_rounds: int = 3
    cold_starts: int = 5
    many_sessions: int = 10_000
    turns: Sequence[int] = (10, 1_000, 10_000)
    messages: int = 100_000  # messages of other sessions in the store


QUICK = Sizes(
    rounds=2,
    seconds=0.7,
    slow_seconds=2.0,
    tokens=200,
    token_seconds=2.5,
    token_rounds=1,
    cold_starts=1,
    many_sessions=1_000,
    turns=(10, 300, 1_000),
    messages=20_000,
)
MICRO = Sizes(
    rounds=1,
    seconds=0.2,
    sessions=(1, 8),
    slow_seconds=0.0,
    tokens=0,
    cold_starts=0,
    many_sessions=0,
    turns=(),
    messages=0,
)
RECALLING = 32  # sessions
SLOW_MS = 300.0
SLOW_SESSIONS = 256
THEORY = SLOW_SESSIONS / (SLOW_MS / 1000)  # messages a second if only the model took time


@dataclass(frozen=True, slots=True)
class Pair:
    """The floor and the gateway with one model server."""

    model: Started
    floor: Started
    gateway: Started

    def rounds(self, count: int, *, is_again: bool = False, **options: int | float | str) -> Runs:
        """Alternates between the two, so that both have the same noise. Each round has new sessions.
        `is_again`: it asks those of the first round the same questions once more."""
        floor, gateway = [], []
        for number in range(count):
            options["name"] = f"{options['sessions']}-{0 if is_again else number}-"
            floor.append(_load(self.floor, **options))
            gateway.append(_load(self.gateway, **options))
        return floor, gateway


def _load(server: Started, **options: Any) -> Seen:
    seen = load(server, **options)
    if seen["errors"]:
        raise RuntimeError(f"errors while measuring: {seen['errors'][:3]}")
    return seen


@contextmanager
def pair(plan: ModelPlan, home: Path) -> Iterator[Pair]:
    with (
        targets.model(plan) as model,
        targets.floor(model.port, home / "floor") as floor,
        targets.gateway(model.port, home / "gateway") as gateway,
    ):
        yield Pair(model, floor, gateway)


def compared(name: str, unit: str, runs: Runs, value: Callable[[Seen], float]) -> Figure:
    floor, gateway = ([value(seen) for seen in side] for side in runs)
    middle = median(gateway)
    spread = (max(gateway) - min(gateway)) / middle
    return Figure(name, unit, middle, median(floor), spread=spread)


def cpu_per_message(seen: Seen) -> float:
    return float(seen["cpu_ms"] / seen["messages"])


def rate(seen: Seen) -> float:
    return float(seen["messages"] / seen["seconds"])


def messages(sizes: Sizes, home: Path) -> Iterator[Figure]:
    """Measures short replies from a model that takes no time, so the time is the gateway's own."""
    with pair(ModelPlan(), home) as both:
        yield marked(Figure("idle RSS", "MB", rss_kb(both.gateway.pid) / 1024), 80)
        for sessions in sizes.sessions:
            runs = both.rounds(sizes.rounds, sessions=sessions, seconds=sizes.seconds, warm_up=3)
            at = f"{sessions} session{'s' if sessions > 1 else ''}"
            if sessions == 1:
                p50 = compared("added latency p50, 1 session", "ms", runs, lambda s: s["p50_ms"])
                yield marked(p50, 3.0)
                yield compared("added latency p99, 1 session", "ms", runs, lambda s: s["p99_ms"])
            cpu = compared(f"CPU a message, {at}", "ms", runs, cpu_per_message)
            yield marked(cpu, 4.0, ratio=True)
            if sessions == RECALLING:
                options = {"sessions": sessions, "seconds": sizes.seconds, "warm_up": 3}
                runs_again = both.rounds(sizes.rounds, is_again=True, **options)
                name = f"{cpu.name}, each recalls copies of its question"
                yield compared(name, "ms", runs_again, cpu_per_message)
            if sessions > 1:
                pace = compared(f"throughput, {at}", "messages/s", runs, rate)
                yield marked(pace, 0.25, ratio=True, at_least=True)


def slow_model(sizes: Sizes, home: Path) -> Iterator[Figure]:
    """Measures throughput with a slow model; a call that is held back loses the model's time."""
    with pair(ModelPlan(latency_ms=SLOW_MS), home) as both:
        runs: Runs = ([], [])
        # Counts whole waves: a fixed time would cut off the last one.
        waves = round(sizes.slow_seconds / (SLOW_MS / 1000))
        options: dict[str, Any] = {"sessions": SLOW_SESSIONS, "messages": waves * SLOW_SESSIONS}
        options |= {"flowing": 1, "warm_up": 3}
        runs[1].append(_load(both.gateway, **options))
        open_max = targets.stats(both.model)["open_max"]
        runs[0].append(_load(both.floor, **options))
        name = f"throughput, {SLOW_SESSIONS} sessions, {SLOW_MS:g} ms model"
        figure = compared(name, "messages/s", runs, rate)
        yield marked(figure, round(0.85 * THEORY), at_least=True)
        in_flight = Figure("model calls in flight, same run", "calls", open_max)
        yield marked(in_flight, SLOW_SESSIONS, at_least=True)


def tokens(sizes: Sizes, home: Path) -> Iterator[Figure]:
    """Measures the cost of a token with long replies and one token per read."""
    for streams, interval_ms in ((1, 2.0), (32, 10.0)):
        plan = ModelPlan(tokens=sizes.tokens, interval_ms=interval_ms)
        with pair(plan, home / str(streams)) as both:
            options: dict[str, Any] = {"sessions": streams, "seconds": sizes.token_seconds}
            runs = both.rounds(sizes.token_rounds, **options, warm_up=0)
            name = f"CPU a streamed token, {streams} stream{'s' if streams > 1 else ''}"
            figure = compared(name, "us", runs, lambda s: s["cpu_ms"] * 1000 / s["tokens"])
            yield marked(figure, 2.5, ratio=True)


def cold_starts(sizes: Sizes, home: Path) -> Iterator[Figure]:
    """Measures the time from the start of the process to the end of its first answer."""
    with targets.model(ModelPlan()) as model:

        def floor(at: Path) -> float:
            return _first_answer(lambda: targets.floor(model.port, at))

        def gateway(at: Path) -> float:
            return _first_answer(lambda: targets.gateway(model.port, at))

        took: tuple[list[float], list[float]] = ([], [])
        for number in range(sizes.cold_starts):
            took[0].append(floor(home / f"floor{number}"))
            took[1].append(gateway(home / f"gateway{number}"))
    spread = (max(took[1]) - min(took[1])) / median(took[1])
    figure = Figure(
        "cold start to first answer", "s", median(took[1]), median(took[0]), spread=spread
    )
    yield marked(figure, 0.7)
    versions = [_took([*targets.exogate(), "version"]) for _ in range(sizes.cold_starts)]
    yield Figure("`exogate version`", "s", median(versions))


def _first_answer(start: Callable[[], Any]) -> float:
    began = time.perf_counter()
    with start() as server:
        answered = ask_once(server.port, targets.TOKEN)
        return answered - began


def _took(command: Sequence[str]) -> float:
    began = time.perf_counter()
    targets.run_to_end(command)
    return time.perf_counter() - began


def many_sessions(sizes: Sizes, home: Path) -> Iterator[Figure]:
    """Measures the memory per idle session, with one message each."""
    count = sizes.many_sessions
    with (
        targets.model(ModelPlan()) as model,
        targets.gateway(model.port, home / "gateway") as server,
    ):
        common: dict[str, Any] = {"sessions": 64, "warm_up": 0}
        _load(server, **common, messages=2_000, peers=64, name="warm")
        before = rss_kb(server.pid)
        _load(server, **common, messages=count, peers=count, name="many")
        figure = Figure(
            f"RSS a session, {count:,} sessions", "kB", (rss_kb(server.pid) - before) / count
        )
        yield marked(figure, 4.0)


def growth(sizes: Sizes, home: Path) -> Iterator[Figure]:
    """Measures a late turn of a session against an early turn of a session in the same process."""
    first, *later = sizes.turns
    with (
        targets.model(ModelPlan()) as model,
        targets.gateway(model.port, home / "gateway") as server,
    ):
        _load(server, sessions=1, warm_up=0, messages=1_000, name="warm")
        done, fresh = 0, 0
        for turn in later:
            half = min(100, turn // 20)
            _load(server, sessions=1, warm_up=0, messages=turn - half - done, name="long")
            early, late = [], []
            for _ in range(sizes.rounds):
                early.append(median(_early(server, first, fresh + n) for n in range(5)))
                fresh += 5
                late.append(_turn_ms(server, messages=2 * half // sizes.rounds, name="long"))
            done = turn - half + sizes.rounds * (2 * half // sizes.rounds)
            figure = Figure(
                f"CPU of turn {turn:,} against turn {first}",
                "ms",
                median(late),
                median(early),
                spread=(max(late) - min(late)) / median(late),
            )
            figure = replace(figure, base=f"turn {first}")
            yield marked(figure, 1.15, ratio=True) if turn == later[-1] else figure


def _early(server: Started, turn: int, number: int) -> float:
    """Measures the turns around `turn` of a new session."""
    name = f"new{number}x"
    _load(server, sessions=1, warm_up=0, messages=turn - 5, name=name)
    return _turn_ms(server, messages=10, name=name)


def _turn_ms(server: Started, **options: Any) -> float:
    return cpu_per_message(_load(server, sessions=1, warm_up=0, **options))


TALK = 400  # messages per other session
ASKED = 200  # warm-up turns per session


def crowded(sizes: Sizes, home: Path) -> Iterator[Figure]:
    """Measures a turn in a store with many messages of others with the same words, against a turn in a
    small store. The sessions repeat earlier questions, so that turns are recalled."""
    data = home / "crowded" / "data"
    data.mkdir(parents=True)
    anyio.run(_fill, data, sizes.messages)
    with (
        targets.model(ModelPlan()) as model,
        targets.gateway(model.port, home / "small") as small,
        targets.gateway(model.port, home / "crowded") as large,
    ):
        took: tuple[list[float], list[float]] = ([], [])
        for server in (small, large):
            _load(server, sessions=8, warm_up=0, messages=8 * ASKED)
        for _ in range(2 * sizes.rounds):
            for costs, server in zip(took, (small, large), strict=True):
                costs.append(cpu_per_message(_load(server, sessions=8, warm_up=0, messages=160)))
    base, costs = took
    figure = Figure(
        f"CPU of a turn beside {sizes.messages:,} messages",
        "ms",
        median(costs),
        median(base),
        base="a small store",
        spread=(max(costs) - min(costs)) / median(costs),
    )
    yield marked(figure, 1.15, ratio=True)


async def _fill(data: Path, messages: int) -> None:
    said: list[Said] = []
    for number in range(TALK // 2):
        at = BEGIN + timedelta(seconds=number)
        said += Said("user", f"{number}: {TEXT}", at), Said("assistant", "word " * 20, at)
    async with open_store("embedded", data, clock=SystemClock()) as stores:
        for number in range(messages // TALK):
            await say(stores, key_of(number), said)


Scenario = Callable[[Sizes, Path], Iterator[Figure]]
SCENARIOS: tuple[Scenario, ...] = (
    messages,
    slow_model,
    tokens,
    cold_starts,
    many_sessions,
    growth,
    crowded,
)


def measure(
    sizes: Sizes, home: Path, scenarios: Sequence[Scenario] = SCENARIOS
) -> Iterator[Figure]:
    """Runs all scenarios except those of size 0."""
    wanted: dict[Scenario, float] = {
        slow_model: sizes.slow_seconds,
        tokens: sizes.tokens,
        cold_starts: sizes.cold_starts,
        many_sessions: sizes.many_sessions,
        growth: len(sizes.turns),
        crowded: sizes.messages,
    }
    for scenario in scenarios:
        if wanted.get(scenario, 1):
            name = scenario.__name__
            print(f"{name}: other load: {other_cores():.2f} cores", file=sys.stderr, flush=True)
            for figure in scenario(sizes, home / name):
                print(f"  {figure.name}: {figure.gateway:.4g} {figure.unit}", file=sys.stderr)
                yield figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--micro", action="store_true", help="only whether it runs")
    parser.add_argument("--json", type=Path, help="where to put the figures too")
    parser.add_argument("--only", action="append", help="a scenario by name", default=[])
    args = parser.parse_args()
    sizes = MICRO if args.micro else QUICK if args.quick else Sizes()
    scenarios = [s for s in SCENARIOS if not args.only or s.__name__ in args.only]
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        figures = list(measure(sizes, Path(home), scenarios))
    report(figures, args.json)


if __name__ == "__main__":
    main()
