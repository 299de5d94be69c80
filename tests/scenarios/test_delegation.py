"""Large results of real tools, read by a librarian first: over sockets, HTTP and a kill."""

import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from gateway.config.sections import parse_capability
from gateway.config.values import GatewayConfig
from gateway.domain.ports import PluginSpace
from gateway.host.files import shipped_folder
from tests.fakes.boundaries import inside
from tests.fakes.client import Client, HttpAnswer, connected, http
from tests.fakes.gateway import Setup, command, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.test_openai import rows

pytestmark = pytest.mark.shared_store

DELEGATION = f"""
[[subagents]]
name = "librarian"
prompt_path = "{shipped_folder("souls") / "librarian.md"}"
model = "small"

[delegation]
enabled = true
"""
FACT = "The harbour of Emden has a tide of three metres. "
LARGE = FACT * 400
WRITE = ("w", "vault_write", json.dumps({"path": "sea.md", "content": LARGE}))
READ = ("r", "vault_read", '{"path": "sea.md"}')


LOCAL_NOTES = PluginSpace("notes", "notes", "websocket:local:main")


def for_all(config: GatewayConfig) -> GatewayConfig:
    """One notebook for everybody: a request without a conversation has none of its own."""
    grants = (parse_capability("store:notes:shared"),)
    return replace(
        config, plugins=tuple(replace(one, capabilities=grants) for one in config.plugins)
    )


def setup(url: str, rest: str = "") -> Setup:
    return Setup(url, tools=("notes",), rest=DELEGATION + rest)


def is_its(asked: Asked) -> bool:
    return bool(asked.body["model"] == "small")


def results(asked: Asked) -> list[str]:
    """What tools gave in this turn, as the model is shown it."""
    said = asked.body["messages"]
    last = max(n for n, one in enumerate(said) if one["role"] == "user")
    return [inside(one["content"]) for one in said[last:] if one["role"] == "tool"]


def user_of(asked: Asked) -> str:
    return str(
        next(one["content"] for one in reversed(asked.body["messages"]) if one["role"] == "user")
    )


def usual(asked: Asked) -> Reply:
    if is_its(asked):
        return Reply("It says much about tides.", usage=(5_000, 50))
    match user_of(asked), len(results(asked)):
        case "write", 0:
            return Reply("", calls=[WRITE])
        case "read", 0:
            return Reply("", calls=[READ])
        case "read", 1:
            reference = json.loads(results(asked)[0])["reference"]
            look = {"reference": reference, "grep": "emden"}
            return Reply("", calls=[("g", "result", json.dumps(look))])
        case _:
            return Reply("Done.")


async def records(client: Client, session_key: str) -> list[tuple[str, str]]:
    told = await client.call("budget.records", session_key=session_key)
    return sorted((one["agent_id"], one["model"]) for one in told["records"])


@pytest.mark.requirement("S-002-Deleg-03", "S-002-Deleg-05")
async def test_the_librarian_reads_first_is_paid_by_its_parent_and_the_whole_can_be_read(
    tmp_path: Path,
) -> None:
    async with (
        scripted_server(usual) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        await client.ask("write")
        sent = await client.send("read")
        events = await client.ended(sent["run_id"])
        paid = await records(client, sent["session_key"])
        replay = await client.call("run.replay", run_id=sent["run_id"])
        listed = await client.call("agent.list")
        await client.ask("write", peer="other")
        elsewhere = await client.send("read", peer="other")
        await client.ended(elsewhere["run_id"])

    (its,) = [asked for asked in model.requests if is_its(asked)][:1]
    assert LARGE in its.body["messages"][-1]["content"]
    assert "tools" not in its.body
    parent = [asked for asked in model.requests if results(asked) and user_of(asked) == "read"]
    shown = json.loads(results(parent[0])[0])
    assert shown["summary"] == "It says much about tides."
    assert results(parent[1])[1].startswith("'emden' stands in at least 40 places")
    assert FACT in results(parent[1])[1]
    assert paid == [("main", "m")] * 5 + [("main", "small")]
    assert events[-1]["tokens_used"] == 3 * 120 + 5_050
    assert [one["model"] for one in events if one["type"] == "usage"].count("small") == 1
    assert replay["divergence"] is None
    assert listed["agents"][0]["tools"] == ["notes", "result"]


@pytest.mark.requirement("S-002-Deleg-05")
async def test_a_budget_that_the_librarian_would_break_is_not_spent(tmp_path: Path) -> None:
    async with (
        scripted_server(usual) as model,
        running(setup(model.url, "[budgets]\nsession = 6000\n"), tmp_path) as site,
        connected(site.url) as client,
    ):
        await site.rooms.shared.stores.tools.set(LOCAL_NOTES, "note|sea.md", LARGE)
        sent = await client.send("read")
        await client.ended(sent["run_id"])
        status = await client.call("budget.status", session_key=sent["session_key"])

    assert status["budgets"][0]["used"] <= 6_000
    assert not any(map(is_its, model.requests))
    shown = next(
        json.loads(results(one)[0])
        for one in model.requests
        if user_of(one) == "read" and results(one)
    )
    assert shown["excerpt"].startswith('{"')


async def test_after_kill_9_in_the_librarian_only_the_summary_is_made_again(tmp_path: Path) -> None:
    def stage(asked: Asked) -> Reply:
        if is_its(asked) and sum(map(is_its, model.requests)) == 1:
            return Reply("never", gate=anyio.Event())
        return usual(asked)

    async with scripted_server(stage) as model:
        config = await setup(model.url).written(tmp_path)
        async with command(config) as site, connected(site.url) as client:
            await client.ask("write")
            sent = await client.send("read")
            await model.wait_for(4)
            site.kill()
            await site.exit_code()
        async with command(config) as site, connected(site.url) as client:
            await client.call("chat.resume", run_id=sent["run_id"], after_seq=0)
            events = await client.ended(sent["run_id"])

    assert events[-1]["reason"] == "answered"
    assert sum(map(is_its, model.requests)) == 2
    assert [one["type"] for one in events].count("tool_result") == 2


@pytest.mark.embedded_store
async def test_of_a_caller_who_keeps_the_conversation_nothing_is_kept(tmp_path: Path) -> None:
    async with (
        scripted_server(usual) as model,
        running(setup(model.url), tmp_path, for_all) as site,
    ):
        await complete(site.url, "write")
        answer = await complete(site.url, "read")

    assert answer.json["choices"][0]["message"]["content"] == "Done."
    assert sum(map(is_its, model.requests)) == 1
    read = [text for one in model.requests for text in results(one)]
    assert any("stands in at least 40 places" in text for text in read)
    assert (await anyio.to_thread.run_sync(rows, tmp_path))["original"] == 0


async def complete(url: str, text: str) -> HttpAnswer:
    body = {"model": "main", "messages": [{"role": "user", "content": text}]}
    return await http(f"{url}/v1/chat/completions", method="POST", body=json.dumps(body).encode())
