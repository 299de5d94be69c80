"""A long conversation is summed up: what matters survives, the history is whole, a restart keeps it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.config.values import GatewayConfig
from tests.fakes.client import WAIT_S, Client, connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, Wire, scripted_server
from tests.scenarios.scripts import talking
from tests.scenarios.stage import WIRES, shown_to

pytestmark = pytest.mark.shared_store

KEY = "main:websocket:local:main"
NOTES = {"goal": "ship it", "decisions": ["ship on Friday"], "facts": ["the user likes tea"]}
STORY = "This is a long story about our deployment and what we tried. " * 14
LIMITS = "context.token_budget = 4000"


def writes_notes(asked: Asked) -> Reply:
    """Also between other words, as models do."""
    if "You keep the notes" in str(
        asked.body.get("system") or asked.body["messages"][0]["content"]
    ):
        return Reply(f"Here they are:\n```json\n{json.dumps(NOTES)}\n```")
    return Reply("Understood.")


def another_model(config: GatewayConfig) -> GatewayConfig:
    return replace(config, agents=tuple(replace(one, model="other") for one in config.agents))


async def until_summed_up(client: Client) -> dict[str, Any]:
    """The session's tree, once its head comes after a summary."""
    with anyio.fail_after(WAIT_S):
        while True:
            tree: dict[str, Any] = await client.call("session.tree", session_key=KEY)
            after = {node["parent_id"] for node in tree["nodes"]} | {tree["head"]}
            if any(node["role"] == "summary" and node["id"] in after for node in tree["nodes"]):
                return tree
            await anyio.sleep(0.02)


def asked_with(requests: Sequence[Asked], question: str) -> Asked:
    """The request of this question; the extraction of facts may have asked the model since then."""
    return next(one for one in requests if shown_to(one)[-1] == ("question", question))


@pytest.mark.requirement("S-000-Context-09", "S-000-Context-11")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_long_conversation_goes_on_from_its_summary_also_after_a_restart(
    tmp_path: Path, wire: Wire
) -> None:
    said = [f"Step {n}: host-{n}.example, port {8800 + n}. {STORY}" for n in range(13)]
    async with scripted_server(writes_notes) as model:
        async with (
            running(Setup(model.url, wire=wire, agent=LIMITS), tmp_path) as site,
            connected(site.url) as client,
        ):
            for text in said:
                await client.ask(text)
            tree = await until_summed_up(client)
            await client.ask("What is next?")
            first = asked_with(model.requests, "What is next?")
            history = await client.call("chat.history", session_key=KEY, limit=100)
        async with (
            running(Setup(model.url, wire=wire, agent=LIMITS), tmp_path, another_model) as site,
            connected(site.url) as client,
        ):
            await client.ask("And after the restart?")
            second = asked_with(model.requests, "And after the restart?")
            run_id = next(reversed(client.events))
            explained = await client.call("context.explain", run_id=run_id)

    assert [asked.body["model"] for asked in (first, second)] == ["m", "other"]
    notes = shown_to(first)[0][1]
    assert notes.startswith(
        "<summary>\nGoal: ship it\nDecisions:\n- ship on Friday\nFacts:\n- the user likes tea"
    )
    assert "8800" in notes
    assert "host-1.example" in notes
    assert not any("Step 0:" in text for _, text in shown_to(first))
    assert shown_to(second)[: len(shown_to(first)) - 1] == shown_to(first)[:-1]
    questions = [one["content"] for one in history["messages"] if one["role"] == "user"]
    assert questions == [*said, "What is next?"]
    assert {one["role"] for one in history["messages"]} == {"user", "assistant"}
    assert [node["role"] for node in tree["nodes"]].count("summary") == 1
    parts = {part["kind"]: part for part in explained["parts"]}
    assert parts["summary"]["tokens"] > 0
    assert sum(part["tokens"] for part in explained["parts"]) == explained["total_tokens"] <= 4_000


async def test_a_short_conversation_costs_no_call_besides_its_own(tmp_path: Path) -> None:
    async with talking(writes_notes, tmp_path) as (model, _site, client):
        for turn in range(30):
            await client.ask(f"turn {turn}")
        tree = await client.call("session.tree", session_key=KEY)

    assert len(model.requests) == 30
    assert {node["role"] for node in tree["nodes"]} == {"user", "assistant"}
