"""What comes in by one WebSocket: bytes to messages, within limits, a bounded stretch at a time."""

import logging
from typing import Protocol

from websockets.frames import (  # type: ignore[attr-defined]  # the compiled apply_mask, if built
    CloseCode,
    Frame,
    Opcode,
    apply_mask,
)
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from gateway.web.settings import WebSettings

log = logging.getLogger(__name__)

TOO_LARGE = 4409
_SLICE = 8_192  # what the parser is fed at once: a burst of tiny frames must not hold the loop
_HEAD = 6  # of a short masked frame
_LONG_HEAD = 8


class Listener(Protocol):
    """Told by a socket; must not wait."""

    def message(self, data: bytes) -> None:
        """A whole text message, not yet decoded."""
        ...

    def roomy(self) -> None:
        """A reader that was behind has read."""
        ...

    def ended(self) -> None:
        """Once; nothing can be sent any more."""
        ...


class Owner(Protocol):
    def close(self, code: int, reason: str = "") -> None: ...

    def answer_pings(self, pongs: bytes) -> None: ...

    def parted(self, *, by_peer: bool) -> None:
        """The peer said goodbye, or broke the protocol; what the parser answers is still to send."""
        ...


class FrameParser(ServerProtocol):
    """The library's parser. `at_edge`: the next byte begins a frame, none is half read."""

    def __init__(self, max_size: int) -> None:
        super().__init__(state=OPEN, max_size=max_size, logger=log)
        self.at_edge = True

    def recv_frame(self, frame: Frame) -> None:
        super().recv_frame(frame)
        self.at_edge = not self.reader.buffer

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        super().fail(TOO_LARGE if code == CloseCode.MESSAGE_TOO_BIG else code, reason[:120])


class Incoming:
    """Reads for its owner. `is_held`: keeps what comes for later. `is_over`: nothing is delivered
    any more, the peer's goodbye is all that counts."""

    __slots__ = (
        "_fragments",
        "_max_fragments",
        "_owner",
        "_unread",
        "is_held",
        "is_over",
        "listener",
        "parser",
    )

    def __init__(self, owner: Owner, settings: WebSettings, max_frame: int) -> None:
        self.parser = FrameParser(max_frame)
        self.is_held = self.is_over = False
        self._owner, self._max_fragments = owner, settings.max_fragments
        self.listener: Listener | None = None
        self._fragments: list[bytes] = []
        self._unread = b""

    def read(self, data: bytes = b"") -> None:
        if self._unread:
            data, self._unread = self._unread + data, b""
        at, size = 0, len(data)
        while at < size:
            if self.is_held:
                self._unread = data[at:]
                return
            if self.parser.at_edge and (end := self._read_plain(data, at)):
                at = end
                continue
            piece = data[at : at + _SLICE]
            at += len(piece)
            self.parser.at_edge = False
            self.parser.receive_data(piece)
            self._take_events()

    def _read_plain(self, data: bytes, at: int) -> int:
        """Reads a whole short text frame without the parser: nearly every frame is one. Gives its
        end, or 0 if the parser must look at it."""
        if self.parser.current_size is not None or len(data) - at < _LONG_HEAD:
            return 0
        length, start = data[at + 1] - 0x80, at + _HEAD
        if data[at] != 0x81 or not 0 <= length < 127:
            return 0
        if length == 126:
            length, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + _LONG_HEAD
        end = start + length
        if end > len(data) or length > (self.parser.max_message_size or 0):
            return 0
        if not self.is_over and self.listener is not None:
            self.listener.message(apply_mask(data[start:end], data[start - 4 : start]))
        return end

    def _take_events(self) -> None:
        for frame in self.parser.events_received():
            if isinstance(frame, Frame):
                self._take(frame)
        if self.parser.parser_exc is not None and not self.is_over:
            self._owner.parted(by_peer=False)
        if answers := self.parser.data_to_send():
            self._owner.answer_pings(b"".join(answers))

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self._owner.parted(by_peer=True)
        elif self.is_over:
            return
        elif frame.opcode is Opcode.BINARY:
            self._owner.close(CloseCode.UNSUPPORTED_DATA, "text frames only")
        elif frame.opcode in {Opcode.TEXT, Opcode.CONT}:
            self._collect(frame)

    def _collect(self, frame: Frame) -> None:
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            fragments, self._fragments = self._fragments, []
            if self.listener is not None:
                self.listener.message(fragments[0] if len(fragments) == 1 else b"".join(fragments))
        elif len(self._fragments) >= self._max_fragments:
            self._fragments = []
            self._owner.close(TOO_LARGE, "a message of too many fragments")
