"""What is recorded can be read again, holds no secret, and is bounded."""

import json
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from gateway.domain.tape import Mark, Tape
from gateway.sessions.journal import (
    MOST_BYTES,
    Recorder,
    TapeUnreadable,
    packed,
    to_be_packed,
    unpacked,
)
from tests.sessions.stage import encode

KEY = "sk-very-secret"


def recorded(*pieces: bytes) -> Recorder:
    record = Recorder()
    record("ask", {"kept": 0, "messages": []})
    for piece in pieces:
        record("bytes", piece)
    record("stop", "cancelled", True)
    return record


@given(st.lists(st.binary(max_size=20)))
def test_every_byte_comes_back_in_its_piece(pieces: list[bytes]) -> None:
    tape = unpacked(packed(recorded(*pieces).tape(), encode), json.loads)

    read = [mark.values[0].encode("latin-1") for mark in tape.marks if mark.kind == "bytes"]
    assert read == pieces
    assert tape.marks[-1] == Mark("stop", ("cancelled", True))


@given(st.integers(1, len(KEY) - 1))
def test_a_secret_is_blotted_out_also_where_it_was_cut(place: int) -> None:
    record = recorded(f"a {KEY[:place]}".encode(), f"{KEY[place:]} b".encode())
    record.hide(KEY)

    pieces = [mark.values[0] for mark in record.tape().marks if mark.kind == "bytes"]

    assert pieces == ["a " + "*" * place, "*" * (len(KEY) - place) + " b"]


def test_a_run_that_is_told_too_much_leaves_no_tape_but_that_word() -> None:
    record = Recorder(most=1000)
    for _ in range(5):
        record("bytes", b"x" * 300)

    assert record.tape() == Tape(is_cut=True)
    assert unpacked(packed(record.tape(), encode), json.loads).is_cut


@pytest.mark.parametrize("size", [0, 300_000])
async def test_what_has_no_form_keeps_no_run_from_its_end(size: int) -> None:
    record = recorded(b"x" * size)
    assert (await to_be_packed(record, to_json))()
    record("text", "half of a pair: \ud800")

    assert (await to_be_packed(record, to_json))() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not packed",
        packed(recorded(b"x" * 999).tape(), encode)[:-9],
        zlib.compress(b"[1, 2"),
        zlib.compress(b'{"version":2}'),
        zlib.compress(b" " * (6 * MOST_BYTES + 1)),
    ],
)
def test_what_is_no_recording_is_said_to_be_damaged(data: bytes) -> None:
    with pytest.raises(TapeUnreadable, match="the recording is damaged"):
        unpacked(data, json.loads)


@given(st.data())
def test_a_flipped_byte_never_breaks_anything(data: st.DataObject) -> None:
    whole = bytearray(packed(recorded(b"some bytes").tape(), encode))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))

    with suppress(TapeUnreadable):
        unpacked(bytes(whole), json.loads)
