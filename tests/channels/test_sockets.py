"""The session of a socket over its connections: nothing counts, and nothing is told, before it is
committed."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.channels.adapters import Socket
from gateway.channels.connections import (
    MOST_SENT,
    READY_S,
    ConnectionEnded,
    Kept,
    ReconnectAsked,
    SocketSession,
)
from gateway.channels.recipes import RecipeUnfilled
from gateway.domain.errors import Denied, StoreUnavailable
from gateway.domain.ports import HttpFailed, SocketRequest
from tests.channels.described import described, discord, slack, way
from tests.channels.living import World, answer
from tests.fakes.fetch import FakeFetch
from tests.fakes.sockets import FakeSocket, FakeSockets

HELLO = {"op": 10, "d": {"heartbeat_interval": 41_250}, "s": None, "t": None}
READY = {
    "op": 0,
    "t": "READY",
    "s": 1,
    "d": {"session_id": "ses", "resume_gateway_url": "wss://again.discord.gg"},
}
MESSAGE = {"op": 0, "t": "MESSAGE_CREATE", "s": 2, "d": {"id": "9", "content": "hi"}}
KEPT: Kept = {"pace": 41_250, "seq": 1, "session": "ses", "again": "wss://again.discord.gg"}
IDENTIFY = {"op": 2, "d": {"token": "${secret:bot_token}", "intents": 37_377}}
FIRST = "wss://gateway.discord.gg/?v=10&encoding=json"
SLACK_HELLO = {"type": "hello"}
LINK = {"ok": True, "url": "wss://wss-primary.slack.com/link/?ticket=1"}


@asynccontextmanager
async def talking(world: World, kept: str = "") -> AsyncIterator[list[Exception]]:
    """The session runs; what it ended by is in the list."""
    ended: list[Exception] = []
    session = SocketSession(world.live, way(world.description, Socket), kept)

    async def run() -> None:
        try:
            await session.run()
        except (ConnectionEnded, HttpFailed, StoreUnavailable, Denied) as error:
            ended.append(error)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            yield ended
            group.cancel_scope.cancel()


async def say(line: FakeSocket, *frames: object) -> None:
    line.say(*frames)
    await anyio.wait_all_tasks_blocked()


def slack_world() -> World:
    return World(slack(), fetch=FakeFetch(lambda _: answer(LINK)))


def envelope(name: str) -> dict[str, object]:
    return {"type": "events_api", "envelope_id": name, "payload": {"id": name}}


async def test_a_session_begins_and_its_events_are_taken_in_with_what_it_keeps() -> None:
    world = World(discord())
    async with talking(world):
        [line] = world.sockets.opened

        await say(line, HELLO, READY)
        ready = json.loads(world.shelf.memos["socket"])
        await say(line, MESSAGE)

    assert world.sockets.connected == [FIRST]
    assert line.sent == [IDENTIFY]
    assert ready == KEPT
    assert world.shelf.accepted == ["9"]
    assert json.loads(world.shelf.memos["socket"]) == {**KEPT, "seq": 2}
    assert world.adapter.events[0]["transport"] == "socket"


async def test_after_a_restart_the_session_goes_on_where_it_was_committed() -> None:
    world = World(discord())
    async with talking(world, json.dumps(KEPT)):
        [line] = world.sockets.opened
        await say(line, HELLO)

    assert world.sockets.connected == ["wss://again.discord.gg?v=10&encoding=json"]
    told = {"token": "${secret:bot_token}", "session_id": "ses", "seq": 1}
    assert line.sent == [{"op": 6, "d": told}]


async def test_where_nothing_was_granted_the_first_address_is_resumed_at() -> None:
    def refusal(request: SocketRequest) -> Exception | None:
        return Denied("not granted") if "again" in request.url else None

    world = World(discord(), sockets=FakeSockets(refusal))
    async with talking(world, json.dumps(KEPT)):
        await say(world.sockets.opened[0], HELLO)

    assert world.sockets.connected[1:] == [FIRST]
    assert world.sockets.opened[0].sent[0]["op"] == 6


async def test_no_address_that_a_platform_names_calls_for_a_secret() -> None:
    link = {"ok": True, "url": "wss://wss-primary.slack.com/?${secret:app_token}"}
    kept = json.dumps({**KEPT, "again": "wss://gateway.discord.gg/?${secret:bot_token}"})
    asked, resumed = World(slack(), fetch=FakeFetch(lambda _: answer(link))), World(discord())

    async with talking(asked) as ended, talking(resumed, kept):
        pass

    assert [type(error) for error in ended] == [Denied]
    assert asked.sockets.connected == []
    assert resumed.sockets.connected == [FIRST]


@pytest.mark.parametrize("kept", ["", "no json", "[1]", "null"])
async def test_what_was_kept_and_is_no_session_begins_a_new_one(kept: str) -> None:
    world = World(discord())
    async with talking(world, kept):
        await say(world.sockets.opened[0], HELLO)

    assert world.sockets.opened[0].sent == [IDENTIFY]


async def test_an_event_that_cannot_be_committed_is_asked_for_again() -> None:
    world = World(discord())
    async with talking(world) as ended:
        [line] = world.sockets.opened
        await say(line, HELLO, READY)
        world.shelf.refusal = StoreUnavailable("disk full")

        await say(line, MESSAGE)

    assert [type(error) for error in ended] == [StoreUnavailable]
    assert line.left_with == 4_000  # so that the session can be resumed
    assert json.loads(world.shelf.memos["socket"])["seq"] == 1


async def test_the_heart_beats_until_an_answer_is_missing() -> None:
    world = World(discord(), jitter=lambda: 0.5)
    async with talking(world) as ended:
        [line] = world.sockets.opened
        await say(line, HELLO, READY)

        await world.pass_(20.625)
        first = list(line.sent)
        await say(line, {"op": 11})
        await world.pass_(41.25)
        second = list(line.sent)
        await world.pass_(41.25)

    assert first == [IDENTIFY, {"op": 1, "d": 1}]
    assert second == [*first, {"op": 1, "d": 1}]
    assert [str(error) for error in ended] == ["the platform did not answer a heartbeat"]
    assert line.left_with == 4_000
    assert world.health.status.receiving.count == 2  # ready, and the one beat that was answered


async def test_a_session_that_never_begins_is_given_up() -> None:
    world = World(discord())
    async with talking(world) as ended:
        await say(world.sockets.opened[0], HELLO)

        await world.pass_(READY_S)

    assert "did not start the session" in str(ended[0])
    assert world.health.status.receiving.last_at is None


async def test_a_session_that_stands_is_not_given_up() -> None:
    world = slack_world()
    async with talking(world) as ended:
        await say(world.sockets.opened[0], SLACK_HELLO)

        await world.pass_(READY_S)

        assert ended == []


async def test_whoever_asks_for_beats_without_end_is_left() -> None:
    world = World(discord())
    async with talking(world) as ended:
        [line] = world.sockets.opened

        await say(line, HELLO, READY, *[{"op": 1}] * MOST_SENT)

    assert len(line.sent) == MOST_SENT
    assert "over 120 frames" in str(ended[0])


async def test_asked_to_reconnect_nothing_is_wrong() -> None:
    world = World(discord())
    async with talking(world) as ended:
        await say(world.sockets.opened[0], HELLO, READY, {"op": 7})

    assert [type(error) for error in ended] == [ReconnectAsked]
    assert world.sockets.opened[0].left_with == 4_000


async def test_a_fatal_code_says_that_trying_again_is_no_help() -> None:
    world = World(discord())
    async with talking(world) as ended:
        world.sockets.opened[0].hang_up(4_004)
        await anyio.wait_all_tasks_blocked()

    assert isinstance(ended[0], ConnectionEnded)
    assert ended[0].is_final


async def test_a_drain_leaves_with_a_code_that_keeps_the_session() -> None:
    world = World(discord())
    async with talking(world):
        await say(world.sockets.opened[0], HELLO, READY)

    assert world.sockets.opened[0].left_with == 4_000


async def test_an_envelope_is_acknowledged_only_after_its_commit() -> None:
    world = slack_world()
    world.shelf.gate = anyio.Event()
    async with talking(world):
        [line] = world.sockets.opened

        await say(line, SLACK_HELLO, envelope("e-1"))
        before = (list(line.sent), list(world.shelf.accepted))
        world.shelf.gate.set()
        await anyio.wait_all_tasks_blocked()

    assert before == ([], [])
    assert world.shelf.accepted == ["e-1"]
    assert line.sent == [{"envelope_id": "e-1"}]


async def test_what_is_being_committed_during_a_drain_is_committed() -> None:
    world = slack_world()
    gate = world.shelf.gate = anyio.Event()
    async with anyio.create_task_group() as group, talking(world):
        await say(world.sockets.opened[0], SLACK_HELLO, envelope("e-1"))
        group.start_soon(_open_later, gate)

    assert world.shelf.accepted == ["e-1"]


async def _open_later(gate: anyio.Event) -> None:
    await anyio.wait_all_tasks_blocked()
    gate.set()


async def test_more_envelopes_than_a_platform_may_ask_frames_are_acknowledged() -> None:
    world = slack_world()
    many = [envelope(f"e-{place}") for place in range(MOST_SENT + 5)]
    async with talking(world) as ended:
        await say(world.sockets.opened[0], SLACK_HELLO, *many)

        assert ended == []

    assert len(world.sockets.opened[0].sent) == MOST_SENT + 5


async def test_a_connection_is_closed_only_once_its_replacement_works() -> None:
    world = slack_world()
    async with talking(world) as ended:
        [old] = world.sockets.opened
        await say(old, SLACK_HELLO, {"type": "disconnect"}, {"type": "disconnect"})
        _, new = world.sockets.opened
        still_open = old.left_with is None
        await say(old, envelope("e-1"))
        await say(new, SLACK_HELLO)
        await say(new, envelope("e-2"))

        assert ended == []

    assert still_open
    assert old.left_with == 4_000
    assert old.sent == [{"envelope_id": "e-1"}]
    assert new.sent == [{"envelope_id": "e-2"}]


async def test_a_connection_that_goes_before_its_replacement_works_is_not_missed() -> None:
    world = slack_world()
    async with talking(world) as ended:
        [old] = world.sockets.opened
        await say(old, SLACK_HELLO, {"type": "disconnect"})
        old.break_off()
        await anyio.wait_all_tasks_blocked()
        await say(world.sockets.opened[1], SLACK_HELLO, envelope("e-1"))

        assert ended == []

    assert world.shelf.accepted == ["e-1"]


async def test_a_platform_that_names_no_address_says_so() -> None:
    world = World(slack(), fetch=FakeFetch(lambda _: answer({"ok": True})))
    async with talking(world) as ended:
        pass

    assert "no address to connect to" in str(ended[0])


async def test_a_platform_that_refuses_to_open_is_quoted() -> None:
    refusal = answer({"ok": False, "description": "invalid_auth"})
    world = World(slack(), fetch=FakeFetch(lambda _: refusal))
    async with talking(world) as ended:
        pass

    assert "invalid_auth" in str(ended[0])


async def test_the_first_heartbeat_of_a_new_session_carries_null() -> None:
    world = World(discord())
    async with talking(world):
        [line] = world.sockets.opened
        await say(line, HELLO)
        await world.pass_(41.25)

    assert line.sent == [IDENTIFY, {"op": 1, "d": None}]


async def test_a_dispatch_that_is_no_event_moves_the_sequence() -> None:
    world = World(discord())
    async with talking(world):
        [line] = world.sockets.opened
        await say(line, HELLO, READY, {"op": 0, "t": "TYPING_START", "s": 5, "d": {}}, {"op": 1})

    assert line.sent == [IDENTIFY, {"op": 1, "d": 5}]


async def test_a_second_hello_starts_no_second_heartbeat() -> None:
    world = World(discord())
    async with talking(world):
        [line] = world.sockets.opened
        await say(line, HELLO, HELLO, READY)
        await world.pass_(41.25)

    assert line.sent == [IDENTIFY, IDENTIFY, {"op": 1, "d": 1}]


@pytest.mark.parametrize(
    ("frame", "code", "is_kept"),
    [
        ({"op": 7, "d": None}, None, True),
        ({"op": 9, "d": True}, None, True),
        ({"op": 9, "d": False}, None, False),
        (None, 4_000, True),
        (None, 1_006, True),
        (None, 4_009, False),
    ],
)
async def test_a_session_is_kept_unless_the_platform_calls_it_invalid(
    frame: object, code: int | None, is_kept: bool
) -> None:
    world = World(discord())
    session = SocketSession(world.live, way(world.description, Socket))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                with pytest.raises(ConnectionEnded) as ended:
                    await session.run()
                assert not ended.value.is_final

            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            [line] = world.sockets.opened
            await say(line, HELLO, READY, *([frame] if frame else []))
            if code is not None:
                line.hang_up(code)

    assert session.kept == (KEPT if is_kept else {})


async def test_an_envelope_without_an_id_is_taken_in_and_not_acknowledged() -> None:
    world = slack_world()
    async with talking(world) as ended:
        [line] = world.sockets.opened
        await say(line, SLACK_HELLO, {"type": "events_api", "payload": {"id": "e-1"}})

        assert ended == []

    assert (world.shelf.accepted, line.sent) == (["e-1"], [])


async def test_a_frame_that_no_rule_knows_is_ignored() -> None:
    world = slack_world()
    async with talking(world) as ended:
        await say(world.sockets.opened[0], SLACK_HELLO, {"type": "other"}, ["a", "list"], None)

        assert ended == []


async def test_a_heartbeat_with_an_interval_of_its_own_starts_with_the_connection() -> None:
    heartbeat = {"frame": {"ping": 1}, "every_s": 20, "needs_answer": False}
    frames: list[object] = []
    about = {"type": "socket", "url": "wss://a.example/", "frames": frames}
    world = World(described({**about, "heartbeat": heartbeat}))
    async with talking(world) as ended:
        await world.pass_(20)
        await world.pass_(20)

        assert ended == []

    assert world.sockets.opened[0].sent == [{"ping": 1}] * 2


@pytest.mark.parametrize(
    ("named_ms", "slept_s"),
    [(0, 1.0), (-5, 1.0), (1e12, 3_600.0), (10**400, 3_600.0), (None, None), ("fast", None)],
)
async def test_no_platform_sets_an_interval_that_hurts(named_ms: object, slept_s: object) -> None:
    world = World(discord())
    async with talking(world):
        await say(world.sockets.opened[0], {"op": 10, "d": {"heartbeat_interval": named_ms}})

    assert world.clock.slept == [READY_S, *([] if slept_s is None else [slept_s])]


async def test_only_single_values_of_some_length_are_kept() -> None:
    world = World(discord())
    async with talking(world):
        large = {"op": 0, "t": "READY", "s": {"a": 1}, "d": {"session_id": "s" * 5_000}}
        await say(world.sockets.opened[0], HELLO, large)

    assert json.loads(world.shelf.memos["socket"]) == {"pace": 41_250}


async def test_what_a_session_cannot_begin_without_is_named() -> None:
    frames = [{"when": {}, "do": ["identify"]}]
    identify = {"token": "{config.token_name}"}
    about = {"type": "socket", "url": "wss://a", "frames": frames}
    world = World(described({**about, "identify": identify}))
    session = SocketSession(world.live, way(world.description, Socket))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                with pytest.raises(RecipeUnfilled, match=r"config\.token_name"):
                    await session.run()

            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            await say(world.sockets.opened[0], {})


@pytest.mark.parametrize("text", ["", "hello", "[" * 100_000, "{", "NaN", "\0", "[[1,{}]"])
async def test_a_frame_that_is_no_json_ends_the_connection(text: str) -> None:
    world = World(discord())
    async with talking(world) as ended:
        world.sockets.opened[0].say_text(text)
        await anyio.wait_all_tasks_blocked()

    assert [str(error) for error in ended] == ["the platform sent a frame that is not JSON"]
