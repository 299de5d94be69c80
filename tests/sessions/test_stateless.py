"""Runs of which nothing is kept: bounded, repeated by their key, cancelled, and ended in good order."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from gateway.domain.budgets import RecordQuery
from gateway.domain.errors import Busy, Conflict, ModelFailed
from gateway.domain.ids import MessageId, RunId, SessionKey
from gateway.domain.inbox import Entry, NewEntry
from gateway.domain.messages import Message, ToolCall
from gateway.domain.model import TextDelta
from gateway.domain.sessions import SessionQuery
from gateway.memory.context import RESULTS
from gateway.sessions.runs import LiveRun, events_of
from gateway.sessions.stateless import KEPT_S, MOST_KEPT, Answers, Question
from tests.fakes.clock import FakeClock
from tests.fakes.model import GatedModel, ScriptedModel, StallingModel, says
from tests.fakes.store import open_memory
from tests.fakes.tools import FakeTool
from tests.sessions.stage import AGENT, staged

HI = Question(AGENT, "alice", "hi")
RUN = RunId("r_1")
KEY = SessionKey(AGENT.id, "api", "alice", RUN)
ENTRY = Entry(NewEntry(MessageId("m_1"), RUN, KEY, "hi", FakeClock().now()), 1, "running", 1)
KEYED = replace(HI, key="k", fingerprint="hi")


async def heard(run: LiveRun) -> list[dict[str, Any]]:
    with anyio.fail_after(60):
        return [json.loads(event) async for event in events_of(run)]


def types(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def test_it_answers_with_what_its_caller_said_and_wants() -> None:
    model = ScriptedModel(says("ho"))
    mine = replace(AGENT, system_prompt="Mine.", fallback=AGENT)
    earlier = (Message("user", "one"), Message("assistant", "two"))
    wish = Question(mine, "alice", "hi", earlier, "Theirs.", temperature=0.5, max_tokens=7)
    async with open_memory() as stores, staged(model, stores) as stage:
        events = await heard(stage.stateless.begin(wish))

    asked = model.asked[0]
    assert (events[-1]["type"], events[-1]["response"]) == ("done", "ho")
    assert asked.system == f"Mine.\n\nTheirs.\n\n{RESULTS}"
    assert [message.text for message in asked.messages] == ["one", "two", "hi"]
    assert (asked.temperature, asked.max_tokens) == (0.5, 7)
    fallback = wish.shaped(mine).fallback
    assert fallback is not None
    assert (fallback.temperature, fallback.max_tokens) == (0.5, 7)


async def test_what_nobody_keeps_cannot_be_remembered() -> None:
    model = ScriptedModel(says("ho"))
    remembers = replace(AGENT, tools=("memory",))
    async with open_memory() as stores, staged(model, stores, tool=FakeTool("memory")) as stage:
        offered = stage.gate.offered(remembers)
        await heard(stage.stateless.begin(replace(HI, agent=remembers)))

    assert [tool.name for tool in offered] == ["memory"]
    assert model.asked[0].tools == ()


async def test_a_caller_may_not_have_longer_replies_than_the_agent_gives() -> None:
    assert replace(HI, max_tokens=10**6).shaped(AGENT).max_tokens == AGENT.max_tokens


async def test_nothing_is_kept_but_what_it_cost() -> None:
    model = ScriptedModel(says("", ToolCall("1", "echo")), says("ho"))
    async with open_memory() as stores, staged(model, stores) as stage:
        run = stage.stateless.begin(HI)
        await heard(run)
        sessions = await stores.sessions.list_sessions(SessionQuery(limit=10))
        parts, record = (
            await stores.journal.read(run.run_id),
            await stores.inbox.find_run(run.run_id),
        )
        paid = (await stores.ledger.records(RecordQuery())).records

    assert (sessions.sessions, list(parts), record) == ((), [], None)
    assert [(one.run_id, str(one.session_key)) for one in paid] == [
        (run.run_id, f"a:api:alice:{run.run_id}")
    ] * 2


async def test_the_settings_of_whoever_asks_hold() -> None:
    model = ScriptedModel(says("", ToolCall("1", "echo")))
    async with open_memory() as stores, staged(model, stores) as stage:
        await stage.settings.change("alice", {"max_iterations": 1})
        events = await heard(stage.stateless.begin(HI))

    assert events[-1]["reason"] == "max_iterations"


async def test_beyond_the_width_it_is_refused_until_one_has_ended() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores, width=1) as stage:
        first = stage.stateless.begin(HI)
        with pytest.raises(Busy):
            stage.stateless.begin(HI)
        model.let(2)
        await heard(first)
        await stage.stateless.wait_idle()
        again = await heard(stage.stateless.begin(HI))

    assert again[-1]["type"] == "done"


async def test_a_run_that_nobody_waits_for_lets_the_model_go() -> None:
    model = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(model, stores) as stage:
        run = stage.stateless.begin(HI)
        await model.reached.wait()
        stage.stateless.cancel(run)
        await stage.stateless.wait_idle()
        stage.stateless.cancel(run)

    assert model.cancelled
    assert b"done" not in b"".join(run.events)


async def test_the_same_key_joins_the_run_and_then_repeats_its_answer() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores) as stage:
        first = stage.stateless.begin(KEYED)
        joined = stage.stateless.begin(KEYED)
        with pytest.raises(Conflict):
            stage.stateless.begin(replace(KEYED, fingerprint="ho"))
        others = stage.stateless.begin(replace(KEYED, account="bob"))
        model.let(2)
        whole = await heard(first)
        repeated = await heard(stage.stateless.begin(KEYED))
        await heard(others)

    assert joined is first is not others
    assert repeated == whole
    assert len(model.questions) == 2


async def test_what_was_no_answer_is_tried_anew_under_its_key() -> None:
    model = ScriptedModel(ModelFailed("fake", "server", "500"), says("ho"))
    async with open_memory() as stores, staged(model, stores) as stage:
        failed = await heard(stage.stateless.begin(KEYED))
        await stage.stateless.wait_idle()
        answered = await heard(stage.stateless.begin(KEYED))

    assert (failed[-1]["type"], answered[-1]["type"]) == ("error", "done")


async def test_a_defect_ends_that_run_alone() -> None:
    async def breaks(*_: object) -> Any:
        raise RuntimeError("a secret inside")

    model = ScriptedModel(breaks, says("ho"))
    async with open_memory() as stores, staged(model, stores) as stage:
        failed = await heard(stage.stateless.begin(HI))
        answered = await heard(stage.stateless.begin(HI))

    assert (failed[-1]["error_type"], answered[-1]["type"]) == ("internal_error", "done")
    assert "secret" not in str(failed)


async def test_before_a_stop_what_is_at_work_may_end_and_nothing_begins() -> None:
    model = GatedModel()
    async with open_memory() as stores, staged(model, stores) as stage:
        run = stage.stateless.begin(HI)
        await model.until_asked(1)
        stage.stateless.close()
        with pytest.raises(Busy):
            stage.stateless.begin(HI)
        model.let()
        await stage.stateless.wait_idle()
        events = await heard(run)

    assert events[-1]["type"] == "done"


async def test_what_does_not_end_in_time_is_let_go_and_its_listeners_know() -> None:
    model = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(model, stores) as stage:
        run, events = stage.stateless.begin(HI), list[str]()

        async def listen() -> None:
            events.extend(types(await heard(run)))

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            await model.reached.wait()
            await until_told(run)
            stage.stateless.abandon_all()
        await stage.stateless.wait_idle()

    assert events[-1] == "content"


async def until_told(run: LiveRun) -> None:
    while not run._listeners:
        await anyio.lowlevel.checkpoint()


def test_answers_are_kept_for_a_while_and_up_to_a_number() -> None:
    answers, run = Answers(), LiveRun(ENTRY)

    def key(number: int) -> Question:
        return replace(KEYED, key=str(number))

    for number in range(MOST_KEPT + 2):
        answers.begin(key(number), run)
        answers.end(key(number), float(number) / 1000, is_answered=True)

    assert answers.find(key(0), 2.0) is answers.find(key(1), 2.0) is None
    assert answers.find(key(2), 2.0) is run
    assert answers.find(key(MOST_KEPT + 1), KEPT_S + 1.0) is run
    assert answers.find(key(MOST_KEPT + 1), KEPT_S + 2.0) is None


def test_large_answers_make_room_and_live_runs_are_never_forgotten() -> None:
    large = LiveRun(ENTRY, events=[b"x" * 2**25])
    answers, live, first, second, third = Answers(), *(replace(KEYED, key=key) for key in "l123")
    answers.begin(live, large)
    for number, one in enumerate((first, second, third)):
        answers.begin(one, large)
        answers.end(one, float(number), is_answered=True)

    found = [answers.find(one, 3.0) for one in (live, first, second, third)]

    assert found == [large, None, large, large]
    assert answers.find(live, 10 * KEPT_S) is large
