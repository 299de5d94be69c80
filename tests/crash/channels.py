"""People ask by all bundled channels at once, and the gateway between them and a model is killed
again and again. The long form: python -m tests.crash.channels --kills 60"""

import argparse
import contextlib
import random
import sqlite3
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import anyio
from anyio import to_thread
from anyio.abc import SocketAttribute, TaskGroup

from gateway.domain.inbox import TWICE
from gateway.host.clock import SystemClock
from tests.crash.callers import CALLERS, Question, configured
from tests.crash.platforms import Platforms
from tests.fakes.client import http
from tests.fakes.gateway import START_S, Setup, spawned
from tests.fakes.model_server import Asked, Reply, scripted_server

KINDS = ("short", "long", "slow")
TOGETHER = 2  # people who ask by one channel
EACH_LIFE_S = 1.4  # at least: a run that three lives in a row did not end is set aside
SLOW_S = 1.2  # of an answer whose draft is shown
LONG_S = 120.0
HITS = ("before", "after", "any")  # it answers the gateway; or at any moment
CLOCK = SystemClock()
FILLING = "word " * 900


@dataclass(frozen=True)
class Row:
    """A delivery as the gateway kept it."""

    channel: str
    state: str
    why: str
    text: str


@dataclass
class Outcome:
    asked: list[str]
    seen: Counter[str]  # marks of answers, as people see them
    lives: dict[str, list[int]]  # in which of the gateway's each came without a key
    rows: list[Row]
    kills: Counter[str]
    seconds: float

    @property
    def lost(self) -> list[str]:
        wanted = [f"endz{name}" for name in self.asked]
        wanted += [f"beginz{name}" for name in self.asked if "long" in name]
        return [mark for mark in wanted if not self.seen[mark]]

    @property
    def doubled(self) -> list[str]:
        return [mark for mark, times in self.seen.items() if times > 1]

    @property
    def untold(self) -> list[str]:
        """Doubles of which the record says nothing."""
        told = " ".join(row.text for row in self.rows if row.why.endswith(TWICE))
        return [mark for mark in self.doubled if mark not in told]

    @property
    def unexplained(self) -> list[str]:
        """Doubles of what has a key, or that no kill came between."""
        return [
            mark for mark in self.doubled if self.seen[mark] > len(set(self.lives.get(mark, ())))
        ]

    @property
    def is_valid(self) -> bool:
        is_over = all(row.state == "sent" for row in self.rows)
        return is_over and not (self.lost or self.untold or self.unexplained)

    def report(self) -> str:
        by = Counter(row.channel for row in self.rows)
        doubles = Counter(next(c for c in CALLERS if f"z{c}" in mark) for mark in self.doubled)
        told = Counter(row.channel for row in self.rows if row.why.endswith(TWICE))
        lines = [f"{self.kills.total()} kills {dict(self.kills)}, {self.seconds:.0f} s"]
        lines += [
            f"  {name:10}{by[name]:>6} answers {doubles[name]:>4} doubles, told of {told[name]}"
            for name in CALLERS
        ]
        faults = {"lost": self.lost, "untold": self.untold, "unexplained": self.unexplained}
        lines += [f"  {what}: {marks}" for what, marks in faults.items() if marks]
        ends = Counter(row.state for row in self.rows)
        return "\n".join([*lines, f"  {dict(ends)}"])


@dataclass
class Run:
    kills: int
    chance: random.Random
    platforms: Platforms = field(init=False)
    group: TaskGroup = field(init=False)
    killed: Counter[str] = field(default_factory=Counter)
    asked: list[str] = field(default_factory=list)
    _armed: str | None = None
    _fired: anyio.Event = field(default_factory=anyio.Event)
    _up: anyio.Event = field(default_factory=anyio.Event)
    _url: str = ""
    _is_over: bool = False
    _numbers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CALLERS, 0))

    def __post_init__(self) -> None:
        self.platforms = Platforms(self._hit)

    def _hit(self, stage: str) -> bool:
        if self._armed != stage or self.chance.random() < 0.5:
            return False
        self._strike(stage)
        return True

    def _strike(self, stage: str) -> None:
        self._armed, self._up = None, anyio.Event()
        self.killed[stage] += 1
        self._kill()
        self._fired.set()

    def _kill(self) -> None:
        raise NotImplementedError

    async def live(self, config: Path, stage: str | None) -> None:
        """One life of the gateway, to its violent end; without a `stage` until all is answered."""
        async with spawned(config) as site:
            with anyio.fail_after(START_S):
                assert await site.ready(), (await site.said()).decode(errors="replace")[-3000:]
            self._kill, self._url = site.kill, site.url  # type: ignore[method-assign]  # of this life
            self._up.set()
            if stage is None:
                await self._silence(config)
                return
            await anyio.sleep(EACH_LIFE_S)
            self._fired = anyio.Event()
            if stage == "any":
                await anyio.sleep(self.chance.uniform(0, 0.3))
                self._strike(stage)
            self._armed = stage
            with anyio.fail_after(LONG_S):
                await self._fired.wait()
                assert await site.exit_code() == -9, "it ended by itself"
            self.platforms.life += 1

    async def _silence(self, config: Path) -> None:
        """Until all that was asked is answered, and told as sent."""
        self._is_over = True
        with anyio.move_on_after(LONG_S):
            while True:
                await anyio.sleep(0.2)
                seen = set(self.platforms.marks())
                rows = await to_thread.run_sync(rows_of, config.parent / "data")
                is_sent = all(row.state == "sent" for row in rows)
                if is_sent and all(f"endz{name}" in seen for name in self.asked):
                    return

    async def ask_on(self, channel: str) -> None:
        """One question after the other, each until it is answered."""
        while not self._is_over:
            self._numbers[channel] += 1
            number = self._numbers[channel]
            kind = KINDS[self.chance.randrange(len(KINDS))]
            asked = Question(channel, kind, number, int(CLOCK.now().timestamp()))
            self.asked.append(asked.name)
            await self._bring(asked)
            while f"endz{asked.name}" not in self.platforms.marks() and not self._is_over:
                self.platforms.progress = anyio.Event()
                with anyio.move_on_after(1):
                    await self.platforms.progress.wait()

    async def _bring(self, asked: Question) -> None:
        """As platforms do it: again, until it is taken."""
        call = CALLERS[asked.channel](asked)
        while True:
            await self._up.wait()
            url = f"{self._url}/webhooks/{asked.channel}{call.path}"
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                answer = await http(url, method=call.method, headers=call.headers, body=call.body)
                if answer.status < 300:
                    return
                assert answer.status in {500, 503}, (asked, answer)
            await anyio.sleep(0.05)

    def answer(self, model: Asked) -> Reply:
        name = model.last_text.strip()
        if "long" in name:
            return Reply(f"beginz{name} {FILLING} endz{name}")
        if "slow" not in name:
            return Reply(f"It is endz{name}")
        gate = anyio.Event()
        self.group.start_soon(_open_later, gate)
        return Reply(["Let us ", "see: ", f"it is endz{name}"], gates={2: gate})


async def _open_later(gate: anyio.Event) -> None:
    await anyio.sleep(SLOW_S)
    gate.set()


def rows_of(data_dir: Path) -> list[Row]:
    (path,) = data_dir.glob("*.db")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT channel, state, coalesce(why, ''), text FROM delivery")
        return [Row(*row) for row in rows]


async def run(kills: int, folder: Path, *, seed: int = 1, on_unknown: str = "resend") -> Outcome:
    """Takes about three seconds a kill."""
    one, began = Run(kills, random.Random(seed)), anyio.current_time()
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        scripted_server(one.answer) as model,
        anyio.create_task_group() as group,
    ):
        one.group = group
        group.start_soon(listener.serve, one.platforms.serve)
        base = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        setup = Setup(model.url, rest=configured(base, on_unknown))
        config = await setup.written(folder)
        for channel in [*CALLERS] * TOGETHER:
            group.start_soon(one.ask_on, channel)
        for number in range(kills):
            await one.live(config, HITS[number % len(HITS)])
        await one.live(config, None)
        group.cancel_scope.cancel()
    lives: dict[str, list[int]] = {}
    for mark, is_safe, life in one.platforms.arrivals:
        if not is_safe:
            lives.setdefault(mark, []).append(life)
    rows = await to_thread.run_sync(rows_of, config.parent / "data")
    seen = Counter(one.platforms.marks())
    return Outcome(one.asked, seen, lives, rows, one.killed, anyio.current_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of everything that is left to chance")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = anyio.run(partial(run, args.kills, Path(folder), seed=args.seed))
    sys.stdout.write(f"{outcome.report()}\n")
    return 0 if outcome.is_valid else 1


if __name__ == "__main__":
    sys.exit(main())
