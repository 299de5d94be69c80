"""Measures the cost of facts in a small and in a large store.

    python -m bench.memory [--quick] [--json FILE]

In one process, on a fresh embedded store, it adds a person's facts one at a time and searches them,
first with a thousand facts of other people in the store, then with a million, with the same words.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from statistics import median

import anyio

from bench.marks import Figure, marked, report
from bench.measuring import quantile, rss_mb, timed
from bench.process import other_cores
from gateway.domain.facts import Claim, Erasure, FactQuery, FactView, SaidSource
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.ports import FactStore
from gateway.host.clock import SystemClock
from gateway.store.opening import open_store

ADD_MS, GROWTH, RSS_MB = 1.0, 1.5, 200.0
SMALL, A_PERSONS = 1_000, 1_000  # facts
DAY = datetime(2026, 1, 1, tzinfo=UTC)
THINGS = ("tea", "jazz", "chess", "Oslo", "sailing", "a dog called Luna", "blue", "old maps")


def a_claim(number: int, person: str) -> Claim:
    """Returns a claim; every third one supersedes another."""
    key = SessionKey(AgentId("a"), "c", "default", person)
    at = DAY + timedelta(seconds=number)
    is_one = number % 3 == 0
    thing = f"{THINGS[number % len(THINGS)]} number {number % 997}"
    predicate = f"favourite {number % 30}" if is_one else "likes"
    source = SaidSource(f"m{number}", key, at, f"I really like {thing}", person)
    return Claim("user", predicate, thing, is_one, at, key, source=source)


async def fill(facts: FactStore, first: int, beyond: int) -> None:
    """Adds facts of other people, one commit per person."""
    for start in range(first, beyond, A_PERSONS):
        numbers = range(start, min(start + A_PERSONS, beyond))
        claims = [a_claim(number, f"p{start}") for number in numbers]
        ids = [f"o{number}" for number in numbers]
        await facts.add_facts(f"p{start}", claims, ids=ids, now=DAY)


async def measured(facts: FactStore, person: str, times: int) -> Mapping[str, list[float]]:
    """Returns the milliseconds of each call for a new person."""
    numbers, view = count(), FactView(scope=person)

    async def add() -> None:
        number = next(numbers)
        claim = a_claim(number, person)
        await facts.add_facts(person, [claim], ids=[f"{person}{number}"], now=claim.valid_from)

    def matching(text: str) -> Callable[[], Awaitable[object]]:
        return lambda: facts.facts_matching(view, text.split(), limit=10)

    one = FactQuery(view, predicate="favourite 3", at=DAY + timedelta(seconds=50))
    asked: Mapping[str, Callable[[], Awaitable[object]]] = {
        "adding": add,
        "matching a rare word": matching("what about number 7"),
        "matching a frequent word": matching("does she like jazz"),
        "one hop around": lambda: facts.facts_around(view, ["jazz number 1"], limit=10),
        "50 current ones": lambda: facts.select_facts(FactQuery(view, limit=50)),
        "true at a time": lambda: facts.select_facts(one),
    }
    took = {}
    for name, ask in asked.items():
        took[name] = await timed(ask, times)  # type: ignore[arg-type]  # any result
    return took


async def measure(home: Path, facts_in_all: int, times: int) -> list[Figure]:
    print(f"other load: {other_cores():.2f} cores", file=sys.stderr)
    async with open_store("embedded", home, clock=SystemClock()) as stores:
        await fill(stores.facts, 0, SMALL)
        small = await measured(stores.facts, "small", times)
        rss, began = rss_mb(os.getpid()), time.perf_counter()
        await fill(stores.facts, SMALL, facts_in_all)
        seconds = time.perf_counter() - began
        large = await measured(stores.facts, "large", times)
        grown = rss_mb(os.getpid()) - rss
        began = time.perf_counter()
        await stores.facts.erase_facts(Erasure(scope="large"), dry_run=False, now=DAY)
        erased = time.perf_counter() - began
    figures = [
        marked(Figure(f"adding p50 beside {SMALL:,}", "ms", median(small["adding"])), ADD_MS),
        marked(
            Figure(f"adding p50 beside {facts_in_all:,}", "ms", median(large["adding"])), ADD_MS
        ),
        Figure("adding p99", "ms", quantile(large["adding"], 0.99)),
        Figure("adding many at once", "facts/s", (facts_in_all - SMALL) / seconds),
        marked(Figure("RSS growth", "MB", grown), RSS_MB),
        Figure("erasing a person for good", "s", erased),
    ]
    for name in list(small)[1:]:
        figure = Figure(name, "ms", median(large[name]), median(small[name]), base="small")
        figures.append(marked(figure, GROWTH, ratio=True))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--micro", action="store_true", help="only whether it runs")
    parser.add_argument("--json", type=Path, help="where to put the figures too")
    args = parser.parse_args()
    sizes = (1_500, 5) if args.micro else (50_000, 500) if args.quick else (1_000_000, 1_000)
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        figures = anyio.run(measure, Path(home), *sizes, backend_options={"use_uvloop": True})
    report(figures, args.json)


if __name__ == "__main__":
    main()
