"""Server-sent events out of bytes, cut anywhere: one decoder for every wire."""

from typing import NamedTuple

LINE_CAP = 1024 * 1024
EVENT_CAP = 4 * 1024 * 1024
_LINE_COST = 64  # what an empty line costs us in memory, so that millions of them hit the cap too
_BOM = b"\xef\xbb\xbf"


class SseTooLong(ValueError):
    """A line or an event is longer than anything that a provider honestly sends."""


class Event(NamedTuple):
    """One event. `data` stays bytes: whoever parses it checks the UTF-8 on the way."""

    data: bytes
    event: bytes = b""


class SseDecoder:
    """Takes bytes as they arrive; the same bytes cut in any other way give the same events."""

    def __init__(self, *, line_cap: int = LINE_CAP, event_cap: int = EVENT_CAP) -> None:
        self._line = bytearray()  # the beginning of a line whose end has not come
        self._data: list[bytes] = []
        self._event = b""
        self._size = 0
        self._skip_lf = False
        self._start: bytes | None = b""  # what may be a byte order mark; None once decided
        self._line_cap, self._event_cap = line_cap, event_cap

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete. Raises SseTooLong."""
        if self._start is not None:
            data = self._without_bom(data)
        if b"\r" in data or self._skip_lf:
            data = self._only_lf(data)
        events: list[Event] = []
        if not (self._line or self._data or self._event):
            data = self._take_blocks(data, events)
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        self._take(lines, events)
        self._line += rest
        if len(self._line) > self._line_cap:
            raise SseTooLong(f"a line is longer than {self._line_cap} bytes")
        return events

    def finish(self) -> list[Event]:
        """At the end of the bytes: what an event without its empty line would have been."""
        events: list[Event] = []
        start = self._start or b""
        self._start = None
        self._take([start + bytes(self._line), b""], events)
        self._line.clear()
        return events

    def _without_bom(self, data: bytes) -> bytes:
        data = (self._start or b"") + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(_BOM)

    def _only_lf(self, data: bytes) -> bytes:
        """CR and CRLF become LF, also where a CRLF was cut in the middle."""
        if not data:
            return data
        if self._skip_lf and data[0] == 10:
            data = data[1:]
        self._skip_lf = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take_blocks(self, data: bytes, events: list[Event]) -> bytes:
        """The quick way for whole events of the usual shapes; gives back what is left over."""
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        for block in blocks:
            start = block.rfind(b"\n") + 1  # of the last line
            is_short = len(block) <= self._line_cap
            if is_short and block[start : start + 6] == b"data: ":
                if not start:
                    events.append(Event(block[6:], b""))
                    continue
                if block[:7] == b"event: " and block.find(b"\n") == start - 1:
                    events.append(Event(block[start + 6 :], block[7 : start - 1]))
                    continue
            if block:
                self._take([*block.split(b"\n"), b""], events)
        return rest

    def _take(self, lines: list[bytes], events: list[Event]) -> None:
        for line in lines:
            if not line:
                if self._data:
                    joined = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append(Event(joined, self._event))
                    self._data = []
                self._event = b""
                self._size = 0
            elif len(line) > self._line_cap:
                raise SseTooLong(f"a line is longer than {self._line_cap} bytes")
            elif line[:6] == b"data: ":
                self._add(line[6:])
            elif line[0] != 58:  # ":" begins a comment
                self._other_field(line)

    def _other_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._add(value)
        elif name == b"event":
            self._event = value

    def _add(self, value: bytes) -> None:
        self._size += len(value) + _LINE_COST
        if self._size > self._event_cap:
            raise SseTooLong(f"an event is longer than {self._event_cap} bytes")
        self._data.append(value)
