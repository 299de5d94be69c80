"""Of two values for what has one at a time the later statement wins, whatever they are called."""

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.client import WAIT_S, Client, connected
from tests.fakes.gateway import Setup, running
from tests.fakes.model_server import Asked, Reply, scripted_server
from tests.forms import is_long
from tests.scenarios.scripts import echo, talking
from tests.scenarios.test_facts import at_once, is_about_facts
from tests.scenarios.test_memory import DEMO, known

pytestmark = pytest.mark.shared_store

ORDERS = [*permutations(("Aachen", "Lyon", "Zagreb"))]
STATED = {
    "sentences": "I live in {}. I live in {}. I live in {}.",
    "clauses": "I live in {}, and now I live in {}, and I live in {}",
    "words": "I live in {} and live in {} but then I moved to {}.",
    "dates": "I moved to {} in 2020. I moved to {} in 2020. I moved to {} in 2020.",
    "a way": "I moved from {} to {}. Now I live in {}.",
    "repeated": "I live in {2}. I live in {0}. I live in {1}. I live in {2}.",
}
MOVED = [
    "I lived in {0}, but now I live in {1}.",
    "I lived in {0}, but I now live in {1}.",
    "I used to live in {0} and now live in {1}",
    "I live in {1} now, I lived in {0} before.",
    "Now I live in {1}, but I lived in {0}.",
    "I live in {0}. I no longer live in {0}, I live in {1}.",
    "I was living in {0} but now I live in {1}",
]


async def told(client: Client, text: str, peer: str) -> list[dict[str, Any]]:
    """The places, once the next turn has begun: all of the message is kept by then."""
    await client.ask(text, peer=peer)
    await client.ask("hi", peer=peer)
    key = f"main:websocket:local:{peer}"
    asked = {"session_key": key, "subject": "user", "predicate": "location"}
    facts: list[dict[str, Any]] = (await client.call("memory.history", **asked))["facts"]
    return facts


def current(facts: Sequence[dict[str, Any]]) -> list[str]:
    return [one["object"] for one in facts if one["superseded_at"] is None]


@pytest.mark.requirement("S-003-Memory-03", "S-003-Memory-08")
async def test_the_later_statement_in_a_message_wins_in_any_order(tmp_path: Path) -> None:
    async with talking(echo, tmp_path) as (_model, _site, client):
        facts = {
            (how, order): await told(client, text.format(*order), f"{how}-{number}")
            for place, (how, text) in enumerate(STATED.items())
            for number, order in enumerate(ORDERS if is_long() else ORDERS[place % 3 :: 3])
        }

    for (how, order), those in facts.items():
        assert current(those) == [order[-1]], how
        assert {one["object"] for one in those} == set(order), how
        assert all(one["valid_to"] for one in those if one["superseded_at"]), how


@pytest.mark.parametrize("text", MOVED)
async def test_where_one_lived_has_an_end_and_where_one_lives_now_has_none(
    text: str, tmp_path: Path
) -> None:
    async with talking(echo, tmp_path) as (_model, _site, client):
        facts = [
            await told(client, text.format(*order), f"p{number}")
            for number, order in enumerate([("Paris", "Lyon"), ("Lyon", "Paris")])
        ]

    for those, (was, now) in zip(facts, [("Paris", "Lyon"), ("Lyon", "Paris")], strict=True):
        ends = {one["object"]: one["valid_to"] is not None for one in those}
        assert ends == {was: True, now: False}
        assert current(those) == [now]


async def test_what_a_model_finds_counts_in_the_order_of_the_message_and_not_of_its_list(
    tmp_path: Path,
) -> None:
    text = "Home was {} for me, then {} was home, and home is {}."
    orders = [(listed, said) for said in ORDERS[:2] for listed in (said, said[::-1])]

    def script(asked: Asked) -> Reply:
        if not is_about_facts(asked):
            return Reply("ok")
        listed, quote = next(
            (listed, text.format(*said))
            for number, (listed, said) in enumerate(orders)
            if f"{text.format(*said)} {number}" in asked.last_text
        )
        one = {"message": 1, "quote": quote, "subject": "user", "predicate": "city"}
        return Reply(json.dumps({"facts": [{**one, "object": place} for place in listed]}))

    async with (
        scripted_server(script) as model,
        running(
            Setup(model.url, rest='[context]\nextraction = "model"'), tmp_path, at_once
        ) as site,
        connected(site.url) as client,
    ):
        facts = []
        for number, (_, said) in enumerate(orders):
            await client.ask(f"{text.format(*said)} {number}", peer=f"p{number}")
            key = f"main:websocket:local:p{number}"
            facts.append(await known(client, 3, session_key=key))

    assert [current(those) for those in facts] == [[said[-1]] for _, said in orders]


ADDED: list[list[dict[str, Any]]] = [
    [{"predicate": "lives_in", "object": "NYC"}, {"predicate": "residence", "object": "Aachen"}],
    [
        {"predicate": "location", "object": "NYC", "valid_from": "2020-01-01"},
        {"predicate": "home", "object": "Aachen", "valid_from": "2020-01-01"},
    ],
]


@pytest.mark.parametrize("facts", ADDED)
@pytest.mark.parametrize("at_a_time", [1, 2])
@pytest.mark.parametrize("is_reversed", [False, True])
async def test_of_facts_that_are_added_the_later_one_takes_the_place_of_the_one_before(
    facts: list[dict[str, Any]], at_a_time: int, is_reversed: bool, tmp_path: Path
) -> None:
    facts = facts[::-1] if is_reversed else facts
    key = {"session_key": "main:websocket:local:main"}
    async with talking(echo, tmp_path) as (_model, _site, client):
        for start in range(0, 2, at_a_time):
            await client.call("memory.add", facts=facts[start : start + at_a_time], **key)
        found = (await client.call("memory.history", predicate="lives in", **key))["facts"]
        now = (await client.call("memory.as_of", at="2100-01-01", **key))["facts"]

    assert {one["predicate"] for one in found} == {"location"}
    assert len(found) == 2
    assert current(found) == [facts[-1]["object"]] == [one["object"] for one in now]


@pytest.mark.requirement("S-003-Memory-03")
async def test_the_models_tool_keeps_one_value_under_whatever_word_it_is_told(
    tmp_path: Path,
) -> None:
    kept: dict[str, dict[str, object]] = {
        "one": {"predicate": "lives_in", "object": "NYC"},
        "two": {"predicate": "Residence", "object": "Aachen"},
        "three": {"predicate": "likes", "object": "tea", "functional": True},
        "four": {"predicate": "likes", "object": "rain", "functional": True},
    }

    def script(asked: Asked) -> Reply:
        if asked.last_text not in kept or asked.body["messages"][-1]["role"] == "tool":
            return Reply("ok")
        call = {"operation": "remember", **kept[asked.last_text]}
        return Reply("", calls=[("c1", "memory", json.dumps(call))])

    key = "tooled:websocket:local:main"
    async with (
        scripted_server(script) as model,
        running(Setup(model.url, rest=DEMO), tmp_path) as site,
        connected(site.url) as client,
    ):
        for text in kept:
            await client.ask(text, agent="tooled")
        with anyio.fail_after(WAIT_S):
            facts = (await client.call("memory.history", session_key=key))["facts"]

    told = {(one["predicate"], one["object"]): one["superseded_at"] is None for one in facts}
    assert told == {
        ("location", "NYC"): False,
        ("location", "Aachen"): True,
        ("likes", "tea"): True,
        ("likes", "rain"): True,
    }
