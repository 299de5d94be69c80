"""The machine of a connection, on paper: no line, no clock."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channels.adapters import Socket
from gateway.channels.recipes import RecipeUnfilled, Values
from gateway.channels.sockets import (
    Alive,
    Beat,
    Kept,
    Leave,
    Machine,
    Ready,
    Renew,
    Send,
    Take,
    Wish,
)
from tests.channels.described import described, discord, slack, way

HELLO = {"op": 10, "d": {"heartbeat_interval": 41_250}, "s": None, "t": None}
READY = {
    "op": 0,
    "t": "READY",
    "s": 1,
    "d": {"session_id": "ses", "resume_gateway_url": "wss://again.discord.gg"},
}
MESSAGE = {"op": 0, "t": "MESSAGE_CREATE", "s": 2, "d": {"id": "9", "content": "hi"}}
KEPT: Kept = {"pace": 41_250, "seq": 1, "session": "ses", "again": "wss://again.discord.gg"}


def machine(kept: Kept | None = None, socket: Socket | None = None) -> Machine:
    kept = {} if kept is None else kept
    return Machine(socket or way(discord(), Socket), kept, Values())


def tell(machine: Machine, *frames: object) -> list[Wish]:
    """What the last of them brought."""
    wishes: list[Wish] = []
    for frame in frames:
        wishes = machine.told(json.dumps(frame))
    return wishes


def sent(wish: Wish) -> object:
    assert isinstance(wish, Send)
    return json.loads(wish.text)


def test_discord_hello_starts_the_heart_and_identifies() -> None:
    beat, send = tell(machine(), HELLO)

    assert beat == Beat(41.25)
    assert sent(send) == {"op": 2, "d": {"token": "${secret:bot_token}", "intents": 37_377}}


def test_the_first_beat_of_a_new_session_carries_null() -> None:
    talk = machine()
    tell(talk, HELLO)

    assert [sent(wish) for wish in talk.beat_due()] == [{"op": 1, "d": None}]


def test_ready_keeps_what_a_resume_needs() -> None:
    talk = machine()

    wishes = tell(talk, HELLO, READY)

    assert wishes == [Ready(KEPT)]
    assert talk.kept == KEPT


def test_a_kept_session_is_resumed() -> None:
    _, send = tell(machine(dict(KEPT)), HELLO)

    told = {"token": "${secret:bot_token}", "session_id": "ses", "seq": 1}
    assert sent(send) == {"op": 6, "d": told}


def test_an_event_counts_only_from_its_commit_on() -> None:
    talk = machine()

    [take] = tell(talk, HELLO, READY, MESSAGE)

    assert isinstance(take, Take)
    assert take == Take(json.dumps(MESSAGE), {**KEPT, "seq": 2}, None)
    assert talk.kept["seq"] == 1
    assert [sent(wish) for wish in talk.beat_due()] == [{"op": 1, "d": 1}]


def test_a_dispatch_that_is_no_event_moves_the_sequence() -> None:
    talk = machine()

    wishes = tell(talk, HELLO, READY, {"op": 0, "t": "TYPING_START", "s": 5, "d": {}})

    assert wishes == []
    assert talk.kept["seq"] == 5


def test_a_heartbeat_without_an_answer_ends_the_connection_at_the_next() -> None:
    talk = machine()
    tell(talk, HELLO, READY)

    assert [type(wish) for wish in talk.beat_due()] == [Send]
    assert talk.beat_due() == [Leave("the platform did not answer a heartbeat")]


def test_a_heartbeat_that_is_answered_is_followed_by_another() -> None:
    talk = machine()
    tell(talk, HELLO, READY)
    talk.beat_due()

    assert tell(talk, {"op": 11}) == [Alive()]
    assert [type(wish) for wish in talk.beat_due()] == [Send]


def test_a_beat_that_is_asked_for_is_sent_at_once() -> None:
    talk = machine()

    [send] = tell(talk, HELLO, READY, {"op": 1, "d": None})

    assert sent(send) == {"op": 1, "d": 1}


def test_a_second_hello_starts_no_second_heart() -> None:
    wishes = tell(machine(), HELLO, HELLO)

    assert [type(wish) for wish in wishes] == [Send]


def test_asked_to_reconnect_the_session_is_kept() -> None:
    talk = machine()

    for frame in ({"op": 7, "d": None}, {"op": 9, "d": True}):
        [leave] = tell(talk, HELLO, READY, frame)

        assert isinstance(leave, Leave)
        assert leave.is_asked
        assert not leave.is_final
        assert talk.kept == KEPT


def test_an_invalid_session_is_forgotten_before_the_next_connection() -> None:
    talk = machine()

    [leave] = tell(talk, HELLO, READY, {"op": 9, "d": False})

    assert isinstance(leave, Leave)
    assert talk.kept == {}


@pytest.mark.parametrize("code", [4004, 4010, 4011, 4012, 4013, 4014])
def test_a_fatal_code_is_final(code: int) -> None:
    told = f"the platform closed the connection (code {code})"

    assert machine().closed(code) == [Leave(told, is_final=True)]


@pytest.mark.parametrize(("code", "kept"), [(4000, KEPT), (None, KEPT), (1006, KEPT), (4009, {})])
def test_other_codes_end_this_connection_only(code: int | None, kept: Kept) -> None:
    talk = machine(dict(KEPT))

    [leave] = talk.closed(code)

    assert isinstance(leave, Leave)
    assert not leave.is_final
    assert talk.kept == kept


def test_slack_events_are_acknowledged_by_their_envelope() -> None:
    envelope = {"type": "events_api", "envelope_id": "e-1", "payload": {"event": {}}}
    talk = machine(socket=way(slack(), Socket))

    assert tell(talk, {"type": "hello", "num_connections": 1}) == [Ready({})]
    assert tell(talk, envelope) == [Take(json.dumps(envelope), {}, '{"envelope_id":"e-1"}')]
    assert tell(talk, {"type": "events_api"}) == [Take('{"type": "events_api"}', {}, None)]


def test_slack_announces_that_it_closes_and_wants_another_first() -> None:
    talk = machine(socket=way(slack(), Socket))

    assert tell(talk, {"type": "disconnect", "reason": "refresh_requested"}) == [Renew()]


def test_a_frame_that_no_rule_knows_is_nothing() -> None:
    assert tell(machine(), {"op": 99}) == []
    assert tell(machine(socket=way(slack(), Socket)), ["a", "list"]) == []


def test_a_heart_with_a_pace_of_its_own_starts_with_the_connection() -> None:
    socket = way(
        described(
            {
                "type": "socket",
                "url": "wss://a.example/",
                "frames": [],
                "heartbeat": {"frame": {"ping": 1}, "every_s": 20, "needs_answer": False},
            }
        ),
        Socket,
    )
    talk = machine(socket=socket)

    assert talk.opened() == [Beat(20.0)]
    assert [type(wish) for wish in (*talk.beat_due(), *talk.beat_due())] == [Send, Send]


@pytest.mark.parametrize(
    ("pace", "every_s"), [(0, 1.0), (-5, 1.0), (1e12, 3_600.0), (10**400, 3_600.0)]
)
def test_no_platform_sets_a_pace_that_hurts(pace: float, every_s: float) -> None:
    wishes = tell(machine(), {"op": 10, "d": {"heartbeat_interval": pace}})

    assert wishes[0] == Beat(every_s)


@pytest.mark.parametrize("pace", [None, "fast", [1], {}])
def test_a_pace_that_is_no_number_is_none(pace: object) -> None:
    wishes = tell(machine(), {"op": 10, "d": {"heartbeat_interval": pace}})

    assert [type(wish) for wish in wishes] == [Send]


def test_only_single_values_of_some_length_are_kept() -> None:
    talk = machine()

    tell(talk, {"op": 0, "t": "READY", "s": {"a": 1}, "d": {"session_id": "s" * 5_000}})

    assert talk.kept == {}


def test_what_a_session_cannot_begin_without_is_named() -> None:
    frames = [{"when": {}, "do": ["identify"]}]
    identify = {"token": "{config.token_name}"}
    socket = way(
        described({"type": "socket", "url": "wss://a", "frames": frames, "identify": identify}),
        Socket,
    )

    with pytest.raises(RecipeUnfilled, match=r"config\.token_name"):
        tell(machine(socket=socket), {})


@given(st.text() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_whatever_comes_is_survived(text: str) -> None:
    for wish in machine().told(text):
        assert isinstance(wish, Leave)


def test_a_frame_of_any_depth_is_survived() -> None:
    assert machine().told("[" * 100_000) == [Leave("the platform sent a frame that is no JSON")]
