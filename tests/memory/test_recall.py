"""What comes to mind at a question: what was said about it, and nothing of anybody else."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.facts import (
    Claim,
    FactView,
    FoundTurns,
    Recalled,
    SaidSource,
    fact_view,
    scope_of,
)
from gateway.domain.ids import SessionKey
from gateway.domain.ports import Stores
from gateway.memory.context import Episode, Window
from gateway.memory.recall import Recall
from tests.conformance.test_conversations import said
from tests.conformance.test_turns import index, say
from tests.fakes.store import NOON, open_memory, session_key

ANN, BOB = session_key("ann"), session_key("bob")


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Stores, Recall]]:
    with anyio.fail_after(60):
        async with open_memory() as stores:
            yield stores, Recall(stores.facts)


def a_claim(
    subject: str, predicate: str, object_: str, key: SessionKey = ANN, source: str | None = None
) -> Claim:
    said = SaidSource(source, key, NOON, object_, "ann") if source else None
    return Claim(subject, predicate, object_, True, NOON, key, source=said)


async def learn(stores: Stores, *claims: Claim) -> None:
    scope = scope_of(claims[0].session_key, None)
    ids = [f"f-{one.subject}-{one.object}" for one in claims]
    for number, (claim, id_) in enumerate(zip(claims, ids, strict=True)):
        now = NOON + timedelta(days=number)
        await stores.facts.add_facts(scope, [claim], ids=[id_], now=now)


async def about(
    recall: Recall,
    question: str,
    key: SessionKey = ANN,
    limit: int = 10,
    shown: Sequence[str] = (),
) -> Sequence[Recalled]:
    nodes = Window(said(id_, id_) for id_ in shown)
    episode = Episode(nodes[-1].id if nodes else None, nodes)
    return await recall.of(question, key, fact_view(key, None), limit=limit, episode=episode)


async def test_the_answer_that_stands_beside_its_question_is_found() -> None:
    async with opened() as (stores, recall):
        chatter = ["The weather is fine"] * 60
        await say(stores, "a", *chatter, "What is your dog called?", "Luna, of course", key=ANN)
        await index(stores, ANN)

        best = await about(recall, "what's the dog's name?", limit=3)

    assert "a-62" in [one.id for one in best]
    assert best[0].why == "says dog"
    assert {one.kind for one in best} == {"turn"}


async def test_what_the_window_shows_is_not_recalled_again() -> None:
    async with opened() as (stores, recall):
        await say(stores, "a", "The dog barks", "ok", "The dog sleeps", "ok", key=ANN)
        await index(stores, ANN)

        best = await about(recall, "dog?", shown=("a-3", "a-4"))

    assert [one.id for one in best] == ["a-1", "a-2"]


async def test_a_branch_recalls_only_what_was_said_on_its_path() -> None:
    async with opened() as (stores, recall):
        await say(stores, "a", "The dog is a beagle", "ok", key=ANN)
        await say(stores, "b", "The dog is a poodle", "ok", key=ANN, after="a-2")
        await index(stores, ANN)

        best = await about(recall, "dog?", shown=("", "a-2"))

    assert {one.id for one in best} <= {"a-1", "a-2"}
    assert best[0].id == "a-1"


async def test_who_is_asked_about_is_heard_first() -> None:
    async with opened() as (stores, recall):
        lines = ["Mia: I love sailing", "Tom: I love sailing too, Mia", "Mia: good"]
        await say(stores, "a", *lines, key=ANN)
        await index(stores, ANN)

        of_tom = await about(recall, "What sailing does Tom love?")

    assert of_tom[0].id == "a-2"
    assert "said by Tom" in of_tom[0].why


async def test_a_question_about_oneself_prefers_what_one_said_oneself() -> None:
    async with opened() as (stores, recall):
        await say(stores, "a", "A beagle barks", "A beagle barks", key=ANN)
        await index(stores, ANN)

        best = await about(recall, "my beagle?")

    assert [one.id for one in best] == ["a-1", "a-2"]


async def test_a_fact_comes_with_the_turn_that_it_came_of() -> None:
    async with opened() as (stores, recall):
        lines = ["She is called Luna", *["Fine weather"] * 100, "A dog barked", "ok"]
        await say(stores, "a", *lines, key=ANN)
        await index(stores, ANN)
        await learn(stores, a_claim("user", "dog_name", "Luna", source="a-1"))

        fact, *turns = await about(recall, "What is the name of the dog?")

    assert (fact.kind, fact.text, fact.message_id) == ("fact", "user dog_name Luna", "a-1")
    assert fact.why == "says name, dog"
    assert fact.fact is not None
    by_id = {one.id: one for one in turns}
    assert "source of a fact" in by_id["a-1"].why


@pytest.mark.requirement("S-003-Memory-05")
async def test_what_is_one_hop_away_is_found_too() -> None:
    async with opened() as (stores, recall):
        await learn(
            stores,
            a_claim("user", "dog_name", "Luna"),
            a_claim("Luna", "vet", "Dr. X"),
            a_claim("Rex", "vet", "Dr. Y"),
        )

        found = await about(recall, "How is the dog?")

    assert [(one.text, one.why) for one in found] == [
        ("user dog_name Luna", "says dog"),
        ("Luna vet Dr. X", "Luna -> vet"),
    ]
    assert found[0].score > found[1].score


@pytest.mark.requirement("S-003-Memory-06")
async def test_what_was_superseded_does_not_come_to_mind() -> None:
    async with opened() as (stores, recall):
        later = NOON + timedelta(days=9)
        moved = Claim("user", "city", "LA", True, later, ANN)
        await learn(stores, a_claim("user", "city", "NYC"), moved)

        found = await about(recall, "Which city?")

    assert [one.text for one in found] == ["user city LA"]


async def test_only_the_kinds_that_are_wanted_come() -> None:
    async with opened() as (stores, recall):
        await say(stores, "a", "The dog barks", "ok", key=ANN)
        await index(stores, ANN)
        await learn(stores, a_claim("user", "dog_name", "Luna"))
        mine = fact_view(ANN, None)

        facts = await recall.of("dog?", ANN, mine, kinds=["fact"])
        turns = await recall.of("dog?", ANN, mine, kinds=["turn"], limit=1)

    assert [one.kind for one in facts] == ["fact"]
    assert [one.id for one in turns] == ["a-1"]


@pytest.mark.requirement("S-003-Memory-10")
async def test_nobody_else_is_ever_recalled() -> None:
    async with opened() as (stores, recall):
        for name, key in (("ann", ANN), ("bob", BOB)):
            await say(stores, name, f"My dog has the secret canary-{name}", "dog noted", key=key)
            await index(stores, key)
            await learn(stores, a_claim("user", "dog_secret", f"canary-{name}", key, f"{name}-1"))

        for name, other, key in (("ann", "bob", ANN), ("bob", "ann", BOB)):
            found = await about(recall, "dog secret canary bob ann", key)

            told = " ".join(f"{one.id} {one.text} {one.why} {one.session_key}" for one in found)
            assert f"canary-{name}" in told
            assert f"canary-{other}" not in told
            assert str(other) not in {one.id for one in found}


@pytest.mark.parametrize(
    "question", ["", "the and of", '" OR * NEAR(', "\0", "🙂", "?" * 1_000_000]
)
async def test_a_question_without_words_brings_nothing_to_mind(question: str) -> None:
    async with opened() as (stores, recall):
        await say(stores, "a", "anything", "at all", key=ANN)
        await index(stores, ANN)

        assert await about(recall, question.replace("NEAR", "")) == ()


async def test_a_huge_question_is_looked_at_at_both_ends() -> None:
    async with opened() as (stores, recall):
        await say(stores, "a", "The zebra", "The quagga", "filler", key=ANN)
        await index(stores, ANN)

        best = await about(recall, f"zebra {'filler ' * 150_000} quagga", limit=2)

    assert {one.id for one in best} == {"a-1", "a-2"}


class NoTurns:
    """Finds nothing, and keeps the words that it was asked for."""

    words: Sequence[str] = ()

    def knows(self, view: FactView) -> bool:
        return False

    def may_find(self, key: SessionKey, words: object, length: int) -> bool:
        return True

    async def find_turns(
        self, key: SessionKey, words: Sequence[str], *choose: object, **bounds: object
    ) -> FoundTurns:
        self.words = words
        return FoundTurns()


@given(st.text())
def test_what_is_asked_for_is_a_bounded_number_of_plain_words(question: str) -> None:
    facts: Any = NoTurns()
    anyio.run(Recall(facts).of, question, ANN, FactView(room=ANN))
    words = facts.words

    assert len(words) <= 24
    assert len(set(words)) == len(words)
    assert all(word and '"' not in word and not word.isspace() for word in words)
