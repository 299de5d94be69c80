"""What goes out by one WebSocket: a sender never waits, and a peer that does not read is cut off."""

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.web.settings import WebSettings
from gateway.web.timers import StallTimer

MOST_GATHERED = 65_536


class Backlog:
    """Bytes that wait for their readers, of all connections."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Outgoing:
    """Sends text messages as frames. Frames that are sent in one pass of the loop go out in one write.

    Frames wait here only while the transport is full. With many waiting there is no room: `room_changed`
    is called, and again once there is room. `lagging` is called for a peer that takes nothing for too
    long, or of which too much waits that cannot be had later. It is never called from inside `push`: the
    producer may be in the middle of its listeners."""

    __slots__ = (
        "_backlog",
        "_batch",
        "_batched_bytes",
        "_is_shut",
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
        self._is_shut = False  # the peer lags, or the socket closes: what is sent is dropped
        self.is_full = False  # the transport
        self.has_room = True
        self.written = 0  # bytes given to the transport

    def send(self, data: bytes, *, if_room: bool = False, is_frame: bool = False) -> bool:
        """Sends a text message, or a frame of the parser, and never waits. The owner of a socket reads
        no more requests while there is no room. With `if_room`, a message that can be had later is
        refused then: False."""
        if self._is_shut:
            return True
        if not is_frame:  # unmasked and whole, as a server sends it
            size = len(data)
            if size < 126:
                data = b"\x81%c%b" % (size, data)
            elif size < 65_536:
                data = b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), data)
            else:
                data = b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), data)
        if not self.is_full:
            if not self._batch:
                self._loop.call_soon(self._flush)
            self._batch.append(data)
            self._batched_bytes += len(data)
            if self._batched_bytes > MOST_GATHERED:
                self._flush()
        elif if_room and not self.has_room:
            return False
        else:
            self._wait(data)
        return True

    def push(self, data: bytes) -> None:
        """Sends what cannot be had later: it waits for the reader, within a bound."""
        self.send(data)
        limits, everywhere = self._settings, self._backlog.bytes
        is_crowded = not self.has_room and everywhere > limits.push_queues_bytes
        if is_crowded or self._queued_bytes > limits.push_queue_bytes:
            self._give_up()

    def _wait(self, frame: bytes) -> None:
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        self._backlog.bytes += len(frame)
        if self.has_room and self._queued_bytes > self._settings.send_queue_bytes:
            self.has_room = False
            self._room_changed()

    def _give_up(self) -> None:
        if not self._is_shut:
            self._is_shut = True
            self._stall.stop()
            self._loop.call_soon(self._lagging)

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
        if self._is_shut:
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
        self.has_room = self._is_shut = True
        if last and not self._transport.is_closing():
            self._transport.write(last)
