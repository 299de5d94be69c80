"""JSON inside a text ends where it is whole, or before what no JSON goes on with."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.markup import read_json
from tests.providers.looking import read

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
CONTAINERS = st.lists(JSON) | st.dictionaries(st.text(), JSON)


@given(CONTAINERS, st.text("]}, a\n"), st.integers(0, 3))
def test_json_ends_where_it_is_whole(value: Any, behind: str, indent: int) -> None:
    said = json.dumps(value, indent=indent or None, ensure_ascii=indent % 2 == 0)

    for pieces in ([said + behind], list(said + behind)):
        assert read(pieces, read_json) == ((said, True), behind)


@given(st.text('{}[]:,"\\ 1ae\n', max_size=12), CONTAINERS)
def test_what_is_given_up_is_no_json_for_anyone(ruin: str, value: Any) -> None:
    said = "[" + ruin + json.dumps(value)

    (found, is_whole), rest = read(list(said), read_json)

    assert found + rest == said
    assert read([said], read_json) == ((found, is_whole), rest)
    if not is_whole:
        with pytest.raises(json.JSONDecodeError):
            json.loads(found)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("[1}", "[1"),
        ('{"a": 1]', '{"a": 1'),
        ("{1: 2}", "{"),
        ('{"a" 1}', '{"a" '),
        ('{"a": 1,}', '{"a": 1,'),
        ("[1,]", "[1,"),
        ("[1 2]", "[1 "),
        ('["a\nb"]', '["a'),
    ],
)
def test_json_is_given_up_at_the_first_character_that_cannot_be(said: str, found: str) -> None:
    assert read(list(said), read_json)[0] == (found, False)
