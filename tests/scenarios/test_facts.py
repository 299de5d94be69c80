"""A message goes in, and what it says of its sender is known: after the turn, and after a restart."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.values import GatewayConfig
from gateway.domain.facts import Fact, FactQuery, fact_view
from gateway.domain.ids import SessionKey
from tests.fakes.client import connected, until
from tests.fakes.gateway import Setup, Site, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import echo, talking

pytestmark = pytest.mark.shared_store

KEY = "main:websocket:local:main"
MODEL = '[context]\nextraction = "model"'


async def facts_of(site: Site, key: str = KEY, *, with_history: bool = False) -> Sequence[Fact]:
    query = FactQuery(fact_view(SessionKey.parse(key), None), with_history=with_history)
    return await site.rooms.shared.stores.facts.select_facts(query)


async def settled(site: Site) -> None:
    await until(lambda: not site.rooms.memory.extractor.backlog)


def at_once(config: GatewayConfig) -> GatewayConfig:
    """A model looks as soon as a turn has ended."""
    agents = (replace(one, context=replace(one.context, quiet_s=0.0)) for one in config.agents)
    return replace(config, agents=tuple(agents))


def is_about_facts(asked: Asked) -> bool:
    return "You keep the memory" in str(asked.body["messages"][0]["content"])


def with_facts(*facts: dict[str, object]) -> Reply:
    return Reply(json.dumps({"facts": facts}), usage=(100, 20))


@pytest.mark.requirement("S-003-Memory-02")
async def test_what_a_person_tells_is_known_when_the_next_turn_begins(tmp_path: Path) -> None:
    backlogs: list[int] = []

    def answer(asked: Asked) -> Reply:
        backlogs.append(site.rooms.memory.extractor.backlog)
        return echo(asked)

    async with talking(answer, tmp_path) as (model, site, client):
        await client.ask("My dog is called Luna, what should she eat?")
        await client.ask("And Luna's vet is Dr. Weber.")
        await client.ask("What is my dog's name?")
        facts = await facts_of(site)
        requests = len(model.requests)

    assert [(one.subject, one.predicate, one.object) for one in facts] == [
        ("user", "dog_name", "Luna"),
        ("Luna", "vet", "Dr. Weber"),
    ]
    assert backlogs == [0, 0, 0]
    assert requests == 3  # nobody pays for facts unasked


@pytest.mark.requirement("S-003-Memory-03")
async def test_who_moves_lives_at_the_new_place_and_the_old_one_is_history(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (_model, site, client):
        await client.ask("I live in NYC")
        await client.ask("I moved from NYC to LA yesterday")
        await client.ask("I used to live in Rome")
        await settled(site)
        current = await facts_of(site)
        history = await facts_of(site, with_history=True)

    assert [one.object for one in current] == ["LA"]
    assert {one.object for one in history} == {"NYC", "LA", "Rome"}
    assert {one.object: one.superseded_by for one in history}["NYC"] == current[0].id


@pytest.mark.requirement("S-003-Memory-02")
async def test_facts_and_where_looking_stopped_outlive_a_restart(tmp_path: Path) -> None:
    async with scripted_server(echo) as model:
        async with running(Setup(model.url), tmp_path) as site, connected(site.url) as client:
            await client.ask("My dog is called Luna")
        async with running(Setup(model.url), tmp_path) as site, connected(site.url) as client:
            await settled(site)
            facts = await facts_of(site)
            status = await client.call("status")

    assert [one.object for one in facts] == ["Luna"]
    assert status["memory"] == {"backlog": 0, "unindexed": 0}


@pytest.mark.requirement("S-003-Budget-08")
async def test_a_model_that_looks_for_facts_is_metered_and_recorded(tmp_path: Path) -> None:
    fact = {
        "message": 1,
        "quote": "my better half and I tied the knot",
        "subject": "user",
        "predicate": "marital_status",
        "object": "married",
        "confidence": 0.9,
    }

    def answer(asked: Asked) -> Reply:
        return with_facts(fact) if is_about_facts(asked) else Reply("ok", usage=(10, 2))

    async with (
        scripted_server(answer) as model,
        running(Setup(model.url, rest=MODEL), tmp_path, at_once) as site,
        connected(site.url) as client,
    ):
        sent = await client.send("Yesterday my better half and I tied the knot")
        await client.ended(sent["run_id"])
        await settled(site)
        facts = await facts_of(site)
        page = await client.call("budget.records", session_key=KEY)

    spent = [(one["run_id"], one["input_tokens"]) for one in page["records"]]
    assert [(one.predicate, one.object) for one in facts] == [("marital_status", "married")]
    assert facts[0].source_message_ids == (sent["message_id"],)
    assert spent == [(sent["run_id"], 100), (sent["run_id"], 10)]


@pytest.mark.requirement("S-003-Budget-08")
async def test_a_spent_budget_leaves_facts_to_patterns(tmp_path: Path) -> None:
    def answer(_asked: Asked) -> Reply:
        return Reply("ok", usage=(900, 90))

    budget = f"{MODEL}\n[budgets]\nsession = 1000"
    async with (
        scripted_server(answer) as model,
        running(Setup(model.url, rest=budget), tmp_path, at_once) as site,
        connected(site.url) as client,
    ):
        await client.ask("I live in Oslo")
        await settled(site)
        facts = await facts_of(site)
        requests = len(model.requests)

    assert [one.object for one in facts] == ["Oslo"]
    assert requests == 1
