"""Whatever people write on Matrix, a transaction is read, and nothing of it becomes markup."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.channels.adapter_json import read_formatted, read_parsed
from gateway.channels.adapters import Parsed
from tests.forms import examples
from tests.plugins.running import Guest, Json

ADAPTER = Path(__file__).parent.parent.parent / "plugins" / "matrix" / "tool.wasm"
ME, ADA, ROOM = "@exogate:example.org", "@ada:example.org", "!room:example.org"
CONFIG = {"user_id": ME}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
PARTS = (
    *("msgtype", "body", "formatted_body", "filename", "info", "file", "url"),
    *("m.mentions", "m.relates_to", "membership", "is_direct"),
)
CONTENTS = st.dictionaries(st.sampled_from(PARTS), VALUES, max_size=6)
KINDS = st.sampled_from(["m.room.message", "m.room.member", "m.room.encrypted", "m.reaction"])
EVENTS = st.builds(
    lambda kind, content, key: {"type": kind, "content": content, "state_key": key},
    *(KINDS, CONTENTS | VALUES, VALUES | st.just(ME)),
)
PEOPLE = st.sampled_from([ADA, "@bob:example.org", "@eve:evil.example"])
TAGS = re.compile(
    r"</?(?:blockquote|h[1-6]|strong|em|del|code|pre)>|<br>|</a>|<code class=\"[^\"<>]*\">|<a href=\"https?://[^\"<>]*\">"
)


@pytest.fixture(scope="module")
def matrix() -> Guest:
    return Guest.load(ADAPTER)


def event(number: int, sender: str = ADA, **more: Json) -> Json:
    return {"event_id": f"${number}", "room_id": ROOM, "sender": sender, **more}


def said(number: int, sender: str = ADA) -> Json:
    content = {"msgtype": "m.text", "body": "hello"}
    return event(number, sender, type="m.room.message", content=content)


def member(number: int, sender: str, who: str, membership: str, **more: Json) -> Json:
    content = {"membership": membership, **more}
    return event(number, sender, type="m.room.member", state_key=who, content=content)


def read(matrix: Guest, events: list[Json], state: str = "") -> Parsed:
    given = {"body": json.dumps({"events": events}), "state": state, "config": CONFIG}
    did, text = matrix.run({"call": {"export": "parse-incoming", "input": given}})
    assert did, text
    return read_parsed(text)


@settings(deadline=None, max_examples=examples(100))
@given(odd=st.lists(EVENTS | VALUES, max_size=4))
def test_no_event_keeps_the_next_from_being_read(matrix: Guest, odd: list[Json]) -> None:
    events = [event(n) | one if isinstance(one, dict) else one for n, one in enumerate(odd)]

    parsed = read(matrix, [*events, said(99)])

    assert (parsed.messages[-1].platform_id, parsed.messages[-1].text) == ("$99", "hello")


@settings(deadline=None, max_examples=examples(100))
@given(
    come=st.lists(
        st.tuples(PEOPLE, st.sampled_from(["invite", "join", "knock", "leave", "ban"])), max_size=4
    ),
    speaker=PEOPLE,
)
def test_a_direct_chat_is_with_the_inviter_alone(
    matrix: Guest, come: list[tuple[str, str]], speaker: str
) -> None:
    state = read(matrix, [member(1, ADA, ME, "invite", is_direct=True)]).state or ""
    state = read(matrix, [member(2, ME, ME, "join")], state).state or ""
    moves = [member(n, who, who, what) for n, (who, what) in enumerate(come, 3)]

    parsed = read(matrix, [*moves, said(99, speaker)], state)

    alone = all(who == ADA or what in {"leave", "ban"} for who, what in come)
    assert (parsed.messages[-1].kind == "direct") == (alone and speaker == ADA)


def test_as_many_direct_chats_as_a_state_holds_are_known(matrix: Guest) -> None:
    state = ""
    for start in range(0, 3_000, 50):
        rooms = [f"!{n}:example.org" for n in range(start, start + 50)]
        moves = [("invite", ADA, room) for room in rooms] + [("join", ME, room) for room in rooms]
        events = [
            member(n, who, ME, what, is_direct=True) | {"room_id": room}
            for n, (what, who, room) in enumerate(moves)
        ]
        state = read(matrix, events, state).state or ""

    last = read(matrix, [said(1) | {"room_id": "!2999:example.org"}], state)
    first = read(matrix, [said(1) | {"room_id": "!0:example.org"}], state)

    assert len(state.encode()) <= 64 << 10
    assert [last.messages[0].kind, first.messages[0].kind] == ["direct", "group"]


@settings(deadline=None, max_examples=examples(200))
@given(text=st.text("ab <>&\"'*_~`[](){}#-\n|\\=:/hréé!", max_size=120))
def test_only_markup_of_ours_goes_out(matrix: Guest, text: str) -> None:
    asked: Json = {
        "do": "send",
        "peer": ROOM,
        "key": "k",
        "text": text,
        "api_base": "https://m.example",
    }
    asked |= {"config": CONFIG, "answer": {}, "is_group": False}

    did, answer = matrix.run({"call": {"export": "format-outgoing", "input": asked}})

    assert did, answer
    content = json.loads(read_formatted(answer).requests[0].body)
    bare = TAGS.sub("", content.get("formatted_body", ""))
    assert not re.search(r"[<>\"]|&(?!amp;|lt;|gt;|quot;)", bare)
    assert content["m.mentions"] == {}
