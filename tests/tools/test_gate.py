"""The gate: an agent's tools, valid arguments, in time; everything else is a result that helps."""

import json
from collections.abc import Mapping
from dataclasses import replace

import anyio
import pytest

from gateway.domain.agents import AgentDef, Limits
from gateway.domain.errors import ToolFailed
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.messages import Spent, ToolCall, ToolResult, Usage, estimate_tokens
from gateway.domain.ports import ToolScope
from gateway.tools import MOST_RESULT, ToolGate, ToolSource
from tests.fakes.clock import FakeClock
from tests.fakes.tools import FakeTool, NoSchemas

AGENT = AgentDef(AgentId("a"), "p", "m", tools=("echo", "absent"))
SCOPE = ToolScope(SessionKey(AGENT.id, "c", "p"), RunId("r"), "p")
NOTES = (FakeTool("vault_read", family="notes"), FakeTool("vault_write", family="notes"))


def gate(*tools: FakeTool) -> ToolGate:
    return ToolGate(tools, schemas=NoSchemas(), clock=FakeClock())


def with_tools(*tools: str) -> AgentDef:
    return replace(AGENT, tools=tools)


def names(tools: ToolGate, agent: AgentDef) -> list[str]:
    return [spec.name for spec in tools.offered(agent)]


@pytest.mark.requirement("S-003-AgentDef-10", "S-000-ToolCall-01")
async def test_a_listed_tool_is_called_in_the_hosts_scope() -> None:
    tool = FakeTool()

    result = await gate(tool).call(AGENT, ToolCall("1", "echo", '{"x":1}'), SCOPE)

    assert (result.call_id, result.content, result.is_error) == ("1", '{"x": 1}', False)
    assert tool.calls == [({"x": 1}, replace(SCOPE, call_id="1"))]


@pytest.mark.requirement("S-002-Tools-04")
async def test_no_argument_of_the_models_changes_on_whose_behalf_a_tool_runs() -> None:
    tool = FakeTool()
    forged = {
        "principal": "root",
        "session": {"id": "another"},
        "session_key": "a:c:other:main",
        "scope": {"principal": "root"},
        "call_id": "of another call",
    }

    await gate(tool).call(AGENT, ToolCall("1", "echo", json.dumps(forged)), SCOPE)

    assert tool.calls == [(forged, replace(SCOPE, call_id="1"))]


@pytest.mark.requirement("S-003-AgentDef-10", "S-000-ToolCall-02", "S-000-Tool-02", "S-000-Tool-06")
async def test_a_tool_that_is_not_listed_is_neither_offered_nor_called() -> None:
    hidden = FakeTool("hidden")
    tools = gate(FakeTool(), hidden)

    result = await tools.call(AGENT, ToolCall("1", "hidden"), SCOPE)

    assert [(spec.name, spec.description) for spec in tools.offered(AGENT)] == [
        ("echo", "The tool echo.")
    ]
    assert result.is_error
    assert "Available tools: echo" in result.content
    assert hidden.calls == []


async def test_a_family_is_all_of_its_tools_in_the_order_of_the_list_and_their_own() -> None:
    tools = gate(*NOTES, FakeTool("calc", family="calc"), FakeTool("search", family="code"))

    assert names(tools, with_tools("calc", "notes")) == ["calc", "vault_read", "vault_write"]
    assert names(tools, with_tools("vault_write", "notes")) == ["vault_write", "vault_read"]
    assert names(tools, with_tools("vault_write", "absent")) == ["vault_write"]


async def test_a_tool_of_a_family_is_called_by_its_own_name_only() -> None:
    tools = gate(*NOTES)

    result = await tools.call(with_tools("notes"), ToolCall("1", "vault_read"), SCOPE)
    family = await tools.call(with_tools("notes"), ToolCall("2", "notes"), SCOPE)

    assert not result.is_error
    assert "Available tools: vault_read, vault_write" in family.content


async def test_one_tool_of_a_family_is_listed_by_the_name_that_it_has_there() -> None:
    tools = gate(*NOTES, FakeTool("calc__sum", family="calc"))

    mine = with_tools("notes/vault_write", "calc/sum", "notes/sum", "calc/vault_read", "none/x")

    assert [spec.name for spec in tools.offered(mine)] == ["vault_write", "calc__sum"]


async def test_a_name_is_a_familys_before_it_is_a_tools_of_another_family() -> None:
    tools = gate(FakeTool("calc", family="other"), FakeTool("calc__sum", family="calc"))

    assert names(tools, with_tools("calc")) == ["calc__sum"]


@pytest.mark.requirement("S-000-Tool-04")
async def test_a_tool_for_other_agents_is_neither_offered_nor_called() -> None:
    mine = FakeTool("mine", family="f", agent_scope=("a", "b"))
    theirs = FakeTool("theirs", family="f", agent_scope=("b",))
    agent = with_tools("f", "theirs")
    tools = gate(mine, theirs, FakeTool("anyones", family="f"))

    result = await tools.call(agent, ToolCall("1", "theirs"), SCOPE)

    assert names(tools, agent) == ["mine", "anyones"]
    assert result.is_error
    assert theirs.calls == []


@pytest.mark.requirement("S-000-Tool-01")
async def test_the_second_tool_of_a_name_is_refused_and_says_why() -> None:
    first, second = FakeTool("echo", family="one"), FakeTool("echo", family="two")
    tools = gate(first, second, FakeTool("other", family="two"))
    agent = with_tools("one", "two")

    await tools.call(agent, ToolCall("1", "echo"), SCOPE)

    assert (len(first.calls), len(second.calls)) == (1, 0)
    assert names(tools, agent) == ["echo", "other"]
    (refused,) = tools.refused
    assert (refused.name, refused.family) == ("echo", "two")
    assert refused.why == "the name is taken by the plugin one"


@pytest.mark.requirement("S-000-Tool-03")
@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (FakeTool("echo", parameters="{"), "Expecting"),
        (FakeTool("echo", parameters='"object"'), '"type": "object"'),
        (FakeTool("echo", parameters="{}"), '"type": "object"'),
        (FakeTool("echo", parameters='{"type":"array"}'), '"type": "object"'),
        (FakeTool(""), "letters, digits"),
        (FakeTool("e" * 65), "letters, digits"),
        (FakeTool("echo\n"), "letters, digits"),
        (FakeTool("e.cho"), "letters, digits"),
        (FakeTool("écho"), "letters, digits"),
    ],
)
async def test_a_tool_that_no_model_could_use_is_refused_and_the_others_work(
    tool: FakeTool, says: str
) -> None:
    tools = gate(tool, FakeTool("other"))
    agent = with_tools(tool.spec.name, "other")

    result = await tools.call(agent, ToolCall("1", "other"), SCOPE)

    assert not result.is_error
    assert names(tools, agent) == ["other"]
    assert [(one.name, says in one.why) for one in tools.refused] == [(tool.spec.name, True)]


async def test_a_refused_tool_leaves_its_name_to_another() -> None:
    tools = gate(FakeTool("echo", parameters="{"), FakeTool("echo"))

    assert names(tools, AGENT) == ["echo"]


@pytest.mark.requirement("S-000-ToolCall-03", "S-002-Tools-02")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{", "not valid JSON"),
        ("[1]", "JSON object"),
        ("null", "JSON object"),
        ('{"bad":1}', "bad: is not allowed"),
    ],
)
async def test_bad_arguments_come_back_as_a_result(arguments: str, says: str) -> None:
    tool = FakeTool()

    result = await gate(tool).call(AGENT, ToolCall("1", "echo", arguments), SCOPE)

    assert result.is_error
    assert says in result.content
    assert tool.calls == []


async def test_no_arguments_are_an_empty_object() -> None:
    result = await gate(FakeTool()).call(AGENT, ToolCall("1", "echo", ""), SCOPE)

    assert result.content == "{}"


async def test_a_tool_that_fails_or_takes_too_long_says_so() -> None:
    async def fails(arguments: Mapping[str, object]) -> str:
        raise ToolFailed("the moon is down")

    async def stalls(arguments: Mapping[str, object]) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    quick = replace(AGENT, limits=Limits(tool_timeout_s=0.01))

    failed = await gate(FakeTool("echo", fails)).call(AGENT, ToolCall("1", "echo"), SCOPE)
    late = await gate(FakeTool("echo", stalls)).call(quick, ToolCall("2", "echo"), SCOPE)

    assert (failed.content, failed.is_error) == ("the moon is down", True)
    assert "echo did not answer within 0.01 s." in late.content
    assert late.is_error


@pytest.mark.requirement("S-002-Tools-12")
@pytest.mark.parametrize("is_error", [False, True])
async def test_of_a_result_beyond_its_share_the_model_is_shown_begin_and_end(
    *, is_error: bool
) -> None:
    async def talks(arguments: Mapping[str, object]) -> str:
        text = "begin" + "x" * int(str(arguments["more"])) + "end"
        if is_error:
            raise ToolFailed(text)
        return text

    tools = gate(FakeTool("echo", talks))

    small = await tools.call(AGENT, ToolCall("1", "echo", '{"more":100}'), SCOPE)
    large = await tools.call(AGENT, ToolCall("2", "echo", '{"more":60000}'), SCOPE)
    huge = await tools.call(AGENT, ToolCall("3", "echo", f'{{"more":{MOST_RESULT}}}'), SCOPE)

    assert small.content in small.for_model
    assert len(large.content) == 60_008
    assert len(huge.content) < MOST_RESULT + 200
    most = AGENT.context.token_budget // 4
    for one in (large, huge):
        assert one.is_error is is_error
        assert estimate_tokens(one.for_model) <= most
        assert "\nbegin" in one.for_model
        assert "end\n</" in one.for_model
        assert "characters left out" in one.for_model


def test_a_result_names_its_sources_unless_it_is_an_error() -> None:
    content = '{"sources": [{"id": "n1"}]}'

    assert gate().listed(ToolResult("1", "echo", content)).sources == (
        ToolSource("n1", "n1", None),
    )
    assert gate().listed(ToolResult("1", "echo", content, is_error=True)).sources == ()


async def _never(arguments: Mapping[str, object]) -> str:
    await anyio.sleep_forever()
    raise AssertionError


async def test_a_tool_with_a_time_of_its_own_has_that() -> None:
    slow = FakeTool("slow", _never, timeout_s=0.01)
    agent = replace(with_tools("slow"), limits=Limits(tool_timeout_s=60))

    with anyio.fail_after(60):
        result = await gate(slow).call(agent, ToolCall("1", "slow"), SCOPE)

    assert result.is_error
    assert "did not answer within 0.01 s" in result.content


async def test_tools_of_a_family_can_be_replaced_and_its_refused_ones_are_forgotten() -> None:
    tools = gate(FakeTool("calc"), FakeTool("old", family="mcp:s"), FakeTool("", family="mcp:s"))

    tools.renew("mcp:s", [FakeTool("new", family="mcp:s"), FakeTool("calc", family="mcp:s")])

    assert names(tools, with_tools("mcp:s", "old", "calc")) == ["new", "calc"]
    assert [(one.name, one.family) for one in tools.refused] == [("calc", "mcp:s")]


async def test_tools_that_are_gone_are_not_called_any_more() -> None:
    gone = FakeTool("gone", family="mcp:s")
    tools = gate(gone)

    tools.renew("mcp:s", ())
    result = await tools.call(with_tools("mcp:s"), ToolCall("1", "gone"), SCOPE)

    assert result.is_error
    assert gone.calls == []


async def _fails(arguments: Mapping[str, object]) -> str:
    raise ToolFailed("no luck")


SPENT = Spent(Usage(10, 5), "p", "small")


async def test_what_models_used_for_a_call_comes_with_its_result_also_if_it_failed() -> None:
    tools = gate(FakeTool("good", spends=SPENT), FakeTool("bad", _fails, spends=SPENT))
    agent = with_tools("good", "bad")

    good = await tools.call(agent, ToolCall("1", "good"), SCOPE)
    bad = await tools.call(agent, ToolCall("2", "bad"), SCOPE)

    assert (good.is_error, good.spent) == (False, (SPENT,))
    assert (bad.is_error, bad.spent) == (True, (SPENT,))
