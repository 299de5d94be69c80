"""What goes out by one WebSocket: whoever sends never waits, and a reader that lags is cut off."""

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.web.settings import WebSettings

MOST_GATHERED = 65_536


def text_frame(payload: bytes) -> bytes:
    """A whole unmasked text frame, as a server sends it."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65_536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


class Outgoing:
    """Frames wait here only while the transport is full. Too many, too large or for too long:
    `lagging` is called, once, and never from inside `send`: a producer may be in the middle of its
    listeners."""

    __slots__ = (
        "_batch",
        "_batched_bytes",
        "_deadline",
        "_full",
        "_given_up",
        "_lagging",
        "_loop",
        "_queue",
        "_queued_bytes",
        "_settings",
        "_transport",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        settings: WebSettings,
        loop: asyncio.AbstractEventLoop,
        lagging: Callable[[], None],
    ) -> None:
        self._transport, self._settings, self._loop = transport, settings, loop
        self._lagging = lagging
        self._batch: list[bytes] = []
        self._batched_bytes = 0
        self._queue: deque[bytes] | None = None
        self._queued_bytes = 0
        self._full = self._given_up = False
        self._deadline: asyncio.TimerHandle | None = None

    def send(self, frame: bytes) -> None:
        if not self._full:
            self._gather(frame)
            return
        if self._given_up:
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        limits = self._settings
        if (
            self._queued_bytes > limits.send_queue_bytes
            or len(self._queue) > limits.send_queue_frames
        ):
            self._give_up()

    def _give_up(self) -> None:
        self._given_up = True
        self._stop_deadline()
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
            self._batched_bytes = 0
            if not self._transport.is_closing():
                self._transport.write(gathered)

    def fill(self) -> None:
        """The transport takes no more for now. What it holds itself may have come as one frame."""
        self._full = True
        if self._given_up:
            return
        if self._transport.get_write_buffer_size() > self._settings.send_queue_bytes:
            self._give_up()
        elif self._deadline is None:
            self._deadline = self._loop.call_later(self._settings.write_deadline_s, self._lagging)

    def drain(self) -> None:
        """The transport takes more: it is given just as much, so that each stretch has a deadline."""
        self._full = False
        self._stop_deadline()
        self._flush()
        while self._queue and not self._full:
            frame = self._queue.popleft()
            self._queued_bytes -= len(frame)
            self._transport.write(frame)

    def end(self, last: bytes) -> None:
        """Forgets what waits here and sends one last thing after what the transport holds."""
        self._stop_deadline()
        self._flush()
        self._queue, self._queued_bytes = None, 0
        if last and not self._transport.is_closing():
            self._transport.write(last)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
