"""JSON for every room: compact bytes of plain values, plain values of text or bytes, and a bound on their number.

The functions are pydantic-core's: chunks and journals are encoded with every message, and the standard library takes
several times as long. Every room but `domain` and `config` uses them.
"""

from collections.abc import Callable
from functools import partial

from pydantic_core import from_json, to_json

encode: Callable[[object], bytes] = to_json  # raises ValueError for a value without a form in JSON
decode: Callable[[bytes | str], object] = from_json  # raises ValueError
# Refuses NaN and infinities, as the parsers of guests and providers do.
decode_strictly: Callable[[bytes | str], object] = partial(from_json, allow_inf_nan=False)

_BETWEEN = (b",", b"[", b"{")  # each value follows one of these


class ValueCount:
    """Estimates the number of values of a JSON text while it arrives; `is_over` if it exceeds `most`. Commas inside
    strings do not count. Nothing is parsed, because no parser can be interrupted."""

    def __init__(self, most: int) -> None:
        self.values, self._most = 0, most
        self._is_in_text = False
        self._escape = b""  # a backslash at the end of the latest piece

    @property
    def is_over(self) -> bool:
        return self.values > self._most

    def add(self, data: bytes) -> None:
        plain = (self._escape + data).replace(b"\\\\", b"")
        self._escape = b"\\" if plain.endswith(b"\\") else b""
        plain = plain.removesuffix(self._escape).replace(b'\\"', b"")
        if plain.count(b'"') > 4 * self._most:  # a name and a text have four quotes
            self.values = self._most + 1
            return
        parts = plain.split(b'"')
        outside = b"".join(parts[self._is_in_text :: 2])
        self._is_in_text ^= len(parts) % 2 == 0
        self.values += sum(map(outside.count, _BETWEEN))


def has_more_values(text: bytes, most: int) -> bool:
    """True if a whole JSON text has more than `most` values."""
    if sum(map(text.count, _BETWEEN)) <= most:
        return False
    count = ValueCount(most)
    count.add(text)
    return count.is_over
