"""What goes on beside serving: series begin at 0, what is old is forgotten."""

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

EVERY_S = 3600.0
AT_ONCE = 500
PAUSE_S = 0.1
MOST_BEGUN = 20  # agents, and channels, whose series start at 0
REASONS = ("answered", "provider_error", "internal_error")
OUTCOMES = ("answered", "failed", "broken")
SENT_AGAIN = timedelta(days=8)  # no platform brings a message again after a week


def begin_series(figures: Figures, config: GatewayConfig, tools: Iterable[str]) -> None:
    """Known series start at 0: else the first of a kind would be no increase."""
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
    """Forgets what is old, a little at a time, until cancelled."""
    care = stores.care

    async def repeat(forget: Callable[..., Awaitable[object]], age: timedelta) -> None:
        before = clock.now() - age
        while await forget(before=before, limit=AT_ONCE):
            await clock.sleep(PAUSE_S)

    while True:
        config = current()
        ages = [(one.id, one.context.expire_days) for one in config.agents]
        expiring = [(agent_id, timedelta(days=days)) for agent_id, days in ages if days is not None]
        try:
            await repeat(care.sweep, timedelta(days=config.store.journal_days))
            await repeat(stores.channels.forget_received, SENT_AGAIN)
            for agent_id, age in expiring:
                await repeat(partial(care.expire, agent_id), age)
        except StoreUnavailable as error:
            log.warning("sweep_failed", extra={"why": str(error)})
        await clock.sleep(EVERY_S)
