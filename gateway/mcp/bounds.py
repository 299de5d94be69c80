"""How much a server may say at once: while it is read, everybody else waits."""

MOST_BYTES = 16 * 1024 * 1024
MOST_VALUES = 50_000  # to read them takes a quarter of a second at worst
_QUOTES = 4 * MOST_VALUES  # fewer hold all names and texts of so many values


class TooMuch(Exception):
    """The text says of what."""


class Weight:
    """Of a message in JSON, while it comes: its bytes, and about how many values it has. A comma
    inside of a text is none."""

    def __init__(self) -> None:
        self._bytes = self._values = 0
        self._is_in_text = False
        self._escape = b""  # that the next piece ends

    def add(self, data: bytes) -> None:
        """Raises TooMuch."""
        self._bytes += len(data)
        check_size(self._bytes)
        plain = (self._escape + data).replace(b"\\\\", b"")
        self._escape = b"\\" if plain.endswith(b"\\") else b""
        plain = plain.removesuffix(self._escape).replace(b'\\"', b"")
        if plain.count(b'"') <= _QUOTES:
            parts = plain.split(b'"')
            outside = b"".join(parts[self._is_in_text :: 2])
            self._is_in_text ^= len(parts) % 2 == 0
            self._values += sum(map(outside.count, (b",", b"[", b"{")))
        else:
            self._values = MOST_VALUES + 1
        if self._values > MOST_VALUES:
            raise TooMuch(f"more than {MOST_VALUES} values")


def check_size(size: int) -> None:
    """Raises TooMuch."""
    if size > MOST_BYTES:
        raise TooMuch(f"more than {MOST_BYTES} bytes")
