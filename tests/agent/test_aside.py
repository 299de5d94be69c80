"""A turn beside the lanes answers from what it is given, and keeps its story apart from its run's."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import anyio

from gateway.agent.effects import Finish, Json, Story, part_of
from gateway.agent.subagents import Aside, Errand
from gateway.control.policy import DecisionTrees
from gateway.control.rules import load_rules
from gateway.domain.agents import AgentDef, compile_prompt
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.messages import Chunk, Message, Node, ToolCall
from gateway.domain.ports import Model, ToolScope
from gateway.tools.gate import ToolGate
from tests.fakes.clock import FakeClock
from tests.fakes.journal import FakeJournal
from tests.fakes.model import ScriptedModel, says
from tests.fakes.plans import shipped_plans
from tests.fakes.tools import FakeTool, NoSchemas

PARENT = AgentDef(AgentId("main"), "fake", "m", tools=("echo",))
HELPER = replace(PARENT, id=AgentId("librarian"), model="small")
CALL = ToolCall("call-1", "delegate_librarian")
SCOPE = ToolScope(SessionKey(PARENT.id, "c", "p"), RunId("r_1"), "p", depth=1)
CLOCK, JSON = FakeClock(), Json(lambda value: json.dumps(value).encode(), json.loads)


def story(journal: FakeJournal, part: str = "") -> Story:
    return Story(SCOPE.run_id, journal, CLOCK, JSON, part)


async def aside(model: Model, *tools: FakeTool) -> Aside:
    gate = ToolGate(tools, schemas=NoSchemas(), decode=json.loads, clock=CLOCK)
    plans = await shipped_plans([PARENT])
    rules = load_rules(())
    return Aside(model, gate, plans, DecisionTrees(), lambda: rules, CLOCK, json.loads)


def errand(*earlier: Node) -> Errand:
    return Errand(HELPER, "sum it up", SCOPE, PARENT.id, earlier=earlier)


def said(role: str, text: str, place: int) -> Node:
    message = Message("user" if role == "user" else "assistant", text)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Node(NodeId(f"n{place}"), None, SCOPE.run_id, message, at, 1)


async def test_it_answers_with_its_own_model_what_follows_upon_what_was_said() -> None:
    model, heard = ScriptedModel(says("short")), list[Chunk]()
    beside = await aside(model)

    with anyio.fail_after(5):
        answer = await beside.answer(
            errand(said("user", "hi", 1), said("assistant", "hello", 2)),
            story(FakeJournal()),
            heard.append,
        )

    assert answer.end == Finish("answered", "short")
    asked = model.asked[0]
    assert [one.text for one in asked.messages] == ["hi", "hello", "sum it up"]
    assert (asked.model, asked.payer and asked.payer.session_key) == ("small", SCOPE.session_key)
    assert "content" in [chunk.type for chunk in heard]


async def test_what_it_has_done_is_not_done_again_and_is_none_of_what_its_run_has_done() -> None:
    journal, tool = FakeJournal(), FakeTool()
    part = part_of("", CALL, 0)
    model = ScriptedModel(says("look", ToolCall("1", "echo")), says("short"))
    with anyio.fail_after(5):
        await (await aside(model, tool)).answer(errand(), story(journal, part), lambda chunk: None)

    again, others = ScriptedModel(says("short")), [story(journal), story(journal, part + part)]
    with anyio.fail_after(5):
        answer = await (await aside(again, tool)).answer(
            errand(), story(journal, part), lambda chunk: None
        )
        for other in others:
            await other.recall()

    assert answer.end == Finish("answered", "short")
    assert (len(tool.calls), len(again.asked)) == (1, 1)
    assert [other.reply(0) for other in others] == [None, None]


async def test_a_template_frames_what_it_is_told() -> None:
    model = ScriptedModel(says("short"))
    framed = replace(errand(), template=compile_prompt("Frame: {system_prompt}."))
    framed = replace(framed, agent=replace(HELPER, system_prompt="inside"))

    with anyio.fail_after(5):
        await (await aside(model)).answer(framed, story(FakeJournal()), lambda chunk: None)

    assert model.asked[0].system == "Frame: inside."
