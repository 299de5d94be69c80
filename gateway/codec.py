"""JSON for every room: compact bytes of plain values, and values of text or bytes, whose number is known before.

These are functions of pydantic-core: chunks and journals are encoded with every message, and the
standard library takes several times as long. No room but `domain` and `config` needs another way.
"""

from collections.abc import Callable
from functools import partial

from pydantic_core import from_json, to_json

encode: Callable[[object], bytes] = to_json  # raises ValueError for what has no form in JSON
decode: Callable[[bytes | str], object] = from_json  # raises ValueError
# Without numbers like NaN: a guest's parser, or a provider's, refuses them.
decode_strictly: Callable[[bytes | str], object] = partial(from_json, allow_inf_nan=False)

_BETWEEN = (b",", b"[", b"{")  # all values are members, items or nested


class ValueCount:
    """About how many values a JSON text has, while it comes: a comma inside of a text is none. `is_over`: more than
    `most`. Nothing is parsed, for no parser can be interrupted."""

    def __init__(self, most: int) -> None:
        self.values, self._most = 0, most
        self._is_in_text = False
        self._escape = b""  # that the next piece ends

    @property
    def is_over(self) -> bool:
        return self.values > self._most

    def add(self, data: bytes) -> None:
        plain = (self._escape + data).replace(b"\\\\", b"")
        self._escape = b"\\" if plain.endswith(b"\\") else b""
        plain = plain.removesuffix(self._escape).replace(b'\\"', b"")
        if plain.count(b'"') > 4 * self._most:  # fewer hold all names and texts of so many values
            self.values = self._most + 1
            return
        parts = plain.split(b'"')
        outside = b"".join(parts[self._is_in_text :: 2])
        self._is_in_text ^= len(parts) % 2 == 0
        self.values += sum(map(outside.count, _BETWEEN))


def has_more_values(text: bytes, most: int) -> bool:
    """Of a whole text."""
    if sum(map(text.count, _BETWEEN)) <= most:
        return False
    count = ValueCount(most)
    count.add(text)
    return count.is_over
