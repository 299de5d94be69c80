"""A runner answers an assignment, and keeps what it grants apart from the run that it works for."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest

from gateway.agent.driver import Assignment, RunControl, RunJournal, Runner, part_of
from gateway.agent.effects import Finish, Gate
from gateway.control.policy import BUILT_IN
from gateway.control.rules import load_rules
from gateway.domain.agents import AgentDef, compile_prompt
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.mcp import UnreachableServer
from gateway.domain.messages import Chunk, Message, Node, ToolCall, ToolResult
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Model, ToolScope
from gateway.memory.context import ContextExtras
from gateway.tools import NOTHING, Listed, ToolGate
from tests.fakes.clock import FakeClock
from tests.fakes.journal import KeptJournal
from tests.fakes.model import ScriptedModel, says
from tests.fakes.plans import shipped_plans
from tests.fakes.tools import FakeTool, NoSchemas

PARENT = AgentDef(AgentId("main"), "fake", "m", tools=("echo",))
HELPER = replace(PARENT, id=AgentId("librarian"), model="small")
CALL = ToolCall("call-1", "delegate_librarian")
SCOPE = ToolScope(SessionKey(PARENT.id, "c", "p"), RunId("r_1"), "p", depth=1)
CLOCK = FakeClock()


async def runner(model: Model, *tools: FakeTool, gate: Gate | None = None) -> Runner:
    gate = gate or ToolGate(tools, schemas=NoSchemas(), clock=CLOCK)
    plans = await shipped_plans([HELPER])
    rules = load_rules(())
    return Runner(model, gate, plans, BUILT_IN, rules)


def assignment(*earlier: Node) -> Assignment:
    return Assignment(HELPER, Message("user", "sum it up"), SCOPE, earlier=earlier)


def said(role: str, text: str, place: int) -> Node:
    message = Message("user" if role == "user" else "assistant", text)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Node(NodeId(f"n{place}"), None, SCOPE.run_id, message, at, 1)


async def test_it_answers_with_its_own_model_what_follows_upon_what_was_said() -> None:
    model, heard = ScriptedModel(says("short")), list[Chunk]()
    beside = await runner(model)

    with anyio.fail_after(60):
        answer = await beside.answer(
            assignment(said("user", "hi", 1), said("assistant", "hello", 2)),
            RunJournal(CLOCK),
            heard.append,
        )

    assert answer.end == Finish("answered", "short")
    asked = model.asked[0]
    assert [one.text for one in asked.messages] == ["hi", "hello", "sum it up"]
    assert (asked.model, asked.payer and asked.payer.session_key) == ("small", SCOPE.session_key)
    assert "content" in [chunk.type for chunk in heard]


async def test_what_it_has_done_is_not_done_again_and_is_none_of_what_its_run_has_done() -> None:
    whole, tool = KeptJournal(CLOCK), FakeTool()
    part = part_of("", CALL, 0)
    model = ScriptedModel(says("look", ToolCall("1", "echo")), says("short"))
    with anyio.fail_after(60):
        first = await runner(model, tool)
        await first.answer(assignment(), whole.inner(part), lambda chunk: None)

    again, then = ScriptedModel(says("short")), KeptJournal(CLOCK, whole.kept)
    with anyio.fail_after(60):
        second = await runner(again, tool)
        answer = await second.answer(assignment(), then.inner(part), lambda chunk: None)

    assert answer.end == Finish("answered", "short")
    assert (len(tool.calls), len(again.asked)) == (1, 1)
    others = [then, then.inner(part + part)]
    assert [other.replies for other in others] == [{}, {}]


async def test_a_template_frames_what_it_is_told() -> None:
    model = ScriptedModel(says("short"))
    template = compile_prompt("Frame: {system_prompt}.")
    framed = replace(assignment(), extras=ContextExtras(template=template))
    framed = replace(framed, agent=replace(HELPER, system_prompt="inside"))

    with anyio.fail_after(60):
        await (await runner(model)).answer(framed, RunJournal(CLOCK), lambda chunk: None)

    assert model.asked[0].system == "Frame: inside."


SERVED = replace(HELPER, tools=("mcp:books",))


class SlowGate:
    """Its servers are never there."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        self.asked.set()
        await anyio.sleep_forever()
        return ()

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]:
        return ()

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        return ToolResult(call.id, call.name, "")

    def listed(self, result: ToolResult) -> Listed:
        return NOTHING


async def test_an_agent_without_tools_of_servers_waits_for_none() -> None:
    gate = SlowGate()
    beside = await runner(ScriptedModel(says("never")), gate=gate)

    with anyio.fail_after(60):
        lacking = await beside.lacking(HELPER, RunControl())

    assert (list(lacking), gate.asked.is_set()) == ([], False)


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_stop_ends_the_waiting_for_servers_and_stays_for_the_turn(is_early: bool) -> None:
    gate, control, model = SlowGate(), RunControl(), ScriptedModel(says("never"))

    async def stop() -> None:
        if not is_early:
            await gate.asked.wait()
        control.stop("cancelled", at_once=True)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            if is_early:
                await stop()
            else:
                group.start_soon(stop)
            beside = await runner(model, gate=gate)
            lacking = await beside.lacking(SERVED, control)
        requests = len(control.requests)
        its = replace(assignment(), agent=SERVED)
        answer = await beside.answer(its, RunJournal(CLOCK), lambda _: None, control)

    assert (list(lacking), requests, model.asked) == ([], 1, [])
    assert answer.end == Finish("cancelled", "Cancelled by user", partial=True)
