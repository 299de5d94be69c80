"""A peer in a session key says whose it is, and is read back as what it was."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agents import key_peer, raw_peer

ids = st.text() | st.lists(st.sampled_from(["room:", "direct:", "1"])).map("".join)


@given(ids, st.booleans())
def test_a_peer_is_read_as_it_was_written(raw: str, is_room: bool) -> None:
    assert raw_peer(key_peer(raw, is_room=is_room)) == (raw, is_room)
