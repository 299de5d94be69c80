"""What is laid beside a question: what fits it, and whatever else there is room for, of one person."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.domain.agents import AgentDef, ContextRules
from gateway.domain.facts import Claim, FactView, FoundTurns, scope_of
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.ports import Stores
from gateway.memory.context import Episode
from gateway.memory.recall import Recall
from tests.fakes.store import open_memory

AGENT = AgentDef(AgentId("a"), "p", "m", context=ContextRules(facts=3))
ANN, BOB = (
    SessionKey(AGENT.id, "telegram", "bot", "42"),
    SessionKey(AGENT.id, "discord", "bot", "42"),
)
AT = datetime(2026, 1, 1, tzinfo=UTC)


async def tell(
    stores: Stores, key: SessionKey, *told: tuple[str, str], shared: bool = False
) -> None:
    for number, (predicate, value) in enumerate(told):
        claim = Claim("user", predicate, value, True, AT + timedelta(days=number), key)
        scope = scope_of(key, None, is_shared=shared)
        await stores.facts.add_facts(
            scope, [claim], ids=[f"f_{key}_{number}"], now=claim.valid_from
        )


async def asked(
    stores: Stores, question: str, key: SessionKey = ANN, agent: AgentDef = AGENT
) -> list[str]:
    found = await Recall(stores.facts).for_turn(question, key, None, agent, Episode(None))
    return [one.text for one in found]


MUCH = [(f"hobby{n}", f"thing{n}") for n in range(20)]


async def test_what_fits_the_question_comes_first_and_the_rest_fills_the_room() -> None:
    async with open_memory() as stores:
        await tell(stores, ANN, *MUCH, ("dog_name", "Luna"))
        found = await asked(stores, "What is my dog called?")

    assert found[0] == "user dog_name Luna"
    assert len(found) == 3


async def test_what_is_asked_in_other_words_than_it_is_kept_under_is_found() -> None:
    facts = (("location", "LA"), ("employer", "the zoo"), ("age", "41"), ("birthday", "3 May"))
    questions = ("Where do I live?", "Who do I work for?", "How old am I?", "When was I born?")
    async with open_memory() as stores:
        await tell(stores, ANN, *MUCH, *facts)
        first = [(await asked(stores, question))[0] for question in questions]

    assert first == [f"user {predicate} {value}" for predicate, value in facts]


async def test_few_facts_are_all_shown_whatever_is_asked() -> None:
    async with open_memory() as stores:
        await tell(stores, ANN, ("name", "Ann"), ("location", "LA"))
        found = await asked(stores, "Who am I?")

    assert set(found) == {"user name Ann", "user location LA"}


async def test_nothing_of_another_person_is_laid_beside_a_question() -> None:
    async with open_memory() as stores:
        await tell(stores, BOB, ("dog_name", "Rex"))

        assert await asked(stores, "What is my dog called?") == []


async def test_what_all_share_is_laid_beside_everybodys_question() -> None:
    shared = replace(AGENT, context=ContextRules(fact_scope="agent"))
    async with open_memory() as stores:
        await tell(stores, BOB, ("dog_name", "Rex"), shared=True)

        assert await asked(stores, "What is the dog called?", agent=shared) == ["user dog_name Rex"]


async def test_no_facts_are_shown_where_none_are_wanted() -> None:
    none = replace(AGENT, context=ContextRules(facts=0))
    async with open_memory() as stores:
        await tell(stores, ANN, ("dog_name", "Luna"))

        assert await asked(stores, "What is my dog called?", agent=none) == []


class Silent:
    """A store of facts in which nothing was learned, and an index that counts its questions."""

    def __init__(self) -> None:
        self.asked, self.is_useless = 0, False

    def may_find(self, key: SessionKey, words: object, length: int) -> bool:
        return not self.is_useless

    def knows(self, view: FactView) -> bool:
        return False

    async def find_turns(self, *_: object, **__: object) -> FoundTurns:
        self.asked += 1
        return FoundTurns()


async def test_the_index_is_not_asked_where_all_is_shown_or_it_can_find_nothing() -> None:
    silent = Silent()
    store: Any = silent
    recall, whole = Recall(store), Episode(None, is_all=True)

    assert await recall.for_turn("What is my dog called?", ANN, None, AGENT, whole) == ()
    assert silent.asked == 0

    silent.is_useless = True
    assert await recall.for_turn("What is my dog called?", ANN, None, AGENT, Episode(None)) == ()
    assert silent.asked == 0

    silent.is_useless = False
    assert await recall.for_turn("What is my dog called?", ANN, None, AGENT, Episode(None)) == ()
    assert silent.asked == 1
