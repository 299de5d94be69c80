"""It remembers, says since when, and where from: with the demo model and with a scripted one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from gateway.providers.demo import NOT_TOLD
from tests.fakes.client import WAIT_S, Client, connected
from tests.fakes.gateway import Setup, command, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.scenarios.scripts import echo, history_of, memory_of

pytestmark = pytest.mark.shared_store

KEY, DEMO_KEY = "main:websocket:local:main", "demo:websocket:local:main"
DEMO = """
[[agents]]
id = "demo"
provider = "demo"
model = "demo"
tools = ["memory"]

[[agents]]
id = "tooled"
provider = "fake"
model = "m"
tools = ["memory"]
"""
TOKENS = """
[[tokens]]
name = "ann"
token = "ann-ann-ann-ann-ann-ann"
scopes = ["chat"]

[[tokens]]
name = "bob"
token = "bob-bob-bob-bob-bob-bob"
scopes = ["chat"]
"""


def setup(url: str, **more: Any) -> Setup:
    return Setup(url, **{"rest": DEMO, **more})


async def ask(client: Client, *questions: str, **more: object) -> str:
    """The answer to the last of them."""
    answers = [(await client.ask(one, **more))["response"] for one in questions]
    return str(answers[-1])


async def known(client: Client, count: int, **asked: object) -> list[dict[str, Any]]:
    """The history once it holds so many facts: what was just said is looked at after the answer."""
    facts: list[dict[str, Any]] = []
    with anyio.fail_after(WAIT_S):
        while len(facts) < count:
            facts = (await client.call("memory.history", **asked))["facts"]
    return facts


@pytest.mark.requirement("S-003-Memory-02")
@pytest.mark.requirement("S-003-Memory-09")
@pytest.mark.shared_store(only_long=True)  # the next one is about a restart too
async def test_the_dogs_name_is_known_thirty_turns_later_and_after_a_restart(
    tmp_path: Path,
) -> None:
    chatter = [f"echo number {n}" for n in range(30)]
    async with scripted_server(echo) as model:
        async with running(setup(model.url), tmp_path) as site, connected(site.url) as client:
            for agent in ("demo", "main"):
                await ask(client, "My dog is called Luna.", *chatter, agent=agent)
            demo = await ask(client, "What is my dog called?", agent="demo")
            await ask(client, "What is my dog called?", agent="main")
            scripted = memory_of(model.requests[-1])
        async with running(setup(model.url), tmp_path) as site, connected(site.url) as client:
            later = await ask(client, "Do you remember my dog's name?", agent="demo")
            elsewhere = await ask(client, "What is my dog called?", agent="demo", peer="other")

    assert demo == later == "Your dog is called Luna."
    assert "user dog_name Luna (since 20" in scripted
    assert "My dog is called Luna." not in [text for _, text in history_of(model.requests[-1])]
    assert len(json.dumps(model.requests[-1].body["messages"])) / 4 < 5_000
    assert elsewhere == NOT_TOLD


@pytest.mark.requirement("S-003-Memory-03", "S-003-Memory-06")
async def test_who_moves_from_nyc_to_la_lives_in_la_and_lived_in_nyc(tmp_path: Path) -> None:
    async with scripted_server(echo) as model:
        async with running(setup(model.url), tmp_path) as site, connected(site.url) as client:
            await ask(client, "I live in NYC.", agent="demo")
            await known(client, 1, session_key=DEMO_KEY)
            await ask(client, "I moved to LA.", agent="demo")
            nyc, la = await known(client, 2, session_key=DEMO_KEY, predicate="location")
            now = await client.call("memory.as_of", session_key=DEMO_KEY, at=la["valid_from"])
            then = await client.call("memory.as_of", session_key=DEMO_KEY, at=nyc["valid_from"])
        async with running(setup(model.url), tmp_path) as site, connected(site.url) as client:
            lives = await ask(client, "echo hi", "Where do I live?", agent="demo")
            lived = await ask(client, "Where did I live before?", agent="demo")
            again = await known(client, 2, session_key=DEMO_KEY, predicate="location")

    assert (nyc["object"], la["object"]) == ("NYC", "LA")
    assert (nyc["superseded_by"], la["superseded_at"]) == (la["id"], None)
    assert nyc["superseded_at"] is not None
    assert nyc["valid_to"] == la["valid_from"]
    assert [one["object"] for one in now["facts"]] == ["LA"]
    assert [one["object"] for one in then["facts"]] == ["NYC"]
    assert again == [nyc, la]
    assert lives == "You live in LA."
    assert "NYC, until 20" in lived
    assert "LA" not in lived


@pytest.mark.requirement("S-003-Memory-04")
async def test_when_it_was_learned_and_from_which_message_is_told(tmp_path: Path) -> None:
    said = "By the way, my dog is called Luna, and it rains."
    async with (
        scripted_server(echo) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        sent = await client.send(said)
        await client.ended(sent["run_id"])
        (luna,) = await known(client, 1, session_key=KEY)
        why = await client.call("memory.why", fact_id=luna["id"])
        page = await client.call("chat.history", session_key=KEY)

    (source,) = why["sources"]
    question = page["messages"][0]
    assert why["fact"] == luna
    assert luna["learned_at"] >= question["created_at"]
    assert luna["source_message_ids"] == [source["message_id"]] == [sent["message_id"]]
    assert (source["session_key"], source["at"]) == (KEY, question["created_at"])
    assert source["quote"] in said
    assert "Luna" in source["quote"]


@pytest.mark.requirement("S-003-Memory-10")
async def test_two_people_of_one_agent_never_see_each_others_facts(tmp_path: Path) -> None:
    tokens = {"ann": "ann-ann-ann-ann-ann-ann", "bob": "bob-bob-bob-bob-bob-bob"}
    async with (
        scripted_server(echo) as model,
        running(setup(model.url, rest=DEMO + TOKENS), tmp_path) as site,
        connected(site.url, tokens["ann"]) as ann,
        connected(site.url, tokens["bob"]) as bob,
    ):
        await ask(ann, "My dog is called Luna.", agent="demo")
        (luna,) = await known(ann, 1, session_key="demo:websocket:ann:main")
        bobs = await ask(bob, "What is my dog called?", agent="demo")
        anns = await ask(ann, "echo hi", "What is my dog called?", agent="demo")
        hers: Mapping[str, Any] = {"session_key": "demo:websocket:ann:main"}
        refused = [
            await bob.refused("memory.search", query="dog", **hers),
            await bob.refused("memory.history", **hers),
            await bob.refused("memory.history", person={"agent": "demo", "account": "ann"}),
            await bob.refused("memory.why", fact_id=luna["id"]),
            await bob.refused("memory.forget", fact_id=luna["id"], dry_run=False),
            await bob.refused("memory.add", facts=[{"predicate": "p", "object": "o"}], **hers),
        ]
        own = await bob.call("memory.search", query="dog Luna", person={"agent": "demo"})

    assert (anns, bobs) == ("Your dog is called Luna.", NOT_TOLD)
    assert [error.code for error in refused] == [*[-32004] * 5, -32002]
    assert "Luna" not in json.dumps([one for one in own["results"] if one["kind"] == "fact"])


@pytest.mark.requirement("S-003-Memory-10")
@pytest.mark.parametrize(
    "places",
    [
        [("telegram", "bot", "42"), ("discord", "bot", "42")],
        [("telegram", "bot", "a:b"), ("telegram", "bot", "a%3Ab")],
        [("telegram", "a:b", "c"), ("telegram", "a", "b:c")],
    ],
)
async def test_people_whose_ids_look_alike_are_kept_apart(
    places: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    names = ("Luna", "Rex")
    spots = [{"channel": c, "account": a, "peer": p, "agent": "demo"} for c, a, p in places]
    async with (
        scripted_server(echo) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        for spot, name in zip(spots, names, strict=True):
            await ask(client, f"My dog is called {name}.", **spot)
        answers = [await ask(client, "What is my dog called?", **spot) for spot in spots]
        facts = [await known(client, 1, person=spot) for spot in spots]

    assert answers == ["Your dog is called Luna.", "Your dog is called Rex."]
    assert [[one["object"] for one in those] for those in facts] == [["Luna"], ["Rex"]]


async def test_the_model_remembers_recalls_and_forgets_with_its_tool(tmp_path: Path) -> None:
    key = "tooled:websocket:local:main"
    calls: dict[str, dict[str, object]] = {
        "keep it": {"operation": "remember", "predicate": "tea", "object": "green"},
        "what tea?": {"operation": "recall", "query": "tea"},
        "how was it?": {"operation": "history", "predicate": "tea"},
        "forget it": {"operation": "forget", "predicate": "tea"},
        "yes": {"operation": "forget", "confirm": True},
    }

    def script(asked: Asked) -> Reply:
        if asked.body["messages"][-1]["role"] == "tool":
            for one in json.loads(asked.last_text).get("would_erase", ()):
                calls["yes"]["fact_id"] = one["id"]
            return Reply(asked.last_text)
        arguments = calls.get(asked.last_text)
        return (
            Reply("", calls=[("c1", "memory", json.dumps(arguments))]) if arguments else Reply("")
        )

    async with (
        scripted_server(script) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        told = {text: json.loads(await ask(client, text, agent="tooled")) for text in calls}
        offered = model.requests[0].body["tools"]
        left = await client.call("memory.history", session_key=key)
        audit = await client.call("audit.tail", limit=1)

    assert [one["function"]["name"] for one in offered] == ["memory"]
    assert told["keep it"]["remembered"]["object"] == "green"
    assert told["what tea?"]["facts"] == [told["keep it"]["remembered"]]
    assert told["how was it?"]["facts"] == told["forget it"]["would_erase"]
    assert told["yes"] == {"erased": 1}
    assert left == {"facts": []}
    assert (audit["entries"][0]["kind"], audit["entries"][0]["actor"]) == ("memory.erased", key)


@pytest.mark.requirement("S-003-Memory-05")
async def test_a_question_about_the_dog_leads_to_the_vet_and_where_she_works(
    tmp_path: Path,
) -> None:
    facts = [
        {"predicate": "dog_name", "object": "Luna"},
        {"subject": "Luna", "predicate": "vet", "object": "Dr. Weber"},
        {"subject": "Dr. Weber", "predicate": "works_at", "object": "the river clinic"},
    ]
    async with (
        scripted_server(echo) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        await client.call("memory.add", facts=facts, session_key=KEY)
        near = await client.call("memory.neighbours", subject="Luna", session_key=KEY)
        found = await client.call("memory.search", query="Luna", session_key=KEY)
        await ask(client, "Who looks after Luna?")

    assert "the river clinic" in {one["object"] for one in near["facts"]}
    assert {"Luna", "Dr. Weber"} <= {one["fact"]["object"] for one in found["results"]}
    assert "Luna vet Dr. Weber" in memory_of(model.requests[-1])


async def test_what_is_forgotten_is_in_no_answer_and_no_prompt_any_more_also_after_a_kill(
    tmp_path: Path,
) -> None:
    async with scripted_server(echo) as model:
        config = await setup(model.url).written(tmp_path)
        async with command(config) as gateway, connected(gateway.url) as client:
            pin = {"predicate": "pin", "object": "canary4711"}
            await client.call("memory.add", facts=[pin], session_key=KEY)
            gone = await client.call("memory.forget", session_key=KEY, dry_run=False)
            gateway.kill()
        async with command(config) as gateway, connected(gateway.url) as client:
            found = await client.call("memory.search", query="pin canary4711", session_key=KEY)
            await ask(client, "What is my pin?")

    assert gone["count"] == 1
    assert found == {"results": []}
    assert "canary4711" not in json.dumps(model.requests[-1].body)
    assert not await to_thread.run_sync(holding, tmp_path / "data", b"canary4711")


def holding(folder: Path, word: bytes) -> list[str]:
    """The files in which a word is left."""
    files = [one for one in folder.rglob("*") if one.is_file()]
    return [one.name for one in files if word in one.read_bytes()]


async def test_a_run_that_used_its_memory_is_replayed_as_it_was_when_that_has_changed(
    tmp_path: Path,
) -> None:
    def script(asked: Asked) -> Reply:
        if asked.body["messages"][-1]["role"] == "tool":
            return Reply(asked.last_text)
        call = ("c1", "memory", '{"operation":"recall","query":"tea"}')
        return Reply("", calls=[call]) if asked.last_text == "what tea?" else Reply("ok")

    whose = {"session_key": "tooled:websocket:local:main"}
    async with (
        scripted_server(script) as model,
        running(setup(model.url), tmp_path) as site,
        connected(site.url) as client,
    ):
        await client.call("memory.add", facts=[{"predicate": "tea", "object": "green"}], **whose)
        sent = await client.send("what tea?", agent="tooled")
        end = (await client.ended(sent["run_id"]))[-1]
        person = {"agent": "tooled", "account": "local"}
        await client.call("memory.forget", dry_run=False, person=person)
        replayed = await client.call("run.replay", run_id=sent["run_id"])

    assert "green" in memory_of(model.requests[0])
    assert "green" in end["response"]
    assert replayed["identical"] is True
