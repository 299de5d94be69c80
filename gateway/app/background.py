"""Background work: known metric series start at 0, and old data is deleted."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from itertools import product

from gateway.config.values import GatewayConfig
from gateway.domain.agents import OWN_CHANNELS
from gateway.domain.errors import StoreUnavailable
from gateway.domain.figures import Figures
from gateway.domain.ports import Clock, Stores
from gateway.domain.sessions import chain_of

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 3600.0
SWEEP_ROWS = 500
SWEEP_PAUSE_S = 0.1
MOST_BEGUN = 20  # agents, and channels, whose series start at 0
REASONS = ("answered", "provider_error", "internal_error")
OUTCOMES = ("answered", "failed", "broken")
SENT_AGAIN = timedelta(days=8)  # no platform repeats a message after a week


def begin_series(figures: Figures, config: GatewayConfig, tools: Iterable[str]) -> None:
    """Starts known series at 0. Without a 0 the first event of a series is not an increase."""
    channels = (*sorted(OWN_CHANNELS), *(one.name for one in config.channels))[:MOST_BEGUN]
    figures.channels.known.update(channels)
    figures.tools.known.update(tools)
    for agent in config.agents[:MOST_BEGUN]:
        figures.runs.begin((agent.id, *pair) for pair in product(channels, REASONS))
        for one in chain_of(agent):
            label = (one.provider, figures.models.of(one.model))
            figures.model_calls.begin((*label, outcome) for outcome in OUTCOMES)
    figures.tool_calls.begin(product(sorted(figures.tools.known), ("ok", "error")))


async def sweep(current: Callable[[], GatewayConfig], stores: Stores, clock: Clock) -> None:
    """Deletes expired data in small steps, until cancelled."""
    care = stores.care

    async def repeat(delete: Callable[..., Awaitable[object]], age: timedelta) -> None:
        before = clock.now() - age
        while await delete(before=before, limit=SWEEP_ROWS):
            await clock.sleep(SWEEP_PAUSE_S)

    while True:
        config = current()
        try:
            await repeat(care.sweep, timedelta(days=config.store.journal_days))
            await repeat(stores.channels.forget_received, SENT_AGAIN)
            for agent in (one for one in config.agents if one.context.expire_days is not None):
                age = timedelta(days=agent.context.expire_days or 0)
                await repeat(partial(care.expire, agent.id), age)
        except StoreUnavailable as error:
            log.warning("sweep_failed", extra={"why": str(error)})
        await clock.sleep(SWEEP_EVERY_S)
