"""Bytes become messages, however the stream is cut."""

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from gateway.web.wire.frames import FrameParser, FrameReader


class Ear:
    """FrameOwner and listener in one: keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.closed: list[int] = []
        self.incoming: FrameReader | None = None

    def message_received(self, data: bytes) -> None:
        self.heard.append(bytes(data))

    def room_available(self) -> None: ...

    def socket_closed(self) -> None: ...

    def close(self, code: int, reason: str = "") -> None:
        self.closed.append(code)
        assert self.incoming is not None
        self.incoming.is_over = True

    def answer_pings(self, pongs: bytes) -> None: ...

    def peer_ended(self, *, by_peer: bool) -> None:
        self.close(1000 if by_peer else 1002)


def listening(max_frame: int = 1_000, max_fragments: int = 8) -> tuple[FrameReader, Ear]:
    ear = Ear()
    incoming = FrameReader(ear, FrameParser(max_frame), max_fragments)
    incoming.listener = ear
    ear.incoming = incoming
    return incoming, ear


def text(data: bytes, *, fin: bool = True, opcode: Opcode = Opcode.TEXT) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


messages = st.lists(
    st.tuples(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=3), st.booleans()),
    max_size=6,
)


def encode(data: bytes, cuts: list[int], *, ping_between: bool) -> bytes:
    """One message, in as many fragments as there are cuts, perhaps with pings between them."""
    places = sorted({min(cut, len(data)) for cut in cuts})
    pieces = [
        data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)
    ]
    sent = b""
    for number, piece in enumerate(pieces):
        opcode = Opcode.TEXT if number == 0 else Opcode.CONT
        sent += text(piece, fin=number == len(pieces) - 1, opcode=opcode)
        if ping_between:
            sent += text(b"hi", opcode=Opcode.PING)
    return sent


@given(messages, st.lists(st.integers(1, 400), max_size=12))
def test_messages_arrive_whole_and_in_order_however_the_stream_is_cut(
    sent: list[tuple[bytes, list[int], bool]], steps: list[int]
) -> None:
    incoming, ear = listening()
    stream = b"".join(encode(data, cuts, ping_between=ping) for data, cuts, ping in sent)

    at = 0
    for step in [*steps, len(stream)]:
        incoming.read(stream[at : at + step])
        at += step

    assert ear.heard == [data for data, _, _ in sent]
    assert not ear.closed


@given(st.binary(max_size=200), st.lists(st.integers(1, 50), max_size=8))
def test_any_bytes_end_in_messages_or_a_goodbye(data: bytes, steps: list[int]) -> None:
    incoming, ear = listening()
    at = 0
    for step in [*steps, len(data)]:
        incoming.read(data[at : at + step])
        at += step

    assert len(ear.closed) <= 1


def test_a_frame_at_the_limit_is_taken_and_one_above_is_not() -> None:
    incoming, ear = listening(max_frame=1_000)
    incoming.read(text(b"x" * 1_000))
    incoming.read(text(b"x" * 1_001))

    assert [len(data) for data in ear.heard] == [1_000]
    assert ear.closed == [1002]
    assert incoming.parser.close_sent is not None
    assert incoming.parser.close_sent.code == 4409


def test_a_message_of_many_small_fragments_is_limited_as_a_whole() -> None:
    incoming, _ear = listening(max_frame=1_000, max_fragments=100)
    incoming.read(text(b"x" * 400, fin=False))
    incoming.read(text(b"x" * 400, fin=False, opcode=Opcode.CONT))
    incoming.read(text(b"x" * 400, opcode=Opcode.CONT))

    assert incoming.parser.close_sent is not None
    assert incoming.parser.close_sent.code == 4409


def test_endless_empty_fragments_are_too_many() -> None:
    incoming, ear = listening(max_fragments=8)
    incoming.read(text(b"", fin=False))
    for _ in range(20):
        incoming.read(text(b"", fin=False, opcode=Opcode.CONT))

    assert ear.closed == [4409]


def test_a_binary_frame_is_refused() -> None:
    incoming, ear = listening()
    incoming.read(text(b"x", opcode=Opcode.BINARY))

    assert ear.closed == [1003]


def test_what_comes_while_held_is_kept_and_read_later() -> None:
    incoming, ear = listening()
    incoming.is_held = True
    incoming.read(text(b"1") + text(b"2"))
    incoming.read(text(b"3"))
    assert not ear.heard

    incoming.is_held = False
    incoming.read()

    assert ear.heard == [b"1", b"2", b"3"]


def test_after_the_end_nothing_is_delivered() -> None:
    incoming, ear = listening()
    incoming.read(text(b"1"))
    incoming.is_over = True
    incoming.read(text(b"2"))

    assert ear.heard == [b"1"]


def test_a_raised_limit_holds_from_the_next_message_on() -> None:
    incoming, ear = listening(max_frame=10)
    incoming.read(text(b"x"))
    incoming.parser.max_message_size = 500_000
    incoming.read(text(b"y" * 300_000))

    assert [len(data) for data in ear.heard] == [1, 300_000]


def test_what_looks_like_a_frame_inside_a_half_read_one_is_its_payload() -> None:
    incoming, ear = listening()
    inner = text(b"a frame of its own")
    outer = bytes([0x81, 0x80 | len(inner)]) + bytes(4) + inner  # masked with zeros: as it is

    incoming.read(text(b"hi", opcode=Opcode.PING) + outer[:6])
    incoming.read(outer[6:])

    assert ear.heard == [inner]
