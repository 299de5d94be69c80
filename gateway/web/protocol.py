"""HTTP on its transport: who is too slow, too many or too much hears why and is heard no more."""

import asyncio

import httptools
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.domain.errors import GatewayError
from gateway.web.exchange import Exchange, refusal
from gateway.web.frames import Wire
from gateway.web.handshake import Door, Handshake, accept
from gateway.web.lobby import Lobby
from gateway.web.parsing import LimitedHttp
from gateway.web.refusals import (
    Full,
    HeadTooLarge,
    InvalidRequest,
    TooManyOfAddress,
    TooSlow,
    delay_of,
)
from gateway.web.settings import WebSettings
from gateway.web.timers import StallTimer, Timer
from gateway.web.visitors import parse_address

_LINGER_S = 1.0  # how long a refused peer may take to read why


class GuardedHttp(LimitedHttp):
    """One HTTP connection, until it ends or becomes a WebSocket."""

    def __init__(self, config: Config, settings: WebSettings, lobby: Lobby, door: Door) -> None:
        super().__init__(config, settings, lobby)
        self._lobby, self._door = lobby, door
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own narrowing
        super().connection_made(transport)
        self.patience = Timer(self.loop, self._lose_patience)
        self._stall = StallTimer(  # an answer that nobody takes
            self.loop, transport, self.settings.write_deadline_s, transport.abort
        )
        self._linger = Timer(self.loop, transport.abort)
        self._late = Timer(self.loop, self._refuse_late)
        peer = parse_address(str(self.client[0])) if self.client else None
        self._proxy = peer if self._lobby.reception.is_trusted(peer) else None
        has_seat = self._lobby.settle(self, None if self._proxy else peer)
        if self._lobby.is_overrun or self._lobby.is_besieged(self):
            transport.abort()
        elif self._lobby.is_full or not has_seat:
            self._refuse(Full() if has_seat else TooManyOfAddress())
        else:
            self.patience.start(self.settings.header_timeout_s)
            self._lobby.doubt(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.patience, self._stall, self._linger, self._late):
            timer.stop()
        super().connection_lost(exc)
        self._lobby.leave(self)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        try:
            self.feed(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.wants_websocket:
                self._upgrade(data[int(upgrade.args[0]) :])
                return
        except httptools.HttpParserError as error:
            self._refuse(self.reason(error))
        self._watch()

    def on_headers_complete(self) -> None:
        if self._proxy is not None:  # the seat is that of whom it names
            address = self._lobby.reception.client(self.headers, self._proxy)
            if not self._lobby.settle(self, address):
                self._stop(TooManyOfAddress())
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._lobby.know(self)  # until it is answered

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self.is_known:
            self._lobby.doubt(self)

    @property
    def is_known(self) -> bool:
        """By its latest request: whoever was let in with it has a principal."""
        return self.scope is not None and "principal" in self.scope["state"]

    def make_room(self) -> None:
        if self.cycle is None or self.in_head or self.in_body:
            self._refuse(Full())
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.stop()

    def cut(self) -> None:
        self.transport.abort()

    def _start_asgi_task(  # type: ignore[override]  # Starlette's type for the same thing
        self, cycle: RequestResponseCycle, app: ASGIApp
    ) -> None:
        super()._start_asgi_task(cycle, Exchange(app, cycle))  # type: ignore[arg-type]  # uvicorn's scope types are its own

    def _watch(self) -> None:
        """Whatever is half here has its time; a connection at rest has the keep-alive time, also
        if it trickles what is no request."""
        if self._is_refused or self.transport.is_closing():
            return
        if self.is_head_endless:
            self._refuse(HeadTooLarge())
        elif self.in_body:
            self.patience.start(self.settings.body_timeout_s)
        elif self.in_head or self.cycle is None:
            self.patience.start(self.settings.header_timeout_s)
        elif self.cycle.response_complete and self.timeout_keep_alive_task is None:
            self.patience.start(self.settings.keep_alive_s)

    def _lose_patience(self) -> None:
        if self.in_head or self.in_body:
            self._refuse(TooSlow("head" if self.in_head else "body"))
        else:
            self.transport.close()

    def _refuse(self, error: GatewayError) -> None:
        """Says why, unless an answer is under way, and hears no more."""
        self._is_refused = True
        self.patience.stop()
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if self.in_body and (cycle.response_started or self.pipeline):
            self.transport.close()
        elif self.in_body or cycle is None or cycle.response_complete:
            self._say_goodbye(refusal(error))
        else:
            cycle.keep_alive = False  # a later request of a pipeline: the earlier is answered

    def _refuse_late(self) -> None:
        assert self.refusal is not None
        self._refuse(self.refusal)

    def _say_goodbye(self, answer: bytes) -> None:
        """And waits a moment: a peer that is cut off while it sends would never see the answer."""
        self.transport.write(answer)
        self.transport.write_eof()
        self._linger.start(_LINGER_S)
        if self.in_body:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _upgrade(self, rest: bytes) -> None:
        if self.cycle is not None and (self.pipeline or not self.cycle.response_complete):
            self._refuse(InvalidRequest("a WebSocket begins after all earlier answers"))
            return
        target = self.url.partition(b"?")[0].decode("latin-1")
        method, version = self.parser.get_method(), self.parser.get_http_version()
        try:
            answer = accept(method, version, self.headers)
            entrance = self._door.admit(
                Handshake(target, self.headers, self.client, self.server, answer)
            )
        except GatewayError as error:
            self.refusal = error
            if delay_s := delay_of(error):
                self._is_refused = True
                self._late.start(delay_s)
            else:
                self._refuse(error)
            return
        self.patience.stop()
        self._stall.stop()
        self.parser = None  # type: ignore[assignment]  # it holds us, and we are done
        wire = Wire(self.transport, self.settings, self._lobby, entrance.max_frame)
        self._lobby.change(self, wire)
        self.transport.write(answer)
        self.transport.set_protocol(wire)
        entrance.start(wire)
        if rest:
            wire.data_received(rest)
