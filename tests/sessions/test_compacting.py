"""A long conversation is summed up beside its lane; what cannot be summed up is left alone."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pytest

from gateway.domain.agents import ContextRules
from gateway.domain.budgets import Amount, BudgetExceeded, Scope, Tally
from gateway.domain.errors import ModelFailed
from gateway.domain.ids import SessionKey
from gateway.domain.model import ModelReply, ModelRequest, OnDelta
from gateway.domain.ports import Stores
from gateway.memory.compaction import INSTRUCTIONS
from gateway.memory.context import summary_of
from tests.fakes.model import says
from tests.fakes.store import open_memory
from tests.sessions.stage import AGENT, Stage, staged

KEY = SessionKey(AGENT.id, "websocket", "p")
TIGHT = replace(AGENT, context=ContextRules(token_budget=4_000), max_tokens=500)
NOTES = {"goal": "count", "decisions": ["count on"], "open": ["go on"], "key_insight": "numbers"}
LONG = "and so on " * 90  # about 280 tokens


@dataclass
class Writer:
    """Answers questions with `ok`, and writes notes when it is asked for them."""

    notes: str = json.dumps(NOTES)
    fails: Exception | None = None
    gate: anyio.Event | None = None
    asked: list[ModelRequest] = field(default_factory=list)
    summed: list[str] = field(default_factory=list)  # what it was to write notes about

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        if request.system != INSTRUCTIONS:
            self.asked.append(request)
            return says("ok")
        self.summed.append(request.messages[0].text)
        if self.gate is not None:
            await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return says(self.notes)

    def shown(self, call: int = -1) -> list[str]:
        return [message.text for message in self.asked[call].messages]


@asynccontextmanager
async def talking(model: Writer, stores: Stores) -> AsyncIterator[Stage]:
    async with staged(model, stores, agents=(TIGHT,), compacts=True) as stage:
        yield stage


async def settle(stage: Stage) -> None:
    """Until nothing is at work, nor beside a lane."""
    for _ in range(200):
        await anyio.lowlevel.checkpoint()
    await stage.lanes.wait_idle()


async def say(stage: Stage, *texts: str) -> None:
    for text in texts:
        await stage.say(text)
        await stage.until_idle()
        await settle(stage)


def turns(count: int, first: int = 0) -> Sequence[str]:
    return [
        f"turn {n}: file src/part_{n}.py, port {9000 + n}. {LONG}"
        for n in range(first, first + count)
    ]


@pytest.mark.requirement("S-000-Context-11")
async def test_a_long_conversation_is_summed_up_and_goes_on_from_there() -> None:
    model = Writer()
    async with open_memory() as stores:
        async with talking(model, stores) as stage:
            await say(stage, *turns(16))
            before = len(model.summed)
            await say(stage, "what now?")
        path = await stores.sessions.path(KEY, limit=99)
        record = await stores.sessions.find_session(KEY)

    shown = model.shown()
    summary = summary_of(path.summary)
    assert before >= 1
    assert shown[0].startswith("<summary>\nGoal: count\nInsight: numbers\nDecisions:\n- count on\n")
    assert "src/part_3.py" in shown[0]
    assert "9003" in shown[0]
    assert sum(map(len, shown)) / 3.2 < 4_000
    assert not any("turn 1:" in text for text in shown)
    assert any("turn 15:" in text for text in shown)
    said = [node.message.text for node in path.nodes if node.message.role == "user"]
    assert said == [*turns(16), "what now?"]
    assert record is not None
    assert record.message_count == 34
    assert summary is not None
    assert summary.made == before


async def test_a_second_summary_stands_for_the_first_as_well() -> None:
    model = Writer()
    async with open_memory() as stores, talking(model, stores) as stage:
        await say(stage, *turns(12))
        model.notes = json.dumps({"goal": "still counting", "decisions": ["stop at 40"]})
        await say(stage, *turns(18, first=12))

    first, last = model.summed[0], model.summed[-1]
    assert not first.startswith("Notes so far")
    assert last.startswith('Notes so far:\n{"goal": ')
    assert "turn 0:" in first
    assert "turn 0:" not in last
    assert "- count on\n- stop at 40" in model.shown()[0]
    assert "9000" in model.shown()[0]


async def test_between_two_summaries_requests_begin_alike() -> None:
    model = Writer()
    async with open_memory() as stores, talking(model, stores) as stage:
        await say(stage, *turns(20))

    def begins_alike(one: ModelRequest, later: ModelRequest) -> bool:
        held = one.messages[:-1]
        return later.messages[: len(held)] == held

    alike = [begins_alike(*pair) for pair in zip(model.asked, model.asked[1:], strict=False)]
    assert alike.count(False) <= len(model.summed)


async def test_a_turn_does_not_wait_for_a_summary() -> None:
    model = Writer(gate=anyio.Event())
    async with open_memory() as stores, talking(model, stores) as stage:
        await say(stage, *turns(14))
        assert len(model.summed) == 1
        assert not model.shown()[0].startswith("<summary>")
        assert model.gate is not None
        model.gate.set()
        await settle(stage)
        await say(stage, "now?")

        shown = model.shown()
        assert shown[0].startswith("<summary>")
        assert shown[-1] == "now?"
        assert any("turn 13:" in text for text in shown)


async def test_a_conversation_that_went_on_from_elsewhere_meanwhile_gets_no_summary() -> None:
    model = Writer(gate=anyio.Event())
    async with open_memory() as stores, talking(model, stores) as stage:
        await say(stage, *turns(14))
        path = await stores.sessions.path(KEY, limit=99)
        await stage.front.move_head(KEY, path.nodes[1].id)
        assert model.gate is not None
        model.gate.set()
        await settle(stage)
        after = await stores.sessions.path(KEY, limit=99)

    assert (after.head, after.summary) == (path.nodes[1].id, None)


async def test_whoever_goes_on_from_the_last_answer_by_its_id_keeps_the_summary() -> None:
    model = Writer()
    async with open_memory() as stores, talking(model, stores) as stage:
        while not model.summed:
            await say(stage, *turns(1, first=len(model.asked)))
        path = await stores.sessions.path(KEY, limit=2)
        assert path.nodes[-1].message.role == "summary"
        await stage.say("on", context_id=path.nodes[0].id)
        await stage.until_idle()
        cold = await stores.sessions.path(KEY, limit=9)

    assert model.shown()[0].startswith("<summary>")
    assert cold.summary is not None


SPENT = BudgetExceeded(Tally(Scope("day", "2026-01-01"), Amount(5)), "tokens", 4)


@pytest.mark.parametrize(
    "model",
    [
        Writer(notes="no notes"),
        Writer(notes=json.dumps({"facts": [f"{n} {LONG}" for n in range(40)]})),
        Writer(fails=ModelFailed("fake", "server", "no notes today")),
        Writer(fails=SPENT),
    ],
)
async def test_what_cannot_be_summed_up_is_tried_again_only_when_it_has_grown(
    model: Writer,
) -> None:
    async with open_memory() as stores:
        async with talking(model, stores) as stage:
            await say(stage, *turns(12))
            early = len(model.summed)
            await say(stage, *turns(12, first=12))
        path = await stores.sessions.path(KEY, limit=99)

    assert early <= 2
    assert early < len(model.summed) <= 5
    assert path.summary is None
    assert len(path.nodes) == 48
    assert any("turn 23:" in text for text in model.shown())


async def test_a_summary_is_paid_for_by_its_session() -> None:
    model = Writer()
    async with open_memory() as stores:
        async with talking(model, stores) as stage:
            await say(stage, *turns(14))
        record = await stores.sessions.find_session(KEY)

    assert model.summed
    assert record is not None
    spent = record.input_tokens + record.output_tokens
    assert spent == 10 * (len(model.asked) + len(model.summed))


async def test_other_branches_do_not_see_it_and_are_summed_up_themselves() -> None:
    model = Writer()
    async with open_memory() as stores, talking(model, stores) as stage:
        await say(stage, *turns(14))
        path = await stores.sessions.path(KEY, limit=99)
        await stage.front.move_head(KEY, path.nodes[3].id)
        await say(stage, "elsewhere")

    shown = model.shown()
    assert shown == [*(node.message.text for node in path.nodes[:4]), "elsewhere"]


async def test_whoever_wants_to_know_is_told_what_a_summary_stands_for() -> None:
    model, told = Writer(), list[tuple[SessionKey, int]]()
    async with open_memory() as stores, talking(model, stores) as stage:
        compaction = stage.compaction
        compaction.on_compacted = lambda key, nodes: told.append((key, len(nodes)))
        await say(stage, *turns(14))
        path = await stores.sessions.path(KEY, limit=99)

    summary = summary_of(path.summary)
    assert summary is not None
    ids = [node.id for node in path.nodes]
    assert told[0][0] == KEY
    assert sum(count for _, count in told) == len(
        [
            one
            for one in path.nodes[: ids.index(summary.covers) + 1]
            if one.message.role != "summary"
        ]
    )
