"""A message is weighed as it comes: by its values, not by what stands in its texts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec import ValueCount
from gateway.mcp.transports import MOST_BYTES, MOST_VALUES, MessageSize, OverlongAnswer

JSON = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('ab,[{"\\\né')),
    lambda some: st.lists(some) | st.dictionaries(st.text(st.sampled_from('a,"\\')), some),
    max_leaves=30,
)


def marks(value: Any) -> int:
    """Brackets, and commas between what is in them."""
    if not isinstance(value, dict | list):
        return 0
    inside = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inside) - 1) + sum(map(marks, inside))


@given(JSON, st.data())
def test_only_what_is_outside_of_texts_counts_however_it_is_cut(
    value: Any, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    count = ValueCount(1_000)

    for first, last in zip([0, *cuts], [*cuts, len(text)], strict=True):
        count.add(text[first:last])

    assert count.values == marks(value)


def test_a_long_text_may_hold_as_many_commas_as_it_likes() -> None:
    MessageSize().add(json.dumps({"text": 'a "quoted", word\\, ' * 2 * MOST_VALUES}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"1," * MOST_VALUES + b"1]",
        b"[" * (MOST_VALUES + 1),
        b'""' * 3 * MOST_VALUES,
        b"[" + b'{"a":"b"},' * MOST_VALUES,
    ],
)
def test_what_has_too_many_values_is_too_much(data: bytes) -> None:
    with pytest.raises(OverlongAnswer, match="values"):
        MessageSize().add(data)


def test_what_has_too_many_bytes_is_too_much() -> None:
    weight = MessageSize()
    weight.add(b" " * MOST_BYTES)

    with pytest.raises(OverlongAnswer, match="bytes"):
        weight.add(b" ")
