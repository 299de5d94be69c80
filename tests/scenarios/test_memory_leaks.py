"""Many turns of twenty people with one agent: no word of one reaches another."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.client import Client, connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.forms import is_long

CHANNELS = ("websocket", "telegram", "discord", "slack", "matrix")
PEERS = ("42", "main", "a:b", "a%3Ab")  # the same on every platform
TURNS = 50 if is_long() else 10


@dataclass(frozen=True)
class Person:
    """Says nothing without a word that only they use."""

    number: int
    channel: str
    peer: str

    @property
    def canary(self) -> str:
        return f"canary{self.number:02}x"

    @property
    def place(self) -> Mapping[str, str]:
        account = "local" if self.channel == "websocket" else "bot"
        return {"channel": self.channel, "account": account, "peer": self.peer}

    def says(self, turn: int) -> str:
        mine = f"{self.canary}{turn}"
        return (
            f"My dog is called {mine}.",
            f"I live in {mine}.",
            f"My favourite colour is {mine}, and I like {mine}tea.",
            f"What did I say about my dog, where do I live, and what about {self.canary}0?",
            f"Let us talk about the weather of {mine} for a while.",
        )[turn % 5]


PEOPLE = [Person(n, *place) for n, place in enumerate(product(CHANNELS, PEERS))]


def foreign(text: str, person: Person) -> list[str]:
    """Words of others in a text that is for one of them."""
    return [one.canary for one in PEOPLE if one is not person and one.canary in text]


def owner(asked: Asked) -> Person:
    return next(one for one in PEOPLE if one.canary in asked.last_text)


def script(asked: Asked) -> Reply:
    """Repeats the question, so that the answers hold canaries too."""
    return Reply(f"You said: {asked.last_text}")


async def talk(client: Client, person: Person, answers: list[tuple[Person, str]]) -> None:
    for turn in range(TURNS):
        end = await client.ask(person.says(turn), **person.place)
        answers.append((person, json.dumps(end)))


async def asked_of(client: Client, person: Person) -> str:
    """All that the API tells of them."""
    whose = {"person": {"agent": "main", **person.place}}
    key = (await client.call("route.explain", **person.place))["session_key"]
    told: list[Any] = [await client.call("chat.history", session_key=key, limit=500)]
    for more in (whose, {"session_key": key}):
        told += [
            await client.call(
                "memory.search", query="canary dog live tea weather", limit=100, **more
            ),
            await client.call("memory.history", **more),
            await client.call("memory.as_of", at="2100-01-01", **more),
            await client.call("memory.neighbours", subject="user", hops=3, **more),
        ]
    facts: Sequence[Mapping[str, Any]] = told[2]["facts"]
    told += [await client.call("memory.why", fact_id=one["id"]) for one in facts]
    return json.dumps(told)


@pytest.mark.requirement("S-003-Memory-10")
async def test_no_word_of_one_person_reaches_another(tmp_path: Path) -> None:
    answers: list[tuple[Person, str]] = []
    async with (
        scripted_server(script) as model,
        running(Setup(model.url), tmp_path) as site,
        connected(site.url, wait_s=60) as client,
    ):
        async with anyio.create_task_group() as group:
            for person in PEOPLE:
                group.start_soon(talk, client, person, answers)
        told = [(person, await asked_of(client, person)) for person in PEOPLE]

    prompts = [(owner(asked), json.dumps(asked.body)) for asked in model.requests]
    assert (len(PEOPLE), len(answers)) == (20, 20 * TURNS)
    for person, text in [*prompts, *answers, *told]:
        assert not foreign(text, person)
    for person, text in told:
        assert f"user dog_name {person.canary}" in text
    remembering = [text for person, text in prompts if f"dog_name {person.canary}" in text]
    assert len(remembering) > 100  # else nothing was remembered that could leak
