"""The model's memory: it keeps, finds, looks back and erases, and all of it is one person's."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.domain.errors import StoreUnavailable, ToolFailed
from gateway.domain.facts import FactQuery, FactView, Recalled, SaidSource
from gateway.domain.ids import AgentId, RunId, SessionKey
from gateway.domain.ports import Stores, ToolScope
from gateway.memory.tool import MemoryTool
from tests.fakes.clock import CountingIds, FakeClock
from tests.fakes.recall import FakeRecall
from tests.fakes.store import open_memory

AGENT = AgentId("a")
ANN, BOB = SessionKey(AGENT, "telegram", "bot", "42"), SessionKey(AGENT, "discord", "bot", "42")
ROOM = SessionKey(AGENT, "telegram", "bot", "room")
SAID = "My dog is called Luna, and I live in LA."


def scope(key: SessionKey = ANN, sender: str | None = None, said: str = SAID) -> ToolScope:
    at = datetime(2025, 12, 31, 8, tzinfo=UTC)
    return ToolScope(key, RunId("r"), "p", "c", SaidSource("m1", key, at, said, sender or key.peer))


def tool(stores: Stores, *found: Recalled, **more: Any) -> MemoryTool:
    return MemoryTool(stores.facts, FakeRecall(*found), FakeClock(), CountingIds(), **more)


async def use(tool: MemoryTool, operation: str, at: ToolScope, /, **arguments: object) -> Any:
    return json.loads(await tool.call({"operation": operation, **arguments}, at))


async def test_a_fact_is_kept_with_the_message_that_it_was_drawn_from() -> None:
    async with open_memory() as stores:
        memory = tool(stores)
        kept = await use(memory, "remember", scope(), predicate="dog_name", object="Luna")
        quoted = await use(
            memory, "remember", scope(), predicate="home", object="LA", quote="I live in LA"
        )
        invented = await use(
            memory, "remember", scope(), predicate="age", object="9", quote="I am nine"
        )
        origins = [
            await stores.facts.origin_of(one["remembered"]["id"])
            for one in (kept, quoted, invented)
        ]

    assert kept["remembered"].items() >= {
        ("subject", "user"),
        ("predicate", "dog_name"),
        ("object", "Luna"),
        ("since", "2025-12-31"),
        ("told", "2026-01-01"),
    }
    sources = [origin.sources[0] for origin in origins if origin]
    assert [one.quote for one in sources] == [SAID, "I live in LA", SAID]
    assert {(one.message_id, one.said_by, one.session_key) for one in sources} == {
        ("m1", "assistant", ANN)
    }


async def test_one_value_at_a_time_takes_the_place_of_the_one_before_which_stays_in_history() -> (
    None
):
    async with open_memory() as stores:
        memory = tool(stores)
        for since, place in (("2024-01-01", "NYC"), ("2025-06-01", "LA")):
            arguments = {"predicate": "location", "object": place, "since": since}
            await use(memory, "remember", scope(), functional=True, **arguments)
        told = await use(memory, "history", scope(), predicate="location")

    assert [(one["object"], one["since"], one.get("until")) for one in told["facts"]] == [
        ("NYC", "2024-01-01", "2025-06-01"),
        ("LA", "2025-06-01", None),
    ]
    assert "superseded" in told["facts"][0]


async def test_what_was_true_and_what_was_believed_at_a_time_are_two_questions() -> None:
    async with open_memory() as stores:
        memory = tool(stores)
        for since, place in (("2024-01-01", "NYC"), ("2025-06-01", "LA")):
            arguments = {"predicate": "location", "object": place, "since": since}
            await use(memory, "remember", scope(), functional=True, **arguments)
        then = await use(memory, "as_of", scope(), at="2024-05-01")
        unknown = await use(memory, "as_of", scope(), at="2024-05-01", known_at="2024-05-01")

    assert [one["object"] for one in then["facts"]] == ["NYC"]
    assert unknown == {"facts": []}


@pytest.mark.parametrize("today", ["today", "NOW", "2026-01-01", "2026-01-01T12:00:00Z"])
async def test_what_was_learned_today_is_true_and_believed_today(today: str) -> None:
    async with open_memory() as stores:
        memory = tool(stores)
        await use(memory, "remember", scope(), predicate="tea", object="green")
        then = await use(memory, "as_of", scope(), at="2025-12-31", known_at=today)
        now = await use(memory, "as_of", scope(), at=today, known_at=today)
        before = await use(memory, "as_of", scope(), at=today, known_at="2025-12-31")

    assert [one["object"] for one in then["facts"]] == ["green"]
    assert [one["object"] for one in now["facts"]] == ["green"]
    assert before == {"facts": []}


async def test_what_is_still_to_come_is_no_fact() -> None:
    async with open_memory() as stores:
        memory = tool(stores)
        with pytest.raises(ToolFailed, match="still to come"):
            await use(
                memory, "remember", scope(), predicate="location", object="Oslo", since="2099-01-01"
            )


@pytest.mark.requirement("S-003-Memory-04")
async def test_the_words_that_a_fact_was_drawn_from_are_told_to_whom_it_belongs() -> None:
    async with open_memory() as stores:
        memory = tool(stores)
        kept = await use(memory, "remember", scope(), predicate="dog_name", object="Luna")
        fact_id = kept["remembered"]["id"]
        why = await use(memory, "why", scope(), fact_id=fact_id)
        for at in (scope(BOB), scope(ROOM, "42")):
            with pytest.raises(ToolFailed, match="no such fact"):
                await use(memory, "why", at, fact_id=fact_id)

    assert why["fact"] == kept["remembered"]
    assert why["sources"] == [{"at": "2025-12-31", "said_by": "assistant", "quote": SAID}]


@pytest.mark.requirement("S-003-Memory-10")
async def test_nobody_sees_or_erases_what_another_said() -> None:
    async with open_memory() as stores:
        memory = tool(stores)
        kept = await use(memory, "remember", scope(), predicate="pin", object="1234")
        history = await use(memory, "history", scope(BOB))
        near = await use(memory, "neighbours", scope(BOB), subject="user")
        for what in ({"fact_id": kept["remembered"]["id"]}, {"predicate": "pin"}):
            with pytest.raises(ToolFailed, match="no such fact"):
                await use(memory, "forget", scope(BOB), confirm=True, **what)
        mine = await use(memory, "history", scope())

    assert (history, near) == ({"facts": []}, {"facts": []})
    assert len(mine["facts"]) == 1


@pytest.mark.requirement("S-003-Memory-10")
async def test_in_a_room_a_sender_sees_the_room_and_erases_only_their_own_words_there() -> None:
    ann, bob = scope(ROOM, "42"), scope(ROOM, "7")
    async with open_memory() as stores:
        memory = tool(stores)
        await use(memory, "remember", scope(), predicate="pin", object="secret")
        for at, tea in ((ann, "green"), (bob, "black")):
            await use(memory, "remember", at, predicate="tea", object=tea)
        seen = await use(memory, "history", ann)
        with pytest.raises(ToolFailed, match="no such fact"):
            await use(memory, "forget", ann, predicate="pin", confirm=True)
        (tea,) = (await use(memory, "forget", ann, predicate="tea"))["would_erase"]
        erased = await use(memory, "forget", ann, fact_id=tea["id"], confirm=True)
        left = await use(memory, "history", bob)
        direct = await use(memory, "history", scope())

    assert {one["object"] for one in seen["facts"]} == {"green", "black"}
    assert erased == {"erased": 1}
    assert [one["object"] for one in left["facts"]] == ["black"]
    assert [one["object"] for one in direct["facts"]] == ["secret"]


async def test_of_what_all_share_only_what_was_learned_here_is_erased() -> None:
    shared = frozenset({AGENT})
    async with open_memory() as stores:
        memory = tool(stores, shared=shared)
        await use(memory, "remember", scope(), predicate="tea", object="green")
        seen = await use(memory, "history", scope(BOB))
        with pytest.raises(ToolFailed, match="no such fact"):
            await use(memory, "forget", scope(BOB), predicate="tea", confirm=True)

    assert [one["object"] for one in seen["facts"]] == ["green"]


async def test_a_model_erases_one_fact_a_call_and_nothing_brings_it_back() -> None:
    async with open_memory() as stores:
        memory = tool(stores)
        for tea in ("green", "black"):
            await use(memory, "remember", scope(), predicate="tea", object=tea)
        asked = await use(memory, "forget", scope(), predicate="tea", confirm=True)
        left = await use(memory, "history", scope())
        doomed = [one["id"] for one in asked["would_erase"]]
        erased = await use(memory, "forget", scope(), fact_id=doomed[0], confirm=True)
        with pytest.raises(ToolFailed, match="forgotten on demand"):
            await use(memory, "remember", scope(), predicate="tea", object="green")
        after = await use(memory, "history", scope())

    assert len(left["facts"]) == 2
    assert erased == {"erased": 1}
    assert [one["id"] for one in after["facts"]] == doomed[1:]


async def test_forgetting_says_first_what_would_go() -> None:
    async with open_memory() as stores:
        memory = tool(stores)
        kept = await use(memory, "remember", scope(), predicate="tea", object="green")
        asked = await use(memory, "forget", scope(), predicate="tea")
        before = await use(memory, "history", scope())
        erased = await use(
            memory, "forget", scope(), fact_id=asked["would_erase"][0]["id"], confirm=True
        )
        after = await use(memory, "history", scope())
        audit = await stores.audit.newest(limit=1)

    assert asked["would_erase"] == [kept["remembered"]] == before["facts"]
    assert erased == {"erased": 1}
    assert after["facts"] == []
    assert (audit[0].kind, audit[0].actor) == ("memory.erased", str(ANN))


async def test_what_is_found_is_told_with_its_dates_and_not_at_any_length() -> None:
    at = datetime(2025, 1, 2, tzinfo=UTC)
    turn = Recalled("turn", "m0", "dog " * 1_000, 1.0, "dog", ANN, at)
    async with open_memory() as stores:
        memory = tool(stores, turn)
        told = await use(memory, "recall", scope(), query="dog")

    assert told["facts"] == []
    assert told["said"] == [{"at": "2025-01-02", "by": "user", "text": ("dog " * 250)}]
    assert isinstance(memory.recall, FakeRecall)
    assert memory.recall.asked == [("dog", ANN, FactView(scope=str(ANN)))]


@pytest.mark.requirement("S-003-Memory-05")
async def test_a_dog_leads_to_her_vet_and_to_where_the_vet_works() -> None:
    said = (
        ("user", "dog_name", "Luna"),
        ("Luna", "vet", "Dr. Weber"),
        ("Dr. Weber", "works_at", "the clinic"),
        ("user", "tea", "green"),
    )
    async with open_memory() as stores:
        memory = tool(stores)
        for subject, predicate, object_ in said:
            await use(
                memory, "remember", scope(), subject=subject, predicate=predicate, object=object_
            )
        one = await use(memory, "neighbours", scope(), subject="luna", hops=1)
        two = await use(memory, "neighbours", scope(), subject="luna", hops=2)

    assert {fact["predicate"] for fact in one["facts"]} == {"dog_name", "vet"}
    assert {fact["predicate"] for fact in two["facts"]} == {"dog_name", "vet", "employer", "tea"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"operation": "remember", "object": "x"}, "remember needs predicate"),
        ({"operation": "remember", "predicate": "p", "object": " "}, "remember needs object"),
        ({"operation": "recall"}, "recall needs query"),
        ({"operation": "forget"}, "forget needs predicate"),
        ({"operation": "remember", "predicate": "p", "object": "x", "since": "soon"}, "no date"),
        (
            {
                "operation": "remember",
                "predicate": "p",
                "object": "x",
                "since": "0001-01-01T00+23:00",
            },
            "no date",
        ),
        ({"operation": "remember", "predicate": "p", "object": "?" * 5_000}, "It is not kept"),
    ],
)
async def test_a_call_that_cannot_work_tells_the_model_why(
    arguments: dict[str, object], why: str
) -> None:
    async with open_memory() as stores:
        with pytest.raises(ToolFailed, match=why):
            await tool(stores).call(arguments, scope())


async def test_a_store_that_is_out_of_reach_is_no_end_of_the_turn() -> None:
    class Gone(FakeRecall):
        async def of(self, *_: object, **__: object) -> Any:
            raise StoreUnavailable("disk full at /data")

    async with open_memory() as stores:
        memory = MemoryTool(stores.facts, Gone(), FakeClock(), CountingIds())
        with pytest.raises(ToolFailed, match="out of reach") as failed:
            await memory.call({"operation": "recall", "query": "x"}, scope())

    assert "/data" not in str(failed.value)


async def test_the_scope_is_never_taken_from_the_arguments() -> None:
    async with open_memory() as stores:
        memory = tool(stores)
        hostile = {"scope": str(BOB), "session_key": str(BOB), "person": "42"}
        await use(memory, "remember", scope(), predicate="p", object="x", **hostile)
        facts = await stores.facts.select_facts(FactQuery(FactView(scope=str(BOB))))

    assert facts == []
