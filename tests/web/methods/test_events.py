"""events.subscribe: a subscriber gets the requested types of the events that it can see."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from gateway.api.errors import InvalidParams
from gateway.api.operating import EventsSubscribe
from gateway.control.notices import Bus
from gateway.domain.errors import BadSessionKey, NotFound
from gateway.domain.events import Event
from gateway.domain.ids import RunId, SessionKey
from gateway.web.identity import Principal
from gateway.web.rpc import Call, Handler, handlers_of, run_all
from gateway.web.status import EventMethods
from tests.web.methods.calling import FakePeer, call
from tests.web.running import ALICE, BEARER, GUARDED, ask, hear, running

AT = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
BOB = Principal("bob", frozenset({"chat"}))
READER = Principal("reader", frozenset({"read"}))
ONLY_Z = Principal("z", frozenset({"read"}), agents=frozenset({"z"}))
PUBLISHED = 400
KEYS = ("a:websocket:bob:main", "a:api:bob:7", "z:telegram:bot:room", "a:websocket:alice:main")


def methods(bus: Bus) -> Mapping[str, Handler]:
    return handlers_of(EventMethods(bus))


def event(type_: str = "query.start", key: str | None = KEYS[0], **payload: object) -> Event:
    session = None if key is None else SessionKey.parse(key)
    run = None if key is None else RunId("r_1")
    return Event(type_, "info", "agent", AT, session, run, payload)


async def read_to_the_end(socket: ClientConnection) -> int:
    """How many frames were still to be had."""
    count = 0
    with anyio.fail_after(60), suppress(ConnectionClosed):
        while True:
            await socket.recv()
            count += 1
    return count


async def subscribed(bus: Bus, by: Principal, **params: Any) -> FakePeer:
    peer = FakePeer()
    await call(methods(bus), "events.subscribe", on=peer, by=by, **params)
    return peer


async def test_an_event_is_told_with_all_that_it_says() -> None:
    bus = Bus()
    peer = await subscribed(bus, BOB)

    bus.publish(event(query="hi", share=float("nan")))

    assert peer.told == [
        {
            "type": "query.start",
            "severity": "info",
            "source": "agent",
            "at": "2026-01-01T12:00:00Z",
            "session_key": KEYS[0],
            "run_id": "r_1",
            "payload": {"query": "hi", "share": None},
        }
    ]


@pytest.mark.parametrize(
    ("by", "seen"), [(BOB, KEYS[:2]), (READER, (*KEYS, None)), (ONLY_Z, KEYS[2:3])]
)
async def test_everybody_hears_of_the_sessions_that_they_may_see(
    by: Principal, seen: tuple[str | None, ...]
) -> None:
    bus = Bus()
    peer = await subscribed(bus, by)

    for key in (*KEYS, None):
        bus.publish(event(key=key))

    assert tuple(one["session_key"] for one in peer.told) == seen


@pytest.mark.requirement("S-002-ANS-01")
@pytest.mark.parametrize("name", ["tool.call.success", "TOOL_CALL_SUCCESS", "on_tool_complete"])
async def test_types_go_by_all_their_names(name: str) -> None:
    bus = Bus()
    peer = FakePeer()

    result = await call(
        methods(bus), "events.subscribe", on=peer, types=[name, "SESSION_END", name]
    )
    for type_ in ("query.start", "tool.call.success", "session.end"):
        bus.publish(event(type_))

    assert result == {"types": ["session.end", "tool.call.success"], "session_key": None}
    assert [one["type"] for one in peer.told] == ["tool.call.success", "session.end"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"types": ["tool.call.succes"]}, 'did you mean "tool.call.success"'),
        ({"types": ["QUERY_STRT"]}, 'did you mean "QUERY_START"'),
        ({"types": []}, "types"),
        ({"types": "query.start"}, "types"),
        ({"types": ["query.start"] * 100}, "types"),
        ({"type": ["query.start"]}, 'did you mean "types"'),
    ],
)
async def test_what_is_no_event_is_refused_with_what_was_meant(
    params: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidParams, match=said):
        await call(methods(Bus()), "events.subscribe", **params)


async def test_one_session_can_be_asked_for_and_anothers_is_not_there() -> None:
    bus = Bus()
    peer = await subscribed(bus, BOB, session_key=KEYS[1])

    for key in KEYS:
        bus.publish(event(key=key))

    assert [one["session_key"] for one in peer.told] == [KEYS[1]]
    with pytest.raises(NotFound):
        await subscribed(bus, BOB, session_key=KEYS[3])
    with pytest.raises(BadSessionKey):
        await subscribed(bus, BOB, session_key="nonsense")


async def test_a_second_subscription_takes_the_place_of_the_first_and_both_end_with_the_connection() -> (
    None
):
    bus = Bus()
    peer, other = FakePeer(), FakePeer()
    known = methods(bus)
    await call(known, "events.subscribe", on=other)
    await call(known, "events.subscribe", on=peer, types=["query.start"])
    await call(known, "events.subscribe", on=peer, types=["session.end"])

    bus.publish(event("query.start"))
    bus.publish(event("session.end"))
    peer.end()
    bus.publish(event("session.end"))

    assert [one["type"] for one in peer.told] == ["session.end"]
    assert len(other.told) == 3


async def test_a_refused_subscription_leaves_the_first_as_it_is() -> None:
    bus = Bus()
    peer = FakePeer()
    known = methods(bus)
    await call(known, "events.subscribe", on=peer)

    with pytest.raises(InvalidParams):
        await call(known, "events.subscribe", on=peer, types=["nothing"])
    bus.publish(event())

    assert len(peer.told) == 1


async def test_nothing_is_told_before_the_answer_nor_to_who_left_before_it() -> None:
    bus = Bus()
    peer = FakePeer()
    made = Call(BOB, peer)

    methods(bus)["events.subscribe"](made, EventsSubscribe())
    bus.publish(event())
    peer.end()
    run_all(made.after_answer)
    bus.publish(event())

    assert peer.told == []
    assert peer.callbacks == []


async def test_a_client_hears_events_after_the_answer_over_a_real_socket() -> None:
    bus = Bus()
    mine = event(key=f"a:websocket:{ALICE.name}:main")

    async with (
        running(GUARDED, methods=handlers_of(EventMethods(bus))) as site,
        site.socket(BEARER) as socket,
    ):
        answer = await ask(socket, "events.subscribe", types=["QUERY_START"])
        bus.publish(event(key=KEYS[0]))
        bus.publish(mine)
        told = await hear(socket)

    assert answer["result"] == {"types": ["query.start"], "session_key": None}
    assert (told["method"], told["params"]["session_key"]) == ("event", "a:websocket:alice:main")


async def test_who_does_not_read_is_cut_off_and_holds_up_nobody() -> None:
    bus = Bus()
    large = event(key="a:websocket:alice:main", text="x" * 50_000)

    async with (
        running(GUARDED, methods=handlers_of(EventMethods(bus))) as site,
        site.socket(BEARER, max_queue=1) as slow,
        site.socket(BEARER) as quick,
    ):
        await ask(slow, "events.subscribe")
        await ask(quick, "events.subscribe")
        with anyio.fail_after(60):
            for _ in range(PUBLISHED):
                bus.publish(large)
                told = await hear(quick)
        read = await read_to_the_end(slow)

    assert told["params"]["payload"]["text"] == "x" * 50_000
    assert read < PUBLISHED
    assert slow.close_code == 4408
