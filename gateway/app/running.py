"""Runs a gateway from start to end: opens the front door, waits for signals, drains."""

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from socket import socket

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

RESTART_S = 1.0  # between two starts
LAST_ANSWERS_S = 2.0  # to send answers after the last run has ended


class EndedByItself(GatewayError):
    code = "ended_by_itself"

    def __init__(self) -> None:
        super().__init__(
            "the gateway ended without a stop signal, which is a defect; accepted messages are "
            "safe: see the log and start it again"
        )


@dataclass(frozen=True, slots=True)
class Running:
    """The report of `run` after the gateway listens, the store has passed its probe, and work is resumed."""

    config: GatewayConfig
    url: str
    resumed: int
    plugins: Sequence[PluginInfo] = ()
    channels: Sequence[ChannelStatus] = ()


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The objects of the process that a gateway uses: the log, the service manager, and the configuration file."""

    logs: Log
    notify: Notifier = SILENT
    file: ConfigFile | None = None

    @property
    def read(self) -> ReadConfig | None:
        return self.file.read if self.file else None

    def observe(self, config: GatewayConfig) -> None:
        """Configures logging."""
        settings, logs = config.observability, self.logs
        logs.hide(secrets_in(config))
        logs.show_as(settings.log_format)
        logging.getLogger().setLevel(settings.log_level.upper())
        logs.keep_in(
            config.gateway.data_dir, days=settings.log_keep_days, most_mb=settings.log_max_mb
        )


async def run(
    config: GatewayConfig,
    *,
    version: str,
    ready: Callable[[Running], None],
    process: ProcessContext,
    accept_loss: bool = False,
) -> None:
    """Runs a gateway until SIGTERM, SIGINT or the end of its terminal. Calls `ready` once it can answer. Starts again if a
    shared store goes away during the start.

    Raises the GatewayError that prevents the start.
    """
    started: list[Running] = []

    def on_ready(running: Running) -> None:
        started.append(running)
        ready(running)

    while True:
        try:
            return await _run(
                config, version=version, ready=on_ready, process=process, accept_loss=accept_loss
            )
        except (StoreUnavailable, BaseExceptionGroup) as error:
            away, other = BaseExceptionGroup("", [error]).split(StoreUnavailable)
            if started or other or not away or not config.store.is_shared:
                raise
            log.warning("start_repeated", extra={"why": str(away)})
        await SystemClock().sleep(RESTART_S)


async def _run(
    config: GatewayConfig,
    *,
    version: str,
    ready: Callable[[Running], None],
    process: ProcessContext,
    accept_loss: bool,
) -> None:
    was_stopped = False
    # From here on a signal ends the gateway in good order.
    by_hangup = has_terminal()
    with anyio.open_signal_receiver(*_stop_signals()) as signals:
        stop = partial(_stop, signals, None if by_hangup else anyio.lowlevel.checkpoint)
        opening = partial(open_shared, config, logs=process.logs, accept_loss=accept_loss)
        opened = partial(open_gateway, config, version=version, read=process.read)
        async with (
            startup_server(config, stop) as startup,
            opened(opening=opening(waiting=startup.wait)) as rooms,
            anyio.create_task_group() as group,
        ):
            rooms.reloads.observe, rooms.changes.file = process.observe, process.file
            process.observe(config)
            server = await open_doors(rooms, group, ready, startup.leave())
            notify = rooms.reloads.notify = process.notify
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
            server.stop(LAST_ANSWERS_S)
            await server.stopped.wait()
            group.cancel_scope.cancel()
    if not (was_stopped or startup.was_stopped):
        raise EndedByItself


def _stop_signals() -> Sequence[signal.Signals]:
    """Returns the signals to handle; SIGHUP stays ignored under `nohup`."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return (signal.SIGTERM, signal.SIGINT)
    return (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def _stop(
    signals: AsyncIterator[signal.Signals], hangup: Callable[[], Awaitable[object]] | None
) -> None:
    """Waits for a signal that stops the gateway. SIGHUP calls `hangup`; without `hangup` it means that the terminal closed,
    and stops the gateway."""
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
    """Opens the front door and returns once the gateway can answer. `bound`: sockets that listen already. Raises
    AddressInUse, CannotListen, StoreUnavailable."""
    config = rooms.current.generation.config
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
    ready(Running(config, url, resumed, rooms.current.plugins.infos, rooms.channels.statuses()))
    return server


# -- before there is a store


@asynccontextmanager
async def startup_server(
    config: GatewayConfig, stopped: Callable[[], Awaitable[None]]
) -> AsyncIterator["StartupServer"]:
    async with anyio.create_task_group() as group:
        yield StartupServer(config, stopped, group)
        group.cancel_scope.cancel()


class StartupServer:
    """The front door of a gateway whose store does not answer yet: alive, not ready, accepting nothing. `wait` opens it and
    `leave` closes it. `stopped` returns when a signal stops the gateway."""

    def __init__(
        self, config: GatewayConfig, stopped: Callable[[], Awaitable[None]], group: TaskGroup
    ) -> None:
        self._config, self._stopped, self._group = config, stopped, group
        self._why = ""
        self._server: WebServer | None = None
        self._watch = anyio.CancelScope()
        self.was_stopped = False

    async def wait(self, why: str) -> None:
        """Opens the door and notes why the store does not answer. Raises AddressInUse, CannotListen."""
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
        """Closes the door. Returns its listening sockets if it is open."""
        self._watch.cancel()
        if self._server is None:
            return ()
        bound = self._server.duplicate_sockets()
        self._server.stop(0.0)
        return bound
