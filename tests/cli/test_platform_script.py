"""platform.json: what matches an address, and what holds a part."""

from pathlib import Path

import pytest

from gateway.app.doctor import BadPlugin
from gateway.cli.channel_testing import PlatformCall, contains, decode_body, matches, read_script


@pytest.mark.parametrize(
    ("pattern", "url", "is_fitting"),
    [
        ("/a/*/c", "/a/b/c", True),
        ("/a/*/c", "/a/b/b/c", False),
        ("/a/x*", "/a/xyz", True),
        ("/a.b", "/aXb", False),
        ("/a", "/a?q=1", True),
        ("/a?q=*", "/a?q=1", True),
        ("/a?q=*", "/a", False),
    ],
)
def test_a_star_is_any_text_within_a_segment(pattern: str, url: str, is_fitting: bool) -> None:
    assert matches(pattern, url) is is_fitting


@pytest.mark.parametrize(
    ("whole", "part", "is_there"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2}}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": None}, False),
        ([{"a": 1, "b": 2}], [{"a": 1}], True),
        ([1, 2], [1], False),
        ("text", {"a": 1}, False),
        ({}, {}, True),
    ],
)
def test_a_part_is_held_with_all_that_is_in_it(whole: object, part: object, is_there: bool) -> None:
    assert contains(whole, part) is is_there


def test_only_objects_and_lists_are_read_as_json() -> None:
    assert [decode_body(one) for one in (b'{"a": 1}', b"12", b"no", b"\xff")] == [
        {"a": 1},
        "12",
        "no",
        "\ufffd",
    ]


def test_a_body_is_sent_as_it_stands_if_it_is_a_text() -> None:
    assert (PlatformCall(body="x").content, PlatformCall(body={"a": "ü"}).content) == (
        b"x",
        '{"a": "ü"}'.encode(),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "has no simulated platform"),
        ("{", "cannot be used"),
        ('{"transport": "socket", "answers": [], "steps": []}', "transport"),
        ('{"transport": "webhook", "answers": [], "steps": [{}]}', "steps.0.name"),
    ],
)
def test_a_script_that_cannot_be_read_says_where(
    tmp_path: Path, text: str | None, why: str
) -> None:
    path = tmp_path / "platform.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    with pytest.raises(BadPlugin, match=why):
        read_script(path)
