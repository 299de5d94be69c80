"""A WebSocket on its transport: messages to a listener, messages out, and how it ends."""

import asyncio
import contextlib
from functools import partial

from websockets.exceptions import InvalidState
from websockets.frames import CloseCode

from gateway.web.incoming import Incoming, Listener
from gateway.web.lobby import Lobby
from gateway.web.outgoing import Outgoing
from gateway.web.settings import WebSettings
from gateway.web.timers import Timer

LAGGING = 4408
TOO_MANY = 4429
ROOM = "room"  # why a socket is not read
SLOWEST = 10_000  # bytes a second that a reader may take before it answers a ping


class Wire(asyncio.Protocol):
    """One WebSocket after its handshake."""

    __slots__ = (
        "_discarded",
        "_holds",
        "_in",
        "_linger",
        "_lobby",
        "_pongs",
        "_pulse",
        "_roomy",
        "_settings",
        "_transport",
        "out",
    )

    def __init__(
        self, transport: asyncio.Transport, settings: WebSettings, lobby: Lobby, max_frame: int
    ) -> None:
        self._transport, self._settings, self._lobby = transport, settings, lobby
        loop = asyncio.get_running_loop()
        self._in = Incoming(self, settings, max_frame)
        self._holds: set[str] = set()
        self._roomy = asyncio.Event()
        lag = partial(self.close, LAGGING, "you read too slowly; resume from the last seq")
        self.out = Outgoing(transport, settings, lobby.backlog, lag, self._room_changed)
        self._pulse = Pulse(self, self._in, self.out, settings.ping_interval_s)
        self._linger = Timer(loop, transport.abort)
        self._discarded = 0
        self._pongs = 0  # bytes, while the transport took nothing

    # what the owner of the socket may do

    def listen(self, listener: Listener) -> None:
        self._in.listener = listener

    def trust(self) -> None:
        """The peer has said who it is."""
        self._lobby.know(self)

    async def room(self) -> None:
        """Returns once there is room, or the socket is closing."""
        while not self._in.is_over and not self.out.has_room:
            await self._roomy.wait()

    def close(self, code: int, reason: str = "") -> None:
        """Says goodbye; the peer has `close_linger_s` to say it too."""
        if self._in.is_over:
            return
        with contextlib.suppress(InvalidState):  # the parser has said it already
            self._in.parser.send_close(code, reason)
        self._part()

    def allow(self, max_frame: int) -> None:
        """Another limit from the next message on."""
        self._in.parser.max_message_size = max_frame

    def hold(self, why: str) -> None:
        """Reads no more until `go_on` for each reason."""
        if self._in.is_over:
            return
        self._holds.add(why)
        if not self._in.is_held:
            self._in.is_held = True
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def go_on(self, why: str) -> None:
        self._holds.discard(why)
        if not self._in.is_held or self._holds:
            return
        self._in.is_held = False
        self._in.read()
        if not self._in.is_held and not self._transport.is_closing():
            self._transport.resume_reading()

    # what the server may do

    def shutdown(self) -> None:
        """The gateway restarts."""
        self.close(CloseCode.SERVICE_RESTART, self._lobby.farewell())

    @property
    def is_known(self) -> bool:
        return False  # whoever is known is no stranger any more: `trust`

    def make_room(self) -> None:
        self.close(TOO_MANY, "too many connections without a token: authenticate at once")

    def cut(self) -> None:
        self._transport.abort()

    # what the transport says

    def data_received(self, data: bytes) -> None:
        self._pulse.heard = True
        if self._in.is_over:
            self._discarded += len(data)
            if self._discarded > (self._in.parser.max_message_size or 0):
                self._transport.abort()
                return
        self._in.read(data)

    def answer_pings(self, pongs: bytes) -> None:
        """A peer that asks for many pongs and reads none has to go."""
        self._pongs = self._pongs + len(pongs) if self.out.is_full else 0
        if self._pongs > self._settings.send_queue_bytes // 4:
            self.close(LAGGING, "you read too slowly")
        else:
            self.out.send(pongs, is_frame=True)

    def pause_writing(self) -> None:
        self.out.fill()

    def resume_writing(self) -> None:
        self.out.drain()

    def connection_lost(self, error: Exception | None) -> None:
        self._part()
        self._linger.stop()
        self._lobby.leave(self)

    def _room_changed(self) -> None:
        """A peer that reads slowly is asked for nothing more until it has read."""
        if not self.out.has_room:
            self._roomy = asyncio.Event()
            self.hold(ROOM)
            return
        self._roomy.set()
        self.go_on(ROOM)
        if self._in.listener is not None:
            self._in.listener.roomy()

    # how it ends

    def parted(self, *, by_peer: bool) -> None:
        self._part()
        if by_peer:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write_eof()  # its goodbye could not be read any more

    def _part(self) -> None:
        """Once: the last words go out, and the listener hears that it is over."""
        if self._in.is_over:
            return
        self._in.is_over = True
        self._pulse.stop()
        self.out.end(b"".join(self._in.parser.data_to_send()))
        self._linger.start(self._settings.close_linger_s)
        self._roomy.set()
        self._holds.clear()
        self.go_on(ROOM)
        if self._in.listener is not None:
            self._in.listener.ended()


class Pulse:
    """A peer from which nothing came for a whole interval is pinged, and then given up: not before it
    could have read what is before the ping. Whoever is not heard, or not sent to, is not judged."""

    __slots__ = ("_in", "_interval_s", "_out", "_read", "_silent", "_timer", "_wire", "heard")

    def __init__(self, wire: Wire, incoming: Incoming, out: Outgoing, interval_s: float) -> None:
        self._wire, self._in, self._out = wire, incoming, out
        self._interval_s = interval_s
        self._silent = 0  # intervals
        self._read = 0  # bytes that had been written when the peer was heard last
        self.heard = True
        self._timer = Timer(asyncio.get_running_loop(), self._look)
        self._timer.start(interval_s)

    def stop(self) -> None:
        self._timer.stop()

    def _look(self) -> None:
        if self.heard or self._in.is_held or self._out.is_full:
            self._silent, self._read = 0, self._out.written
        else:
            self._silent += 1
        if self._silent == 1:
            self._in.parser.send_ping(b"exogate")
            self._out.send(b"".join(self._in.parser.data_to_send()), is_frame=True)
        unread_s = (self._out.written - self._read) / SLOWEST
        if self._silent > 1 and (self._silent - 1) * self._interval_s > unread_s:
            self._wire.close(CloseCode.INTERNAL_ERROR, "no sign of life")
            return
        self.heard = False
        self._timer.start(self._interval_s)
