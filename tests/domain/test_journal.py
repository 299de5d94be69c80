"""A journal is read back as it was written; anything else is refused."""

import json
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from gateway.domain.journal import (
    GRANTS,
    KINDS,
    MOST_BYTES,
    JournalEntry,
    JournalUnreadable,
    attempt_of,
    chunks_of,
    grants_of,
    lines_of,
    pack_text,
)

EXAMPLES = {
    str: "a [line]\n\0 of \u2028 text \\ é",
    int: 7,
    float: 0.5,
    bool: True,
    dict: {"a": 1},
    list: [1],
}
ENTRIES = tuple(
    JournalEntry(kind, tuple(EXAMPLES[one[0] if isinstance(one, tuple) else one] for one in types))
    for kind, types in KINDS.items()
)
LATER = tuple(entry for entry in ENTRIES if entry.kind != "attempt")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from([*KINDS]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
)


def line(entry: JournalEntry) -> bytes:
    return to_json([entry.kind, *entry.values])


def attempt(number: int, *asked: str) -> bytes:
    return line(JournalEntry("attempt", (number, list(asked))))


def parts_at(lines: list[bytes], *places: int) -> list[bytes]:
    """The lines in several parts."""
    bounds = [0, *sorted(places), len(lines)]
    return [pack_text(lines[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]


def chunk(seq: int) -> bytes:
    return b'{"type": "content",  "seq":%d,"content":"\xc3\xa9 [\\n]"}' % seq


def test_there_is_an_example_of_every_kind_of_entry() -> None:
    assert {entry.kind for entry in ENTRIES} == set(KINDS)


@given(st.lists(st.integers(0, len(LATER) * 2), max_size=4))
def test_every_entry_and_chunk_comes_back_in_order_over_several_parts(places: list[int]) -> None:
    lines = [attempt(1, "r0", "r1")]
    for number, entry in enumerate(LATER):
        lines += [line(entry), chunk(number)]

    parts = parts_at(lines, *places)

    read = attempt_of(parts, from_json)
    assert (read.entries, read.earlier, read.asked) == (LATER, (), ("r0", "r1"))
    assert chunks_of(parts).split(b"\n") == [chunk(number) for number in range(len(LATER))]


def test_the_last_attempt_stands_for_itself_with_those_before_it() -> None:
    first, stop, over = (
        JournalEntry("sent", (3,)),
        JournalEntry("stop", ("timeout", False)),
        JournalEntry("over"),
    )
    lines = [attempt(1, "r"), line(first), chunk(1), attempt(2, "q", "r"), line(stop), chunk(9)]
    parts = [pack_text(lines[:4]), pack_text([*lines[4:], line(over), chunk(10)])]

    read = attempt_of(parts, from_json)

    assert read.entries == (stop, over)
    assert read.earlier == (JournalEntry("attempt", (1, ["r"])), first)
    assert read.asked == ("q", "r")
    assert chunks_of(parts) == b"\n".join([chunk(9), chunk(10)])


def test_what_was_granted_is_read_of_all_attempts() -> None:
    lines = [line(entry) for entry in ENTRIES]

    found = grants_of([pack_text(lines), pack_text([chunk(1), *lines])], from_json)

    assert list(found) == [one for one in ENTRIES if one.kind in GRANTS] * 2


def test_one_that_is_cut_says_so_of_its_last_attempt() -> None:
    cut = [attempt(1, "r"), line(JournalEntry("cut"))]

    assert attempt_of([pack_text(cut)], from_json).is_cut
    assert not attempt_of([pack_text(cut), pack_text([attempt(2, "r")])], from_json).is_cut


def test_nothing_is_read_of_nothing() -> None:
    read = attempt_of([], from_json)

    assert (read.entries, read.asked, chunks_of([]), grants_of([], from_json)) == ((), (), b"", [])


@given(JSON)
def test_what_is_no_entry_is_refused(plain: object) -> None:
    text = b"[" + json.dumps(plain).encode() + b"]"
    try:
        read = attempt_of([pack_text([text])], from_json)
    except JournalUnreadable:
        return
    assert [line(entry) for entry in read.entries] == [to_json(from_json(text))]


@given(st.lists(st.tuples(st.sampled_from([*KINDS]), st.lists(JSON, max_size=5)), max_size=3))
def test_no_entry_holds_what_its_kind_does_not(plain: list[tuple[str, list[object]]]) -> None:
    lines = [to_json([kind, *values]) for kind, values in plain]
    try:
        read = attempt_of([pack_text([attempt(1, "r"), *lines])], from_json)
    except JournalUnreadable:
        return
    for entry in read.entries:
        assert all(map(isinstance, entry.values, KINDS[entry.kind]))
        assert len(entry.values) == len(KINDS[entry.kind])


WRONG = (
    b'["bytes",1]',
    b'["stop","cancelled"]',
    b'["what"]',
    b'["at",-1,0.5]',
    b'["at",1e30,0.5]',
    b'["at",%d,0.5]' % 10**30,
    b'["now",-1]',
    b'["now",%d]' % 10**30,
    b"[]",
    b'["over"',
    b'["over"]]',
)


@pytest.mark.parametrize("wrong", WRONG)
def test_an_entry_of_another_shape_is_refused_and_grants_nothing(wrong: bytes) -> None:
    parts = [
        pack_text([attempt(1, "r"), line(JournalEntry("begun", (1, "c")))]),
        pack_text([wrong]),
    ]

    with pytest.raises(JournalUnreadable, match="the recording is damaged: "):
        attempt_of(parts, from_json)
    assert list(grants_of(parts, from_json)) == []


DAMAGED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "other": lambda: b"nothing",
    "short": lambda: pack_text([chunk(1)] * 9)[:-3],
    "swelling": lambda: zlib.compress(bytes(16 * MOST_BYTES + 1), 1),
}


@pytest.mark.parametrize("part", DAMAGED)
def test_a_part_that_is_none_is_refused(part: str) -> None:
    parts = [pack_text([attempt(1, "r"), chunk(1)]), DAMAGED[part]()]

    with pytest.raises(JournalUnreadable, match="the recording is damaged: "):
        list(lines_of(parts))
    with pytest.raises(JournalUnreadable):
        attempt_of(parts, from_json)
    assert chunks_of(parts) == b""
    assert list(grants_of(parts, from_json)) == []
