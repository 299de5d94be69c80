"""What becomes too old: journals, logs, what channels heard; unused sessions are closed."""

import logging
from datetime import timedelta

from gateway.config.values import GatewayConfig
from gateway.domain.channel_events import ChannelEvents
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import Clock, StoreCare, Stores

log = logging.getLogger(__name__)

EVERY_S = 3600.0
AT_ONCE = 500
PAUSE_S = 0.1
SENT_AGAIN = timedelta(days=8)  # no platform brings a message again after a week


async def sweep(config: GatewayConfig, stores: Stores, clock: Clock) -> None:
    """A little at a time, until cancelled."""
    while True:
        try:
            await _forget(config, stores.care, clock)
            await _forget_heard(stores.channel_events, clock)
            await _expire(config, stores.care, clock)
        except StoreUnavailable as error:
            log.warning("what is old stays for now", extra={"why": str(error)})
        await clock.sleep(EVERY_S)


async def _forget(config: GatewayConfig, care: StoreCare, clock: Clock) -> None:
    before = clock.now() - timedelta(days=config.store.journal_days)
    while await care.sweep(before=before, limit=AT_ONCE):
        await clock.sleep(PAUSE_S)


async def _forget_heard(events: ChannelEvents, clock: Clock) -> None:
    while await events.forget(before=clock.now() - SENT_AGAIN, limit=AT_ONCE):
        await clock.sleep(PAUSE_S)


async def _expire(config: GatewayConfig, care: StoreCare, clock: Clock) -> None:
    for agent in config.agents:
        days = agent.context.expire_days
        if days is None:
            continue
        before = clock.now() - timedelta(days=days)
        while await care.expire(agent.id, before=before, limit=AT_ONCE):
            await clock.sleep(PAUSE_S)
