"""Measures the cost of metering a call, and the time of queries on a long ledger.

    python -m bench.ledger [--quick] [--json FILE]

It sends messages of one session to the gateway and to a gateway without a meter, in alternating rounds.
Then, in one process on a fresh embedded store, it compares a metered call with the same call of a
model that takes no time, fills the ledger with records and queries pages.
"""

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import anyio
from anyio import to_thread

from bench import targets
from bench.marks import Figure, marked, report
from bench.measuring import quantile, spread, timed
from bench.process import other_cores
from gateway.budgets import LiveBudgets, Meter
from gateway.domain.budgets import Budgets, Limit, Payer, RecordQuery, Scope, day_of
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.messages import Message, Usage
from gateway.domain.model import ModelReply, ModelRequest, OnDelta
from gateway.domain.ports import Model, Stores
from gateway.host.clock import SystemClock, TimeIds
from gateway.providers.prices import PriceTable
from gateway.store.opening import open_store

ADDED_MS = 0.3
PAGE_MS = 20.0
DAY = datetime(2026, 1, 1, tzinfo=UTC)
SESSIONS, SERIES = 100, 8
ROUNDS = 5
PAYER = Payer(SessionKey(AgentId("a"), "c", "p"), RunId("r"))
REQUEST = ModelRequest("p", "m", "", (Message("user", "hello"),), payer=PAYER)
MUCH = Limit(10**12)
LIMITED = Budgets(session=MUCH, daily=MUCH, monthly=MUCH, per_agent=MUCH)
UNMETERED = (sys.executable, "-m", "bench.unmetered")
CONFIG = f"""{targets.CONFIG}
[budgets]
session = 1_000_000_000_000
daily = 1_000_000_000_000
monthly = 1_000_000_000_000
per_agent = 1_000_000_000_000
"""
EMPTY = {"a model's that nobody asked", "of a session and another agent"}


class Instant:
    """A model that takes no time."""

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        return ModelReply("p", "m", "hi", usage=Usage(3, 1))


async def measure_metering(stores: Stores, calls: int) -> list[Figure]:
    """Measures the time of reserve and settle in a call, with a limit in every scope."""
    clock = SystemClock()
    ids = TimeIds(clock)
    meter = Meter(stores.ledger, LiveBudgets(LIMITED), PriceTable({}), clock, ids, stores.audit)
    plain: Model = Instant()
    metered = meter.around(plain)
    added: list[list[float]] = []
    for _ in range(ROUNDS):
        without = await timed(lambda: plain.reply(REQUEST, lambda _: None), calls)
        held = await timed(lambda: metered.reply(REQUEST, lambda _: None), calls)
        added.append([took - median(without) for took in held])
    p50, p99 = ([quantile(one, part) for one in added] for part in (0.5, 0.99))
    return [
        marked(Figure("reserve and settle p50", "ms", median(p50), spread=spread(p50)), ADDED_MS),
        Figure("reserve and settle p99", "ms", median(p99), spread=spread(p99)),
    ]


def message(home: Path, messages: int) -> list[Figure]:
    """Measures the time of metering in a message through sockets, with a limit in every scope."""
    with (
        targets.model(targets.ModelPlan()) as model,
        targets.gateway(model.port, home / "without", program=UNMETERED, config=CONFIG) as without,
        targets.gateway(model.port, home / "metered", config=CONFIG) as metered,
    ):
        rounds = [
            [
                targets.load(one, sessions=1, messages=messages, warm_up=10)
                for one in (without, metered)
            ]
            for _ in range(ROUNDS * 2)
        ]
    bare, whole = ([seen["p50_ms"] for seen in side] for side in zip(*rounds, strict=True))
    added = median(with_it - one for one, with_it in zip(bare, whole, strict=True))
    return [
        Figure(
            "a message p50, against no meter",
            "ms",
            median(whole),
            median(bare),
            spread=spread(whole),
        ),
        marked(Figure("metering adds to a message p50", "ms", added), ADDED_MS),
    ]


async def measure_queries(stores: Stores, rows: int) -> list[Figure]:
    """Measures the longest time of each query for a page of 100 rows."""
    middle, session = 10**7 + rows // 2, SessionKey(AgentId("a1"), "c", "default", "p1")
    noon = DAY + timedelta(seconds=middle)
    queries: Mapping[str, RecordQuery] = {
        "newest": RecordQuery(),
        "a session's": RecordQuery(session_key=session),
        "an agent's": RecordQuery(agent="a1"),
        "a provider's and model's": RecordQuery(provider="p0", model="m0"),
        "a model's that nobody asked": RecordQuery(model="none"),
        "of a session and another agent": RecordQuery(session_key=session, agent="a0"),
        "of a session and a model": RecordQuery(session_key=session, model="m1"),
        "of a session and an old model": RecordQuery(session_key=session, model="m5", until=noon),
        "of a time": RecordQuery(since=noon, until=noon + timedelta(days=1)),
        "from the middle on": RecordQuery(before=middle),
        "an agent's from the middle on": RecordQuery(agent="a1", before=middle),
    }
    figures = []
    for name, query in queries.items():
        page = await stores.ledger.records(query)
        assert bool(page.records) == (name not in EMPTY), f"nothing is measured: {name}"
        took = await timed(lambda query=query: stores.ledger.records(query), ROUNDS * 4)  # type: ignore[misc]  # binds the loop variable
        figures.append(marked(Figure(f"records {name}", "ms", max(took)), PAGE_MS))
    day = day_of(DAY)
    scopes = [Scope("day", day), Scope("month", day[:7]), Scope("agent", "a1")]
    took = await timed(lambda: stores.ledger.tallies(scopes), ROUNDS * 4)
    return [*figures, marked(Figure("status", "ms", max(took)), PAGE_MS)]


def fill(data_dir: Path, rows: int) -> None:
    """Writes records as the ledger does, a second apart in time, in one commit."""
    at = int(DAY.timestamp()) * 1_000_000
    with closing(sqlite3.connect(data_dir / "store.db")) as db, db:
        series = [(n, f"a{n % 2}", f"p{n % 4}", f"m{n}") for n in range(SERIES)]
        db.executemany("INSERT OR REPLACE INTO series VALUES (?, ?, ?, ?)", series)
        db.executemany(
            "INSERT INTO token_record VALUES (?, ?, ?, ?, ?, 'r', '2026-01-01', 'answered', "
            "10, 5, 0, 0, 0, 'unpriced', 0, 0, NULL)",
            (
                (n, f"x{n}", at + n * 1_000_000, n % SERIES, f"a{n % 2}:c:default:p{n % SESSIONS}")
                for n in range(10**7, 10**7 + rows)
            ),
        )


async def measure(home: Path, calls: int, rows: int) -> list[Figure]:
    clock = SystemClock()
    print(f"other load: {other_cores():.2f} cores", file=sys.stderr)
    figures = await to_thread.run_sync(message, home, calls // 5)
    async with open_store("embedded", home, clock=clock) as stores:
        figures += await measure_metering(stores, calls)
    began = time.perf_counter()
    await to_thread.run_sync(fill, home, rows)
    print(f"{rows:,} rows in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    async with open_store("embedded", home, clock=clock) as stores:
        return figures + await measure_queries(stores, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--micro", action="store_true", help="only whether it runs")
    parser.add_argument("--json", type=Path, help="where to put the figures too")
    args = parser.parse_args()
    calls, rows = (5, 500) if args.micro else (300, 50_000) if args.quick else (2_000, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        figures = anyio.run(measure, Path(home), calls, rows, backend_options={"use_uvloop": True})
    report(figures, args.json)


if __name__ == "__main__":
    main()
