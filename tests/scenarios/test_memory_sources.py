"""Where a fact was said is shown only to who could read it there; else it is counted."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.client import connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, ModelServer, Reply, scripted_server
from tests.scenarios.chats import LONG_S
from tests.scenarios.test_channel_webhook import Program
from tests.scenarios.test_memory import TOKENS, known

pytestmark = pytest.mark.shared_store

OPERATOR = "op-op-op-op-op-op-op-op"
READS_ALL = f"""
[[tokens]]
name = "op"
token = "{OPERATOR}"
scopes = ["admin"]
"""
ROOM = "nightly"
SECRET = "canary4711"
ANN, BOB = "ann-ann-ann-ann-ann-ann", "bob-bob-bob-bob-bob-bob"
OPERATIONS: Mapping[str, Mapping[str, object]] = {
    "keep": {"operation": "remember", "predicate": "dog name", "object": "Luna"},
    "why": {"operation": "history", "predicate": "dog_name"},
}


def asks_why(asked: Asked) -> Reply:
    """`why` looks for the dog's name and then for its sources; the answer is what it was told."""
    if asked.body["messages"][-1]["role"] != "tool":
        operation = OPERATIONS.get(asked.last_text.split()[0])
        return Reply("", calls=[called(operation)]) if operation else Reply("noted")
    told = results(asked)
    if told.get("facts"):
        return Reply("", calls=[called({"operation": "why", "fact_id": told["facts"][0]["id"]})])
    return Reply("told " + json.dumps(told))


def called(arguments: Mapping[str, object]) -> tuple[str, str, str]:
    return ("c1", "memory", json.dumps(arguments))


def results(asked: Asked) -> dict[str, Any]:
    """Of the last tool, whatever stands around its JSON."""
    found = re.search(r"\{.*\}", asked.last_text, re.DOTALL)
    told: dict[str, Any] = json.loads(found[0]) if found else {}
    return told


class Crowd(Program):
    """The program speaks for several people."""

    async def says(self, sender: str, text: str, *, room: str = "") -> None:
        """And is answered there: answers to others may come late."""
        self.made += 1
        before = len(self.texts(room or sender))
        place = {"peer": room, "kind": "group"} if room else {}
        await self.call({"sender": sender, "text": text} | place)
        while len(self.texts(room or sender)) == before:
            await self.news()

    def answer_to(self, room: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.texts(room)[-1].removeprefix("told "))
        return told


@pytest.fixture
async def chat() -> AsyncIterator[Crowd]:
    chat = Crowd("ann", "ann", ROOM)
    async with chat.open():
        yield chat


def setup(model: ModelServer, rest: str, scope: str) -> Setup:
    tooled = f"""
[[agents]]
id = "tooled"
provider = "fake"
model = "m"
tools = ["memory"]

[agents.context]
fact_scope = "{scope}"
"""
    return Setup(model.url, rest=tooled + TOKENS + rest)


def on_channel(chat: Crowd, model: ModelServer, scope: str = "person") -> Setup:
    binding = '[[bindings]]\nagent_id = "tooled"\nchannel = "ci"\n'
    return setup(model, f'{chat.toml}\nallow_from = ["ann", "bob"]\n{binding}', scope)


@pytest.mark.requirement("S-003-Memory-10")
@pytest.mark.parametrize("scope", ["person", "agent"])
async def test_words_of_a_direct_chat_are_counted_in_a_room_and_never_shown_there(
    chat: Crowd, scope: str, tmp_path: Path
) -> None:
    with anyio.fail_after(LONG_S):
        async with (
            scripted_server(asks_why) as model,
            running(on_channel(chat, model, scope), tmp_path) as site,
        ):
            chat.gateway = site.url
            await chat.says("ann", "My dog is called Luna.", room=ROOM)
            await chat.says("ann", f"My dog is called Luna, my locker is {SECRET}.")
            await chat.says("bob", f"My dog is called Luna, her chip is {SECRET}.")
            await chat.says("ann", "why", room=ROOM)
            await chat.says("bob", "why", room=ROOM)
            in_room = [json.loads(one.removeprefix("told ")) for one in chat.texts(ROOM)[-2:]]
            await chat.says("ann", "why")
            direct = chat.answer_to("ann")

    hidden = 1 if scope == "person" else 2
    for told in in_room:
        assert [one["quote"] for one in told["sources"]] == ["My dog is called Luna"]
        assert told["hidden"] == hidden
        assert str(hidden) in told["note"]
    shown = [one["quote"] for one in direct["sources"]]
    assert len(shown) == 2
    assert f"my locker is {SECRET}" in shown[1]
    assert direct.get("hidden", 0) == hidden - 1
    assert SECRET not in json.dumps(in_room)


async def test_what_a_model_kept_from_a_direct_chat_shows_no_room_its_words(
    chat: Crowd, tmp_path: Path
) -> None:
    with anyio.fail_after(LONG_S):
        async with (
            scripted_server(asks_why) as model,
            running(on_channel(chat, model), tmp_path) as site,
        ):
            chat.gateway = site.url
            await chat.says("ann", "keep it, you all", room=ROOM)
            await chat.says("ann", f"keep it, {SECRET}")
            await chat.says("ann", "why", room=ROOM)
            told = chat.answer_to(ROOM)
            await chat.says("ann", "why")
            direct = chat.answer_to("ann")

    assert [one["quote"] for one in told["sources"]] == ["keep it, you all"]
    assert told["hidden"] == 1
    assert [one["quote"] for one in direct["sources"]] == ["keep it, you all", f"keep it, {SECRET}"]
    assert "hidden" not in direct


@pytest.mark.requirement("S-003-Memory-10")
async def test_of_a_fact_that_all_share_nobody_is_shown_what_another_principal_said(
    tmp_path: Path,
) -> None:
    person = {"agent": "tooled"}
    async with (
        scripted_server(asks_why) as model,
        running(setup(model, "", "agent"), tmp_path) as site,
        connected(site.url, ANN) as ann,
        connected(site.url, BOB) as bob,
    ):
        await ann.ask(f"My dog is called Luna, ann keeps {SECRET}.", agent="tooled")
        await known(ann, 1, person=person)
        await bob.ask("My dog is called Luna, she barks.", agent="tooled")
        await bob.ask("hi", agent="tooled")  # by then it is kept
        (luna,) = await known(bob, 1, person=person)
        told = [await one.call("memory.why", fact_id=luna["id"]) for one in (ann, bob)]
        found = await bob.call("memory.search", query="dog Luna", person=person, kinds=["fact"])
        listed = [
            await bob.call("memory.as_of", at="2100-01-01", person=person),
            await bob.call("memory.neighbours", subject="Luna", person=person),
            await bob.call("memory.history", person=person),
            found,
        ]
        asked = (await bob.ask("why", agent="tooled"))["response"]
        refused = await bob.refused("memory.forget", fact_id=luna["id"], dry_run=False)

    for why, name in zip(told, ("ann", "bob"), strict=True):
        (source,) = why["sources"]
        assert source["session_key"] == f"tooled:websocket:{name}:main"
        assert (why["hidden"], why["fact"]["source_message_ids"]) == (1, [source["message_id"]])
    anns, bobs = (why["sources"][0]["message_id"] for why in told)
    assert found["results"][0]["message_id"] == bobs
    assert json.loads(asked.removeprefix("told "))["hidden"] == 1
    texts = json.dumps([told[1], listed, asked])
    assert not [word for word in (SECRET, anns, "websocket:ann") if word in texts]
    assert refused.code == -32004


async def test_the_operator_is_shown_all_that_a_fact_was_told_by(tmp_path: Path) -> None:
    async with (
        scripted_server(asks_why) as model,
        running(setup(model, READS_ALL, "agent"), tmp_path) as site,
        connected(site.url, OPERATOR) as operator,
        connected(site.url, ANN) as ann,
        connected(site.url, BOB) as bob,
    ):
        for client in (ann, bob):
            await client.ask("My dog is called Luna.", agent="tooled")
            await client.ask("hi", agent="tooled")  # by then it is kept
        (luna,) = await known(operator, 1, person={"agent": "tooled"})
        why = await operator.call("memory.why", fact_id=luna["id"])

    assert [one["session_key"] for one in why["sources"]] == [
        "tooled:websocket:ann:main",
        "tooled:websocket:bob:main",
    ]
    assert why["hidden"] == 0


async def test_an_end_user_is_not_shown_what_another_one_of_the_same_token_said(
    tmp_path: Path,
) -> None:
    async with (
        scripted_server(asks_why) as model,
        running(setup(model, "", "agent"), tmp_path) as site,
        connected(site.url, ANN) as ann,
    ):
        await ann.ask(f"My dog is called Luna, I keep {SECRET}.", agent="tooled", peer="one")
        await known(ann, 1, person={"agent": "tooled", "peer": "one"})
        told = (await ann.ask("why", agent="tooled", peer="two"))["response"]
        own = (await ann.ask("why", agent="tooled", peer="one"))["response"]

    assert (SECRET in told, json.loads(told.removeprefix("told "))["hidden"]) == (False, 1)
    assert SECRET in own
