"""What becomes too old: journals and logs are forgotten, unused sessions closed."""

import logging
from datetime import timedelta

from gateway.config.values import GatewayConfig
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import Clock, StoreCare

log = logging.getLogger(__name__)

EVERY_S = 3600.0
AT_ONCE = 500
PAUSE_S = 0.1


async def sweep(config: GatewayConfig, care: StoreCare, clock: Clock) -> None:
    """A little at a time, until cancelled."""
    while True:
        try:
            await _forget(config, care, clock)
            await _expire(config, care, clock)
        except StoreUnavailable as error:
            log.warning("what is old stays for now", extra={"why": str(error)})
        await clock.sleep(EVERY_S)


async def _forget(config: GatewayConfig, care: StoreCare, clock: Clock) -> None:
    before = clock.now() - timedelta(days=config.store.journal_days)
    while await care.sweep(before=before, limit=AT_ONCE):
        await clock.sleep(PAUSE_S)


async def _expire(config: GatewayConfig, care: StoreCare, clock: Clock) -> None:
    for agent in config.agents:
        days = agent.context.expire_days
        if days is None:
            continue
        before = clock.now() - timedelta(days=days)
        while await care.expire(agent.id, before=before, limit=AT_ONCE):
            await clock.sleep(PAUSE_S)
