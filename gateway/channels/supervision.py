"""One task a channel: keeps its transport at work, waits longer after each loss, says how it fares."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from gateway.channels.adapters import CallRecipe, Poll, Socket, Webhook
from gateway.channels.connecting import Conversation
from gateway.channels.live import LineLost, LineRenewed, LiveChannel
from gateway.channels.polling import poll
from gateway.channels.recipes import RecipeUnfilled
from gateway.domain.errors import GatewayError
from gateway.domain.ports import HttpFailed

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 60.0
LONGEST_TOLD_S = 3_600.0  # if the platform names the wait
STEADY_S = 60.0  # a line that worked for so long begins anew with the shortest wait

Transport = Webhook | Poll | Socket
Work = Callable[[], Awaitable[None]]


async def supervise(live: LiveChannel, transport: Transport) -> None:
    """Until it is cancelled, or nothing but the operator can help."""
    work: Work | None = None
    tries = 0
    while True:
        began, heard = live.clock.monotonic(), live.health.count
        told_s: float | None = None
        try:
            work = work or await _prepared(live, transport)
            await work()
        except (GatewayError, HttpFailed) as error:
            if _is_final(live, error):
                return
            told_s = error.retry_after_s if isinstance(error, LineLost) else None
        except Exception as error:
            log.exception("channel_failed", extra={"channel": live.channel.name})
            live.health.failed(
                "in", f"an error of the gateway, see its log: {type(error).__name__}"
            )
        is_steady = live.clock.monotonic() - began >= STEADY_S and live.health.count > heard
        tries = 1 if is_steady else tries + 1
        await live.clock.sleep(_wait(tries, told_s, live.jitter()))


def _wait(tries: int, told_s: float | None, jitter: float) -> float:
    if told_s is not None:
        return min(told_s, LONGEST_TOLD_S) + jitter
    return min(LONGEST_WAIT_S, 2.0 ** min(tries - 1, 10)) * jitter


def _is_final(live: LiveChannel, error: GatewayError | HttpFailed) -> bool:
    """Says what is wrong, and whether trying again is of any use."""
    why = str(error)
    match error:
        case LineRenewed():
            return False
        case RecipeUnfilled():
            live.health.end("refused", why)
        case LineLost() if error.is_final:
            live.health.end("failing", why)
        case _:
            live.health.failed("in", why)
            log.warning("channel_disconnected", extra={"channel": live.channel.name, "why": why})
            return False
    log.error("channel_given_up", extra={"channel": live.channel.name, "why": why})
    return True


async def _prepared(live: LiveChannel, transport: Transport) -> Work:
    kept = await live.read_memos()
    match transport:
        case Webhook():
            return partial(_stand_by, live, transport)
        case Poll():
            return partial(_poll, live, transport)
        case Socket():
            return Conversation(live, transport, kept).run


async def _stand_by(live: LiveChannel, transport: Webhook) -> None:
    await _set_up(live, transport.setup)
    live.health.opened()
    await anyio.sleep_forever()


async def _poll(live: LiveChannel, transport: Poll) -> None:
    await _set_up(live, transport.setup)
    await poll(live, transport)


async def _set_up(live: LiveChannel, recipe: CallRecipe | None) -> None:
    if recipe is None:
        return
    try:
        await live.ask(recipe, live.values())
    except RecipeUnfilled as error:
        where = {"channel": live.channel.name, "why": str(error)}
        log.info("channel is set up by its operator", extra=where)
