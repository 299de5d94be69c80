"""Places in a file: where each key, its value and its table stand."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.config.problems import At, KeyPath


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of the file."""

    start: int
    end: int


@dataclass(slots=True)
class Place:
    key: Span | None = None
    value: Span | None = None
    table: Span | None = None

    def best(self, at: At) -> Span:
        wanted = {"key": self.key, "value": self.value, "table": self.table}[at]
        return wanted or self.value or self.key or self.table or Span(0, 0)


@dataclass(slots=True)
class Positions:
    """Spans of every key path of one file."""

    source: bytes
    places: dict[KeyPath, Place] = field(default_factory=dict)
    comments: list[Span] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)  # offsets of line ends, once needed

    def span(self, path: KeyPath, at: At) -> Span:
        """The nearest place that the file has for this path."""
        for length in range(len(path), 0, -1):
            place = self.places.get(path[:length])
            if place is not None:
                # what is missing is missing from the table that there is
                return place.best(at if length == len(path) else "table")
        return Span(0, 0)

    def values(self) -> Iterator[tuple[KeyPath, Span]]:
        for path, place in self.places.items():
            if place.value is not None:
                yield path, place.value

    def line(self, offset: int) -> int:
        """From one."""
        if not self.breaks:
            self.breaks = [-1, *(at for at, byte in enumerate(self.source) if byte == 10)]
        return bisect_left(self.breaks, offset)

    def line_column(self, offset: int) -> tuple[int, int]:
        """From one, in characters."""
        start = self.source.rfind(b"\n", 0, offset) + 1
        column = len(self.source[start:offset].decode(errors="replace")) + 1
        if start == 0 and self.source.startswith(b"\xef\xbb\xbf"):
            column = max(1, column - 1)
        return self.line(offset), column
