"""Timers of a connection: one that is started and stopped many times, one for a peer that stalls."""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable


class Timer:
    """At most one at a time: starting one that runs changes nothing."""

    __slots__ = ("_call", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop, self._call = loop, call
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        if self._handle is None:
            self._handle = self._loop.call_later(seconds, self._ring)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        self._call()


class StallTimer:
    """Calls once a peer has taken nothing for so long of what is on its way to it. One that reads,
    however slowly, is seen by what the buffers of the transport and of the kernel still hold."""

    __slots__ = ("_call", "_handle", "_left", "_loop", "_looks", "_seconds", "_transport")

    _LOOKS = 4  # within the time

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        seconds: float,
        call: Callable[[], None],
    ) -> None:
        self._loop, self._transport, self._seconds, self._call = loop, transport, seconds, call
        self._handle: asyncio.TimerHandle | None = None
        self._left = self._looks = 0

    def start(self) -> None:
        """Changes nothing if it runs."""
        if self._handle is None:
            self._left, self._looks = _unsent(self._transport), 0
            self._handle = self._loop.call_later(self._seconds / self._LOOKS, self._look)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        left = _unsent(self._transport)
        self._looks = 0 if left < self._left else self._looks + 1
        self._left = left
        if self._looks >= self._LOOKS:
            self._call()
        else:
            self._handle = self._loop.call_later(self._seconds / self._LOOKS, self._look)


def _unsent(transport: asyncio.Transport) -> int:
    """Bytes that the peer's machine has not taken; without those of the kernel where it keeps them
    to itself."""
    size: int = transport.get_write_buffer_size()
    try:
        number = transport.get_extra_info("socket").fileno()
        queued = fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError, AttributeError):
        return size
    return size + int(struct.unpack("i", queued)[0])
