"""A WebSocket on its transport: reading frames, writing frames and closing."""

import asyncio
import contextlib
import fcntl
import logging
import struct
import termios
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from websockets.exceptions import InvalidState
from websockets.frames import (  # type: ignore[attr-defined]  # the compiled apply_mask, if built
    CloseCode,
    Frame,
    Opcode,
    apply_mask,
)
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from gateway.web.settings import WebSettings
from gateway.web.wire.connections import Backlog, OpenConnections

log = logging.getLogger(__name__)

LAGGING = 4408
TOO_LARGE = 4409
TOO_MANY = 4429
ROOM = "room"  # a reason to pause reading
SLOWEST = (
    10_000  # bytes a second: the slowest reader that may still be busy before it answers a ping
)
MOST_GATHERED = 65_536
STALL_CHECKS = 4  # within the time of a StallTimer
_SLICE = 8_192  # bytes parsed at once: a burst of tiny frames must not block the loop
_HEAD = 6  # bytes before the payload of a short masked frame
_LONG_HEAD = 8


class Listener(Protocol):
    """Receives the messages of a socket. Its methods must not wait."""

    def message_received(self, data: bytes) -> None:
        """Gets one complete text message, not yet decoded."""
        ...

    def room_available(self) -> None:
        """Is called when the send queue has room again."""
        ...

    def socket_closed(self) -> None:
        """Is called once, when nothing can be sent any more."""
        ...


class FrameOwner(Protocol):
    def close(self, code: int, reason: str = "") -> None: ...

    def answer_pings(self, pongs: bytes) -> None: ...

    def peer_ended(self, *, by_peer: bool) -> None:
        """Is called when the peer closed the socket, or else broke the protocol. The parser still holds its
        answer."""
        ...


@dataclass(slots=True, eq=False)
class Timer:
    """A timer that runs at most once at a time: starting a running timer changes nothing."""

    _loop: asyncio.AbstractEventLoop
    _call: Callable[[], None]
    _handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._handle is not None

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
    """Calls `call` once the peer has read nothing for `seconds`. The buffers of the transport and of the kernel
    show whether it reads, however slowly."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        seconds: float,
        call: Callable[[], None],
    ) -> None:
        self._transport, self._pause_s, self._call = transport, seconds / STALL_CHECKS, call
        self._timer = Timer(loop, self._check)
        self._left = self._idle_checks = 0

    def start(self) -> None:
        if not self._timer.is_running:
            self._left, self._idle_checks = _unsent(self._transport), 0
            self._timer.start(self._pause_s)

    def stop(self) -> None:
        self._timer.stop()

    def _check(self) -> None:
        left = _unsent(self._transport)
        self._idle_checks = 0 if left < self._left else self._idle_checks + 1
        self._left = left
        if self._idle_checks >= STALL_CHECKS:
            self._call()
        else:
            self._timer.start(self._pause_s)


def _unsent(transport: asyncio.Transport) -> int:
    """Returns the bytes that the peer's machine has not acknowledged. Bytes in the kernel count only where
    the kernel tells them."""
    size: int = transport.get_write_buffer_size()
    try:
        number = transport.get_extra_info("socket").fileno()
        queued = fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError, AttributeError):
        return size
    return size + int(struct.unpack("i", queued)[0])


class FrameParser(ServerProtocol):
    """The library's parser. `at_edge` is True if the next byte begins a frame."""

    def __init__(self, max_size: int) -> None:
        super().__init__(state=OPEN, max_size=max_size, logger=log)
        self.at_edge = True

    def recv_frame(self, frame: Frame) -> None:
        super().recv_frame(frame)
        self.at_edge = not self.reader.buffer

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        super().fail(TOO_LARGE if code == CloseCode.MESSAGE_TOO_BIG else code, reason[:120])


@dataclass(slots=True, eq=False)
class FrameReader:
    """Reads frames for its owner. While `is_held`, bytes are kept for later. Once `is_over`, no message is
    delivered and only the peer's close frame is read."""

    owner: FrameOwner
    parser: FrameParser
    max_fragments: int
    listener: Listener | None = None
    is_held: bool = False
    is_over: bool = False
    _fragments: list[bytes] = field(default_factory=list)
    _unread: bytes = b""

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
            self._handle_events()

    def _read_plain(self, data: bytes, at: int) -> int:
        """Reads a whole short text frame without the parser, as nearly every frame is one. Returns the end of
        the frame, or 0 if the parser must read it."""
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
        if not self.is_over:
            assert self.listener is not None, "bytes came before there was a listener"
            self.listener.message_received(apply_mask(data[start:end], data[start - 4 : start]))
        return end

    def _handle_events(self) -> None:
        for frame in self.parser.events_received():
            if isinstance(frame, Frame):
                self._handle(frame)
        if self.parser.parser_exc is not None and not self.is_over:
            self.owner.peer_ended(by_peer=False)
        if answers := self.parser.data_to_send():
            self.owner.answer_pings(b"".join(answers))

    def _handle(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self.owner.peer_ended(by_peer=True)
        elif self.is_over:
            return
        elif frame.opcode is Opcode.BINARY:
            self.owner.close(CloseCode.UNSUPPORTED_DATA, "text frames only")
        elif frame.opcode in {Opcode.TEXT, Opcode.CONT}:
            self._collect(frame)

    def _collect(self, frame: Frame) -> None:
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            fragments, self._fragments = self._fragments, []
            assert self.listener is not None, "bytes came before there was a listener"
            self.listener.message_received(
                fragments[0] if len(fragments) == 1 else b"".join(fragments)
            )
        elif len(self._fragments) >= self.max_fragments:
            self._fragments = []
            self.owner.close(TOO_LARGE, "the message has too many fragments")


@dataclass(slots=True, eq=False)
class FrameWriter:
    """Sends text messages as frames. Frames of one pass of the loop leave in one write.

    Frames wait here only while the transport is full. If many wait there is no room: `room_changed` is called,
    and again once there is room. `lagging` is called if the peer reads nothing for too long, or if too many
    messages wait that cannot be read again. `push` never calls it directly, because the producer may be in
    the middle of its listeners."""

    _transport: asyncio.Transport
    _settings: WebSettings
    _backlog: Backlog
    _lagging: Callable[[], None]
    _room_changed: Callable[[], None]
    is_full: bool = False  # the transport
    has_room: bool = True
    written: int = 0  # bytes passed to the transport
    _is_shut: bool = False  # the peer lags or the socket closes: later messages are dropped
    _batch: list[bytes] = field(default_factory=list)
    _batched_bytes: int = 0
    _queue: deque[bytes] = field(default_factory=deque)
    _queued_bytes: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _stall: StallTimer = field(init=False)

    def __post_init__(self) -> None:
        deadline_s = self._settings.write_deadline_s
        self._stall = StallTimer(self._loop, self._transport, deadline_s, self._report_lag)

    def send(self, data: bytes, *, if_room: bool = False, is_frame: bool = False) -> bool:
        """Sends a text message, or a frame of the parser, and never waits. The owner of the socket reads no
        requests while there is no room. Returns False if `if_room` and there is no room: the message is not
        sent and can be read again later."""
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
        """Sends a message that cannot be read again. It waits for the reader, within a limit."""
        self.send(data)
        limits, everywhere = self._settings, self._backlog.bytes
        is_crowded = not self.has_room and everywhere > limits.push_queues_bytes
        if is_crowded or self._queued_bytes > limits.push_queue_bytes:
            self._report_lag()

    def _wait(self, frame: bytes) -> None:
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        self._backlog.bytes += len(frame)
        if self.has_room and self._queued_bytes > self._settings.send_queue_bytes:
            self.has_room = False
            self._room_changed()

    def _report_lag(self) -> None:
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

    def pause(self) -> None:
        """Notes that the transport is full. Its own buffer counts too: one frame may have filled it."""
        self.is_full = True
        if self._is_shut:
            return
        if self._transport.get_write_buffer_size() > self._settings.push_queue_bytes:
            self._report_lag()
        else:
            self._stall.start()

    def resume(self) -> None:
        """Writes queued frames until the transport is full again, so that each stretch has a deadline."""
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
        """Drops the queue and sends `last` after the bytes that the transport holds."""
        self._stall.stop()
        self._flush()
        self._backlog.bytes -= self._queued_bytes
        self._queue.clear()
        self._queued_bytes = 0
        self.has_room = self._is_shut = True
        if last and not self._transport.is_closing():
            self._transport.write(last)


class Wire(asyncio.Protocol):
    """A WebSocket after its handshake."""

    def __init__(
        self,
        transport: asyncio.Transport,
        settings: WebSettings,
        connections: OpenConnections,
        max_frame: int,
    ) -> None:
        self._transport, self._settings, self._connections = transport, settings, connections
        self._in = FrameReader(self, FrameParser(max_frame), settings.max_fragments)
        self._holds: set[str] = set()
        self._roomy = asyncio.Event()
        lag = partial(self.close, LAGGING, "you read too slowly; resume from the last seq")
        self.out = FrameWriter(transport, settings, connections.backlog, lag, self._room_changed)
        self._pinger = Pinger(self, self._in, self.out, settings.ping_interval_s)
        self._linger = Timer(asyncio.get_running_loop(), transport.abort)
        self._discarded = 0
        self._pongs = 0  # bytes, while the transport took nothing

    # methods of the owner

    def listen(self, listener: Listener) -> None:
        self._in.listener = listener

    def trust(self) -> None:
        """Notes that the peer is authenticated."""
        self._connections.mark_known(self)

    async def wait_for_room(self) -> None:
        """Returns once there is room or the socket is closing."""
        while not self._in.is_over and not self.out.has_room:
            await self._roomy.wait()

    def close(self, code: int, reason: str = "") -> None:
        """Sends a close frame. The peer has `close_linger_s` to answer it."""
        if self._in.is_over:
            return
        with contextlib.suppress(InvalidState):  # the parser has sent one already
            self._in.parser.send_close(code, reason)
        self._end()

    def limit_messages(self, max_frame: int) -> None:
        """Sets the size limit from the next message on."""
        self._in.parser.max_message_size = max_frame

    def pause_reading(self, why: str) -> None:
        """Stops reading until `resume_reading` has been called for each reason."""
        if self._in.is_over:
            return
        self._holds.add(why)
        if not self._in.is_held:
            self._in.is_held = True
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def resume_reading(self, why: str) -> None:
        self._holds.discard(why)
        if not self._in.is_held or self._holds:
            return
        self._in.is_held = False
        self._in.read()
        if not self._in.is_held and not self._transport.is_closing():
            self._transport.resume_reading()

    # methods of the server

    def shutdown(self) -> None:
        self.close(CloseCode.SERVICE_RESTART, self._connections.reconnect_hint())

    @property
    def is_known(self) -> bool:
        return False  # `trust` has removed an authenticated socket from the unauthenticated ones

    def evict(self) -> None:
        self.close(TOO_MANY, "too many unauthenticated connections; authenticate at once")

    def abort(self) -> None:
        self._transport.abort()

    # callbacks of the transport

    def data_received(self, data: bytes) -> None:
        self._pinger.has_received = True
        if self._in.is_over:
            self._discarded += len(data)
            if self._discarded > (self._in.parser.max_message_size or 0):
                self._transport.abort()
                return
        self._in.read(data)

    def answer_pings(self, pongs: bytes) -> None:
        """Closes the socket if the peer sends many pings and reads no pong."""
        self._pongs = self._pongs + len(pongs) if self.out.is_full else 0
        if self._pongs > self._settings.send_queue_bytes // 4:
            self.close(LAGGING, "you read too slowly")
        else:
            self.out.send(pongs, is_frame=True)

    def pause_writing(self) -> None:
        self.out.pause()

    def resume_writing(self) -> None:
        self.out.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._end()
        self._linger.stop()
        self._connections.remove(self)

    def _room_changed(self) -> None:
        """Pauses reading requests while the peer reads its answers slowly."""
        if not self.out.has_room:
            self._roomy = asyncio.Event()
            self.pause_reading(ROOM)
            return
        self._roomy.set()
        self.resume_reading(ROOM)
        if self._in.listener is not None:
            self._in.listener.room_available()

    # closing

    def peer_ended(self, *, by_peer: bool) -> None:
        self._end()
        if by_peer:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write_eof()  # the peer's close frame could not be parsed any more

    def _end(self) -> None:
        """Sends the last bytes and notifies the listener. Later calls do nothing."""
        if self._in.is_over:
            return
        self._in.is_over = True
        self._pinger.stop()
        self.out.end(b"".join(self._in.parser.data_to_send()))
        self._linger.start(self._settings.close_linger_s)
        self._roomy.set()
        self._holds.clear()
        self.resume_reading(ROOM)
        if self._in.listener is not None:
            self._in.listener.socket_closed()


@dataclass(slots=True, eq=False)
class Pinger:
    """Pings a peer that was silent for a whole interval, and closes its socket if it stays silent. The peer gets
    the time to read the bytes before the ping. It pauses while the socket is not read or not
    written."""

    _wire: "Wire"
    _in: FrameReader
    _out: FrameWriter
    _interval_s: float
    has_received: bool = True
    _silent: int = 0  # intervals
    _read: int = 0  # bytes written before the peer's latest bytes came
    _timer: Timer = field(init=False)

    def __post_init__(self) -> None:
        self._timer = Timer(asyncio.get_running_loop(), self._look)
        self._timer.start(self._interval_s)

    def stop(self) -> None:
        self._timer.stop()

    def _look(self) -> None:
        if self.has_received or self._in.is_held or self._out.is_full:
            self._silent, self._read = 0, self._out.written
        else:
            self._silent += 1
        if self._silent == 1:
            self._in.parser.send_ping(b"exogate")
            self._out.send(b"".join(self._in.parser.data_to_send()), is_frame=True)
        unread_s = (self._out.written - self._read) / SLOWEST
        if self._silent > 1 and (self._silent - 1) * self._interval_s > unread_s:
            self._wire.close(CloseCode.INTERNAL_ERROR, "no answer to a ping")
            return
        self.has_received = False
        self._timer.start(self._interval_s)
