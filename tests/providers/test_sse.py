"""Events come out the same, however their bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.wire import MAX_LINES, Event, SseDecoder
from tests.providers.asking import cut

BOM = b"\xef\xbb\xbf"


def an_event(data: bytes, name: bytes = b"") -> Event:
    return data, name


def decoded(*reads: bytes) -> list[Event]:
    decoder = SseDecoder()
    events = [event for data in reads for event in decoder.feed(data)]
    return events + decoder.feed(b"\n\n")


@pytest.mark.requirement("S-002-LLM-05")
@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b'data: {"a":1}\n\n', [an_event(b'{"a":1}')]),
        (
            b"data: a\r\n\r\ndata: b\r\rdata: c\n\n",
            [an_event(b"a"), an_event(b"b"), an_event(b"c")],
        ),
        (b"data: a\r\n\ndata: b\n\r\n", [an_event(b"a"), an_event(b"b")]),
        (BOM + b"data: a\n\n", [an_event(b"a")]),
        (b": keep-alive\n\ndata: a\n: between\ndata: b\n\n", [an_event(b"a\nb")]),
        (b"event: error\ndata: x\n\ndata: y\n\n", [an_event(b"x", b"error"), an_event(b"y")]),
        (b"data:a\n\ndata:  b\n\n", [an_event(b"a"), an_event(b" b")]),
        (b"data\n\nid: 7\nretry: 5\nother: x\ndata: a\n\n", [an_event(b""), an_event(b"a")]),
        (b"event: lonely\n\ndata: a\n\n", [an_event(b"a")]),
        (b"data: unterminated", [an_event(b"unterminated")]),
        (b"data: half\n", [an_event(b"half")]),
        (b"", []),
        (b"\xef\xbb", []),
    ],
)
def test_a_stream_gives_its_events(stream: bytes, events: list[Event]) -> None:
    assert decoded(stream) == events
    assert decoded(*(bytes([byte]) for byte in stream)) == events


LINES = st.lists(
    st.sampled_from(
        [
            b"data: x",
            b"data:y",
            b"data",
            b": c",
            b"",
            b"event: e",
            "data: é".encode(),
            BOM,
            b"id: 1",
        ]
    )
)
ENDS = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n"]), min_size=1)


@given(LINES, ENDS, st.lists(st.integers(0, 200)))
def test_any_cutting_of_the_bytes_gives_the_same_events(
    lines: list[bytes], ends: list[bytes], places: list[int]
) -> None:
    stream = b"".join(line + ends[n % len(ends)] for n, line in enumerate(lines))

    assert decoded(*cut(stream, places)) == decoded(stream)


@pytest.mark.parametrize("event", [b"data: " + b"x" * 100, b"data:\n" * 20])
@pytest.mark.parametrize("size", [1, 7, 200])
def test_an_event_over_the_cap_is_refused_however_it_arrives(event: bytes, size: int) -> None:
    stream = event + b"\n\n"
    decoder = SseDecoder(cap=50)

    with pytest.raises(ValueError, match="50 bytes"):
        _ = [decoder.feed(stream[at : at + size]) for at in range(0, len(stream), size)]


def test_lines_add_up_in_one_event_only() -> None:
    decoder = SseDecoder(cap=1000)

    events = decoder.feed(b"data: xx\n\n" * 1000)

    assert len(events) == 1000


def test_an_event_of_very_many_lines_is_refused_before_they_are_read() -> None:
    decoder = SseDecoder()

    decoder.feed(b"data\n" * (MAX_LINES - 1) + b"\n")

    with pytest.raises(ValueError, match="lines"):
        decoder.feed(b"data\n" * (MAX_LINES + 2) + b"\n")
