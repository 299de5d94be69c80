"""One gateway from its start to its end: doors open, signals awaited, work drained."""

import logging
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from gateway.app.assembly import Gateway, assembled
from gateway.app.generation import web_settings
from gateway.config.values import GatewayConfig
from gateway.domain.channels import ChannelStatus
from gateway.domain.errors import GatewayError
from gateway.domain.plugins import PluginInfo
from gateway.domain.supervision import supervise
from gateway.host.files import KEY, make_key
from gateway.host.process import has_terminal, settle
from gateway.store.faults import file_faults
from gateway.store.opening import note_owner
from gateway.web.wire.server import ListenAddress, WebServer

log = logging.getLogger(__name__)

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


async def run(
    config: GatewayConfig,
    *,
    version: str,
    ready: Callable[[Running], None],
    accept_loss: bool = False,
) -> None:
    """Runs a gateway until SIGTERM, SIGINT or the end of its terminal. `ready` is called once it can
    answer.

    Raises the GatewayError that kept it from starting.
    """
    was_stopped = False
    # A signal that comes at any moment from here on ends it in good order.
    by_hangup = has_terminal()
    with anyio.open_signal_receiver(*_heeded()) as signals:
        async with (
            assembled(config, version=version, accept_loss=accept_loss) as rooms,
            anyio.create_task_group() as group,
        ):
            server = await open_doors(rooms, group, ready)
            await _stop(signals, by_hangup=by_hangup)
            was_stopped = True

            async def end_at_once() -> None:
                await _stop(signals, by_hangup=False)
                log.warning("second signal: stopping at once")
                group.cancel_scope.cancel()

            group.start_soon(end_at_once)
            await rooms.drain()
            server.stop(GOODBYE_S)
            await server.stopped.wait()
            group.cancel_scope.cancel()
    if not was_stopped:
        raise EndedByItself


def _heeded() -> Sequence[signal.Signals]:
    """SIGHUP stays ignored if `nohup` said so."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return (signal.SIGTERM, signal.SIGINT)
    return (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def _stop(signals: AsyncIterator[signal.Signals], *, by_hangup: bool) -> None:
    """Waits until a signal says that the gateway is to stop."""
    async for number in signals:
        if number != signal.SIGHUP:
            return
        if by_hangup:
            log.info("the terminal closes: stopping")
            return
        log.warning("SIGHUP is ignored: restart the gateway to load a changed configuration")


async def open_doors(
    rooms: Gateway, group: TaskGroup, ready: Callable[[Running], None]
) -> WebServer:
    """Returns once the gateway can answer. Raises AddressInUse, CannotListen, StoreUnavailable."""
    data_dir = rooms.made.config.gateway.data_dir
    with file_faults(str(data_dir / KEY)):
        key = await to_thread.run_sync(make_key, data_dir)
    settings = web_settings(rooms.made.config, key)
    server = WebServer(rooms.web(settings), settings)
    address: ListenAddress = await group.start(server.serve)
    url = f"http://{address}"
    await note_owner(data_dir, url)
    resumed = await rooms.front.intake.resume()
    connections = partial(
        supervise, "connections", rooms.keep_connections, rooms.shared.clock, may_end=True
    )
    group.start_soon(connections, name="connections")
    rooms.health.starting = False
    settle()
    ready(
        Running(
            rooms.made.config, url, resumed, rooms.opened.plugins.infos, rooms.channels.statuses()
        )
    )
    return server
