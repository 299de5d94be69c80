"""A peer in a session key says whose it is, and is read back as what it was."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import key_peer, raw_peer

ids = st.text() | st.lists(st.sampled_from(["room:", "direct:", "1"])).map("".join)


@given(ids, st.booleans())
def test_a_peer_is_read_as_it_was_written(raw: str, is_room: bool) -> None:
    assert raw_peer(key_peer(raw, is_room=is_room)) == (raw, is_room)


@given(ids, ids)
def test_no_room_has_the_peer_of_a_direct_chat(room: str, chat: str) -> None:
    assert key_peer(room, is_room=True) != key_peer(chat, is_room=False)
