"""What goes out by one WebSocket: whoever sends never waits, and a peer that does not read is cut off."""

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.web.settings import WebSettings
from gateway.web.timers import StallTimer

MOST_GATHERED = 65_536


def text_frame(payload: bytes) -> bytes:
    """A whole unmasked text frame, as a server sends it."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65_536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


class Backlog:
    """Bytes that wait for their readers, of all connections."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Outgoing:
    """Frames wait here only while the transport is full. With many waiting there is no room: its owner
    is told and should ask for no more, until it is told again. `lagging` is called for a peer that
    takes nothing for too long, or of which too much waits that cannot be had later; never from inside
    `push`: a producer may be in the middle of its listeners."""

    __slots__ = (
        "_backlog",
        "_batch",
        "_batched_bytes",
        "_given_up",
        "_lagging",
        "_loop",
        "_queue",
        "_queued_bytes",
        "_room_changed",
        "_settings",
        "_stall",
        "_transport",
        "has_room",
        "is_full",
        "written",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        settings: WebSettings,
        backlog: Backlog,
        lagging: Callable[[], None],
        room_changed: Callable[[], None],
    ) -> None:
        self._transport, self._settings, self._backlog = transport, settings, backlog
        self._lagging, self._room_changed = lagging, room_changed
        self._loop = asyncio.get_running_loop()
        self._stall = StallTimer(self._loop, transport, settings.write_deadline_s, self._give_up)
        self._batch: list[bytes] = []
        self._batched_bytes = 0
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._given_up = False
        self.is_full = False  # the transport
        self.has_room = True
        self.written = 0  # bytes given to the transport

    def send(self, frame: bytes, *, if_room: bool = False) -> bool:
        """An answer: whoever asks for more is not read while there is no room. Or, `if_room`, what can
        be had later; False: it was not sent."""
        if not self.is_full:
            self._gather(frame)
        elif not self._given_up:
            if if_room and not self.has_room:
                return False
            self._wait(frame)
        return True

    def push(self, frame: bytes) -> None:
        """What cannot be had later: it waits for the reader, within a bound."""
        if not self.is_full:
            self._gather(frame)
        elif not self._given_up:
            self._wait(frame)
            limits, everywhere = self._settings, self._backlog.bytes
            crowded = not self.has_room and everywhere > limits.push_queues_bytes
            if crowded or self._queued_bytes > limits.push_queue_bytes:
                self._give_up()

    def _wait(self, frame: bytes) -> None:
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        self._backlog.bytes += len(frame)
        if self.has_room and self._queued_bytes > self._settings.send_queue_bytes:
            self.has_room = False
            self._room_changed()

    def _give_up(self) -> None:
        if not self._given_up:
            self._given_up = True
            self._stall.stop()
            self._loop.call_soon(self._lagging)

    def _gather(self, frame: bytes) -> None:
        """What is sent in one round of the loop costs one system call."""
        if not self._batch:
            self._loop.call_soon(self._flush)
        self._batch.append(frame)
        self._batched_bytes += len(frame)
        if self._batched_bytes > MOST_GATHERED:
            self._flush()

    def _flush(self) -> None:
        if self._batch:
            gathered = b"".join(self._batch)
            self._batch.clear()
            self.written += self._batched_bytes
            self._batched_bytes = 0
            if not self._transport.is_closing():
                self._transport.write(gathered)

    def fill(self) -> None:
        """The transport takes no more for now. What it holds itself may have come as one frame."""
        self.is_full = True
        if self._given_up:
            return
        if self._transport.get_write_buffer_size() > self._settings.push_queue_bytes:
            self._give_up()
        else:
            self._stall.start()

    def drain(self) -> None:
        """The transport takes more: it is given just as much, so that each stretch has a deadline."""
        self.is_full = False
        self._stall.stop()
        self._flush()
        while self._queue and not self.is_full:
            frame = self._queue.popleft()
            self._queued_bytes -= len(frame)
            self._backlog.bytes -= len(frame)
            self.written += len(frame)
            self._transport.write(frame)
        if not self.has_room and self._queued_bytes <= self._settings.send_queue_bytes // 2:
            self.has_room = True
            self._room_changed()

    def end(self, last: bytes) -> None:
        """Forgets what waits here and sends one last thing after what the transport holds."""
        self._stall.stop()
        self._flush()
        self._backlog.bytes -= self._queued_bytes
        self._queue.clear()
        self._queued_bytes = 0
        self.has_room = self._given_up = True
        if last and not self._transport.is_closing():
            self._transport.write(last)
