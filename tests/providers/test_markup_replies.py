"""Over real sockets, on both wires: calls that stand in a reply's text or thought are its calls."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from gateway.domain.agents import AgentDef
from gateway.domain.errors import ModelFailed
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.domain.model import ModelRequest, ToolMarkup, Wire
from gateway.domain.ports import ToolScope
from gateway.outbound.connection import open_outbound
from gateway.providers.client import ProviderClient
from gateway.providers.markup import Recovery
from gateway.providers.wire import RECOVERED_AT_ONCE, STEP_COST
from gateway.tools import ToolGate
from tests.fakes.clock import FakeClock
from tests.fakes.model_server import Reply, scripted_server
from tests.fakes.tools import FakeTool, NoSchemas
from tests.providers.asking import Heard, a_client, a_reader, a_request
from tests.providers.marked import TOOLS, hermes

WIRES: list[Wire] = ["openai", "anthropic"]
on_both_wires = pytest.mark.parametrize("wire", WIRES)
CUT = ["Let me see.\n<to", 'ol_call>{"na', 'me": "clock", "argu', 'ments": {}}</tool', "_call>\n"]


@asynccontextmanager
async def asking(
    reply: Reply, wire: Wire, tool_markup: ToolMarkup = "recover"
) -> AsyncIterator[ProviderClient]:
    with anyio.fail_after(60):
        async with scripted_server([reply]) as server, open_outbound() as http:
            yield a_client(http, url=server.url, wire=wire, tool_markup=tool_markup)


def asked(*, stream: bool = True) -> ModelRequest:
    return a_request(tools=TOOLS, stream=stream)


def named(calls: Sequence[ToolCall]) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls]


@on_both_wires
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.requirement("S-002-XML-06", "S-002-XML-10")
async def test_a_call_in_the_text_is_a_call_and_nobody_hears_its_markup(
    wire: Wire, stream: bool
) -> None:
    heard = Heard()
    async with asking(Reply(CUT), wire) as client:
        reply = await client.reply(asked(stream=stream), heard)

    assert (reply.text, heard.text) == ("Let me see.\n", "Let me see.\n")
    assert (named(reply.tool_calls), reply.finish) == ([("clock", "{}")], "tool_calls")
    assert reply.tool_calls[0].id


@on_both_wires
@pytest.mark.requirement("S-002-XML-10")
async def test_where_it_is_not_enabled_markup_is_text(wire: Wire) -> None:
    async with asking(Reply(CUT), wire, "off") as client:
        reply = await client.reply(asked(), Heard())

    assert (reply.text, reply.tool_calls, reply.finish) == ("".join(CUT), (), "stop")


async def test_where_no_tool_is_offered_markup_is_text() -> None:
    async with asking(Reply(CUT), "openai") as client:
        reply = await client.reply(a_request(), Heard())

    assert (reply.text, reply.tool_calls) == ("".join(CUT), ())


@on_both_wires
@pytest.mark.requirement("S-002-XML-01")
async def test_a_call_of_the_wire_counts_alone(wire: Wire) -> None:
    native = ("c1", "weather", '{"city":"Paris"}')
    async with asking(Reply(CUT, calls=[native]), wire) as client:
        reply = await client.reply(asked(), Heard())

    assert (reply.text, reply.tool_calls) == ("Let me see.\n", (ToolCall(*native),))


@on_both_wires
@pytest.mark.requirement("S-002-XML-05")
async def test_a_call_in_the_thinking_is_a_call(wire: Wire) -> None:
    heard = Heard()
    async with asking(Reply(thinking=["The time", *CUT[1:2], *CUT]), wire) as client:
        reply = await client.reply(asked(), heard)

    assert named(reply.tool_calls) == [("clock", "{}")]
    assert "<tool_call>" not in heard.thinking + reply.thinking
    assert reply.finish == "tool_calls"


async def test_a_call_in_the_text_counts_before_one_in_the_thinking() -> None:
    script = Reply(hermes(), thinking=[hermes("weather")])
    async with asking(script, "openai") as client:
        reply = await client.reply(asked(), Heard())

    assert named(reply.tool_calls) == [("clock", "{}")]


async def test_a_call_that_was_only_begun_in_thought_is_none_where_something_is_answered() -> None:
    begun = hermes()[:-5]
    async with asking(Reply("It is noon.", thinking=[begun]), "openai") as client:
        answered = await client.reply(asked(), Heard())
    async with asking(Reply(thinking=[begun]), "openai") as client:
        silent = await client.reply(asked(), Heard())

    assert (answered.text, answered.tool_calls) == ("It is noon.", ())
    assert [call.name for call in silent.tool_calls] == ["clock"]


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_a_call_that_is_cut_off_is_not_lost_and_cannot_run(finish: str) -> None:
    async with asking(Reply("Well. " + hermes()[:-5], finish=finish), "openai") as client:
        reply = await client.reply(asked(), Heard())

    assert (reply.text, [call.name for call in reply.tool_calls]) == ("Well. ", ["clock"])
    with pytest.raises(json.JSONDecodeError):
        json.loads(reply.tool_calls[0].arguments)


@pytest.mark.requirement("S-002-XML-08")
async def test_the_gate_runs_a_recovered_call_and_tells_the_model_of_any_that_cannot_run() -> None:
    clock = FakeTool("clock")
    gate = ToolGate((clock,), schemas=NoSchemas(), clock=FakeClock())
    agent = AgentDef(AgentId("a"), "p", "m", tools=("clock",))
    scope = ToolScope(SessionKey(agent.id, "c", "p"), RunId("r"), "p")
    said = [hermes("clock"), hermes("weather"), hermes("clock", '{"a": oops}'), hermes()[:-5]]
    async with asking(Reply("\n".join(said)), "openai") as client:
        reply = await client.reply(asked(), Heard())

    results = [await gate.call(agent, call, scope) for call in reply.tool_calls]

    assert [result.is_error for result in results] == [False, True, True, True]
    assert "There is no tool 'weather'" in results[1].content
    assert "not valid JSON" in results[2].content
    assert "not valid JSON" in results[3].content
    assert [arguments for arguments, _ in clock.calls] == [{}]


@on_both_wires
async def test_two_calls_alike_have_two_ids(wire: Wire) -> None:
    async with asking(Reply(hermes() + "\n" + hermes()), wire) as client:
        reply = await client.reply(asked(), Heard())

    assert len({call.id for call in reply.tool_calls}) == 2


@on_both_wires
async def test_what_was_held_back_is_said_when_the_reply_breaks_off(wire: Wire) -> None:
    heard = Heard()
    stop_after = {"openai": 2, "anthropic": 4}[wire]
    async with asking(Reply(["half <tool_ca", "never"], stop_after=stop_after), wire) as client:
        with pytest.raises(ModelFailed) as failed:
            await client.reply(asked(), heard)

    assert (failed.value.started, heard.text) == (True, "half <tool_ca")


@on_both_wires
@pytest.mark.requirement("S-002-XML-09")
async def test_markup_that_others_wrote_is_not_called(wire: Wire) -> None:
    """What users and tools say is no model's output, whatever it looks like."""
    call = ToolCall("c1", "weather", json.dumps({"city": hermes()}))
    messages = (
        Message("user", hermes()),
        Message("assistant", tool_calls=(call,)),
        Message("tool", result=ToolResult("c1", "weather", "```\n" + hermes())),
    )
    async with asking(Reply("Sunny."), wire) as client:
        reply = await client.reply(replace(asked(), messages=messages), Heard())

    assert (reply.text, reply.tool_calls) == ("Sunny.", ())


@pytest.mark.parametrize("hostile", ["<tool_call>[", "<", "weather{\n", '<tool_call>{"a":[1,'])
def test_others_have_their_turn_while_calls_are_looked_for(hostile: str) -> None:
    """All of it in one event, so that no read from the network comes between."""
    text = hostile * (100_000 // len(hostile))
    reader = a_reader("openai", request=asked(), recovers=True)
    recovery = Recovery(TOOLS)

    reader.add_text(text)
    turns = sum(1 for _ in reader.recover())

    recovery.feed(text)
    assert turns >= len(text) // RECOVERED_AT_ONCE >= 3
    assert recovery.steps / turns < 2 * RECOVERED_AT_ONCE / STEP_COST
