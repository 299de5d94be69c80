"""Subagents over real sockets: made by configuration alone, paid by whom they work for."""

import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from gateway.host.files import shipped_folder
from tests.fakes.client import Client, connected, types_of
from tests.fakes.clock import now_about
from tests.fakes.gateway import Setup, command, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.test_delegation import complete
from tests.scenarios.test_openai import rows

pytestmark = pytest.mark.shared_store

LIBRARIAN = f"""
[[subagents]]
name = "librarian"
prompt_path = "{shipped_folder("souls") / "librarian.md"}"
model = "small"
tools = ["notes/vault_read", "notes/vault_write", "notes/vault_list", "notes/vault_move", "notes/vault_create_index"]
"""
WRITE = ("w", "vault_write", '{"path": "log.md", "content": "one", "mode": "append"}')
READ = ("r", "vault_read", '{"path": "log.md"}')


def setup(url: str, rest: str = "") -> Setup:
    subagents = 'subagents = ["librarian"]'
    return Setup(url, tools=("notes",), agent=subagents, rest=LIBRARIAN + rest)


def delegates(*numbers: int) -> Reply:
    task = json.dumps({"task": "write it down"})
    return Reply("", calls=[(f"d{n}", "delegate_librarian", task) for n in numbers])


def is_its(asked: Asked) -> bool:
    return bool(asked.body["model"] == "small")


def is_told(asked: Asked) -> bool:
    return bool(asked.body["messages"][-1]["role"] == "tool")


def usual(asked: Asked) -> Reply:
    if is_its(asked):
        return Reply("It is written.") if is_told(asked) else Reply("", calls=[WRITE])
    return Reply("Done.") if is_told(asked) else delegates(1)


async def records(client: Client, session_key: str) -> list[tuple[str, str]]:
    told = await client.call("budget.records", session_key=session_key)
    return [(one["agent_id"], one["model"]) for one in told["records"]]


@pytest.mark.requirement("S-000-Subagent-05", "S-000-Subagent-06", "S-000-Subagent-07")
@pytest.mark.requirement("S-003-Budget-08")
async def test_a_librarian_of_notes_is_made_by_configuration_and_paid_by_its_parent(
    tmp_path: Path,
) -> None:
    async with (
        scripted_server(usual) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("Note it.")
        events = await client.ended(sent["run_id"])
        paid = await records(client, sent["session_key"])
        replay = await client.call("run.replay", run_id=sent["run_id"])
        history = await client.call("chat.history", session_key=sent["session_key"])
        listed = await client.call("agent.list")

    (child,) = [asked for asked in model.requests if is_its(asked) and not is_told(asked)]
    assert "You are a librarian." in child.body["messages"][0]["content"]
    assert [tool["function"]["name"].removeprefix("vault_") for tool in child.body["tools"]] == [
        *("read", "write", "list", "move", "create_index")
    ]
    assert sorted(paid) == [("main", "m"), ("main", "m"), ("main", "small"), ("main", "small")]
    assert replay["divergence"] is None
    assert [one["role"] for one in history["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [one["model"] for one in events if one["type"] == "usage"].count("small") == 2
    assert events[-1]["tokens_used"] == 4 * 120
    assert listed["agents"][0]["tools"] == ["notes", "delegate_librarian"]
    assert [(one["name"], one["model"]) for one in listed["subagents"]] == [("librarian", "small")]


@pytest.mark.requirement("S-003-Budget-08")
async def test_a_budget_that_is_spent_stops_the_subagent_before_it_asks(tmp_path: Path) -> None:
    budget = "[budgets]\nsession = 13000\n"

    def greedy(asked: Asked) -> Reply:
        reply = usual(asked)
        reply.usage = (100, 3_000)
        if is_its(asked):
            reply = Reply("", calls=[(f"w{asked.number}", *WRITE[1:])], usage=(100, 3_000))
        return reply

    async with (
        scripted_server(greedy) as model,
        running(setup(model.url, budget), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("Note it.")
        events = await client.ended(sent["run_id"])
        paid = await records(client, sent["session_key"])
        status = await client.call("budget.status", session_key=sent["session_key"])

    assert len(paid) == len(model.requests)
    assert status["budgets"][0]["used"] <= 13_000
    assert 1 <= sum(map(is_its, model.requests)) == len(model.requests) - 1
    assert events[-1]["reason"] == "token_budget"
    assert "token budget exceeded (session: " in json.dumps(events)


async def test_a_client_that_stops_the_run_stops_the_subagent_within_a_moment(
    tmp_path: Path,
) -> None:
    def slow(asked: Asked) -> Reply:
        return Reply("never", gate=anyio.Event()) if is_its(asked) else usual(asked)

    async with (
        scripted_server(slow) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("Note it.")
        asked = await model.wait_for(2)
        began = anyio.current_time()
        await client.call("chat.abort", run_id=sent["run_id"])
        await asked.disconnected.wait()
        took = anyio.current_time() - began
        events = await client.ended(sent["run_id"])

    assert took < now_about(0.25)
    assert events[-1]["reason"] == "cancelled"


async def test_what_a_subagent_had_used_counts_when_its_run_is_stopped(tmp_path: Path) -> None:
    def slow(asked: Asked) -> Reply:
        is_last = is_its(asked) and is_told(asked)
        return Reply("never", gate=anyio.Event()) if is_last else usual(asked)

    async with (
        scripted_server(slow) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("Note it.")
        await model.wait_for(3)
        await client.call("chat.abort", run_id=sent["run_id"])
        events = await client.ended(sent["run_id"])
        replay = await client.call("run.replay", run_id=sent["run_id"])

    assert events[-1]["tokens_used"] == 2 * 120
    assert [one["model"] for one in events if one["type"] == "usage"] == ["m", "small"]
    assert replay["divergence"] is None


@pytest.mark.embedded_store
async def test_of_a_caller_who_keeps_the_conversation_nothing_is_kept(tmp_path: Path) -> None:
    remembers = replace(setup(""), rest=LIBRARIAN.replace('["notes/', '["memory", "notes/', 1))
    async with (
        scripted_server(usual) as model,
        running(replace(remembers, model_url=model.url), tmp_path) as site,
    ):
        answer = await complete(site.url, "Note it.")
        kept = await anyio.to_thread.run_sync(rows, tmp_path)

    assert answer.json["usage"]["total_tokens"] == 4 * 120
    assert kept["journal"] == 0
    offered = [one["function"]["name"] for one in model.requests[1].body["tools"]]
    assert (offered[0], "memory" in offered) == ("vault_read", False)


async def test_after_kill_9_in_a_subagent_its_tool_is_not_called_again(tmp_path: Path) -> None:
    def stage(asked: Asked) -> Reply:
        if asked.number == 3:
            return Reply("never", gate=anyio.Event())
        if asked.body["messages"][-1]["content"] == "What is there?":
            return Reply("", calls=[READ])
        return usual(asked)

    async with scripted_server(stage) as model:
        config = await setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            sent = await client.send("Note it.")
            await model.wait_for(3)
            site.kill()
            await site.exit_code()
        async with command(config) as site, connected(site.url) as client:
            await client.call("chat.resume", run_id=sent["run_id"], after_seq=0)
            events = await client.ended(sent["run_id"])
            paid = await records(client, sent["session_key"])
            read = await client.ask("What is there?")
            history = await client.call("chat.history", session_key=sent["session_key"])

    assert types_of(events)[-1] == "done"
    # Of both only the reply that was cut off is asked for again.
    assert [is_its(asked) for asked in model.requests[:5]] == [False, True, True, True, False]
    told = [one["content"] for one in history["messages"] if one["role"] == "tool"]
    assert '"content":"one"' in told[-1].replace(" ", "")
    assert len(paid) == 5
    assert read["reason"] == "answered"
