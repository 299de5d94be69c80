"""Frames are the same on both sides, however the stream is cut; an invalid frame ends the conversation. The
interfaces of guests are those of the published WIT."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sandbox import protocol as worlds
from gateway.sandbox.protocol import (
    INTERFACES,
    LARGEST,
    PACKAGE,
    VERSION,
    BrokenFrame,
    Frame,
    Kind,
    Reader,
    encode,
    import_name,
    interface_of,
)

# --- frames --------------------------------------------------------------------------------------
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4).map(tuple)
FRAMES = st.builds(Frame, st.sampled_from(Kind), st.integers(0, 2**32 - 1), TEXTS)


@given(st.lists(FRAMES, max_size=8), st.data())
def test_any_cut_of_a_stream_gives_the_same_frames(
    frames: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(encode(one.kind, one.call, one.texts) for one in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))

    reader = Reader()
    came: list[Frame] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        came += reader.feed(stream[begin:end])

    assert came == frames


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_broken(data: bytes) -> None:
    try:
        frames = list(Reader().feed(data))
    except BrokenFrame:
        return
    rebuilt = b"".join(encode(one.kind, one.call, one.texts) for one in frames)
    assert data.startswith(rebuilt)


def raw(length: int, kind: int = Kind.CALL, body: bytes = b"") -> bytes:
    return struct.pack("<IBI", length, kind, 1) + body


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (raw(LARGEST + 1), "a frame of 67108865 bytes"),
        (raw(0, kind=0), "unknown kind 0"),
        (raw(0, kind=255), "unknown kind 255"),
        (raw(3, body=b"\0\0\0"), "a text without its length"),
        (raw(4, body=b"\1\0\0\0"), "longer than its frame"),
        (raw(4, body=b"\xff\xff\xff\xff"), "longer than its frame"),
        (raw(5, body=b"\1\0\0\0\xff"), "not UTF-8"),
        (raw(7, body=b"\3\0\0\0\xed\xa0\x80"), "not UTF-8"),
    ],
)
def test_a_hostile_frame_is_broken(data: bytes, told: str) -> None:
    with pytest.raises(BrokenFrame, match=told):
        list(Reader().feed(data))


def test_what_came_before_a_broken_frame_was_said() -> None:
    frames = Reader().feed(encode(Kind.CANCEL, 7) + raw(0, kind=99))

    assert next(frames) == Frame(Kind.CANCEL, 7, ())
    with pytest.raises(BrokenFrame):
        next(frames)


@pytest.mark.parametrize("texts", [("\ud800",), ("x" * LARGEST,)], ids=["surrogate", "large"])
def test_what_the_other_side_would_not_read_is_not_written(texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # reason: the codec's own words are part of it
        encode(Kind.CALL, 1, texts)


# --- interfaces of guests ------------------------------------------------------------------------
WIT = (Path(worlds.__file__).parent / "wit" / "exogate-plugin.wit").read_text(encoding="utf-8")
FUNCTION = re.compile(r"([a-z-]+): func\(([^)]*)\)(?: -> ([^;]+))?;")
LEVELS = re.findall(r"enum level \{ ([a-z, ]+) \}", WIT)[0].replace(" ", "")


def signature(parameters: str, result: str) -> str:
    types = [one.split(":")[1].strip() for one in parameters.split(",") if one]
    type_text = ",".join(f"enum{{{LEVELS}}}" if one == "level" else one for one in types)
    return f"({type_text})" + (f"->{result.replace(' ', '')}" if result else "")


def functions(name: str, word: str) -> dict[str, str]:
    found = re.search(rf"{word} {name}\s*\{{(.*?)\n?\}}\s*(?://|interface|world|$)", WIT, re.DOTALL)
    assert found is not None, name
    return {one[0]: signature(one[1], one[2]) for one in FUNCTION.findall(found[1])}


def test_every_interface_is_published_as_it_is_compared() -> None:
    assert WIT.startswith(f"package {PACKAGE}@{VERSION};")
    for name, offered in INTERFACES.items():
        assert functions(name, "interface") == offered


def test_only_our_interfaces_in_our_version_are_ours() -> None:
    for name in INTERFACES:
        assert interface_of(import_name(name)) == name
    for other in ("exogate:plugin/log@1.0.1", "exogate:plugin/log", "exogate:plugin2/log@1.0.0"):
        assert interface_of(other) is None
    assert interface_of("exogate:plugin/shell@1.0.0") is None
