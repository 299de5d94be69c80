"""One gateway from its start to its end: doors open, signals awaited, work drained."""

import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from gateway.app.assembly import Gateway, assembled
from gateway.app.doors import web_settings
from gateway.app.lines import keep_lines
from gateway.config.values import GatewayConfig
from gateway.domain.channels import ChannelStatus
from gateway.domain.errors import GatewayError
from gateway.domain.plugins import PluginInfo
from gateway.domain.supervision import supervise
from gateway.host.garbage import settle
from gateway.host.keyfile import make_key
from gateway.store.opening import note_owner
from gateway.web.server import Address, WebServer

log = logging.getLogger(__name__)

GOODBYE_S = 2.0  # for answers that are on their way when the last run has ended


class EndedByItself(GatewayError):
    code = "ended_by_itself"

    def __init__(self) -> None:
        super().__init__(
            "the gateway ended although nobody told it to: something in it was cancelled, which is a "
            "defect; accepted messages are safe, start it again and see the log"
        )


@dataclass(frozen=True, slots=True)
class Running:
    """What `run` tells once the gateway listens, the store passed its probe and work was resumed."""

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
    """Runs a gateway until SIGTERM or SIGINT. `ready` is called once it can answer.

    Raises the GatewayError that kept it from starting.
    """
    was_told = False
    # A signal that comes at any moment from here on ends it in good order.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with (
            assembled(config, version=version, accept_loss=accept_loss) as rooms,
            anyio.create_task_group() as group,
        ):
            server = await open_doors(rooms, group, ready)
            await anext(signals)
            was_told = True

            async def end_at_once() -> None:
                await anext(signals)
                log.warning("told twice: stopping at once")
                group.cancel_scope.cancel()

            group.start_soon(end_at_once)
            await rooms.drain()
            server.stop(GOODBYE_S)
            await server.stopped.wait()
            group.cancel_scope.cancel()
    if not was_told:
        raise EndedByItself


async def open_doors(
    rooms: Gateway, group: TaskGroup, ready: Callable[[Running], None]
) -> WebServer:
    """Comes back once it can answer. Raises AddressInUse, CannotListen."""
    data_dir = rooms.config.gateway.data_dir
    settings = web_settings(rooms.config, await to_thread.run_sync(make_key, data_dir))
    server = WebServer(rooms.web(settings), settings)
    address: Address = await group.start(server.serve)
    url = f"http://{address}"
    await note_owner(data_dir, url)
    resumed = await rooms.front.reception.resume()
    lines = partial(keep_lines, rooms.channels)
    group.start_soon(partial(supervise, "lines", lines, rooms.clock, may_end=True), name="lines")
    rooms.health.starting = False
    settle()
    ready(Running(rooms.config, url, resumed, rooms.plugins.infos, rooms.channels.statuses()))
    return server
