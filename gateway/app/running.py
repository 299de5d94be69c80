"""One gateway from its start to its end: doors open, signals awaited, work drained."""

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from socket import socket
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
from anyio import to_thread
from anyio.abc import TaskGroup

from gateway.api.methods import METHODS
from gateway.app.assembly import Gateway, open_gateway
from gateway.app.generation import web_settings
from gateway.app.proposals import ConfigFile
from gateway.app.reloading import ReadConfig
from gateway.app.shared import open_shared
from gateway.config.secrets import secrets_in
from gateway.config.values import GatewayConfig
from gateway.domain.channels import ChannelStatus
from gateway.domain.errors import GatewayError, StoreUnavailable
from gateway.domain.plugins import PluginInfo
from gateway.domain.supervision import supervise
from gateway.host.clock import SystemClock
from gateway.host.files import KEY, make_key
from gateway.host.logs import Log
from gateway.host.notify import SILENT, Notifier
from gateway.host.process import has_terminal, settle
from gateway.store.faults import file_faults
from gateway.store.opening import note_owner
from gateway.web.asgi import build_closed
from gateway.web.server import ListenAddress, WebServer

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # between two starts
GOODBYE_S = 2.0  # for answers that are on their way when the last run has ended


class EndedByItself(GatewayError):
    code = "ended_by_itself"

    def __init__(self) -> None:
        super().__init__(
            "the gateway ended without a stop signal: a part of it was cancelled, which is a "
            "defect; accepted messages are safe, start it again and see the log"
        )


@dataclass(frozen=True, slots=True)
class Running:
    """What `run` reports once the gateway listens, the store passed its probe and work was resumed."""

    config: GatewayConfig
    url: str
    resumed: int
    plugins: Sequence[PluginInfo] = ()
    channels: Sequence[ChannelStatus] = ()


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What a gateway has of its process: the log, the service manager, and how its configuration is read
    again."""

    logs: Log
    notify: Notifier = SILENT
    file: ConfigFile | None = None

    @property
    def read(self) -> ReadConfig | None:
        return self.file.read if self.file else None

    def observe(self, config: GatewayConfig) -> None:
        """From now on it is logged as this configuration says."""
        its, logs = config.observability, self.logs
        logs.hide(secrets_in(config))
        logs.show_as(its.log_format)
        logging.getLogger().setLevel(its.log_level.upper())
        logs.keep_in(config.gateway.data_dir, days=its.log_keep_days, most_mb=its.log_max_mb)


async def run(
    config: GatewayConfig,
    *,
    version: str,
    ready: Callable[[Running], None],
    outside: ProcessContext,
    accept_loss: bool = False,
) -> None:
    """Runs a gateway until SIGTERM, SIGINT or the end of its terminal. `ready` is called once it can
    answer. A shared store that goes away while it starts has it start again.

    Raises the GatewayError that kept it from starting.
    """
    started: list[Running] = []

    def told(running: Running) -> None:
        started.append(running)
        ready(running)

    while True:
        try:
            return await _run(
                config, version=version, ready=told, outside=outside, accept_loss=accept_loss
            )
        except (StoreUnavailable, BaseExceptionGroup) as error:
            away, other = BaseExceptionGroup("", [error]).split(StoreUnavailable)
            if started or other or not away or not config.store.is_shared:
                raise
            log.warning("start_repeated", extra={"why": str(away)})
        await SystemClock().sleep(AGAIN_S)


async def _run(
    config: GatewayConfig,
    *,
    version: str,
    ready: Callable[[Running], None],
    outside: ProcessContext,
    accept_loss: bool,
) -> None:
    was_stopped = False
    # A signal that comes at any moment from here on ends it in good order.
    by_hangup = has_terminal()
    with anyio.open_signal_receiver(*_stop_signals()) as signals:
        startup = StartupServer(
            config, partial(_stop, signals, None if by_hangup else anyio.lowlevel.checkpoint)
        )
        opening = open_shared(
            config, logs=outside.logs, accept_loss=accept_loss, waiting=startup.wait
        )
        async with (
            startup,
            open_gateway(config, version=version, opening=opening, read=outside.read) as rooms,
            anyio.create_task_group() as group,
        ):
            rooms.reloads.observe, rooms.changes.file = outside.observe, outside.file
            outside.observe(config)
            server = await open_doors(rooms, group, ready, startup.leave())
            notify = rooms.reloads.notify = outside.notify
            beat = partial(notify.beat, rooms.shared.clock, rooms.watch.is_alive)
            group.start_soon(
                partial(supervise, "watchdog", beat, rooms.shared.clock, may_end=True),
                name="watchdog",
            )
            hangup = None if by_hangup else partial(rooms.reloads.reload, by="signal")
            await _stop(signals, hangup)
            was_stopped = True
            notify.stopping()

            async def end_at_once() -> None:
                await _stop(signals, anyio.lowlevel.checkpoint)
                log.warning("stopped_at_once")
                group.cancel_scope.cancel()

            group.start_soon(end_at_once)
            await rooms.drain()
            server.stop(GOODBYE_S)
            await server.stopped.wait()
            group.cancel_scope.cancel()
    if not (was_stopped or startup.was_stopped):
        raise EndedByItself


def _stop_signals() -> Sequence[signal.Signals]:
    """SIGHUP stays ignored if `nohup` said so."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return (signal.SIGTERM, signal.SIGINT)
    return (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def _stop(
    signals: AsyncIterator[signal.Signals], hangup: Callable[[], Awaitable[object]] | None
) -> None:
    """Waits until a signal says that the gateway is to stop. A `hangup` does that if it comes from a terminal
    that closes."""
    async for number in signals:
        if number != signal.SIGHUP:
            return
        if hangup is None:
            log.info("terminal_closed")
            return
        await hangup()


async def open_doors(
    rooms: Gateway,
    group: TaskGroup,
    ready: Callable[[Running], None],
    bound: Sequence[socket] = (),
) -> WebServer:
    """Returns once the gateway can answer. `bound`: sockets that listen already. Raises AddressInUse,
    CannotListen, StoreUnavailable."""
    config = rooms.now.made.config
    data_dir = config.gateway.data_dir
    with file_faults(str(data_dir / KEY)):
        key = await to_thread.run_sync(make_key, data_dir)
    rooms.shared.logs.hide([key])
    settings = web_settings(config, key)
    app = rooms.web(settings)
    watch = partial(supervise, "tokens", app.identities.watch, rooms.shared.clock)
    group.start_soon(watch, name="tokens")
    server = rooms.server = WebServer(app, settings, bound)
    address: ListenAddress = await group.start(server.serve)
    url = f"http://{address}"
    await note_owner(data_dir, url)
    resumed = await rooms.intake.resume()
    rooms.connect()
    rooms.health.starting = False
    settle()
    ready(Running(config, url, resumed, rooms.now.plugins.infos, rooms.channels.statuses()))
    return server


# -- before there is a store


class StartupServer:
    """The address of a gateway whose store does not answer yet: alive, not ready, and nothing is accepted.
    It opens when it is told that there is no store, and closes when the gateway takes its place. `stopped`
    returns if the gateway is to end meanwhile."""

    def __init__(self, config: GatewayConfig, stopped: Callable[[], Awaitable[None]]) -> None:
        self._config, self._stopped = config, stopped
        self._why = ""
        self._server: WebServer | None = None
        self._watch = anyio.CancelScope()
        self._group: TaskGroup
        self._stack = AsyncExitStack()
        self.was_stopped = False

    async def __aenter__(self) -> Self:
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._group.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)

    async def wait(self, why: str) -> None:
        """Notes why there is no store. Raises AddressInUse, CannotListen."""
        self._why = why
        if self._server is None:
            log.warning("store_awaited", extra={"why": why})
            data_dir = self._config.gateway.data_dir
            settings = web_settings(self._config, await to_thread.run_sync(make_key, data_dir))
            app = build_closed(settings, METHODS, SystemClock(), lambda: self._why)
            self._server = WebServer(app, settings)
            address: ListenAddress = await self._group.start(self._server.serve)
            await note_owner(data_dir, f"http://{address}")
            self._group.start_soon(self._watch_signals)

    async def _watch_signals(self) -> None:
        with self._watch:
            await self._stopped()
            self.was_stopped = True
            self._group.cancel_scope.cancel()

    def leave(self) -> Sequence[socket]:
        """Serves nobody any more; gives the sockets that it listens on, if it is open."""
        self._watch.cancel()
        if self._server is None:
            return ()
        bound = self._server.duplicate_sockets()
        self._server.stop(0.0)
        return bound
