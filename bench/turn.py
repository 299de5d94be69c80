"""The benchmark of a turn: the whole runtime against the bare loop, in the same run.

    python -m bench.turn [--quick] [--json FILE]

A turn has three model calls, two tool calls and 200 deltas. Its figure is the CPU time of this process,
without model server and guests, which are other processes. Rounds alternate; every figure is the median
of its rounds.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from bench import targets, trees
from bench.bare import bare_loop
from bench.marks import Figure, marked, report
from bench.measuring import spread
from bench.process import other_cores
from gateway.agent.effects import (
    AskModel,
    CallTool,
    Effect,
    Job,
    ModelReplied,
    Moment,
    ToolReturned,
    TurnEvent,
)
from gateway.agent.leaves import REGISTRY, SHIPPED
from gateway.agent.turn import Turn
from gateway.app.assembly import Gateway, open_gateway
from gateway.cli.configuration import known_names
from gateway.config.load import load as load_config
from gateway.config.values import GatewayConfig
from gateway.control.rules import load_rules
from gateway.control.trees.loading import load as load_tree
from gateway.domain.agents import Address, AgentDef
from gateway.domain.events import Event
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.inbox import Inbound
from gateway.domain.messages import Message, ToolCall, ToolResult, Usage
from gateway.domain.model import ModelReply
from gateway.domain.ports import ToolScope
from gateway.memory.context import Packer

TREES = ("default", "oracle-agent")
STORES = ("memory", "embedded")
TOOL_CALLS = 2
MARK_MS = 5.0
QUESTION = "Say it twice, then answer."
PLAN = targets.ModelPlan(tokens=200, tool_calls=TOOL_CALLS, arguments='{"text": "hello"}')
PACED = replace(PLAN, interval_ms=1.0)  # each delta is a network read after a sleep of the loop
# Two agents with different trees, a tool, and a rule that computes at each event of a tool.
CONFIG = """
[gateway]
data_dir = {data_dir}

[store]
url = "{store}"

[providers.mock]
wire = "openai"
base_url = "http://127.0.0.1:{model_port}/v1"
api_key = "sk-bench"

[[agents]]
id = "default"
provider = "mock"
model = "mock-1"
tools = ["echo"]

[[agents]]
id = "oracle-agent"
provider = "mock"
model = "mock-1"
tools = ["echo"]
tree = "oracle-agent"

[[plugins]]
name = "echo"
path = "bundled:echo"

[[rules]]
id = "bench"
on = ["tool.*"]
when = "payload.size > 3 and usage.total_tokens < limits.token_budget"
do = [{{ notify = "{{payload.tool}} gave {{payload.size}} characters.", inject_at = "after_tool" }}]
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements."""

    rounds: int = 7
    turns: int = 50
    paced_turns: int = 10
    tick_rounds: int = 7
    tick_seconds: float = 0.2


QUICK = Sizes(rounds=3, turns=20, paced_turns=5, tick_rounds=3, tick_seconds=0.1)
MICRO = Sizes(rounds=1, turns=2, paced_turns=1, tick_rounds=1, tick_seconds=0.01)
TakeTurn = Callable[[], Coroutine[Any, Any, object]]


class Whole:
    """Runs turns through the whole runtime, each in a new session: accept, lane, turn, commit."""

    def __init__(self, rooms: Gateway) -> None:
        self._front, self._count, self.events = rooms.front, 0, 0
        rooms.shared.bus.subscribe(self._hear)  # like a client with a subscription to events

    def _hear(self, _event: Event) -> None:
        self.events += 1

    async def turn(self, agent: str) -> str:
        """Runs a turn. Raises RuntimeError if it fails."""
        self._count += 1
        address = Address("websocket", "bench", f"peer{self._count}")
        inbound = Inbound(address, QUESTION, requested_agent=agent)
        run = self._front.live.get((await self._front.intake.accept(inbound)).run_id)
        assert run is not None
        ended, told = anyio.Event(), bytearray()

        def listen(event: bytes, is_last: bool) -> None:  # noqa: FBT001  # a Listener
            if is_last:
                told.extend(event)
                ended.set()

        run.listen(listen)
        await ended.wait()
        end = json.loads(told)
        if end["type"] != "done" or end["reason"] != "answered":
            raise RuntimeError(f"a turn went wrong: {end}")
        return str(end["response"])


def configured(store: str, model_port: int, home: Path) -> GatewayConfig:
    home.mkdir(parents=True)
    file = home / "bench.toml"
    file.write_text(
        CONFIG.format(data_dir=json.dumps(str(home / "data")), store=store, model_port=model_port)
    )
    return load_config(file, environment={}, home=home, cwd=home, known=known_names())


@asynccontextmanager
async def whole(config: GatewayConfig) -> AsyncIterator[Whole]:
    async with open_gateway(config, version="bench") as rooms:
        rooms.front.intake.open()
        yield Whole(rooms)


async def cpu_ms(take: TakeTurn, turns: int) -> float:
    """Returns the CPU time of this process per turn."""
    gc.collect()
    began = time.process_time_ns()
    for _ in range(turns):
        await take()
    return (time.process_time_ns() - began) / turns / 1e6


async def side_by_side(
    config: GatewayConfig, url: str, rounds: int, turns: int
) -> dict[str, list[float]]:
    """Returns the rounds of the bare loop, and those of the runtime by tree name."""
    async with bare_loop(url) as bare, whole(config) as ours:
        ways: dict[str, TakeTurn] = {"bare": partial(bare.turn, QUESTION)}
        ways |= {tree: partial(ours.turn, tree) for tree in TREES}
        took: dict[str, list[float]] = {name: [] for name in ways}
        answers = [await take() for take in ways.values()]  # warms up
        if len(set(answers)) > 1 or not ours.events:
            raise RuntimeError("not all of them did the same")
        for _ in range(rounds):
            for name, take in ways.items():
                took[name].append(await cpu_ms(take, turns))
        return took


def measured(
    plan: targets.ModelPlan, store: str, home: Path, *count: int
) -> dict[str, list[float]]:
    print(f"{home.name}: other load: {other_cores():.2f} cores", file=sys.stderr, flush=True)
    with targets.model(plan) as model:
        config, url = configured(store, model.port, home), f"http://127.0.0.1:{model.port}/v1"
        run = partial(side_by_side, config, url, *count)
        return anyio.run(run, backend_options={"use_uvloop": True})


def turns(sizes: Sizes, home: Path) -> Iterator[Figure]:
    """Measures turns without a pause between deltas."""
    for store in STORES:
        took = measured(PLAN, store, home / store, sizes.rounds, sizes.turns)
        for tree in TREES:
            yield _beside(f"CPU a turn, {tree}, {store}", tree, took)
            more = median(took[tree]) - median(took["bare"])
            yield marked(Figure(f"more than the bare loop, {tree}, {store}", "ms", more), MARK_MS)


def paced(sizes: Sizes, home: Path) -> Iterator[Figure]:
    took = measured(PACED, "memory", home / "paced", sizes.rounds, sizes.paced_turns)
    for tree in TREES:
        yield _beside(f"CPU a paced turn, {tree}, memory", tree, took)


def _beside(name: str, tree: str, took: dict[str, list[float]]) -> Figure:
    mine, base = took[tree], took["bare"]
    return Figure(name, "ms", median(mine), median(base), spread=spread(mine), base="bare loop")


def ticks(tree: str) -> int:
    """Counts the ticks of a simulated run with two rounds of tools."""
    agent = AgentDef(AgentId("main"), "mock", "mock-1", tools=("echo",))
    question = Message("user", QUESTION)
    job = Job(
        agent=agent,
        plan=load_tree((SHIPPED / f"{tree}.bt").read_text(), f"{tree}.bt", REGISTRY),
        context=Packer().pack(agent, None, (), question, ()),
        tools=(),
        scope=ToolScope(SessionKey(agent.id, "web", "main"), RunId("r"), "alice", "c"),
        rules=load_rules(()),
        publish=lambda event: None,
    )
    moment = Moment(datetime(2026, 1, 1, tzinfo=UTC), 0.0)
    turn = Turn(job, lambda chunk: None, moment)
    turn.advance()
    while turn.end is None:
        while turn.effects:
            turn.on(_granted(turn.effects.pop(0)), moment)
    return turn.run.state.ticks


def _granted(wish: Effect) -> TurnEvent:
    if isinstance(wish, CallTool):
        return ToolReturned(wish.ticket, ToolResult(wish.call.id, wish.call.name, "hello"))
    assert isinstance(wish, AskModel)
    call = ToolCall(f"c{wish.step}", "echo", '{"text": "hello"}')
    calls = (call,) if wish.step < TOOL_CALLS else ()
    reply = ModelReply("mock", "mock-1", "so", tool_calls=calls, usage=Usage(1, 1))
    return ModelReplied(wish.ticket, reply)


def tick_figures(sizes: Sizes) -> Iterator[Figure]:
    for tree in TREES:
        yield Figure(f"ticks of a turn, {tree}", "ticks", ticks(tree))
    try:
        compared = trees.compared(sizes.tick_rounds, sizes.tick_seconds)
    except ImportError:
        print(trees.NO_PY_TREES, file=sys.stderr)
        return
    for case, mine, theirs in compared:
        tick = Figure(f"a tick of {trees.size(trees.SHAPE)} nodes, {case}", "us", mine, theirs)
        yield marked(replace(tick, base="py_trees"), 1 / trees.MARK, ratio=True)


def measure(sizes: Sizes, home: Path) -> Iterator[Figure]:
    yield from turns(sizes, home)
    yield from paced(sizes, home)
    yield from tick_figures(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--micro", action="store_true", help="only whether it runs")
    parser.add_argument("--json", type=Path, help="where to put the figures too")
    args = parser.parse_args()
    sizes = MICRO if args.micro else QUICK if args.quick else Sizes()
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        figures = list(measure(sizes, Path(home)))
    report(figures, args.json)


if __name__ == "__main__":
    main()
