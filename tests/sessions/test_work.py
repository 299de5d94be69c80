"""A message's one end: committed before it is told, whatever happens on the way."""

import gc
import weakref
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from gateway.control.notices import Bus
from gateway.control.policy import AgentState, DefaultDecisionTree, MakeDecisionTree, add_built_in
from gateway.domain.agents import Address, Limits
from gateway.domain.budgets import Amount, Budgets, Limit, Scope, day_of
from gateway.domain.errors import GatewayError, ModelFailed, StoreUnavailable, ToolFailed
from gateway.domain.events import Event
from gateway.domain.ids import AgentId, NodeId, RunId, SessionKey
from gateway.domain.inbox import SEQ_A_ATTEMPT, Ending, Inbound
from gateway.domain.messages import ToolCall, Usage
from gateway.domain.model import ModelReply, ModelRequest, OnDelta, TextDelta
from gateway.domain.ports import Inbox, Journal, SessionStore, Stores
from gateway.domain.sessions import Path
from gateway.sessions.worker import MOST_ATTEMPTS
from tests.fakes.model import ScriptedModel, StallingModel, says
from tests.fakes.ports import PartOfInbox, PartOfJournal, PartOfSessionStore
from tests.fakes.rules import rule, rules_of
from tests.fakes.store import open_memory
from tests.fakes.tools import FakeTool
from tests.sessions.stage import AGENT, staged

KEY = SessionKey(AGENT.id, "websocket", "p")
HERE = Address("websocket", "p")


@pytest.mark.requirement("S-002-E2E-01", "S-004-Flow-02", "S-004-Flow-03")
async def test_an_answer_is_numbered_without_gaps_and_ends_once() -> None:
    model = ScriptedModel(says("look", ToolCall("1", "echo", "{}")), says("done"))
    async with open_memory() as stores:
        async with staged(model, stores) as stage:
            run = await stage.say("hi")
        path = await stores.sessions.path(KEY, limit=10)

    events = stage.heard[run]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events if event["type"] in {"done", "error"}] == ["done"]
    end = events[-1]
    assert (end["reason"], end["response"], end["tokens_used"]) == ("answered", "done", 20)
    assert end["message_id"] == end["context_id"] == path.head
    assert [node.message.role for node in path.nodes] == ["user", "assistant", "tool", "assistant"]
    assert events[0]["run_id"] == run
    assert events[0]["session_key"] == str(KEY)


@pytest.mark.requirement("S-002-Tools-12")
async def test_a_tools_error_is_kept_as_one() -> None:
    async def fails(arguments: object) -> str:
        raise ToolFailed("no luck")

    model = ScriptedModel(says("look", ToolCall("1", "echo", "{}")), says("done"))
    async with open_memory() as stores:
        async with staged(model, stores, tool=FakeTool("echo", fails)) as stage:
            await stage.say("hi")
        path = await stores.sessions.path(KEY, limit=10)

    result = path.nodes[2].message.result
    assert result is not None
    assert (result.call_id, result.content, result.is_error) == ("1", "no luck", True)


@pytest.mark.requirement("S-002-Tools-04", "S-004-ACtx-01")
@pytest.mark.parametrize(
    ("address", "person"),
    [
        (Address("websocket", "bob", "desk"), "bob"),
        (Address("websocket", "bob", "phone"), "bob"),
        (Address("api", "bob", "c1"), "bob"),
        (Address("telegram", "default", "1:2"), "telegram:default:1%3A2"),
        (Address("telegram", "default", "room", sender="ann"), "telegram:default:ann"),
        (Address("websocket", "telegram:default:ann"), "telegram%3Adefault%3Aann"),
    ],
)
async def test_a_tool_runs_for_whoever_wrote(address: Address, person: str) -> None:
    tool, model = FakeTool(), ScriptedModel(says("", ToolCall("1", "echo")), says("done"))
    async with open_memory() as stores, staged(model, stores, tool=tool) as stage:
        await stage.front.intake.accept(Inbound(address, "hi"))

    ((_, scope),) = tool.calls
    assert scope.principal == person
    assert scope.session_key.peer == address.peer


@pytest.mark.requirement("S-003-Session-08")
async def test_each_turn_of_a_session_sees_the_one_before() -> None:
    model = ScriptedModel(says("ok"))
    async with (
        open_memory() as stores,
        staged(model, stores) as stage,
        anyio.create_task_group() as group,
    ):
        for n in range(20):
            group.start_soon(stage.say, f"q{n}")

    questions = [request.messages[-1].text for request in model.asked]
    for n, request in enumerate(model.asked):
        shown = [message.text for message in request.messages]
        turns = len(shown) // 2
        before = [text for one in questions[n - turns : n] for text in (one, "ok")]
        assert shown == [*before, questions[n]]
        assert min(n, 8) <= turns <= 12
    assert questions == [f"q{n}" for n in range(20)]


@pytest.mark.requirement("S-004-Err-01")
async def test_a_model_that_fails_ends_the_run_with_an_error_and_keeps_the_question() -> None:
    model = ScriptedModel(ModelFailed("fake", "auth", "key sk-123 is wrong"))
    async with open_memory() as stores:
        async with staged(model, stores) as stage:
            run = await stage.say("hi")
        path = await stores.sessions.path(KEY, limit=10)

    error = stage.heard[run][-1]
    assert (error["type"], error["error_type"], error["retryable"]) == (
        "error",
        "provider_error",
        False,
    )
    assert "sk-123" not in str(stage.heard)
    assert [(n.message.role, n.status) for n in path.nodes] == [
        ("user", "complete"),
        ("assistant", "error"),
    ]


async def test_a_defect_of_ours_ends_the_run_and_not_its_neighbours() -> None:
    async def defect(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        raise ZeroDivisionError

    model = ScriptedModel(defect, says("fine"))
    async with open_memory() as stores, staged(model, stores) as stage:
        bad = await stage.say("one")
        good = await stage.say("two")

    assert stage.heard[bad][-1]["error_type"] == "internal_error"
    assert "ZeroDivision" not in str(stage.heard[bad])
    assert stage.heard[good][-1]["response"] == "fine"


class Flaky(PartOfInbox):
    """An inbox whose `finish` fails a few times before it works."""

    def __init__(self, inner: Inbox, failures: int) -> None:
        self._inner, self.left = inner, failures
        self.accept, self.begin, self.unfinished = inner.accept, inner.begin, inner.unfinished

    async def finish(self, ending: Ending) -> bool:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("disk full")
        return await self._inner.finish(ending)


async def test_the_end_is_not_told_before_it_is_durable() -> None:
    async with open_memory() as stores:
        flaky = Flaky(stores.inbox, failures=2)
        async with staged(ScriptedModel(says("ok")), stores, inbox=flaky) as stage:
            run = await stage.say("hi")
            await stage.clock.until_someone_sleeps()
            before = [event["type"] for event in stage.heard[run]]
            late: list[bytes] = []
            live = stage.front.live.get(run)
            assert live is not None
            live.listen(lambda event, _last: late.append(event))
            stage.clock.move(10)
            await stage.clock.until_someone_sleeps()
            stage.clock.move(10)

    assert "done" not in before
    assert stage.heard[run][-1]["type"] == "done"
    assert len(late) == len(stage.heard[run])


async def test_after_a_crash_the_run_goes_on_with_higher_numbers_and_says_so() -> None:
    async with open_memory() as stores:
        stalling = StallingModel(TextDelta("half"))
        async with staged(stalling, stores) as stage:
            run = await stage.say("hi")
            await stalling.reached.wait()
            stage.lanes._group.cancel_scope.cancel()
        async with staged(ScriptedModel(says("whole")), stores) as again:
            resumed = await again.front.intake.resume()
            again.listen(run)
        record = await stores.inbox.find_run(RunId(run))

    events = again.heard[run]
    assert resumed == 1
    assert [event["seq"] for event in events] == [SEQ_A_ATTEMPT + 1 + n for n in range(len(events))]
    assert events[0]["metadata"] == {"discard_from_seq": 1}
    assert events[-1]["response"] == "whole"
    assert record is not None
    assert record.first_seq == SEQ_A_ATTEMPT + 1


@pytest.mark.requirement("S-000-ToolCall-05")
async def test_a_tool_that_ended_before_the_crash_is_not_called_again() -> None:
    tool = FakeTool()
    stuck = anyio.Event()

    async def stalls(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        stuck.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with open_memory() as stores:
        model = ScriptedModel(says("look", ToolCall("1", "echo", '{"n":1}')), stalls)
        async with staged(model, stores, tool=tool) as stage:
            run = await stage.say("hi")
            await stuck.wait()
            stage.lanes._group.cancel_scope.cancel()
        second = ScriptedModel(says("done"))
        async with staged(second, stores, tool=tool) as again:
            await again.front.intake.resume()
            again.listen(run)

    assert len(tool.calls) == 1
    assert len(second.asked) == 1
    assert [m.role for m in second.asked[0].messages] == ["user", "assistant", "tool"]


async def test_restarts_in_good_order_do_not_count_against_a_message() -> None:
    async with open_memory() as stores:
        stalling = StallingModel()
        async with staged(stalling, stores) as stage:
            run = await stage.say("slow")
            await stalling.reached.wait()
            stage.lanes._group.cancel_scope.cancel()
        for _ in range(MOST_ATTEMPTS):
            await _stop_over(stores)
        async with staged(ScriptedModel(says("ok")), stores) as last:
            await last.front.intake.resume()
            last.listen(run)

    assert last.heard[run][-1]["response"] == "ok"
    assert last.heard[run][0]["seq"] == (MOST_ATTEMPTS + 1) * SEQ_A_ATTEMPT + 1


class Unforgiving(PartOfJournal):
    """A journal of a process that is killed: nothing is forgiven."""

    def __init__(self, inner: Journal) -> None:
        self._inner = inner
        self.append, self.read = inner.append, inner.read

    async def forgive(self, run_id: RunId) -> None:
        raise StoreUnavailable("it was killed")


class Unreadable(PartOfSessionStore):
    def __init__(self, inner: SessionStore) -> None:
        self._inner = inner
        self.node, self.tree, self.move_head = inner.node, inner.tree, inner.move_head

    async def path(self, key: SessionKey, **_more: object) -> Path:
        raise ValueError("a cell is damaged")


async def test_a_conversation_that_cannot_be_read_ends_the_message_with_an_honest_word() -> None:
    async with open_memory() as stores:
        broken = replace(stores, sessions=Unreadable(stores.sessions))
        async with staged(ScriptedModel(says("never")), broken) as stage:
            run = await stage.say("hi", context_id=NodeId("m_1"))
        record = await stores.inbox.find_run(RunId(run))

    assert stage.heard[run][-1]["error_type"] == "internal_error"
    assert record is not None
    assert record.entry.state == "done"


async def test_the_first_message_of_a_session_needs_nothing_to_be_read() -> None:
    async with open_memory() as stores:
        broken = replace(stores, sessions=Unreadable(stores.sessions))
        async with staged(ScriptedModel(says("hello")), broken) as stage:
            run = await stage.say("hi")

    assert stage.heard[run][-1]["response"] == "hello"


async def test_a_message_that_stops_the_gateway_thrice_is_set_aside_and_the_rest_goes_on() -> None:
    async with open_memory() as opened:
        stores = replace(opened, journal=Unforgiving(opened.journal))
        stalling = StallingModel()
        async with staged(stalling, stores) as stage:
            poison, behind = await stage.say("poison"), await stage.say("behind")
            await stalling.reached.wait()
            stage.lanes._group.cancel_scope.cancel()
        for _ in range(MOST_ATTEMPTS - 1):
            await _stop_over(stores)
        async with staged(ScriptedModel(says("ok")), stores) as last:
            await last.front.intake.resume()
            last.listen(poison)
            last.listen(behind)
        record = await stores.inbox.find_run(RunId(poison))

    assert last.heard[poison][-1]["type"] == "error"
    assert "3 times" in last.heard[poison][-1]["message"]
    assert last.heard[behind][-1]["response"] == "ok"
    assert record is not None
    assert record.entry.state == "dead"


async def _stop_over(stores: Stores) -> None:
    """Takes up what is unfinished, and stops in the middle of the first turn."""
    stalling = StallingModel()
    async with staged(stalling, stores) as stage:
        await stage.front.intake.resume()
        await stalling.reached.wait()
        stage.lanes._group.cancel_scope.cancel()


async def test_an_agent_that_is_gone_is_an_honest_refusal() -> None:
    async with open_memory() as stores:
        stalling = StallingModel()
        async with staged(stalling, stores) as stage:
            run = await stage.say("hi")
            await stalling.reached.wait()
            stage.lanes._group.cancel_scope.cancel()
        other = replace(AGENT, id=AgentId("b"))
        async with staged(ScriptedModel(says("never")), stores, agents=(other,)) as again:
            await again.front.intake.resume()
            again.listen(run)

    assert again.heard[run][-1]["error_type"] == "config_error"


async def test_a_requests_own_limit_only_tightens() -> None:
    call = ToolCall("1", "echo", "{}")
    model = ScriptedModel(says("so far", call, tokens=5_000))
    async with open_memory() as stores, staged(model, stores) as stage:
        run = await stage.say("hi", limits={"token_budget": 4_000})

    end = stage.heard[run][-1]
    assert (end["reason"], end["partial"], end["response"]) == ("token_budget", True, "so far")


@pytest.mark.requirement("S-001-Config-11")
async def test_settings_hold_for_the_next_question_and_not_for_one_at_work() -> None:
    stalling = StallingModel()
    async with open_memory() as stores, staged(stalling, stores) as stage:
        first = await stage.say("one")
        await stalling.reached.wait()
        await stage.settings.change("p", {"max_iterations": 2})
        second = await stage.say("two", peer="other")
        stalling.reached = anyio.Event()
        await stalling.reached.wait()
        configs = []
        for run_id in (first, second):
            run = stage.front.live.get(run_id)
            assert run is not None
            configs.append(run.summary(stage.clock)["config"])
            await stage.front.abort(run, at_once=True)

    assert [dict(config)["max_iterations"] for config in configs] == [15, 2]  # type: ignore[call-overload]  # a plain object


async def test_a_persons_settings_choose_model_and_thinking_and_nobody_elses_do() -> None:
    agent = replace(AGENT, fallback=replace(AGENT, model="fake-2"))
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores, agents=(agent,)) as stage:
        wish = {"oracle_model": "fake-2", "thinking_enabled": True}
        await stage.settings.change("p", wish)
        await stage.say("hi")
        await stage.lanes.wait_idle()
        await stage.settings.change("p", dict.fromkeys(wish))
        await stage.settings.change("q", wish)
        await stage.say("hi")

    assert [(asked.model, asked.thinking) for asked in model.asked] == [
        ("fake-2", True),
        ("fake-1", False),
    ]


async def test_whoever_writes_on_a_platform_has_the_settings_of_their_place() -> None:
    model = ScriptedModel(says("ok"))
    address = Address("telegram", "bot", "room", sender="5:6")
    async with open_memory() as stores, staged(model, stores) as stage:
        await stage.settings.change("telegram:bot:5%3A6", {"thinking_enabled": True})
        await stage.front.intake.accept(Inbound(address, "hi"))

    assert [asked.thinking for asked in model.asked] == [True]


async def test_the_answer_to_what_came_by_a_channel_is_kept_also_where_that_is_gone() -> None:
    address = Address("telegram", "bot", "room", sender="5:6")
    async with open_memory() as stores:
        async with staged(ScriptedModel(says("ok")), stores) as stage:
            inbound = Inbound(address, "hi", whence='{"peer":"room","thread":"t"}')
            await stage.front.intake.accept(inbound)
        [one] = await stores.outbox.due("telegram", now=stage.clock.now(), limit=10)

    assert (one.new.peer, one.new.thread, one.new.text) == ("room", "t", "ok")


async def test_a_message_waits_for_the_settings_while_the_store_is_away() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores:
        failing = FailingSettings(stores.sessions, times=2)
        async with staged(model, replace(stores, sessions=failing)) as stage:
            run = await stage.say("hi")
            for _ in range(2):
                await stage.clock.until_someone_sleeps()
                stage.clock.move(10)

    assert stage.heard[run][-1]["reason"] == "answered"
    assert failing.times == 0


class FailingSettings(PartOfSessionStore):
    """The store cannot be read so many times."""

    def __init__(self, store: SessionStore, times: int) -> None:
        self._inner = store
        self.store, self.times = store, times

    async def read_settings(self, user: str) -> str | None:
        if self.times:
            self.times -= 1
            raise StoreUnavailable("busy")
        return await self.store.read_settings(user)

    async def write_settings(self, user: str, record: str, *, expected: str | None) -> bool:
        return await self.store.write_settings(user, record, expected=expected)


async def test_an_answer_for_a_channel_leaves_through_the_outbox() -> None:
    async with open_memory() as stores:
        channels = frozenset({"websocket"})
        async with staged(ScriptedModel(says("ok")), stores, channels=channels) as stage:
            await stage.say("hi")
        due = await stores.outbox.due("websocket", now=stage.clock.now(), limit=10)

    assert [(d.new.channel, d.new.peer, d.new.text) for d in due] == [("websocket", "main", "ok")]


async def test_an_answer_leaves_for_where_its_question_came_from() -> None:
    whence = '{"peer":"room","thread":"t1","answer":{}}'
    async with open_memory() as stores:
        channels = frozenset({"websocket"})
        async with staged(ScriptedModel(says("ok")), stores, channels=channels) as stage:
            await stage.say("hi", peer="main", whence=whence)
        [one] = await stores.outbox.due("websocket", now=stage.clock.now(), limit=10)

    assert (one.new.peer, one.new.thread, one.new.whence) == ("room", "t1", whence)


class Choosy(PartOfInbox):
    """An inbox that refuses answers with a certain word in them, as it would a broken character."""

    def __init__(self, inner: Inbox) -> None:
        self._inner = inner
        self.accept, self.begin, self.unfinished = inner.accept, inner.begin, inner.unfinished

    async def finish(self, ending: Ending) -> bool:
        if any("bad" in node.message.text for node in ending.nodes):
            raise GatewayError("this text cannot be stored")
        return await self._inner.finish(ending)


@pytest.mark.requirement("S-004-Flow-03")
async def test_an_answer_that_cannot_be_stored_ends_the_run_all_the_same() -> None:
    async with open_memory() as stores:
        async with staged(ScriptedModel(says("bad")), stores, inbox=Choosy(stores.inbox)) as stage:
            run = await stage.say("hi")
        path = await stores.sessions.path(KEY, limit=10)

    ends = [event for event in stage.heard[run] if event["type"] in {"done", "error"}]
    assert [event["type"] for event in ends] == ["error"]
    assert [event["seq"] for event in stage.heard[run]] == list(range(1, ends[0]["seq"] + 1))
    assert [node.message.text for node in path.nodes][0] == "hi"


async def test_a_message_whose_place_is_gone_goes_on_from_head() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores) as stage:
        await stage.say("one")
        run = await stage.say("two", context_id=NodeId("m_nowhere"))

    assert stage.heard[run][-1]["response"] == "ok"
    assert [m.text for m in model.asked[1].messages] == ["one", "ok", "two"]


async def test_question_and_answer_are_encoded_for_a_wire_once_in_their_life() -> None:
    model = ScriptedModel(says("ok"))
    async with open_memory() as stores, staged(model, stores) as stage:
        for said in ("one", "two"):
            await stage.say(said)

    first, second = model.asked
    assert [message.text for message in second.messages] == ["one", "ok", "two"]
    assert second.messages[0] is first.messages[-1]


@pytest.mark.requirement("S-004-ACtx-05")
async def test_a_run_that_has_ended_is_gone_without_a_look_for_garbage() -> None:
    gc.collect()
    gc.disable()
    try:
        async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
            accepted = await stage.front.intake.accept(Inbound(HERE, "hi"))
            live = stage.front.live.get(accepted.run_id)
            assert live is not None
            seen = weakref.ref(live)
            del live
            await stage.lanes.wait_idle()
            await anyio.wait_all_tasks_blocked()
            left = seen()
    finally:
        gc.enable()

    assert left is None


def broken(method: str) -> MakeDecisionTree:
    """A policy whose method raises."""

    def raising(*_: object) -> object:
        raise RuntimeError("secret")

    return type("Broken", (Own,), {method: raising})


class Own(DefaultDecisionTree):
    """One of somebody's own."""


@pytest.mark.requirement("S-001-Tree-07", "S-002-Query-12")
@pytest.mark.parametrize("tree", ["default", "oracle-agent"])
@pytest.mark.parametrize(
    "method", ["get_config", "should_continue", "on_turn_start", "on_tool_result"]
)
async def test_a_policy_that_fails_ends_its_run_and_the_next_one_begins(
    method: str, tree: str
) -> None:
    agent = replace(AGENT, tree=tree, decision="broken")
    trees = add_built_in({"broken": broken(method)})
    ends: list[Event] = []
    bus = Bus()
    bus.subscribe(ends.append, types=frozenset({"session.end"}))
    model = ScriptedModel(says("look", ToolCall("1", "echo", "{}")))
    async with open_memory() as stores:
        async with staged(model, stores, agents=(agent,), decisions=trees, bus=bus) as stage:
            runs = [await stage.say("hi"), await stage.say("hi again")]
        path = await stores.sessions.path(KEY, limit=20)

    for run in runs:
        [end] = [event for event in stage.heard[run] if event["type"] in {"done", "error"}]
        assert (end["type"], end["error_type"]) == ("error", "internal_error")
        assert "secret" not in str(stage.heard[run])
    assert [event.run_id for event in ends] == runs
    assert [one.message.text for one in path.nodes if one.message.role == "user"] == [
        "hi",
        "hi again",
    ]


@pytest.mark.requirement("S-001-Tree-07")
async def test_a_run_that_cannot_be_shown_any_more_ends_all_the_same() -> None:
    class Spoiling(DefaultDecisionTree):
        def on_turn_start(self, state: AgentState) -> AgentState:
            after = state.evolve()
            object.__setattr__(after, "recent_actions", None)
            return after

    trees = add_built_in({"spoiling": Spoiling})
    agents = (replace(AGENT, decision="spoiling"),)
    model = ScriptedModel(says("done"), says("done"))
    async with (
        open_memory() as stores,
        staged(model, stores, agents=agents, decisions=trees) as stage,
    ):
        runs = [await stage.say("hi"), await stage.say("hi again")]

    assert [stage.heard[run][-1]["type"] for run in runs] == ["error", "error"]


@pytest.mark.requirement("S-001-Tree-06")
async def test_an_agent_is_judged_by_the_policy_that_it_names() -> None:
    class Impatient(DefaultDecisionTree):
        def should_continue(self, state: AgentState) -> tuple[bool, str]:
            return state.turn < 1, "timeout"

    agents = (replace(AGENT, decision="impatient"), replace(AGENT, id=AgentId("b")))
    model = ScriptedModel(says("look", ToolCall("1", "echo", "{}")), says("done"))
    trees = add_built_in({"impatient": Impatient})
    async with (
        open_memory() as stores,
        staged(model, stores, agents=agents, decisions=trees) as stage,
    ):
        first = await stage.say("hi")
        second = await stage.say("hi", requested_agent="b")

    assert stage.heard[first][-1]["reason"] == "timeout"
    assert stage.heard[second][-1]["reason"] == "answered"


@pytest.mark.requirement("S-002-Query-01", "S-002-Cancel-02")
@pytest.mark.parametrize("tree", ["default", "oracle-agent"])
async def test_a_run_after_one_that_was_warned_and_stopped_starts_clean(tree: str) -> None:
    agent = replace(AGENT, tree=tree, limits=Limits(max_iterations=1))
    model = ScriptedModel(says("look", ToolCall("1", "echo", "{}")), says("done"))
    async with open_memory() as stores, staged(model, stores, agents=(agent,)) as stage:
        first = await stage.say("hi")
        second = await stage.say("hi again")

    assert [event["reason"] for event in stage.said(first, "done")] == ["max_iterations"]
    assert [event["reason"] for event in stage.said(second, "done")] == ["answered"]
    warnings = [len(stage.said(run, "system")) for run in (first, second)]
    assert warnings == [2, 1]
    assert model.asked[1].messages[-2].result is None


NEWS = """on = ["query.start"]
when = "user.peer == 'here'"
do = [{ notify = "the news", inject_at = "cross_session" }]"""


@pytest.mark.parametrize("has_asked", [False, True])
async def test_news_outlive_a_run_that_is_stopped_before_its_model_says_anything(
    has_asked: bool,
) -> None:
    asked_silent = anyio.Event()

    async def silent(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        asked_silent.set()
        await anyio.sleep_forever()
        raise AssertionError("it was stopped")

    silence = (silent,) if has_asked else ()
    model = ScriptedModel(says("noted"), *silence, says("told"), says("told already"))

    async with open_memory() as stores, staged(model, stores, rules=rules_of(rule(NEWS))) as stage:
        await stage.say("leaves news", peer="here")
        await stage.until_idle()
        run_id = await stage.say("never answered", peer="there")
        if has_asked:
            await asked_silent.wait()
        await stage.abort(run_id)
        await stage.until_idle()
        for question in ("what is new?", "and now?"):
            await stage.say(question, peer="there")
            await stage.until_idle()

    asked = [" ".join(one.text for one in request.messages) for request in model.asked]
    assert ["the news" in text for text in asked][-2:] == [True, False]


async def test_a_run_that_was_stopped_while_it_waited_replays() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("no")), stores) as stage:
        stage.clock.move(7)
        run_id = RunId(await stage.say("never mind"))
        await stage.abort(run_id)
        await stage.until_idle()
        record = await stores.inbox.find_run(run_id)
        assert record is not None
        replayed = await stage.replays.replay(record)

    assert replayed.divergence is None


# --- budgets -----------------------------------------------------------------------------------


@pytest.mark.requirement("S-003-Budget-02", "S-003-Budget-06")
async def test_fifty_turns_and_a_clock_that_jumps_pass_no_daily_limit() -> None:
    """Ten begin; it is a day later, and twenty begin; then all are answered. What is left of that day
    is spent by ten more, and the day before does not come back for the last ten."""
    may_answer = anyio.Event()

    async def as_long_as_allowed(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        await may_answer.wait()
        return replace(says("ok"), usage=Usage(10, request.max_tokens))

    model = ScriptedModel(as_long_as_allowed)
    agent = replace(AGENT, max_tokens=600)
    budgets = Budgets(daily=Limit(10_000))
    runs: list[str] = []

    async with (
        open_memory() as stores,
        staged(model, stores, agents=(agent,), width=50, budgets=budgets) as stage,
    ):

        async def begin(count: int) -> None:
            runs.extend(
                [await stage.say("hi", peer=f"p{len(runs) + more}") for more in range(count)]
            )
            await anyio.wait_all_tasks_blocked()

        today = stage.clock.now()
        await begin(10)
        stage.clock.set_wall(today + timedelta(days=1))
        await begin(20)
        may_answer.set()
        await anyio.wait_all_tasks_blocked()
        await begin(10)
        asked = len(model.asked)
        stage.clock.set_wall(today)
        await begin(10)

        tomorrow = Scope("day", day_of(today + timedelta(days=1)))
        month = Scope("month", tomorrow.name[:7])
        of_day, of_month = await stores.ledger.tallies([tomorrow, month])

    ends = Counter(stage.heard[run][-1].get("error_type", "answered") for run in runs)
    assert len(model.asked) == asked
    assert ends == {"answered": asked, "budget_exceeded": 50 - asked}
    assert 9_000 < of_day.used.tokens <= 10_000
    assert of_month.used.tokens == of_day.used.tokens + 10 * 610
    assert (of_day.held, of_month.held) == (Amount(), Amount())


async def test_who_indexes_what_was_said_is_told_once_it_is_in_the_store() -> None:
    indexed: list[SessionKey] = []
    model = ScriptedModel(says("hi"), says("ho"))
    async with open_memory() as stores:
        async with staged(model, stores, said=indexed.append) as stage:
            await stage.say("one")
            await stage.say("two", peer="other")
            await stage.until_idle()

        assert {key.peer for key in indexed} == {"main", "other"}
        assert len(indexed) == 2
        assert list(await stores.facts.unindexed(limit=9)) == indexed
