"""Stopping an answer: at once, after the step at work, or before it has begun."""

from pathlib import Path

import anyio
import pytest

from tests.fakes.client import WAIT_S, connected, texts_of, types_of
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import CLOCK, history_of, shown, talking

pytestmark = pytest.mark.shared_store


def stalling(asked: Asked) -> Reply:
    """The first answer stops in its middle; the others are whole."""
    if asked.number == 1:
        return Reply(["half of ", "it"], gates={2: anyio.Event()})
    return Reply(f"answer to {asked.last_text}")


@pytest.mark.requirement("S-002-Cancel-01", "S-002-Cancel-02", "S-002-LLM-10", "S-002-E2E-08")
async def test_stopped_at_once_the_model_is_hung_up_on_and_the_half_is_kept(
    tmp_path: Path,
) -> None:
    async with talking(stalling, tmp_path) as (model, _site, client):
        sent = await client.send("first")
        await client.until(sent["run_id"], texts_of)
        aborted = await client.call("chat.abort", run_id=sent["run_id"])
        events = await client.ended(sent["run_id"])
        with anyio.fail_after(WAIT_S):
            await model.requests[0].disconnected.wait()
        after = await client.ask("second")
        page = await client.call("chat.history", session_key=sent["session_key"])

    end = events[-1]
    assert aborted == {"run_id": sent["run_id"], "aborted": True}
    assert (end["type"], end["reason"], end["partial"]) == ("done", "cancelled", True)
    assert end["response"] == "half of "
    notice = next(event for event in events if event["type"] == "system")
    assert notice["system_message"] == "Cancelled by user"
    assert after["response"] == "answer to second"
    assert history_of(model.requests[1]) == [
        ("user", "first"),
        ("assistant", "half of "),
        ("user", "second"),
    ]
    assert page["messages"][1]["status"] == "cancelled"


@pytest.mark.requirement("S-002-Cancel-01", "S-002-Cancel-03")
async def test_stopped_after_the_turn_the_answer_is_heard_to_its_end(tmp_path: Path) -> None:
    rest = anyio.Event()
    async with talking([Reply(["all ", "of it"], gates={2: rest})], tmp_path) as (
        model,
        _site,
        client,
    ):
        sent = await client.send("first")
        await client.until(sent["run_id"], texts_of)
        await client.call("chat.abort", run_id=sent["run_id"], mode="after_turn")
        rest.set()
        end = (await client.ended(sent["run_id"]))[-1]

    assert (end["type"], end["reason"], end["response"]) == ("done", "cancelled", "all of it")
    assert not model.requests[0].disconnected.is_set()


@pytest.mark.requirement("S-003-Message-06")
async def test_stopped_after_the_turn_no_further_model_call_is_made(tmp_path: Path) -> None:
    rest = anyio.Event()
    async with (
        scripted_server([Reply("wait", calls=[CLOCK], gates={2: rest})]) as model,
        running(Setup(model.url, tools=("time",)), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("first")
        await client.until(sent["run_id"], texts_of)
        await client.call("chat.abort", run_id=sent["run_id"], mode="after_turn")
        rest.set()
        events = await client.ended(sent["run_id"])
        page = await client.call("chat.history", session_key=sent["session_key"])

    assert len(model.requests) == 1
    assert events[-1]["reason"] == "cancelled"
    results = [one for one in page["messages"] if one["role"] == "tool"]
    assert [one["tool_call_id"] for one in results] == ["call_1"]
    assert page["messages"][-1]["role"] == "assistant"


@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
async def test_a_message_that_waits_is_stopped_before_it_begins(tmp_path: Path, mode: str) -> None:
    gate = anyio.Event()

    def script(asked: Asked) -> Reply:
        return Reply(f"answer to {asked.last_text}", gate=gate)

    async with talking(script, tmp_path) as (model, _site, client):
        first = await client.send("first")
        second = await client.send("second")
        third = await client.send("third")
        await client.call("chat.abort", run_id=second["run_id"], mode=mode)
        gate.set()
        ends = [(await client.ended(one["run_id"]))[-1] for one in (first, second, third)]
        page = await client.call("chat.history", session_key=first["session_key"])

    assert [end["reason"] for end in ends] == ["answered", "cancelled", "answered"]
    assert [asked.last_text for asked in model.requests] == ["first", "third"]
    assert "content" not in types_of(client.events[second["run_id"]])
    assert [role for role, _ in shown(page)] == ["user", "assistant"] * 3


async def test_stopping_what_has_ended_changes_nothing(tmp_path: Path) -> None:
    async with talking([Reply("whole")], tmp_path) as (_model, _site, client):
        sent = await client.send("first")
        await client.ended(sent["run_id"])
        before = await client.call("run.inspect", run_id=sent["run_id"])
        aborted = await client.call("chat.abort", run_id=sent["run_id"])
        after = await client.call("run.inspect", run_id=sent["run_id"])

    assert aborted["aborted"] is False
    assert after == before
    assert after["termination_reason"] == "answered"


async def test_a_client_that_leaves_stops_nothing(tmp_path: Path) -> None:
    rest = anyio.Event()
    async with (
        scripted_server([Reply(["all ", "of it"], gates={2: rest})]) as model,
        running(Setup(model.url), tmp_path) as site,
    ):
        async with connected(site.url) as client:
            sent = await client.send("first")
            await client.until(sent["run_id"], texts_of)
        rest.set()
        async with connected(site.url) as client:
            await client.call("chat.resume", run_id=sent["run_id"], after_seq=0)
            end = (await client.ended(sent["run_id"]))[-1]

    assert (end["reason"], end["response"]) == ("answered", "all of it")
