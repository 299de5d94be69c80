"""How much a server may say at once: while it is read, everybody else waits."""

MOST_BYTES = 16 * 1024 * 1024
MOST_MARKS = 50_000  # about as many values; to read them takes a quarter of a second at worst


class TooMuch(Exception):
    """The text says of what."""


def marks_in(data: bytes) -> int:
    """About how many values it has, what stands inside of texts included."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def check_size(size: int) -> None:
    """Raises TooMuch."""
    if size > MOST_BYTES:
        raise TooMuch(f"more than {MOST_BYTES} bytes")


def check_marks(marks: int) -> None:
    """Raises TooMuch."""
    if marks > MOST_MARKS:
        raise TooMuch(f"more than {MOST_MARKS} values")
