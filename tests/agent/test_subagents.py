"""A subagent works with its own prompt, tools and model, out of what its parent's run has left."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.agent.driver import Assignment, Runner
from gateway.agent.effects import Finish, RunResult
from gateway.agent.subagents import Subagents, child_of
from gateway.control.policy import BUILT_IN
from gateway.control.rules import load_rules
from gateway.domain.agents import AgentDef, Limits, SubagentDef
from gateway.domain.errors import ModelFailed, ToolFailed
from gateway.domain.events import Event
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.journal import JournalEntry
from gateway.domain.messages import Chunk, Message, ToolCall, ToolResult, estimate_tokens
from gateway.domain.model import ModelReply, ModelRequest, OnDelta, TextDelta
from gateway.domain.ports import Allowance, ToolScope
from gateway.domain.sessions import UserSettings
from gateway.memory.context import RESULTS
from gateway.memory.souls import Souls
from gateway.tools import ToolGate, cut_middle
from tests.fakes.clock import FakeClock
from tests.fakes.journal import KeptJournal
from tests.fakes.model import ScriptedModel, StallingModel, Step, says
from tests.fakes.plans import shipped_plans
from tests.fakes.texts import FakeTexts
from tests.fakes.tools import FakeTool, NoSchemas

BIG = AgentDef(AgentId("main"), "fake", "big", system_prompt="of main")
PARENT = replace(
    BIG,
    tools=("echo", "delegate_librarian", "delegate_clerk"),
    fallback=replace(BIG, model="spare"),
    limits=Limits(token_budget=10_000),
)
LIBRARIAN = SubagentDef(
    "librarian",
    "librarian.md",
    tools=("read", "delegate_clerk"),
    model="small",
    max_turns=3,
    timeout_seconds=60,
)
CLERK = SubagentDef("clerk", "clerk.md", "Counts", ("delegate_librarian",))
SCOPE = ToolScope(SessionKey(PARENT.id, "c", "p"), RunId("r_1"), "ann")
SOULS = {"librarian.md": "You keep books.", "clerk.md": "You count."}


def asks(name: str = "librarian", task: str = "find it", call: str = "1") -> ToolCall:
    return ToolCall(call, f"delegate_{name}", json.dumps({"task": task}))


class Models:
    """Each model of the provider by its name."""

    def __init__(self, **models: Any) -> None:
        self.models = models

    async def reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        reply: ModelReply = await self.models[request.model].reply(request, on_delta)
        return reply


@dataclass
class World:
    """A parent with its subagents; `big` is the parent's script, `small` the librarian's."""

    big: Any
    small: Any
    tools: tuple[FakeTool, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    earlier: Sequence[JournalEntry] = ()
    parent: AgentDef = PARENT
    heard: list[Chunk] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.journal = KeptJournal(self.clock, self.earlier)

    async def subagents(self) -> Subagents:
        gate = ToolGate(self.tools, schemas=NoSchemas(), clock=self.clock)
        named = {AgentId(one.name): one.prompt_path for one in (LIBRARIAN, CLERK)}
        plans = await shipped_plans([PARENT, *(replace(BIG, id=name) for name in named)])
        souls, rules = Souls(FakeTexts(**SOULS), named, clock=self.clock), load_rules(())
        await souls.load()
        models = Models(big=self.big, small=self.small)
        how = (BUILT_IN, rules, self.events.append)
        self.runner = Runner(models, gate, plans, *how)

        async def settings(user: str) -> UserSettings:
            return UserSettings(self.settings if user == "ann" else {})

        known = {one.name: one for one in (LIBRARIAN, CLERK)}
        live = {SCOPE.run_id: self.journal}
        subagents = Subagents(known, self.runner, souls, settings, self.clock, live.get)
        gate.renew("", subagents.tools)
        return subagents

    async def run(self) -> RunResult:
        await self.subagents()
        assignment = Assignment(self.parent, Message("user", "what is there?"), SCOPE)
        with anyio.fail_after(60):
            return await self.runner.answer(assignment, self.journal, self.heard.append)

    def told(self) -> list[str]:
        """What the parent's model was told by its tools."""
        messages = self.big.asked[-1].messages
        return [message.result.content for message in messages if message.result]


def world(*small: Step, big: tuple[Step, ...] = (), **more: Any) -> World:
    script = big or (says("", asks()), says("all done"))
    return World(ScriptedModel(*script), ScriptedModel(*small), **more)


@pytest.mark.requirement("S-000-Subagent-02", "S-000-Subagent-05", "S-000-Subagent-07")
async def test_it_has_its_own_prompt_and_model_and_its_answer_is_the_tools_result() -> None:
    stage = world(says("look", ToolCall("r", "read")), says("two books"), tools=(FakeTool("read"),))

    answer = await stage.run()

    first = stage.small.asked[0]
    assert first.system == f"You keep books.\n\n{RESULTS}"
    assert [message.text for message in first.messages] == ["find it"]
    assert stage.told() == ["two books"]
    assert answer.end == Finish("answered", "all done")
    assert [message.role for message in answer.said] == ["assistant", "tool", "assistant"]


async def test_what_it_used_is_told_and_counted_reply_by_reply() -> None:
    stage = world(
        says("look", ToolCall("r", "read"), tokens=300),
        says("two books", tokens=50),
        tools=(FakeTool("read"),),
    )

    answer = await stage.run()

    used = [chunk.data for chunk in stage.heard if chunk.type == "usage"]
    assert [one["input_tokens"] for one in used] == [5, 150, 25, 5]
    assert answer.usage.total == 370
    assert [chunk.type for chunk in stage.heard].count("tool_call") == 1


@pytest.mark.requirement("S-000-Subagent-03")
async def test_it_has_its_own_tools_and_no_other() -> None:
    read, echo = FakeTool("read"), FakeTool("echo")
    own = FakeTool("own", family="pack", agent_scope=("librarian",))
    stage = world(says("", ToolCall("e", "echo")), says("no echo"), tools=(read, echo, own))

    await stage.run()

    offered = [[tool.name for tool in one.tools] for one in stage.small.asked]
    assert offered[0] == ["read", "delegate_clerk"]
    assert echo.calls == []
    assert stage.small.asked[1].messages[-1].result.is_error


async def test_a_tool_for_a_subagent_alone_is_its_own_and_not_its_parents() -> None:
    own = FakeTool("read", agent_scope=("librarian",))
    parent = replace(PARENT, tools=("read", "delegate_librarian"))
    stage = world(says("", ToolCall("r", "read")), says("read"), tools=(own,), parent=parent)

    await stage.run()

    assert [tool.name for tool in stage.big.asked[0].tools] == ["delegate_librarian"]
    assert len(own.calls) == 1


@pytest.mark.requirement("S-000-Subagent-04")
async def test_its_turns_are_its_own_and_what_it_has_when_they_are_over_comes_back() -> None:
    calls = [says(f"page {n}", ToolCall(f"r{n}", "read", f'{{"n":{n}}}')) for n in range(9)]
    stage = world(*calls, tools=(FakeTool("read"),))

    answer = await stage.run()

    assert len(stage.small.asked) == LIBRARIAN.max_turns
    assert stage.told() == [
        "[librarian was stopped early (max_iterations). Its answer so far:]\npage 2"
    ]
    assert answer.end == Finish("answered", "all done")


async def test_one_that_fails_is_a_tool_that_failed() -> None:
    stage = world(ModelFailed("fake", "server", "secret words"))

    answer = await stage.run()

    (told,) = stage.told()
    assert told.startswith("librarian could not do it: ")
    assert "secret words" not in told
    assert answer.end == Finish("answered", "all done")


async def test_it_may_ask_another_which_has_its_model_and_that_one_nobody() -> None:
    stage = world(
        says("", asks("clerk", "count")),
        says("", asks("librarian", "again", "2")),
        says("7"),
        says("7 books"),
    )

    answer = await stage.run()

    refused, counted = (stage.small.asked[step].messages[-1].result for step in (2, 3))
    assert "A subagent cannot ask" in refused.content
    assert counted.content == "7"
    kept = stage.journal.kept
    parts = {one.values[0].count("@") if one.kind == "sub" else 0 for one in kept}
    assert parts == {0, 1, 2}  # what one is granted is granted to no other
    assert stage.told() == ["7 books"]
    assert answer.end == Finish("answered", "all done")


async def test_what_happens_in_it_is_told_as_a_run_of_its_parents() -> None:
    stage = world(says("look", ToolCall("r", "read")), says("ok"), tools=(FakeTool("read"),))

    await stage.run()

    its = [one for one in stage.events if one.run_id != SCOPE.run_id]
    assert {(one.run_id, one.session_key) for one in its} == {
        ("r_1/librarian-1", SCOPE.session_key)
    }
    assert {one.payload["parent_run_id"] for one in its} == {"r_1"}
    assert {one.payload["subagent"] for one in its} == {"librarian"}
    assert "tool.call.success" in [one.type for one in its]
    assert all("subagent" not in one.payload for one in stage.events if one not in its)


async def test_who_stops_the_run_stops_it_at_once() -> None:
    stalling = StallingModel()
    stage = World(ScriptedModel(says("", asks())), stalling)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(stage.run)
            await stalling.reached.wait()
            began = anyio.current_time()
            group.cancel_scope.cancel()

    assert stalling.cancelled
    assert anyio.current_time() - began < 0.25


async def test_after_a_crash_no_tool_of_it_is_called_again_and_what_it_used_still_counts() -> None:
    read, stalling = FakeTool("read"), StallingModel()

    async def stall(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        return await stalling.reply(request, on_delta)

    first = world(says("", ToolCall("r", "read"), tokens=300), stall, tools=(read,))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await stalling.reached.wait()
            group.cancel_scope.cancel()
    kept = first.journal.kept
    second = world(says("two books"), big=(says("all done"),), tools=(read,), earlier=kept)
    answer = await second.run()

    assert len(read.calls) == 1
    assert (len(second.small.asked), len(second.big.asked)) == (1, 1)
    assert second.told() == ["two books"]
    assert answer.usage.total == 330


async def test_two_at_once_have_a_third_each_of_what_is_left() -> None:
    parent = replace(PARENT, limits=replace(PARENT.limits, token_budget=9_010))
    stage = world(
        says("", ToolCall("r", "read"), tokens=2_000),
        tools=(FakeTool("read"),),
        big=(says("", asks(call="1"), asks(call="2")), says("done")),
        parent=parent,
    )

    answer = await stage.run()

    assert [told.partition(". Its answer")[0] for told in stage.told()] == [
        "[librarian was stopped early (token_budget)"
    ] * 2
    assert len(stage.small.asked) == 4
    assert answer.usage.total == 20 + 4 * 2_000
    assert answer.end == Finish("answered", "done")


async def test_one_that_could_not_even_be_told_its_task_is_not_begun() -> None:
    limits = replace(PARENT.limits, token_budget=1_000)
    long = asks(task="x" * 1_600)
    stage = world(
        says("never"),
        big=(says("", long), says("done")),
        parent=replace(PARENT, limits=limits),
    )

    await stage.run()

    assert stage.small.asked == []
    assert stage.told() == [
        "Too little of its token budget is left in this run for librarian. Do without."
    ]


def child(settings: Mapping[str, object], its: SubagentDef = LIBRARIAN) -> AgentDef:
    return child_of(its, PARENT, settings)


def test_a_person_chooses_among_its_models_and_its_parents() -> None:
    models = {
        wanted: child({"subagent_model": wanted}).model
        for wanted in ("small", "big", "spare", "huge")
    }

    assert models == {"small": "small", "big": "big", "spare": "spare", "huge": "small"}


def test_a_fallback_is_its_parents_only_with_the_parents_model() -> None:
    its, own = child({}), child({}, CLERK)

    assert (its.model, its.fallback) == ("small", None)
    assert (own.model, own.fallback) == ("big", PARENT.fallback)


def test_what_it_does_not_say_is_its_parents_but_nothing_of_what_that_one_is() -> None:
    its = child({}, CLERK)

    assert (its.id, its.tools, its.system_prompt) == ("clerk", CLERK.tools, "")
    assert its.limits == replace(PARENT.limits, max_iterations=10, timeout_seconds=1_200)


def test_a_person_may_shorten_its_time_and_not_lengthen_it() -> None:
    seconds = [child({"librarian_timeout": given}).limits.timeout_seconds for given in (9, 600)]

    assert seconds == [9, 60]


async def test_its_time_is_what_its_run_has_left() -> None:
    limits = replace(PARENT.limits, timeout_seconds=10)
    stage = World(
        ScriptedModel(says("", asks()), says("done")),
        ScriptedModel(says("found")),
        parent=replace(PARENT, limits=limits),
    )

    await stage.run()

    assert stage.small.asked[0].deadline_s <= 10


async def test_when_its_time_is_over_it_still_tells_what_it_has() -> None:
    stage = world(tools=(FakeTool("read"),))

    async def late(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        stage.clock.move(LIBRARIAN.timeout_seconds + 1)
        return says("half of it", ToolCall("r", "read"))

    stage.small = ScriptedModel(late)

    answer = await stage.run()

    assert stage.told() == [
        "[librarian was stopped early (timeout). Its answer so far:]\nhalf of it"
    ]
    assert answer.end == Finish("answered", "all done")


async def test_a_reply_that_was_cut_counts_by_an_estimate() -> None:
    async def endless(request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        on_delta(TextDelta("x" * 20_000))
        await anyio.sleep_forever()
        raise AssertionError

    stage = world(endless)

    answer = await stage.run()

    used = [chunk.data for chunk in stage.heard if chunk.type == "usage"]
    assert [one["estimated"] for one in used] == [False, True]  # too little is left for another
    assert used[1]["output_tokens"] == estimate_tokens("x" * 20_000)
    assert answer.usage.total > 6_000
    assert isinstance(answer.end, Finish)
    assert answer.end.reason == "token_budget"


async def test_a_tool_of_a_subagent_cannot_be_called_for_nobody() -> None:
    subagents = await world(says("never")).subagents()

    with pytest.raises(ToolFailed, match="Only an agent can ask"):
        await subagents.delegate("librarian", "find it", SCOPE)


BESIDE = replace(SCOPE, agent=PARENT, part="@0-x:", allowance=lambda: Allowance(5_000, 60.0))


LONG = ToolResult("c", "read", "a long text", boundary="b")


async def test_a_text_is_condensed_in_one_turn_by_one_who_has_no_tool() -> None:
    stage = world(says("in short", tokens=40))
    used = list[int]()
    scope = replace(BESIDE, spend=lambda spent: used.append(spent.usage.total))

    subagents = await stage.subagents()
    with anyio.fail_after(60):
        short = await subagents.summarize("librarian", "What matters?", LONG, scope, least=2)

    (asked,) = stage.small.asked
    assert (short, asked.tools, used) == ("in short", (), [40])
    assert [message.text for message in asked.messages] == [
        "What matters?\n\n<tool-result-b>\na long text\n</tool-result-b>"
    ]
    assert asked.system == "You keep books."


async def test_a_text_and_what_is_made_of_it_fit_into_a_small_window_together() -> None:
    stage = world(says("in short"))
    small = replace(BESIDE, agent=replace(PARENT, context_window=8_192))
    ample = replace(small, allowance=lambda: Allowance(100_000, 60.0))

    subagents = await stage.subagents()
    with anyio.fail_after(60):
        await subagents.summarize(
            "librarian", "What matters?", replace(LONG, content="x" * 99_999), ample, least=4_000
        )

    (asked,) = stage.small.asked
    assert estimate_tokens(asked.messages[-1].text) > 4_000
    assert estimate_tokens(asked.messages[-1].text) + asked.max_tokens < 8_192


async def test_a_reply_that_was_cut_says_so() -> None:
    cut = replace(says("half of it"), finish="length")
    stage = world(cut)

    await stage.run()
    subagents = await stage.subagents()
    with anyio.fail_after(60):
        short = await subagents.summarize("librarian", "What?", LONG, BESIDE, least=2)

    assert stage.told() == [short]
    assert short.startswith("half of it\n[Cut here")


async def test_one_who_says_nothing_has_condensed_nothing() -> None:
    subagents = await world(says("")).subagents()

    with anyio.fail_after(60), pytest.raises(ToolFailed, match="said nothing"):
        await subagents.summarize("librarian", "What matters?", LONG, BESIDE, least=2)


async def test_one_who_wants_tools_to_condense_has_failed() -> None:
    stage = world(says("wait", ToolCall("1", "read")), tools=(FakeTool("read"),))

    subagents = await stage.subagents()
    with anyio.fail_after(60), pytest.raises(ToolFailed, match="could not sum it up"):
        await subagents.summarize("librarian", "What matters?", LONG, BESIDE, least=2)

    assert len(stage.small.asked) == 1


@example("😀" * 100, "😀" * 100, 100)
@given(st.text(), st.text(), st.integers(0, 200))
def test_what_is_left_of_a_text_is_never_more_than_it_may_be(
    begin: str, end: str, tokens: int
) -> None:
    text = f"{begin}{'a' * 2_000}{end}"

    shown = cut_middle(text, tokens)

    first, mark, last = re.split(r"\n(\[\d+ characters are left out here\])\n", shown)
    assert text.startswith(first)
    assert text.endswith(last)
    assert mark == f"[{len(text) - len(first) - len(last)} characters are left out here]"
    assert estimate_tokens(first + last) <= tokens


@pytest.mark.parametrize("size", [0, 1, 320, 321, 5_000])
def test_a_text_is_cut_in_its_middle_to_what_a_window_takes(size: int) -> None:
    text = "".join(chr(97 + n % 26) for n in range(size))

    shown = cut_middle(text, 100)

    if size <= 320:
        assert shown == text
    else:
        begin, mark, end = shown.split("\n")
        assert text.startswith(begin)
        assert text.endswith(end)
        assert mark == f"[{size - len(begin) - len(end)} characters are left out here]"
        assert estimate_tokens(begin + end) <= 100
