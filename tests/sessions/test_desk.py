"""The desk: served tools behind the gate, and questions that are answered like chat messages."""

import json
from dataclasses import replace

import anyio

from gateway.domain.agents import Limits
from gateway.domain.errors import ModelFailed, StoreUnavailable
from gateway.domain.ids import AgentId
from gateway.domain.inbox import Accepted, NewEntry
from gateway.domain.mcp import McpClient, Served
from gateway.domain.model import TextDelta
from gateway.domain.ports import Inbox
from gateway.sessions.intake import QueueBounds, ServedDesk
from gateway.sessions.lanes import QueuePolicy
from tests.fakes.clock import CountingIds
from tests.fakes.model import GatedModel, ScriptedModel, StallingModel, says
from tests.fakes.ports import PartOfInbox
from tests.fakes.store import open_memory
from tests.fakes.tools import FakeTool
from tests.sessions.stage import AGENT, Stage, staged

ANN, BEN = McpClient("ann"), McpClient("ben", agents=frozenset({"b"}))
SECOND = replace(AGENT, id=AgentId("b"))


def desk_of(stage: Stage) -> ServedDesk:
    return ServedDesk(stage.front, stage.gate, AGENT, CountingIds(900))


async def ask(desk: ServedDesk, message: str, **more: str) -> Served:
    chosen: dict[str, str | None] = {"agent": None, "conversation": None, **more}
    return await desk.ask(ANN, message, **chosen)


async def test_a_served_tool_works_for_its_caller_and_for_nobody_else() -> None:
    tool = FakeTool(parameters='{"type":"object","properties":{"n":{"type":"integer"}}}')
    async with (
        open_memory() as stores,
        staged(ScriptedModel(says("")), stores, tool=tool, agents=(AGENT, SECOND)) as stage,
    ):
        desk = desk_of(stage)
        done = await desk.call(ANN, "echo", {"n": 1})
        wrong = await desk.call(ANN, "echo", {"bad": 1})
        out_of_reach = await desk.call(BEN, "echo", {"n": 1})
        offered = [[spec.name for spec in desk.offered(one)] for one in (ANN, BEN)]

    ((arguments, scope),) = tool.calls
    assert (arguments, json.loads(done.text), done.is_error) == ({"n": 1}, {"n": 1}, False)
    assert (str(scope.session_key), scope.principal) == ("a:mcp:ann:main", "ann")
    assert (wrong.is_error, out_of_reach.is_error) == (True, True)
    assert offered == [["echo"], []]


async def test_an_agent_of_a_closed_project_is_there_for_its_users_alone() -> None:
    closed = {AgentId("b"): frozenset({"ann"})}
    async with (
        open_memory() as stores,
        staged(ScriptedModel(says("")), stores, agents=(AGENT, SECOND), closed=closed) as stage,
    ):
        desk = desk_of(stage)
        reached = {one: list(desk.agents(McpClient(one))) for one in ("ann", "ben")}

    assert reached == {"ann": ["a", "b"], "ben": ["a"]}


async def test_an_answer_names_its_conversation_and_run() -> None:
    async with (
        open_memory() as stores,
        staged(ScriptedModel(says("one")), stores) as stage,
    ):
        answer = await ask(desk_of(stage), "hi", conversation="c")
        run = await stage.front.run(str(answer.facts["run_id"]))

    assert (answer.text, answer.is_error) == ("one", False)
    assert (answer.facts["response"], answer.facts["conversation_id"]) == ("one", "c")
    assert run is not None


async def test_questions_that_one_turn_answers_all_get_its_answer() -> None:
    model, answers = GatedModel(), dict[str, Served]()

    async def put(desk: ServedDesk, text: str) -> None:
        answers[text] = await ask(desk, text, conversation="c")

    async with (
        open_memory() as stores,
        staged(model, stores, manner=QueuePolicy("collect")) as stage,
        anyio.create_task_group() as group,
    ):
        for waiting, text in enumerate("123"):
            group.start_soon(put, desk_of(stage), text)
            await stage.until_pending(waiting + 1)
        await model.until_asked(1)
        model.let(2)

    assert answers["2"] == answers["3"]
    assert answers["3"].text == "to 2 3"


async def test_an_agent_that_is_late_is_told_with_what_there_is() -> None:
    late = replace(AGENT, limits=Limits(timeout_seconds=0))
    model = StallingModel(TextDelta("so far"))
    async with open_memory() as stores, staged(model, stores, agents=(late,)) as stage:
        answer = await ask(desk_of(stage), "hi")

    assert answer.is_error
    assert answer.text.startswith("The agent reached its time limit.")


async def test_what_is_refused_is_told_in_a_sentence() -> None:
    async with (
        open_memory() as stores,
        staged(ScriptedModel(says("")), stores, bounds=QueueBounds(0, 0)) as stage,
    ):
        desk = desk_of(stage)
        full = await ask(desk, "hi")
        unknown = await ask(desk, "hi", agent="nobody")
        out_of_reach = await desk.ask(BEN, "hi", agent=None, conversation=None)

    assert all(one.is_error for one in (full, unknown, out_of_reach))
    assert "waiting already" in full.text
    assert "no agent 'nobody'" in unknown.text
    assert "does not reach the agent" in out_of_reach.text


async def test_a_store_that_is_away_is_told_without_its_place() -> None:
    class Away(PartOfInbox):
        def __init__(self, inner: Inbox) -> None:
            self._inner = inner
            self.begin, self.finish, self.unfinished = inner.begin, inner.finish, inner.unfinished

        async def accept(self, entry: NewEntry, *, begin: bool) -> Accepted:
            raise StoreUnavailable("/secret/place is full")

    async with (
        open_memory() as stores,
        staged(ScriptedModel(says("")), stores, inbox=Away(stores.inbox)) as stage,
    ):
        answer = await ask(desk_of(stage), "hi")

    assert answer.is_error
    assert "nothing was accepted" in answer.text
    assert "secret" not in answer.text


async def test_a_run_that_fails_is_told_in_the_words_for_users() -> None:
    failing = ScriptedModel(ModelFailed("fake", "auth", "the key sk-1 is wrong"))
    async with open_memory() as stores, staged(failing, stores) as stage:
        answer = await ask(desk_of(stage), "hi", conversation="c")

    assert (answer.is_error, answer.facts["conversation_id"]) == (True, "c")
    assert answer.text
    assert "sk-1" not in answer.text


async def test_who_asks_while_the_gateway_ends_is_told_to_ask_again() -> None:
    model, answers = GatedModel(), list[Served]()
    async with (
        open_memory() as stores,
        staged(model, stores) as stage,
        anyio.create_task_group() as group,
    ):

        async def put() -> None:
            answers.append(await ask(desk_of(stage), "hi"))

        group.start_soon(put)
        await model.until_asked(1)
        for run in tuple(stage.front.live.values()):
            run.publish(is_over=False)
        model.let()

    assert answers[0].is_error
    assert "ask again" in answers[0].text
