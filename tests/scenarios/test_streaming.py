"""What a client hears of one answer, in which order, and when."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.memory.context import RESULTS
from tests.fakes.boundaries import inside
from tests.fakes.client import TERMINAL, connected, seqs_of, texts_of, types_of
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Reply, scripted_server
from tests.scenarios.scripts import clock_first, history_of, shown, talking

pytestmark = pytest.mark.shared_store


@pytest.mark.requirement("S-002-E2E-01", "S-002-E2E-04", "S-002-Query-09")
async def test_an_answer_is_heard_piece_by_piece_while_the_model_still_speaks(
    tmp_path: Path,
) -> None:
    rest = anyio.Event()
    reply = Reply(["one ", "two ", "three"], gates={3: rest})
    async with talking([reply], tmp_path) as (_model, _site, client):
        sent = await client.send("count")
        early = await client.until(sent["run_id"], lambda seen: texts_of(seen) == "one two ")

        assert types_of(early) == ["context_update", "content"]
        rest.set()
        events = await client.ended(sent["run_id"])

    assert types_of(events) == ["context_update", "content", "usage", "done"]
    assert seqs_of(events) == list(range(1, len(events) + 1))
    assert [event["type"] in TERMINAL for event in events].count(True) == 1
    assert texts_of(events) == events[-1]["response"] == "one two three"
    assert sum(event["type"] == "content" for event in events) > 1
    assert events[0]["context_tokens"] <= events[0]["max_context_tokens"]


@pytest.mark.requirement("S-002-E2E-01")
async def test_the_answer_to_chat_send_comes_before_the_first_event(tmp_path: Path) -> None:
    async with talking([Reply("hello")], tmp_path) as (_model, _site, client):
        for number in range(20):
            sent = await client.send("hi", peer=f"p{number}")
            await client.ended(sent["run_id"])

            of_this = [frame for frame in client.frames if sent["run_id"] in str(frame)]
            assert of_this[0]["result"]["run_id"] == sent["run_id"]
            assert all("method" in frame for frame in of_this[1:])


async def test_thinking_is_told_apart_from_the_answer(tmp_path: Path) -> None:
    reply = Reply("yes", thinking=["is it ", "so?"])
    async with talking([reply], tmp_path) as (_model, _site, client):
        sent = await client.send("is it?")
        events = await client.ended(sent["run_id"])

    thought = [event["content"] for event in events if event["type"] == "thinking"]
    assert types_of(events) == ["context_update", "thinking", "content", "usage", "done"]
    assert "".join(thought) == "is it so?"
    assert (texts_of(events), events[-1]["response"]) == ("yes", "yes")


async def test_usage_is_what_the_provider_counted(tmp_path: Path) -> None:
    async with talking([Reply("yes", usage=(321, 12))], tmp_path) as (model, _site, client):
        sent = await client.send("is it?")
        events = await client.ended(sent["run_id"])
        session = await client.call("session.get", session_key=sent["session_key"])

    usage = next(event for event in events if event["type"] == "usage")
    counted = {name: usage[name] for name in ("input_tokens", "output_tokens", "estimated")}
    assert counted == {"input_tokens": 321, "output_tokens": 12, "estimated": False}
    assert (usage["model"], usage["provider"]) == ("m", "fake")
    assert events[-1]["tokens_used"] == 333
    assert session["token_usage"]["input_tokens"] == 321
    assert session["token_usage"]["output_tokens"] == 12


async def test_usage_that_nobody_counted_is_marked_as_an_estimate(tmp_path: Path) -> None:
    async with talking([Reply("yes, it is so", usage=None)], tmp_path) as (_model, _site, client):
        sent = await client.send("is it?")
        events = await client.ended(sent["run_id"])

    usage = next(event for event in events if event["type"] == "usage")
    assert usage["estimated"] is True
    assert usage["input_tokens"] > 0
    assert usage["output_tokens"] > 0


@pytest.mark.requirement(
    "S-002-E2E-02", "S-003-Message-02", "S-003-Message-06", "S-004-Flow-02", "S-004-Msg-03"
)
async def test_a_tool_round_is_told_executed_and_kept(tmp_path: Path) -> None:
    async with (
        scripted_server(clock_first) as model,
        running(Setup(model.url, tools=("time",)), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("how late is it?")
        events = await client.ended(sent["run_id"])
        page = await client.call("chat.history", session_key=sent["session_key"])

    call = next(event["tool_call"] for event in events if event["type"] == "tool_call")
    result = next(event["tool_call"] for event in events if event["type"] == "tool_result")
    kinds = [kind for kind in types_of(events) if kind != "context_update"]
    assert kinds == ["content", "usage", "tool_call", "tool_result", "content", "usage", "done"]
    assert call == {
        "id": "call_1",
        "name": "time",
        "arguments": '{"utc_offset_hours":2}',
        "status": "pending",
    }
    assert (result["id"], result["status"]) == ("call_1", "success")
    assert "UTC+0200" in result["result"]
    assert seqs_of(events) == list(range(1, len(events) + 1))
    assert events[-1]["tokens_used"] == 55
    second = model.requests[1].body["messages"]
    assert [one["role"] for one in second[-3:]] == ["user", "assistant", "tool"]
    assert second[-1]["tool_call_id"] == second[-2]["tool_calls"][0]["id"] == "call_1"
    assert inside(second[-1]["content"]) == result["result"]
    _kept_as_it_was_told(page, result)


def _kept_as_it_was_told(page: dict[str, Any], result: dict[str, Any]) -> None:
    assert shown(page) == [
        ("user", "how late is it?"),
        ("assistant", "let me see"),
        ("tool", result["result"]),
        ("assistant", "it is late"),
    ]
    asked = page["messages"][1]["tool_calls"]
    assert asked == [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "time", "arguments": '{"utc_offset_hours":2}'},
        }
    ]
    assert page["messages"][2]["tool_call_id"] == "call_1"


@pytest.mark.requirement("S-002-E2E-03", "S-003-Message-06")
async def test_each_of_several_calls_gets_its_own_result(tmp_path: Path) -> None:
    calls = [("a", "time", "{}"), ("b", "nothing", "{}"), ("c", "time", "not json")]
    async with (
        scripted_server([Reply("", calls=calls), Reply("well")]) as model,
        running(Setup(model.url, tools=("time",)), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("do three things")
        events = await client.ended(sent["run_id"])

    results = {e["tool_call"]["id"]: e["tool_call"] for e in events if e["type"] == "tool_result"}
    states = {id_: result["status"] for id_, result in results.items()}
    assert states == {"a": "success", "b": "error", "c": "error"}
    told = model.requests[1].body["messages"]
    assert [one["tool_call_id"] for one in told if one["role"] == "tool"] == ["a", "b", "c"]
    assert events[-1]["response"] == "well"


@pytest.mark.requirement("S-002-Query-07", "S-002-Query-08", "S-004-Flow-05")
async def test_a_model_is_shown_soul_history_question_and_the_agents_tools(tmp_path: Path) -> None:
    agent = 'system_prompt = "Be brief."'
    async with (
        scripted_server([Reply("first answer"), Reply("second")]) as model,
        running(Setup(model.url, agent=agent, tools=("time",)), tmp_path) as site,
        connected(site.url) as client,
    ):
        await client.ask("first question")
        sent = await client.send("second question")
        await client.ended(sent["run_id"])
        page = await client.call("chat.history", session_key=sent["session_key"])

    system, *_ = model.requests[1].body["messages"]
    own = f"You answer tests.\n\nBe brief.\n\n{RESULTS}"
    assert (system["role"], system["content"]) == ("system", own)
    assert history_of(model.requests[1]) == [
        ("user", "first question"),
        ("assistant", "first answer"),
        ("user", "second question"),
    ]
    assert [one["function"]["name"] for one in model.requests[1].body["tools"]] == ["time"]
    assert "system" not in {role for role, _ in shown(page)}
