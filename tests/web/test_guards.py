"""Host, Origin and JSON are checked before authentication."""

import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.errors import HostRefused, InvalidJson, OriginRefused
from gateway.web.rpc import MOST_VALUES, parse_json
from gateway.web.settings import WebSettings
from gateway.web.wire.connections import OriginGuard, Visitor, parse_address

NEAR = OriginGuard(
    WebSettings(allowed_origins=("https://chat.example.com", "http://Pad.local:3000/"))
)
WIDE = OriginGuard(WebSettings(bind="0.0.0.0"))


def visitor(host: str | None, origin: str | None = None, **rest: object) -> Visitor:
    return Visitor(
        client=parse_address("127.0.0.1"),
        server="127.0.0.1",
        host=host,
        origin=origin,
        **rest,  # type: ignore[arg-type]  # any fields
    )


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:7200",
        "127.0.0.1",
        "localhost:7200",
        "LOCALHOST",
        "[::1]:7200",
        "127.0.0.9",
        "chat.example.com",
        "chat.example.com:443",
        "pad.local:3000",
    ],
)
def test_our_own_names_are_let_in(host: str) -> None:
    NEAR.check(visitor(host))


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.com",
        "127.0.0.1.evil.com",
        "127.evil.com",
        "localhost.evil.com",
        "evil.com:7200",
        "10.0.0.1",
        "127.0.0.1@evil.com",
        "evil.com#localhost",
        "localhost/",
        "localhost, evil.com",
        "[::1",
        "[evil]",
        "localhost:notaport\\",
    ],
)
def test_a_foreign_host_is_refused(host: str | None) -> None:
    with pytest.raises(HostRefused):
        NEAR.check(visitor(host))


def test_two_hosts_are_refused() -> None:
    with pytest.raises(HostRefused):
        NEAR.check(visitor("localhost", repeated=frozenset({"host"})))


def test_listening_everywhere_takes_any_address_but_no_unlisted_name() -> None:
    WIDE.check(visitor("192.168.1.5:7200"))
    with pytest.raises(HostRefused):
        WIDE.check(visitor("rebound.evil.com"))


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:7200", "http://localhost:7200"),
        ("127.0.0.1:7200", "http://127.0.0.1:7200"),
        ("chat.example.com", "https://chat.example.com"),
        ("localhost:7200", "https://chat.example.com"),
        ("localhost:7200", "http://pad.local:3000"),
    ],
)
def test_our_own_origin_and_the_listed_ones_are_let_in(host: str, origin: str) -> None:
    NEAR.check(visitor(host, origin))


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.com",
        "http://127.0.0.1.evil.com",
        "http://localhost:7201",
        "http://localhost",
        "file://",
        "http://localhost:7200/",
        "http://localhost:7200.evil.com",
        "https://chat.example.com.evil.com",
        "http://chat.example.com",
    ],
)
def test_a_foreign_origin_is_refused(origin: str) -> None:
    with pytest.raises(OriginRefused):
        NEAR.check(visitor("localhost:7200", origin))


def test_two_origins_are_refused() -> None:
    with pytest.raises(OriginRefused):
        NEAR.check(visitor("localhost", "http://localhost", repeated=frozenset({"origin"})))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
    max_leaves=20,
)


@given(plain)
def test_json_means_what_it_means_elsewhere(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@given(st.binary(max_size=40))
def test_any_bytes_are_json_or_refused(data: bytes) -> None:
    with contextlib.suppress(InvalidJson):
        parse_json(data)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_json_may_be_so_deep_and_no_deeper(opening: str) -> None:
    closing = "".join({"[": "]", "{": "}"}[c] for c in reversed(opening) if c in "[{")
    levels = 64 // len(closing)
    deep = opening * levels + "[]" * 0 + "1" + closing * levels

    parse_json(deep)
    with pytest.raises(InvalidJson, match="deeper"):
        parse_json(opening + deep + closing)


@pytest.mark.parametrize("depth", [150, 20_000, 300_000])
def test_very_deep_json_is_refused_like_any_other(depth: int) -> None:
    with pytest.raises(InvalidJson):
        parse_json("[" * depth + "]" * depth)


@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * MOST_VALUES + "1]",
        "[" + "{}," * MOST_VALUES + "1]",
        "[" + "1," * MOST_VALUES + "1]",
        "[" + "[[1]]," * MOST_VALUES + "1]",
        "[" + '"",' * MOST_VALUES + "1]",
        '["' + '\\\\",",' * 5 * MOST_VALUES + '1"]',
        "{" + ",".join(f'"{n}":1' for n in range(MOST_VALUES + 1)) + "}",
    ],
    ids=["lists", "objects", "numbers", "nested", "strings", "escapes", "members"],
)
def test_more_values_than_anybody_needs_are_refused_before_they_are_built(text: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(InvalidJson, match="values"):
            parse_json(data)


@pytest.mark.parametrize("noise", ["[,{", '"', "\\", '\\"', ',\\\\"', "\u2028[", "\x00,"])
def test_a_long_text_may_hold_what_it_likes(noise: str) -> None:
    said = {"message": noise * MOST_VALUES, "more": ["\\", noise]}

    assert parse_json(json.dumps(said)) == said
    assert parse_json(json.dumps(said, ensure_ascii=False).encode()) == said


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e400",
        '{"a":[1e999]}',
        '"\\ud800"',
        '"\\udc00x"',
        '{"\\ud800":1}',
        "01",
        "1.",
        "{,}",
        "[1,]",
        "\ufeff{}",
        '"a\tb"',
        "",
        "9" * 5_000,
        "'a'",
        "\ud800",
    ],
)
def test_what_is_not_quite_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidJson):
        parse_json(text)


def test_the_last_of_equal_keys_counts() -> None:
    assert parse_json('{"a":1,"a":2}') == {"a": 2}


def test_every_number_that_is_let_through_is_finite() -> None:
    value = parse_json("[1e308, -1e308, 1e-400]")

    assert isinstance(value, list)
    assert all(math.isfinite(number) for number in value)
