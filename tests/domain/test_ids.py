"""Session keys: two different tuples never share a text, and the text reads back exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadSessionKey
from gateway.domain.ids import AgentId, SessionKey

HOSTILE = [":", "%", "%3A", "a:b", "\0", "\n", "\x7f", "\x85", "..", "\u202e", "", "é", "👍", "a%"]
parts = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(HOSTILE))
keys = st.builds(SessionKey, parts.map(AgentId), parts, parts, parts)


@pytest.mark.requirement("S-003-Session-01", "S-003-Session-02")
@given(keys)
def test_value_to_text_to_value_is_exact(key: SessionKey) -> None:
    text = str(key)

    assert SessionKey.parse(text) == key
    assert text.count(":") == 3
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in text)


@given(keys, keys)
def test_two_keys_share_a_text_only_if_they_are_equal(one: SessionKey, other: SessionKey) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(st.text(st.sampled_from("ab:%3A\n0G")))
def test_a_text_that_is_read_is_written_the_same(text: str) -> None:
    try:
        key = SessionKey.parse(text)
    except BadSessionKey:
        return
    assert str(key) == text


@pytest.mark.parametrize("text", ["", "a:b:c", "a:b:c:d:e", "a:b:c:%", "a:b:c:%41", "a:b:c:%ff"])
def test_text_that_no_key_makes_is_refused(text: str) -> None:
    with pytest.raises(BadSessionKey):
        SessionKey.parse(text)
