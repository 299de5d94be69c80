"""What is too large for the model that asked is summed up by another, kept whole, and paid once."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.driver import Assignment
from gateway.agent.effects import Finish, RunResult
from gateway.agent.subagents import SummarizingGate
from gateway.domain.agents import Delegation, Limits
from gateway.domain.errors import ModelFailed, ToolFailed
from gateway.domain.messages import Message, Spent, ToolCall, ToolResult, Usage
from gateway.domain.model import ModelReply, ModelRequest, OnDelta
from gateway.memory.context import cut
from gateway.tools import ResultTool, ToolGate
from tests.agent.test_subagents import PARENT, SCOPE, World
from tests.fakes.model import ScriptedModel, Step, says
from tests.fakes.plugin_store import FakeOriginals
from tests.fakes.tools import FakeTool

LARGE = "a fact. " * 2_000
LISTS = replace(PARENT, tools=("find", "result"), limits=Limits(token_budget=40_000))
FIND = ToolCall("f", "find", '{"what":"facts"}')


def tool(content: str, name: str = "find", **more: Any) -> FakeTool:
    async def act(_: object) -> str:
        return content

    return FakeTool(name, act, **more)


@dataclass
class Study(World):
    """A parent whose tool gives much, and a librarian who reads it."""

    delegation: Delegation = Delegation(is_enabled=True)
    originals: FakeOriginals = field(default_factory=FakeOriginals)

    async def gate(self) -> SummarizingGate:
        subagents = await self.subagents()
        gate, originals = subagents.runner.gate, self.originals
        assert isinstance(gate, ToolGate)
        gate.renew("own", [ResultTool(originals)])
        return SummarizingGate(gate, subagents, self.delegation, originals)

    async def run(self) -> RunResult:
        gate = await self.gate()
        self.runner = replace(self.runner, gate=gate)
        assignment = Assignment(self.parent, Message("user", "what is there?"), SCOPE)
        with anyio.fail_after(60):
            return await self.runner.answer(assignment, self.journal, self.heard.append)


def study(*small: Step, big: tuple[Step, ...] = (), content: str = LARGE, **more: Any) -> Study:
    script = big or (says("", FIND), says("all done"))
    given = {"tools": (tool(content),), "parent": LISTS, **more}
    return Study(ScriptedModel(*script), ScriptedModel(*small), **given)


def shown(stage: Study, which: int = -1) -> dict[str, Any]:
    value = json.loads(stage.told()[which])
    assert isinstance(value, dict)
    return value


@pytest.mark.requirement("S-002-Deleg-03")
async def test_the_model_is_shown_a_summary_and_reads_the_rest_by_its_reference() -> None:
    stage = study(says("many facts"))

    answer = await stage.run()

    first = shown(stage)
    assert answer.end == Finish("answered", "all done")
    assert (first["summary"], first["by"]) == ("many facts", "librarian")
    assert (first["characters"], first["reference"][:13]) == (len(LARGE), "result://r_1/")
    (asked,) = stage.small.asked
    assert LARGE in asked.messages[-1].text
    assert '{"what":"facts"}' in asked.messages[-1].text
    assert "what is there?" in asked.messages[-1].text
    assert asked.tools == ()
    (kept,) = stage.originals.kept.values()
    assert (kept.content, kept.tool, kept.session_key) == (LARGE, "find", SCOPE.session_key)
    read = {"reference": first["reference"], "from": 8, "to": 15}
    assert "a fact." in await ResultTool(stage.originals).call(read, SCOPE)


@pytest.mark.requirement("S-002-Deleg-05")
async def test_what_the_summary_used_is_told_and_counted() -> None:
    stage = study(says("many facts", tokens=600))

    answer = await stage.run()

    used = [chunk.data["input_tokens"] for chunk in stage.heard if chunk.type == "usage"]
    assert used == [5, 300, 5]
    assert answer.usage.total == 620


async def test_what_a_tool_itself_used_is_told_as_well() -> None:
    its = Spent(Usage(7, 0), "p", "its-own")
    stage = study(says("many facts", tokens=600), tools=(tool(LARGE, spends=its),))

    await stage.run()

    used = [chunk.data["input_tokens"] for chunk in stage.heard if chunk.type == "usage"]
    assert used == [5, 7, 300, 5]


@pytest.mark.requirement("S-002-Deleg-04")
async def test_what_is_not_too_much_is_shown_as_it_is() -> None:
    stage = study(content="a fact")

    await stage.run()

    assert stage.told() == ["a fact"]
    assert stage.small.asked == []
    assert not stage.originals.kept


def rated(*scores: float) -> str:
    return json.dumps({"results": [{"path": "p", "score": score} for score in scores]})


def entries(count: int) -> str:
    return json.dumps({"entries": list(range(count))})


@pytest.mark.requirement("S-002-Deleg-01", "S-002-Deleg-02")
@pytest.mark.parametrize(
    ("name", "content", "is_too_large"),
    [
        ("find", "x" * 12_800, False),
        ("find", "x" * 12_801, True),
        ("find", json.dumps({"error": "no", "text": LARGE}), False),
        ("find", json.dumps({"error": None, "text": LARGE}), True),
        ("find", entries(500), False),
        ("vault_list", entries(10), False),
        ("vault_list", entries(11), True),
        ("vault_list", json.dumps(list(range(11))), True),
        ("notes__vault_list", entries(11), True),
        ("vault_listing", entries(11), False),
        ("thread_read", entries(20), False),
        ("thread_read", entries(21), True),
        ("search_code", rated(*[0.9] * 6), False),
        ("search_code", rated(*[0.9] * 7), True),
        ("vault_search", rated(*[0.8] * 6, 0.7), True),
        ("vault_search", rated(*[0.8] * 6, 0.69), False),
        ("vault_search", rated(*[2_000] * 6, 1_800), True),
        ("vault_search", rated(*[2_000] * 6, 1_799), False),
        ("vault_search", entries(7), True),
        ("vault_search", json.dumps({"results": [{"score": "high"}] * 7}), True),
    ],
)
async def test_the_thresholds_decide(name: str, content: str, *, is_too_large: bool) -> None:
    gate = await study().gate()

    assert gate.is_too_large(ToolResult("1", name, content)) is is_too_large
    assert not gate.is_too_large(ToolResult("1", name, content, is_error=True))


@given(
    st.recursive(
        st.none() | st.floats() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_no_result_is_too_strange_to_be_judged(value: Any) -> None:
    async def judge() -> None:
        gate = await study().gate()
        gate.is_too_large(ToolResult("1", "vault_list", json.dumps(value)))

    anyio.run(judge)


async def test_sources_of_the_whole_are_told() -> None:
    sources = [{"id": "s", "title": "S", "url": "https://s.example/"}]
    stage = study(says("short"), content=json.dumps({"text": LARGE, "sources": sources}))

    await stage.run()

    assert shown(stage)["sources"] == sources
    assert [chunk.type for chunk in stage.heard].count("source") == 1


@pytest.mark.parametrize(
    "small",
    [
        ModelFailed("fake", "server", "secret words"),
        says("wait", ToolCall("1", "read")),
    ],
)
async def test_where_nobody_sums_it_up_beginning_and_end_are_shown(small: Step) -> None:
    content = f"BEGIN {LARGE} END"
    stage = study(small, content=content)

    answer = await stage.run()

    told = shown(stage)
    assert answer.end == Finish("answered", "all done")
    assert "secret words" not in json.dumps(told)
    assert told["excerpt"].startswith("BEGIN ")
    assert told["excerpt"].endswith(" END")
    assert "characters are left out here" in told["excerpt"]
    assert "summary" not in told
    assert stage.originals.kept


async def test_one_who_is_slow_is_not_waited_for_longer_than_half_of_what_is_left() -> None:
    waited: list[float] = []

    async def stall(request: ModelRequest, _: OnDelta) -> ModelReply:
        waited.append(request.deadline_s or 0.0)
        raise ModelFailed("fake", "timeout", "no answer in time")

    async def slow(_: object) -> str:
        stage.clock.move(20.0)
        return LARGE

    stage = study(stall, tools=(FakeTool("find", slow),))
    await stage.run()

    assert waited == [(LISTS.limits.timeout_seconds - 20.0) / 2]
    assert "excerpt" in shown(stage)


async def test_with_too_little_left_nobody_is_asked() -> None:
    few = replace(LISTS, limits=Limits(token_budget=8_000))
    stage = study(says("never"), parent=few, content="x" * 200_000)

    await stage.run()

    assert stage.small.asked == []
    assert "excerpt" in shown(stage)


async def test_what_is_larger_than_what_is_left_is_read_in_part() -> None:
    few = replace(LISTS, limits=Limits(token_budget=20_000))
    stage = study(says("short"), parent=few, content="x" * 200_000)

    await stage.run()

    assert shown(stage)["summary"] == "short"
    assert "characters are left out here" in stage.small.asked[0].messages[-1].text


async def test_a_summary_that_is_too_long_itself_is_cut() -> None:
    stage = study(says("s" * 40_000))

    await stage.run()

    assert len(shown(stage)["summary"]) < 14_000


async def test_short_entries_that_nobody_sums_up_are_shown_whole() -> None:
    its = replace(LISTS, tools=("vault_list", "result"))
    listing = replace(FIND, name="vault_list")
    stage = study(
        ModelFailed("fake", "server", "gone"),
        big=(says("", listing), says("done")),
        tools=(tool(entries(11), "vault_list"),),
        parent=its,
    )

    await stage.run()

    assert stage.told() == [entries(11)]


async def test_of_an_old_result_the_reference_is_shown_still() -> None:
    sources = [{"id": f"s{n}", "title": "S" * 400, "url": "https://s.example/"} for n in range(9)]
    content = json.dumps({"text": LARGE, "sources": sources})
    stage = study(says("short " * 500), content=content)

    await stage.run()

    (told,) = stage.told()
    assert json.loads(told)["reference"] in cut(told)


@pytest.mark.parametrize("small", [says("short"), ModelFailed("fake", "server", "gone")])
async def test_the_same_again_is_read_and_kept_once_and_seen_as_the_same(small: Step) -> None:
    calls = [says("", replace(FIND, id=f"f{n}")) for n in range(4)]
    stage = study(small, big=(*calls, says("done")))

    await stage.run()

    *same, refused = stage.told()
    assert len(set(same)) == 1
    assert "not executed" in refused.lower()
    assert (len(stage.small.asked), len(stage.originals.kept)) == (1, 1)


async def test_what_a_tool_used_counts_also_if_its_result_is_known() -> None:
    its, again = Spent(Usage(7, 0), "p", "its-own"), replace(FIND, id="g")
    calls = (says("", FIND), says("", again), says("done"))
    stage = study(says("short"), big=calls, tools=(tool(LARGE, spends=its),))

    await stage.run()

    used = [chunk.data["input_tokens"] for chunk in stage.heard if chunk.type == "usage"]
    assert used.count(7) == 2


async def test_after_a_crash_in_the_middle_the_tool_is_not_called_again() -> None:
    stage = study(ModelFailed("fake", "server", "gone"), says("short"))
    its = stage.tools[0]
    gate = await stage.gate()
    scope = replace(SCOPE, agent=LISTS, part="@0-x:")

    with anyio.fail_after(60):
        first = await gate.call(LISTS, FIND, scope)
        gate = await stage.gate()  # as after a new start
        second = await gate.call(LISTS, FIND, scope)

    assert "excerpt" in json.loads(first.content)
    assert json.loads(second.content)["summary"] == "short"
    assert len(its.calls) == 1
    assert len(stage.originals.kept) == 1


async def test_an_error_and_what_is_read_of_a_result_are_never_delegated() -> None:
    async def fail(_: object) -> str:
        raise ToolFailed(LARGE)

    many = replace(Delegation(is_enabled=True), token_estimate=100)
    stage = study(says("short"), tools=(FakeTool("find", fail),), delegation=many)
    gate = await stage.gate()
    scope = replace(SCOPE, agent=LISTS)

    failed = await gate.call(LISTS, FIND, scope)
    stage.tools = (tool(LARGE),)
    gate = await stage.gate()
    short = json.loads((await gate.call(LISTS, replace(FIND, id="2"), scope)).content)
    read = ToolCall("3", "result", json.dumps({"reference": short["reference"]}))
    part = await gate.call(LISTS, read, scope)

    assert (failed.content, failed.is_error) == (LARGE, True)
    assert part.content.startswith("Characters 0 to 12000 of")
    assert len(stage.small.asked) == 1


async def test_what_a_subagent_answers_is_not_summed_up_again() -> None:
    asks = ToolCall("d", "delegate_librarian", '{"task":"tell all"}')
    parent = replace(LISTS, tools=("delegate_librarian", "result"))
    stage = study(says(LARGE), big=(says("", asks), says("done")), parent=parent)

    await stage.run()

    assert stage.told() == [LARGE]
