"""The driver grants wishes: models with fallbacks, tools side by side, and it stops when told."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from gateway.agent.driver import Driver
from gateway.agent.effects import Fail, Finish, Job, RunResult, Steered
from gateway.agent.output import INTERRUPTED
from gateway.control.rules import load_rules
from gateway.control.trees.engine import TreePlan
from gateway.domain.agents import AgentDef, Limits
from gateway.domain.budgets import Amount, BudgetExceeded, Scope, Tally
from gateway.domain.errors import ModelFailed, ToolFailed
from gateway.domain.events import Event, RuleDef
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.journal import JournalEntry
from gateway.domain.messages import Chunk, Message, Spent, ToolCall, Usage
from gateway.domain.model import (
    BudgetWarning,
    ModelReply,
    ModelRequest,
    OnDelta,
    TextDelta,
    ThinkingDelta,
)
from gateway.domain.ports import Model, ToolScope
from gateway.memory.context import Packer, message_tokens
from gateway.tools import MAY_BE_DONE, ToolGate
from tests.agent.paper import EXECUTE, SHIPPED, is_valid_for_a_model, tree
from tests.fakes.clock import FakeClock
from tests.fakes.journal import KeptJournal
from tests.fakes.model import ScriptedModel, StallingModel, says
from tests.fakes.plans import shipped
from tests.fakes.rules import core_definitions
from tests.fakes.tools import FakeTool, NoSchemas

AGENT = AgentDef(AgentId("a"), "fake", "fake-1", tools=("echo", "other"))
SCOPE = ToolScope(SessionKey(AGENT.id, "c", "p"), RunId("r_1"), "p")


class Stage:
    """A driver with its surroundings, and the chunks it emitted."""

    def __init__(
        self,
        model: Model,
        *tools: FakeTool,
        agent: AgentDef = AGENT,
        earlier: Sequence[JournalEntry] = (),
        rules: tuple[RuleDef, ...] = (),
        plan: TreePlan | None = None,
    ) -> None:
        clock = FakeClock()
        gate = ToolGate(tools, schemas=NoSchemas(), clock=clock, boundary=lambda: "b")
        self.chunks: list[Chunk] = []
        self.journal = KeptJournal(clock, earlier)
        offered = gate.offered(agent)
        context = Packer().pack(agent, None, (), Message("user", "hi"), offered)
        self.events: list[Event] = []
        job = Job(
            agent=agent,
            plan=plan or shipped(),
            context=context,
            tools=offered,
            scope=SCOPE,
            rules=load_rules(rules),
            publish=self.events.append,
            known=self.journal.result,
        )
        self.driver = Driver(job, model, gate, self.journal, self.chunks.append)

    async def drive(self) -> RunResult:
        with anyio.fail_after(60):
            return await self.driver.drive()

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [chunk.data for chunk in self.chunks if chunk.type == kind]


async def test_text_is_heard_as_it_comes_and_the_answer_is_said() -> None:
    stage = Stage(ScriptedModel(says("hello")))

    answer = await stage.drive()

    assert answer.end == Finish("answered", "hello")
    assert answer.said == (Message("assistant", "hello"),)
    assert [chunk.type for chunk in stage.chunks] == ["context_update", "content", "usage"]
    assert answer.usage.total == 10


@pytest.mark.requirement("S-000-ToolCall-04", "S-002-Tools-03", "S-002-E2E-02")
async def test_a_tool_result_reaches_the_next_question() -> None:
    model = ScriptedModel(says("look", ToolCall("1", "echo", '{"x":1}')), says("done"))
    stage = Stage(model, FakeTool())

    answer = await stage.drive()

    assert [m.role for m in model.asked[1].messages] == ["user", "assistant", "tool"]
    result = model.asked[1].messages[2].result
    assert result is not None
    assert result.content == '{"x": 1}'
    assert stage.driver.progress()["turn"] == 1
    assert answer.usage.total == 20
    assert stage.of("tool_call")[0]["tool_call"]["status"] == "pending"
    assert stage.of("tool_result")[0]["tool_call"]["status"] == "success"


async def test_what_models_used_for_a_tool_counts_to_the_run_that_called_it() -> None:
    model = ScriptedModel(says("look", ToolCall("1", "echo")), says("done"))
    stage = Stage(model, FakeTool(spends=Spent(Usage(10, 5), "p", "small")))

    answer = await stage.drive()

    assert answer.usage.total == 20 + 15
    assert [told["model"] for told in stage.of("usage")] == ["fake-1", "small", "fake-1"]


@pytest.mark.requirement("S-002-Tools-05", "S-002-Tools-06", "S-002-Tools-07", "S-002-E2E-03")
async def test_tools_run_side_by_side_and_return_in_call_order() -> None:
    first_ended = anyio.Event()

    async def waits(arguments: Mapping[str, object]) -> str:
        await first_ended.wait()
        return "slow"

    async def fails(arguments: Mapping[str, object]) -> str:
        first_ended.set()
        raise ToolFailed("no luck")

    calls = (ToolCall("1", "echo"), ToolCall("2", "other"))
    model = ScriptedModel(says("", *calls), says("done"))
    stage = Stage(model, FakeTool("echo", waits), FakeTool("other", fails))

    await stage.drive()

    results = [message.result for message in model.asked[1].messages[2:]]
    assert [(r.call_id, r.content, r.is_error) for r in results if r] == [
        ("1", "slow", False),
        ("2", "no luck", True),
    ]
    assert [shown["tool_call"]["id"] for shown in stage.of("tool_result")] == ["2", "1"]


@pytest.mark.requirement("S-001-Config-07", "S-002-Tools-05")
async def test_no_more_tools_run_at_once_than_allowed() -> None:
    working = most = 0

    async def act(arguments: Mapping[str, object]) -> str:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await anyio.lowlevel.checkpoint()
        working -= 1
        return "ok"

    calls = tuple(ToolCall(str(n), "echo") for n in range(5))
    agent = replace(AGENT, limits=Limits(max_parallel_tools=2))
    stage = Stage(ScriptedModel(says("", *calls), says("done")), FakeTool("echo", act), agent=agent)

    await stage.drive()

    assert most == 2


@pytest.mark.requirement("S-002-Tools-10")
async def test_the_context_grows_with_each_result() -> None:
    async def fails(arguments: Mapping[str, object]) -> str:
        raise ToolFailed("no luck")

    calls = (ToolCall("1", "echo", '{"a":"long enough to count"}'), ToolCall("2", "other"))
    model = ScriptedModel(says("", *calls), says("done"))
    stage = Stage(model, FakeTool(), FakeTool("other", fails))

    await stage.drive()

    shown = [chunk["context_tokens"] for chunk in stage.of("context_update")]
    assert len(shown) == 3
    assert shown[0] < shown[1] < shown[2]
    assert shown[2] > sum(message_tokens(m) for m in model.asked[1].messages[2:])


@pytest.mark.requirement("S-003-AgentDef-11")
async def test_the_fallback_answers_when_nothing_was_heard() -> None:
    second = replace(AGENT, provider="second", model="m2")
    agent = replace(AGENT, fallback=replace(AGENT, model="m1", fallback=second))
    broken = ModelFailed("fake", "overloaded", "529")
    model = ScriptedModel(broken, broken, says("from the third"))

    answer = await Stage(model, agent=agent).drive()

    assert [(r.provider, r.model) for r in model.asked] == [
        ("fake", "fake-1"),
        ("fake", "m1"),
        ("second", "m2"),
    ]
    assert answer.end == Finish("answered", "from the third")


async def test_after_the_first_delta_there_is_no_fallback() -> None:
    async def breaks(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        on_delta(TextDelta("half an"))
        raise ModelFailed("fake", "truncated", "gone", started=True)

    agent = replace(AGENT, fallback=replace(AGENT, model="m1"))
    model = ScriptedModel(breaks)

    answer = await Stage(model, agent=agent).drive()

    assert len(model.asked) == 1
    assert isinstance(answer.end, Fail)
    assert answer.said[-1].text == "half an"
    assert answer.usage.estimated
    assert answer.usage.total > 0


async def thinks_and_breaks(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
    on_delta(ThinkingDelta("hm"))
    raise ModelFailed("fake", "truncated", "gone")


async def test_a_model_that_only_thought_leaves_the_word_to_the_fallback() -> None:
    agent = replace(AGENT, fallback=replace(AGENT, model="m1"))
    model = ScriptedModel(thinks_and_breaks, says("from the second"))

    answer = await Stage(model, agent=agent).drive()

    assert answer.end == Finish("answered", "from the second")


async def test_a_model_that_only_thought_is_counted_all_the_same() -> None:
    answer = await Stage(ScriptedModel(thinks_and_breaks)).drive()

    assert isinstance(answer.end, Fail)
    assert answer.usage.estimated
    assert answer.usage.total > 0


@pytest.mark.requirement("S-002-Cancel-01", "S-002-E2E-08")
async def test_cancelling_at_once_ends_a_streaming_model_and_keeps_its_text() -> None:
    model = StallingModel(TextDelta("half an"))
    stage = Stage(model)
    answers: list[RunResult] = []

    async def drive() -> None:
        answers.append(await stage.drive())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(drive)
            await model.reached.wait()
            stage.driver.control.stop("cancelled", at_once=True)

    assert model.cancelled
    assert isinstance(answers[0].end, Finish)
    assert (answers[0].end.reason, answers[0].end.text) == ("cancelled", "half an")
    assert stage.of("system")[0]["system_message"] == "Cancelled by user"


async def test_cancelling_after_the_turn_lets_the_step_end() -> None:
    stage: Stage

    async def act(arguments: Mapping[str, object]) -> str:
        stage.driver.control.stop("cancelled", at_once=False)
        return "finished all the same"

    model = ScriptedModel(says("look", ToolCall("1", "echo")), says("never asked"))
    stage = Stage(model, FakeTool("echo", act))

    answer = await stage.drive()

    assert len(model.asked) == 1
    assert answer.end.text == "look"
    assert answer.said[1].result is not None
    assert answer.said[1].result.content == "finished all the same"


async def test_cancelled_before_it_began_no_model_is_asked() -> None:
    model = ScriptedModel(says("never"))
    stage = Stage(model)
    stage.driver.control.stop("cancelled", at_once=True)

    answer = await stage.drive()

    assert model.asked == []
    assert isinstance(answer.end, Finish)
    assert answer.end.reason == "cancelled"


@pytest.mark.requirement("S-001-Config-05")
async def test_time_running_out_ends_the_run_with_what_there_is() -> None:
    agent = replace(AGENT, limits=Limits(timeout_seconds=0))
    stage = Stage(StallingModel(TextDelta("half")), agent=agent)

    answer = await stage.drive()

    assert isinstance(answer.end, Finish)
    assert answer.end.reason == "timeout"
    assert stage.of("system")[0]["system_type"] == "limit_reached"


@pytest.mark.requirement("S-003-Message-06", "S-000-ToolCall-05")
async def test_a_cancelled_tool_leaves_no_call_without_a_result() -> None:
    reached = anyio.Event()

    async def stalls(arguments: Mapping[str, object]) -> str:
        reached.set()
        await anyio.sleep_forever()
        raise AssertionError

    stage = Stage(ScriptedModel(says("", ToolCall("1", "echo"))), FakeTool("echo", stalls))
    answers: list[RunResult] = []

    async def drive() -> None:
        answers.append(await stage.drive())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(drive)
            await reached.wait()
            stage.driver.control.stop("cancelled", at_once=True)

    roles = [message.role for message in answers[0].said]
    assert roles == ["assistant", "tool", "assistant"]
    assert answers[0].said[1].result is not None
    assert answers[0].said[1].result.is_error


async def test_a_crashed_run_repeats_neither_the_reply_nor_the_tool_that_ended() -> None:
    tool = FakeTool()
    calls = (ToolCall("1", "echo"), ToolCall("2", "other"))
    broken = ModelFailed("fake", "network", "gone")
    first = Stage(ScriptedModel(says("look", *calls), broken), tool)
    await first.drive()
    model = ScriptedModel(says("done"))
    stage = Stage(model, tool, earlier=first.journal.kept)

    answer = await stage.drive()

    assert len(tool.calls) == 1
    assert len(model.asked) == 1
    assert [m.role for m in model.asked[0].messages] == ["user", "assistant", "tool", "tool"]
    assert answer.end == Finish("answered", "done")
    assert answer.usage.total == 20
    assert stage.of("content")[0]["content"] == "look"


@pytest.mark.requirement("S-002-Tools-02")
async def test_two_calls_with_one_id_each_get_their_own_result() -> None:
    calls = (ToolCall("x", "echo", '{"n":1}'), ToolCall("x", "echo", '{"n":2}'))
    model = ScriptedModel(says("", *calls), says("", calls[0]), says("done"))

    await Stage(model, FakeTool()).drive()

    ids = [m.result.call_id for m in model.asked[2].messages if m.result]
    assert len(ids) == len(set(ids)) == 3
    asked = [c.id for m in model.asked[2].messages for c in m.tool_calls]
    assert asked == ids


async def test_an_empty_last_word_is_replaced_by_what_the_user_was_told() -> None:
    stage = Stage(ScriptedModel(says("look", ToolCall("1", "echo", "{}")), says("")), FakeTool())

    answer = await stage.drive()

    assert [message.text for message in answer.said if message.role == "assistant"] == [
        "look",
        answer.end.text,
    ]


@pytest.mark.requirement("S-003-Message-06")
async def test_a_tool_that_ended_before_the_run_was_stopped_keeps_its_result() -> None:
    stuck = anyio.Event()

    async def pays(arguments: Mapping[str, object]) -> str:
        return "PAID"

    async def stalls(arguments: Mapping[str, object]) -> str:
        stuck.set()
        await anyio.sleep_forever()
        raise AssertionError

    calls = (ToolCall("1", "echo"), ToolCall("2", "other"))
    tools = (FakeTool("echo", pays), FakeTool("other", stalls))
    stage = Stage(ScriptedModel(says("", *calls)), *tools)
    answers: list[RunResult] = []

    async def drive() -> None:
        answers.append(await stage.drive())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(drive)
            await stuck.wait()
            await anyio.wait_all_tasks_blocked()
            stage.driver.control.stop("cancelled", at_once=True)

    results = [m.result for m in answers[0].said if m.result is not None]
    assert [(r.call_id, r.content) for r in results] == [("1", "PAID"), ("2", INTERRUPTED)]
    assert [shown["tool_call"]["id"] for shown in stage.of("tool_result")] == ["1", "2"]


class Remembering:
    """Replies by how much was said already, so that it says the same to the same."""

    def __init__(self) -> None:
        self.asked: list[ModelRequest] = []

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        self.asked.append(request)
        step = sum(message.role == "assistant" for message in request.messages)
        if step == 3:
            return says("done")
        names = ("echo", "other", "unheard of")
        calls = [ToolCall(f"{step}.{n}", names[n], f'{{"n":{n}}}') for n in range(step + 1)]
        return says(f"step {step}", *calls)


@pytest.mark.requirement("S-003-Message-06", "S-000-ToolCall-05")
@pytest.mark.parametrize("name", SHIPPED)
async def test_a_run_that_was_cut_off_anywhere_goes_on_as_if_it_had_not(name: str) -> None:
    plan, tools = shipped(name), (FakeTool("echo"), FakeTool("other"))
    whole = Stage(Remembering(), *tools, plan=plan)
    first = await whole.drive()
    kept = whole.journal.kept
    count = [len(tool.calls) for tool in tools]

    for upto in range(len(kept) + 1):
        again = (FakeTool("echo"), FakeTool("other"))
        model = Remembering()
        stage = Stage(model, *again, earlier=kept[:upto], plan=plan)

        answer = await stage.drive()

        assert (answer.end, answer.said, answer.usage) == (first.end, first.said, first.usage)
        assert sorted(map(str, stage.journal.kept)) == sorted(map(str, kept))
        known = [entry.values[2] for entry in kept[:upto] if entry.kind == "result"]
        for tool, before in zip(again, count, strict=True):
            had = known.count(tool.spec.name)
            assert len(tool.calls) == before - had
        assert all(is_valid_for_a_model(request.messages) for request in model.asked)


@pytest.mark.parametrize("name", SHIPPED)
async def test_what_people_added_is_there_again_where_it_was_taken(name: str) -> None:
    plan = shipped(name)
    stage: Stage

    async def act(arguments: Mapping[str, object]) -> str:
        if len(echo.calls) == 1:
            stage.driver.control.steer(Steered(RunId("r_2"), "faster"))
        return "ok"

    echo = FakeTool("echo", act)
    stage = Stage(Remembering(), echo, plan=plan)
    first = await stage.drive()
    kept = stage.journal.kept
    taken = [entry.kind for entry in kept].index("taken")
    assert first.taken == (RunId("r_2"),)

    for upto in range(taken + 1, len(kept) + 1):
        again = Stage(Remembering(), FakeTool("echo"), earlier=kept[:upto], plan=plan)
        answer = await again.drive()

        assert [m.text for m in answer.said if m.role == "user"] == ["faster"]
        assert answer.taken == (RunId("r_2"),)
        assert [m.role for m in answer.said] == [m.role for m in first.said]


@pytest.mark.requirement("S-002-BT-08")
async def test_a_model_that_is_slower_than_its_tree_allows_has_failed() -> None:
    model = StallingModel(TextDelta("half"))
    stage = Stage(model, plan=tree("(llm-call :timeout 0s)"))

    answer = await stage.drive()

    assert model.cancelled
    assert isinstance(answer.end, Fail)
    assert answer.end.text == "half"
    assert "did not answer in time" in answer.end.message


@pytest.mark.requirement("S-002-BT-08")
@pytest.mark.parametrize(
    ("may_repeat", "hint"), [(True, ""), (False, f" {MAY_BE_DONE}")], ids=["again", "once"]
)
async def test_a_tool_that_is_slower_than_its_tree_allows_has_an_error_for_a_result(
    *, may_repeat: bool, hint: str
) -> None:
    async def stalls(arguments: Mapping[str, object]) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    execute = EXECUTE.replace("$call)", "$call :timeout 0s)")
    plan = tree(f"(sequence (llm-call) {execute} (llm-call))")
    model = ScriptedModel(says("", ToolCall("1", "echo")), says("done"))

    spent = Spent(Usage(4, 1), "fake", "small")

    echo = FakeTool("echo", stalls, spends=spent, may_repeat=may_repeat)

    answer = await Stage(model, echo, plan=plan).drive()

    assert answer.said[1].result is not None
    assert answer.said[1].result.content == f"echo did not answer within 0 s.{hint}"
    assert answer.said[1].result.spent == (spent,)
    assert answer.usage.total == 25
    assert answer.said[1].result.is_error
    assert answer.end == Finish("answered", "done")


# --- budgets that are for more than this run ------------------------------------------------------

DAY = Tally(Scope("day", "2026-01-01"), used=Amount(900))
REFUSED = "token budget exceeded (daily: 900/1000)"


async def refuses(_request: ModelRequest, _hear: OnDelta) -> ModelReply:
    raise BudgetExceeded(DAY, "tokens", 1000)


@pytest.mark.requirement("S-003-Budget-03")
async def test_a_model_that_may_not_be_asked_at_all_is_a_failure() -> None:
    stage = Stage(ScriptedModel(refuses))

    answer = await stage.drive()

    assert isinstance(answer.end, Fail)
    assert (answer.end.error_type, answer.end.message, answer.end.retryable) == (
        *("budget_exceeded", REFUSED),
        True,
    )
    assert answer.end.refusal is not None
    assert answer.usage.total == 0
    (told,) = [event for event in stage.events if event.severity == "error"]
    assert (told.type, told.payload["scope"]) == ("budget.token.exceeded", "daily")
    assert (told.payload["current"], told.payload["max"]) == (900, 1000)


@pytest.mark.requirement("S-003-Budget-08")
async def test_a_budget_that_ends_in_the_middle_keeps_what_was_done() -> None:
    stage = Stage(ScriptedModel(says("look", ToolCall("1", "echo")), refuses), FakeTool())

    answer = await stage.drive()

    assert answer.end == Finish("token_budget", "look", partial=True)
    assert [message.role for message in answer.said] == ["assistant", "tool", "assistant"]
    (system,) = stage.of("system")
    assert (system["system_type"], system["system_message"]) == ("limit_reached", REFUSED)
    assert system["metadata"]["limit_type"] == "budget.daily"
    assert system["metadata"]["resets_at"] == datetime(2026, 1, 2, tzinfo=UTC)
    told = [event for event in stage.events if event.type == "budget.token.exceeded"]
    assert [event.payload["scope"] for event in told] == ["daily"]


async def test_a_budget_that_is_nearly_spent_is_told_to_client_model_and_listeners() -> None:
    warned = (BudgetWarning("daily", "tokens", 900, 1000),)
    look = replace(says("look", ToolCall("1", "echo")), warnings=warned)
    model = ScriptedModel(look, says("done"))
    stage = Stage(model, FakeTool(), rules=core_definitions())

    await stage.drive()

    told = "90 % of the daily budget is used (900/1000 tokens)."
    (event,) = [event for event in stage.events if event.type == "budget.token.warning"]
    assert (event.payload["scope"], event.payload["percent"]) == ("daily", 90.0)
    assert [(one["system_type"], one["system_message"]) for one in stage.of("system")] == [
        ("limit_warning", told)
    ]
    assert told in model.asked[1].messages[-1].text


@pytest.mark.parametrize("text", ["x" * 32, "é" * 16, "😀" * 8, "\ud800" * 11])
async def test_what_is_heard_counts_by_its_bytes_and_ends_the_call_at_once(text: str) -> None:
    async def goes_on_for_ever(_request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        on_delta(TextDelta(text))
        await anyio.sleep_forever()
        raise AssertionError("it was cancelled")

    sent = Stage(ScriptedModel(says("hi"))).driver.job.context.tokens
    limited = replace(AGENT, limits=Limits(token_budget=sent + 10))

    answer = await Stage(ScriptedModel(goes_on_for_ever), agent=limited).drive()

    assert isinstance(answer.end, Finish)
    assert (answer.end.reason, answer.end.text) == ("token_budget", text)
