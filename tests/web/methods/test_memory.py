"""memory.*: users see their own facts; those of others are not found."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from gateway.api.errors import Forbidden, InvalidParams
from gateway.domain.errors import NotFound
from gateway.domain.facts import ClaimRefused, FactView, Recalled
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.ports import Stores
from gateway.memory.recall import Recall
from gateway.web.identity import Principal
from gateway.web.memory import MemoryMethods
from gateway.web.rpc import Handler, handlers_of
from tests.fakes.clock import CountingIds, FakeClock
from tests.fakes.recall import FakeRecall
from tests.fakes.store import open_memory
from tests.web.methods.calling import call

KEY = "a:websocket:p:main"
BOB = Principal("bob", frozenset({"chat"}))
READER = Principal("reader", frozenset({"chat", "read"}))
ONLY_B = Principal("p", frozenset({"chat"}), agents=frozenset({"b"}))
NYC = {"predicate": "location", "object": "NYC", "functional": True, "valid_from": "2024-01-01"}
LA = {"predicate": "location", "object": "LA", "functional": True, "valid_from": "2025-06-01"}
READS: list[tuple[str, dict[str, Any]]] = [
    ("memory.search", {"query": "x"}),
    ("memory.history", {}),
    ("memory.as_of", {"at": "2026-01-01"}),
    ("memory.neighbours", {"subject": "user"}),
]


async def ready(key: SessionKey) -> None:
    await checkpoint()


def methods(stores: Stores, *found: Recalled, **more: Any) -> Mapping[str, Handler]:
    find, clock = FakeRecall(*found), FakeClock()
    told = MemoryMethods(stores.facts, find, clock, CountingIds(), ready, **more)
    return handlers_of(told)


async def added(asked: Mapping[str, Handler], *facts: dict[str, Any], **whose: Any) -> list[Any]:
    whose = whose or {"session_key": KEY}
    kept: list[Any] = (await call(asked, "memory.add", facts=list(facts), **whose))["facts"]
    return kept


@pytest.mark.requirement("S-003-Memory-03", "S-003-Memory-04", "S-003-Memory-06")
async def test_a_move_is_history_and_says_when_it_was_learned_and_from_what() -> None:
    async with open_memory() as stores:
        asked = methods(stores)
        nyc, la = await added(asked, NYC, LA)
        history = await call(asked, "memory.history", session_key=KEY, subject="user")
        now = await call(asked, "memory.as_of", session_key=KEY, at="2026-01-01")
        then = await call(asked, "memory.as_of", session_key=KEY, at="2024-05-01T00:00:00+02:00")
        unknown = await call(
            asked, "memory.as_of", session_key=KEY, at="2026-01-01", known_at="2020-01-01"
        )
        why = await call(asked, "memory.why", fact_id=la["id"])

    assert [one["object"] for one in history["facts"]] == ["NYC", "LA"]
    assert history["facts"][0]["superseded_by"] == la["id"]
    assert history["facts"][0]["superseded_at"] == "2026-01-01T12:00:00Z"
    assert history["facts"][0]["valid_to"] == "2025-06-01T00:00:00Z"
    assert [one["object"] for one in now["facts"]] == ["LA"]
    assert [one["object"] for one in then["facts"]] == ["NYC"]
    assert unknown == {"facts": []}
    assert why["fact"]["learned_at"] == "2026-01-01T12:00:00Z"
    assert why["fact"]["session_key"] == KEY
    assert (why["supersedes"], why["superseded_by"]) == ([nyc["id"]], None)


@pytest.mark.requirement("S-003-Memory-01")
async def test_a_fact_has_all_of_its_fields_and_a_confidence_from_0_to_1() -> None:
    async with open_memory() as stores:
        asked = methods(stores)
        (kept,) = await added(asked, {**LA, "entity_type": "attribute", "confidence": 0.5})
        for confidence in (1.5, -0.1, float("nan")):
            with pytest.raises(ClaimRefused, match="confidence"):
                await added(asked, {**LA, "confidence": confidence})

    assert kept == {
        "id": kept["id"],
        "entity_type": "attribute",
        "subject": "user",
        "predicate": "location",
        "object": "LA",
        "functional": True,
        "confidence": 0.5,
        "scope": KEY,
        "session_key": KEY,
        "learned_at": "2026-01-01T12:00:00Z",
        "valid_from": "2025-06-01T00:00:00Z",
        "valid_to": None,
        "superseded_at": None,
        "superseded_by": None,
        "source_message_ids": [],
    }


@pytest.mark.parametrize("today", ["today", "now", "2026-01-01", "2026-01-01T12:00:00Z"])
async def test_what_was_learned_today_is_true_and_believed_today(today: str) -> None:
    async with open_memory() as stores:
        asked = methods(stores)
        await added(asked, {"predicate": "tea", "object": "green"})
        now = await call(asked, "memory.as_of", session_key=KEY, at=today, known_at=today)
        before = await call(asked, "memory.as_of", session_key=KEY, at="2025-12-31")

    assert [one["object"] for one in now["facts"]] == ["green"]
    assert before == {"facts": []}


async def test_what_is_still_to_come_is_no_fact() -> None:
    async with open_memory() as stores:
        asked = methods(stores)
        with pytest.raises(InvalidParams, match="in the future"):
            await added(asked, {**LA, "valid_from": "2026-02-01"})


@pytest.mark.requirement("S-003-Memory-10")
@pytest.mark.parametrize("principal", [BOB, ONLY_B])
async def test_what_is_anothers_is_not_found(principal: Principal) -> None:
    person = {"agent": "a", "account": "p"}
    async with open_memory() as stores:
        asked = methods(stores)
        (kept,) = await added(asked, LA)
        of_somebody = [
            (method, {**whose, **more})
            for method, more in [*READS, ("memory.forget", {"dry_run": False})]
            for whose in ({"session_key": KEY}, {"person": person})
        ]
        of_a_fact = [
            (method, {"fact_id": fact_id})
            for method in ("memory.why", "memory.forget")
            for fact_id in (kept["id"], "f_nowhere")
        ]
        for method, params in [*of_somebody, *of_a_fact]:
            with pytest.raises(NotFound):
                await call(asked, method, by=principal, **params)
        left = await call(asked, "memory.history", session_key=KEY)

    assert left["facts"] == [kept]


@pytest.mark.requirement("S-003-Memory-10")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("telegram", "bot", "42"), ("discord", "bot", "42")),
        (("telegram", "a:b", "c"), ("telegram", "a", "b:c")),
        (("telegram", "bot", "a:b"), ("telegram", "bot", "a%3Ab")),
    ],
)
async def test_ids_that_look_alike_are_two_people(
    one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    people = [
        {"agent": "a", "channel": place[0], "account": place[1], "peer": place[2]}
        for place in (one, other)
    ]
    async with open_memory() as stores:
        asked = methods(stores)
        for person, tea in zip(people, ("green", "black"), strict=True):
            await added(asked, {"predicate": "tea", "object": tea}, person=person)
        told = [await call(asked, "memory.history", person=person) for person in people]

    assert [[fact["object"] for fact in one["facts"]] for one in told] == [["green"], ["black"]]


async def test_reading_everything_is_not_a_right_to_erase_or_to_add() -> None:
    async with open_memory() as stores:
        asked = methods(stores)
        (kept,) = await added(asked, LA)
        for method, more in READS:
            await call(asked, method, by=READER, session_key=KEY, **more)
        await call(asked, "memory.why", by=READER, fact_id=kept["id"])
        for whose in ({"session_key": KEY}, {"fact_id": kept["id"]}):
            with pytest.raises(Forbidden):
                await call(asked, "memory.forget", by=READER, **whose)


async def test_forgetting_counts_first_and_leaves_a_tombstone() -> None:
    async with open_memory() as stores:
        asked = methods(stores)
        _, la = await added(asked, NYC, LA)
        await added(asked, LA, person={"agent": "a", "peer": "other"})
        dry = await call(asked, "memory.forget", session_key=KEY)
        one = await call(asked, "memory.forget", fact_id=la["id"], dry_run=False)
        rest = await call(
            asked, "memory.forget", person={"agent": "a", "account": "p"}, dry_run=False
        )
        left = await call(asked, "memory.history", session_key=KEY)
        others = await call(asked, "memory.history", person={"agent": "a", "peer": "other"})
        audit = await stores.audit.newest(limit=1)

    assert dry == {"count": 2, "dry_run": True, "tombstone": None}
    assert (one["count"], rest["count"]) == (1, 1)
    assert rest["tombstone"] in audit[0].detail
    assert audit[0].actor == "p"
    assert left == {"facts": []}
    assert len(others["facts"]) == 1


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("memory.history", {}),
        ("memory.history", {"session_key": KEY, "person": {"agent": "a"}}),
        ("memory.forget", {}),
        ("memory.forget", {"fact_id": "f", "session_key": KEY}),
        ("memory.forget", {"session_key": KEY, "dry_run": "no"}),
        ("memory.as_of", {"session_key": KEY, "at": "soon"}),
        ("memory.as_of", {"session_key": KEY, "at": "0001-01-01T00:00:00+23:00"}),
        ("memory.search", {"session_key": KEY, "query": ""}),
        ("memory.search", {"session_key": KEY, "query": "x", "kinds": ["soul"]}),
        ("memory.add", {"session_key": KEY, "facts": []}),
        ("memory.neighbours", {"session_key": KEY, "subject": "x", "hops": 9}),
    ],
)
async def test_what_makes_no_sense_is_refused(method: str, params: dict[str, Any]) -> None:
    async with open_memory() as stores:
        with pytest.raises(InvalidParams):
            await call(methods(stores), method, **params)


async def test_a_search_shows_facts_and_messages_with_their_reason() -> None:
    at = datetime(2025, 1, 2, tzinfo=UTC)
    key = SessionKey.parse(KEY)
    turn = Recalled("turn", "m0", "hello", 0.5, "hello", key, at, message_id="m0")
    async with open_memory() as stores:
        (kept,) = await added(methods(stores), LA)
        origin = await stores.facts.origin_of(kept["id"])
        assert origin is not None
        known = Recalled("fact", kept["id"], "LA", 1.0, "la", key, at, fact=origin.fact)
        asked = methods(stores, known, turn)
        both = await call(asked, "memory.search", session_key=KEY, query="la")
        turns = await call(asked, "memory.search", session_key=KEY, query="la", kinds=["turn"])

    assert [one["kind"] for one in both["results"]] == ["fact", "turn"]
    assert both["results"][0]["fact"] == kept
    assert turns["results"] == [
        {
            "kind": "turn",
            "id": "m0",
            "text": "hello",
            "score": 0.5,
            "why": "hello",
            "session_key": KEY,
            "message_id": "m0",
            "at": "2025-01-02T00:00:00Z",
            "said_by": "user",
        }
    ]


async def test_of_a_platforms_session_is_told_what_was_said_there_and_of_a_person_everything() -> (
    None
):
    room = SessionKey(AgentId("a"), "telegram", "bot", "room")
    find = FakeRecall()
    async with open_memory() as stores:
        told = MemoryMethods(stores.facts, find, FakeClock(), CountingIds(), ready)
        shared = replace(told, shared=frozenset({room.agent}))
        person = {"agent": "a", "channel": "telegram", "account": "bot", "peer": "42"}
        for methods_, whose in (
            (told, {"session_key": str(room)}),
            (told, {"person": person}),
            (told, {"session_key": KEY}),
            (shared, {"session_key": str(room)}),
        ):
            await call(handlers_of(methods_), "memory.search", query="x", **whose)

    assert [seen for _, _, seen in find.asked] == [
        FactView(room=room),
        FactView(scope="a:telegram:bot:42"),
        FactView(scope=KEY),
        FactView(scope="a"),
    ]


async def test_of_what_all_share_a_person_is_forgotten_by_where_they_talked() -> None:
    async with open_memory() as stores:
        asked = methods(stores, shared=frozenset({AgentId("a")}))
        await added(asked, LA)
        await added(
            asked, {"predicate": "tea", "object": "green"}, person={"agent": "a", "peer": "x"}
        )
        gone = await call(
            asked, "memory.forget", person={"agent": "a", "account": "p"}, dry_run=False
        )
        left = await call(asked, "memory.history", session_key=KEY)

    assert gone["count"] == 1
    assert [one["object"] for one in left["facts"]] == ["green"]


async def test_a_fact_is_found_by_another_word_than_it_is_kept_under() -> None:
    facts = (
        LA,
        {"predicate": "employer", "object": "the zoo"},
        {"predicate": "age", "object": "41"},
    )
    questions = ("Where do I live?", "Who do I work for?", "How old am I?")
    async with open_memory() as stores:
        recall = Recall(stores.facts)
        told = MemoryMethods(stores.facts, recall, FakeClock(), CountingIds(), ready)
        asked = handlers_of(told)
        await added(asked, *facts)
        found = [
            (await call(asked, "memory.search", session_key=KEY, query=one))["results"][0]
            for one in questions
        ]

    assert [one["fact"]["object"] for one in found] == ["LA", "the zoo", "41"]


async def test_a_long_history_comes_in_pieces() -> None:
    async with open_memory() as stores:
        asked = methods(stores)
        await added(asked, *({"predicate": "likes", "object": f"tea {n}"} for n in range(7)))
        pieces = [
            await call(asked, "memory.history", session_key=KEY, skip=skip, limit=3)
            for skip in (0, 3, 6, 9)
        ]
        whole = await call(asked, "memory.history", session_key=KEY)

    assert [len(piece["facts"]) for piece in pieces] == [3, 3, 1, 0]
    assert [one for piece in pieces for one in piece["facts"]] == whole["facts"]
