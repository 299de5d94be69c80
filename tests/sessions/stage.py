"""A core with the in-memory store, a scripted model and a fake clock, ready to accept messages."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from gateway.agent.driver import Runner
from gateway.budgets import LiveBudgets, Meter
from gateway.control.notices import Bus
from gateway.control.policy import BUILT_IN, DecisionTrees
from gateway.control.rules import RuleSet, load_rules
from gateway.domain.agents import Address, AgentDef
from gateway.domain.budgets import Budgets
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.inbox import Inbound
from gateway.domain.ports import Inbox, Model, Stores
from gateway.memory.context import Episodes
from gateway.memory.recall import Recall
from gateway.memory.souls import Souls
from gateway.routing import Closed, Router
from gateway.sessions.compacting import Compaction
from gateway.sessions.intake import Front, MessageIntake, QueueBounds
from gateway.sessions.lanes import Lanes, QueuePolicy
from gateway.sessions.replay import Reel, Replayer
from gateway.sessions.runs import LiveRun
from gateway.sessions.stateless import StatelessRuns
from gateway.sessions.worker import RunWorker, SettingsBook
from gateway.tools import ToolGate
from tests.fakes.clock import CountingIds, FakeClock
from tests.fakes.ledger import FixedPrices
from tests.fakes.model import ScriptedModel, says
from tests.fakes.plans import shipped_plans
from tests.fakes.texts import FakeTexts
from tests.fakes.tools import FakeTool, NoSchemas

NO_RULES = load_rules(())
AGENT = AgentDef(AgentId("a"), "fake", "fake-1", tools=("echo",))
ROOMY, USUAL = QueueBounds(), QueuePolicy()
Events = list[dict[str, Any]]


@dataclass
class Stage:
    front: Front
    lanes: Lanes
    clock: FakeClock
    stores: Stores
    gate: ToolGate
    settings: SettingsBook
    replays: Replayer
    compaction: Compaction
    stateless: StatelessRuns
    heard: dict[str, Events] = field(default_factory=dict)

    async def say(self, content: str, *, peer: str = "main", **more: Any) -> str:
        """Accepts a message and listens to it; gives the run's id."""
        address = Address("websocket", "p", peer)
        accepted = await self.front.intake.accept(Inbound(address, content, **more))
        self.listen(accepted.run_id)
        return accepted.run_id

    def listen(self, run_id: str, *, after_seq: int = 0) -> None:
        run = self.front.live.get(run_id)
        events = self.heard.setdefault(run_id, [])
        if run is not None:
            run.listen(lambda event, _last: events.append(json.loads(event)), after_seq=after_seq)

    async def abort(self, run_id: str) -> None:
        run = self.front.live.get(run_id)
        assert run is not None
        await self.front.abort(run, at_once=True)

    def crash(self) -> None:
        """As far as the rooms can tell: nothing of theirs gets another word."""
        self.lanes._group.cancel_scope.cancel()

    async def until_idle(self) -> None:
        """Until every accepted message has ended."""
        await self.until_pending(0)

    async def until_pending(self, count: int) -> None:
        """Until so many messages wait or are at work."""
        while self.front.intake.pending != count:
            await anyio.lowlevel.checkpoint()

    def said(self, run_id: str, kind: str) -> Events:
        return [event for event in self.heard[run_id] if event["type"] == kind]


UNLIMITED = Budgets()
EVERYBODYS: Closed = {}


def _unwired(_reel: Reel) -> Model:
    """Here nothing has bytes."""
    return ScriptedModel(says(""))


@asynccontextmanager
async def staged(
    model: Model,
    stores: Stores,
    *,
    bounds: QueueBounds = ROOMY,
    width: int = 8,
    agents: tuple[AgentDef, ...] = (AGENT,),
    tool: FakeTool | None = None,
    inbox: Inbox | None = None,
    channels: frozenset[str] = frozenset(),
    ids_from: int = 0,
    manner: QueuePolicy = USUAL,
    opened: bool = True,
    rules: RuleSet = NO_RULES,
    budgets: Budgets = UNLIMITED,
    decisions: DecisionTrees = BUILT_IN,
    bus: Bus | None = None,
    said: Callable[[SessionKey], None] = lambda key: None,
    remember: Recall | None = None,
    compacts: bool = False,
    closed: Closed = EVERYBODYS,
) -> AsyncIterator[Stage]:
    """Use it in the test body: it opens a task group, and waits for what was accepted at the end."""
    clock = FakeClock()
    used = inbox or stores.inbox
    souls = Souls(FakeTexts(), {}, clock=clock)
    episodes, runs = Episodes(stores.sessions), dict[str, LiveRun]()
    settings = SettingsBook(stores.sessions)
    gate = ToolGate([tool or FakeTool()], schemas=NoSchemas(), clock=clock)
    ids = CountingIds(1_000_000 + ids_from)
    meter = Meter(stores.ledger, LiveBudgets(budgets), FixedPrices(), clock, ids, stores.audit)
    bus = bus or Bus()
    how = (decisions, rules, bus.publish)
    worker = RunWorker(
        agents={agent.id: agent for agent in agents},
        runner=Runner(meter.around(model), gate, await shipped_plans(agents), *how),
        inbox=used,
        journal=stores.journal,
        episodes=episodes,
        souls=souls,
        settings=settings,
        clock=clock,
        bus=bus,
        channels=channels,
        runs=runs,
        on_finished=said,
        memory=remember,
    )
    router = Router([agent.id for agent in agents], (), AGENT.id, closed=closed)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            lanes = Lanes(group, width=width)
            kept = (stores.sessions, episodes)
            compaction = Compaction(meter.around(model), *kept, lanes, clock, ids)
            if compacts:
                worker = replace(worker, compact=compaction.consider)
            intake = MessageIntake(
                router=router,
                worker=worker,
                lanes=lanes,
                ids=CountingIds(ids_from),
                bounds=bounds,
                policy=manner,
            )
            if opened:
                intake.open()
            front = Front(
                agents=worker.agents,
                router=router,
                intake=intake,
                live=runs,
                inbox=stores.inbox,
                sessions=stores.sessions,
                episodes=episodes,
                souls=souls,
                plans=worker.runner.plans,
                clock=clock,
            )
            replays = Replayer(worker, stores.sessions, _unwired, frozenset())
            stateless = StatelessRuns(worker, CountingIds(2_000_000), group, width=width)
            parts = (gate, settings, replays, compaction, stateless)
            yield Stage(front, lanes, clock, stores, *parts)
