"""The state of the gateway, and the scopes that it needs."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from gateway.api.operating import ConfigState
from gateway.api.spending import BudgetRow
from gateway.control.rules import load_rules
from gateway.domain.agents import SubagentDef
from gateway.domain.channels import ChannelStatus
from gateway.domain.errors import NotFound, StoreUnavailable
from gateway.domain.model import TextDelta
from gateway.domain.plugins import PluginAccount, PluginInfo
from gateway.memory.context import ASKED
from gateway.tools import ToolGate
from gateway.web.identity import Principal
from gateway.web.rpc import Handler, handlers_of
from gateway.web.status import ProcessInfo, ProviderTrial, StatusMethods
from tests.fakes.model import ScriptedModel, StallingModel, says
from tests.fakes.store import open_memory
from tests.fakes.tools import FakeTool, NoSchemas
from tests.sessions.stage import AGENT, Stage, staged
from tests.web.methods.calling import call, chat_methods

BOB = Principal("bob", frozenset({"chat"}))


TALLY = FakeTool("tally", family="tally", category="meta", agent_scope=("b",))
CLASH = FakeTool("echo", family="tally")
LOADED = PluginInfo(
    "tally",
    "loaded",
    kind="tool",
    version="1.0.0",
    description="Counts.",
    tools=(TALLY.spec, CLASH.spec),
    capabilities=("store:tally",),
    sha256="ab" * 32,
)
REFUSED = PluginInfo("greedy", "refused", why="it imports http.request without http:HOST")
ACCOUNT = PluginAccount(
    LOADED,
    guest="exogate",
    needs={"x/store@1#get": "store:NAME", "x/log@1#write": None, "x/http@1#request": "http:HOST"},
    lacking=frozenset({"x/http@1#request"}),
    used={"store:tally": 3},
    denied={"http:evil.example": 1},
)
CHANNELS = (ChannelStatus("shop", "fake", "default", None, "refused", "no secret"),)
PLUGINS = (LOADED, REFUSED, PluginInfo("idle", "disabled"))


async def no_budget() -> list[BudgetRow]:
    return []


SUBAGENTS = (
    SubagentDef("first", "f.md", tools=("delegate_second",)),
    SubagentDef("second", "s.md", model="small"),
    SubagentDef("others", "o.md"),
)


async def gone_budget() -> list[BudgetRow]:
    raise StoreUnavailable("the store cannot commit at the moment")


def insight(
    stage: Stage, *reasons: str, budget: Callable[[], Awaitable[list[BudgetRow]]] = no_budget
) -> Mapping[str, Handler]:
    async def why_not() -> Sequence[str]:
        return reasons

    state = ConfigState(path="/etc/c.toml", errors=[], restart_needed=[])
    about = ProcessInfo("1.2.3", 0.0, "memory", 42, 7, lambda: state)
    tools = (FakeTool(), TALLY, CLASH)
    gate = ToolGate(tools, schemas=NoSchemas(), clock=stage.clock)
    told = StatusMethods(
        stage.front,
        about,
        why_not,
        gate=gate,
        plugins=lambda: PLUGINS,
        account={"tally": ACCOUNT}.get,
        budget=budget,
        backlog=lambda: {"backlog": 3, "unindexed": 1},
        channels=lambda: CHANNELS,
        rules=load_rules(()),
        trial=cast(ProviderTrial, None),
        subagents=SUBAGENTS,
    )
    return handlers_of(told, chat_methods(stage.front))


async def test_status_is_told_while_the_store_does_not_answer() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        told = await call(insight(stage, "no answer", budget=gone_budget), "status")

    assert (told["ready"], told["reasons"], told["healthy"]) == (False, ["no answer"], False)
    assert told["generation"] == 7
    assert not told.keys() & {"budget", "sessions"}


async def test_status_tells_others_business_only_to_those_who_may_read_it() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        mine = await call(insight(stage, "disk full"), "status")
        bobs = await call(insight(stage), "status", by=BOB)

    assert (mine["ready"], mine["reasons"]) == (False, ["disk full"])
    assert (mine["healthy"], mine["generation"]) == (False, 7)
    assert mine["config"] == {"path": "/etc/c.toml", "errors": [], "restart_needed": []}
    assert mine["sessions"] == 0
    assert mine["memory"] == {"backlog": 3, "unindexed": 1}
    assert (bobs["ready"], bobs["version"]) == (True, "1.2.3")
    assert not {"sessions", "pid", "config", "pending", "memory"} & bobs.keys()


@pytest.mark.requirement("S-001-State-07")
async def test_a_run_can_be_inspected_while_it_works_and_after() -> None:
    stalling = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(stalling, stores) as stage:
        run_id = await stage.say("hi")
        await stalling.reached.wait()
        stage.clock.move(3)
        live = await call(insight(stage), "run.inspect", run_id=run_id)
        run = stage.front.live.get(run_id)
        assert run is not None
        await stage.front.abort(run, at_once=True)
        await stage.lanes.wait_idle()
        ended = await call(insight(stage), "run.inspect", run_id=run_id)
        with pytest.raises(NotFound):
            await call(insight(stage), "run.inspect", by=BOB, run_id=run_id)

    assert (live["state"], live["elapsed_s"], live["turn"]) == ("running", 3.0, 0)
    assert live["termination_reason"] is None
    assert (ended["state"], ended["termination_reason"]) == ("ended", "cancelled")
    assert ended["tokens_used"] > 0
    assert json.dumps(ended)


@pytest.mark.requirement("S-001-State-07")
async def test_a_run_that_nothing_has_driven_is_shown_with_the_same_fields() -> None:
    async def shown(stage: Stage, run_id: str) -> dict[str, object]:
        found = await call(insight(stage), "run.inspect", run_id=run_id)
        assert isinstance(found, dict)
        return found

    stalling = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(stalling, stores) as stage:
        first = await stage.say("hi")
        await stalling.reached.wait()
        waiting = await stage.say("and hi")
        driven, queued = await shown(stage, first), await shown(stage, waiting)
        unseen = stage.front.live.get(waiting)
        assert unseen is not None
        del stage.front.live[unseen.run_id]
        stored = await shown(stage, waiting)
        await stage.front.abort(unseen, at_once=True)
        await call_abort(stage, first)

    only_driven = {"warned", "provider", "model"}
    assert driven.keys() - queued.keys() == only_driven
    assert (queued["state"], queued["turn"], queued["recent_actions"]) == ("queued", 0, [])
    assert driven.keys() - stored.keys() == only_driven | {"attempt", "events"}


@pytest.mark.requirement("S-003-Plugin-04")
async def test_a_plugin_is_told_with_its_tools_and_what_it_may() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        loaded, refused, idle = await call(insight(stage), "plugin.list")

    assert {name: loaded[name] for name in loaded if name != "tools"} == {
        "name": "tally",
        "kind": "tool",
        "version": "1.0.0",
        "description": "Counts.",
        "capabilities": ["store:tally"],
        "sha256": "ab" * 32,
        "state": "loaded",
    }
    assert (refused["state"], refused["reason"]) == ("refused", REFUSED.why)
    assert (idle["state"], idle["tools"], "reason" in idle) == ("disabled", [], False)
    assert json.dumps(loaded)


async def test_what_a_plugin_can_touch_and_what_it_tried_is_told() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        (listed, *_) = await call(insight(stage), "plugin.list")
        told = await call(insight(stage), "plugin.inspect", name="tally")
        with pytest.raises(NotFound, match="plugin 'no' not found"):
            await call(insight(stage), "plugin.inspect", name="no")

    assert told.items() >= listed.items()
    assert told["guest"] == "exogate"
    assert told["imports"] == [
        {"name": "x/store@1#get", "needs": "store:NAME", "denied": False},
        {"name": "x/log@1#write", "needs": None, "denied": False},
        {"name": "x/http@1#request", "needs": "http:HOST", "denied": True},
    ]
    assert (told["used"], told["denied"]) == ({"store:tally": 3}, {"http:evil.example": 1})


async def test_a_tool_that_nobody_gets_is_told_with_the_reason() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        loaded, *_ = await call(insight(stage), "plugin.list")

    tally, clash = loaded["tools"]
    assert tally == {
        "name": "tally",
        "description": "The tool tally.",
        "category": "meta",
        "agent_scope": ["b"],
        "parameters": {"type": "object", "properties": {}},
    }
    assert (clash["name"], clash["reason"]) == ("echo", "the name is taken")
    assert "parameters" not in clash


async def test_status_tells_which_plugins_there_are_and_operators_what_is_wrong() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        mine = await call(insight(stage), "status")
        bobs = await call(insight(stage), "status", by=BOB)

    assert mine["plugins"] == bobs["plugins"]
    assert mine["plugins"] == [
        {"name": "tally", "state": "loaded"},
        {"name": "greedy", "state": "refused"},
        {"name": "idle", "state": "disabled"},
    ]
    assert mine["channels"] == bobs["channels"] == [{"name": "shop", "state": "refused"}]
    assert mine["problems"] == [
        "plugin greedy is refused: it imports http.request without http:HOST",
        "tool 'echo' is refused: the name is taken",
        "channel shop is refused: no secret",
    ]
    assert "problems" not in bobs


async def test_agents_and_routes_are_told() -> None:
    async with open_memory() as stores, staged(ScriptedModel(says("ok")), stores) as stage:
        agents = await call(insight(stage), "agent.list")
        route = await call(insight(stage), "route.explain", channel="c", peer="a:b")
        pong = await call(insight(stage), "ping")

    assert [(one["id"], one["tools"], one["offered"]) for one in agents["agents"]] == [
        ("a", ["echo"], ["echo"])
    ]
    assert route["session_key"] == "a:c:default:a%3Ab"
    assert pong == "pong"


async def test_subagents_are_told_to_those_who_may_use_whom_they_work_for() -> None:
    agent = replace(AGENT, tools=("delegate_first",))
    async with (
        open_memory() as stores,
        staged(ScriptedModel(says("ok")), stores, agents=(agent,)) as stage,
    ):
        told = await call(insight(stage), "agent.list")

    names = [(one["name"], one["model"], one["tools"]) for one in told["subagents"]]
    assert names == [("first", None, ["delegate_second"]), ("second", "small", [])]


async def test_how_long_something_took_does_not_follow_a_wall_clock_that_jumps() -> None:
    stalling = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(stalling, stores) as stage:
        run_id = await stage.say("hi")
        await stalling.reached.wait()
        stage.clock.move(5)
        stage.clock.set_wall(stage.clock.now() - timedelta(days=1))
        live = await call(insight(stage), "run.inspect", run_id=run_id)
        status = await call(insight(stage), "status")
        await call_abort(stage, run_id)

    assert (live["elapsed_s"], status["uptime_s"]) == (5.0, 5.0)
    assert live["timings"]["queued_s"] >= 0


async def call_abort(stage: Stage, run_id: str) -> None:
    run = stage.front.live.get(run_id)
    assert run is not None
    await stage.front.abort(run, at_once=True)
    await stage.lanes.wait_idle()


async def test_a_context_is_explained_while_the_run_works_and_after() -> None:
    stalling = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(stalling, stores) as stage:
        run_id = await stage.say("how are you?")
        await stalling.reached.wait()
        live = await call(insight(stage), "context.explain", run_id=run_id)
        await call_abort(stage, run_id)
        await stage.lanes.wait_idle()
        ended = await call(insight(stage), "context.explain", run_id=run_id)
        inspected = await call(insight(stage), "run.inspect", run_id=run_id)
        with pytest.raises(NotFound):
            await call(insight(stage), "context.explain", by=BOB, run_id=run_id)

    assert live == ended
    assert (live["run_id"], live["model"], live["max_context_tokens"]) == (
        run_id,
        "fake-1",
        128_000,
    )
    assert sum(part["tokens"] for part in live["parts"]) == live["total_tokens"] > 0
    parts = {part["kind"]: part for part in live["parts"]}
    asked = ["soul", "system", "summary", "window", "facts", "recall", "notices"]
    assert list(parts) == [*asked, "tools", "question"]
    asked = parts["question"]["items"][0]
    assert asked == {"id": run_id.replace("r_", "m_"), "tokens": asked["tokens"], "why": ASKED}
    assert [item["id"] for item in parts["tools"]["items"]] == ["echo"]
    assert "context" not in inspected


async def test_a_run_that_showed_nothing_is_explained_without_parts() -> None:
    stalling = StallingModel(TextDelta("half"))
    async with open_memory() as stores, staged(stalling, stores) as stage:
        first = await stage.say("hi")
        await stalling.reached.wait()
        waiting = await stage.say("and hi")
        queued = await call(insight(stage), "context.explain", run_id=waiting)
        await stage.abort(waiting)
        await call_abort(stage, first)

    assert (queued["total_tokens"], queued["parts"], queued["model"]) == (0, [], None)
