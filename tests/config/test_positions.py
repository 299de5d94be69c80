"""Every key and value of a valid file is found exactly where it stands."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.toml import Positions
from tests.config.test_schema import EXAMPLE, WHOLE_EXAMPLE
from tests.forms import examples

ODD = """\ufeff# c
a.b = 1 # x = 2
a."c d".'e.f' = '''
a ''quoted'' [text] '''''
"" = "\\"#]\\\\"
day = 1979-05-27 07:32:00Z # not [a] table
times = [ 07:32:00, # one, ]
  1979-05-27, {x=[{}], y . z = '}' }, [[ ], [[1]]], \"\"\"\\\\
  "" \\" \"\"\"\"\",
]
[ t . "u" ]   # header
k="v"
[[ list ]]
[[list]]
n = 0x1F
[list.inner] \r
m = [1,2,]
[[list.inner.deep]]
p = +inf
"""


def leaves(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, object]]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def assert_exact(text: str) -> None:
    positions, content = Positions(text), tomllib.loads(text.removeprefix("\ufeff"))
    found = {path: text[span.start : span.end] for path, span in positions.leaves()}

    assert found.keys() == dict(leaves(content)).keys()
    for path, value in leaves(content):
        assert repr(tomllib.loads(f"x = {found[path]}")["x"]) == repr(value), path
        key = positions.places[path].get("key")
        if key is not None:
            written = tomllib.loads(f"{text[key.start : key.end]} = 0")
            assert list(written) == [path[-1]]


@pytest.mark.parametrize("text", ["", ODD, EXAMPLE, WHOLE_EXAMPLE])
def test_every_value_is_found_where_it_stands(text: str) -> None:
    assert_exact(text)


PIECES = ["'", '"', "'''", '"""', "[", "]", "{", "}", ",", "#", "\n", "\\", " ", ".", "=", "a", "1"]


@settings(deadline=None, max_examples=examples(300))
@given(
    st.lists(
        st.tuples(st.integers(0, len(ODD)), st.integers(0, 4), st.sampled_from(PIECES)), max_size=3
    )
)
def test_whatever_is_valid_is_read_as_the_parser_reads_it(
    edits: list[tuple[int, int, str]],
) -> None:
    text = ODD
    for at, length, piece in edits:
        text = text[:at] + piece + text[at + length :]
    try:
        tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError:
        return
    assert_exact(text)
