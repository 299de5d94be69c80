"""What a generation does beside serving: it follows files, probes the store, forgets what is old."""

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from anyio import to_thread

from gateway.app.generation import rule_set
from gateway.config.rules import RuleReader
from gateway.config.values import GatewayConfig
from gateway.control.rules import CurrentRules, problems_of
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import Clock, Stores
from gateway.host.files import watch_folder

log = logging.getLogger(__name__)

EVERY_S = 3600.0
AT_ONCE = 500
PAUSE_S = 0.1
SENT_AGAIN = timedelta(days=8)  # no platform brings a message again after a week


async def keep_rules_fresh(config: GatewayConfig, current: CurrentRules, clock: Clock) -> None:
    """Reads the folder of rules now, and whenever a file there changes; without a folder it ends."""
    taken = {rule.id: rule for rule in config.rules}

    async def read(path: Path) -> None:
        folder = await to_thread.run_sync(RuleReader(problems_of).folder, path, taken)
        fresh = rule_set(config, folder)
        fresh.keep_faults(current.now)
        current.now = fresh
        for one in folder.refused:
            log.warning("a file of rules is refused", extra={"file": one.file, "why": one.why})
        log.info("rules are read", extra={"folder": str(folder.path), "rules": len(folder.rules)})

    if config.rule_folder is not None:
        path = config.rule_folder.path
        await watch_folder(path, "*.toml", clock, partial(read, path))


async def sweep(config: GatewayConfig, stores: Stores, clock: Clock) -> None:
    """Forgets what is old, a little at a time, until cancelled."""
    care, ages = stores.care, [(one.id, one.context.expire_days) for one in config.agents]
    expiring = [(agent_id, timedelta(days=days)) for agent_id, days in ages if days is not None]

    async def repeat(forget: Callable[..., Awaitable[object]], age: timedelta) -> None:
        before = clock.now() - age
        while await forget(before=before, limit=AT_ONCE):
            await clock.sleep(PAUSE_S)

    while True:
        try:
            await repeat(care.sweep, timedelta(days=config.store.journal_days))
            await repeat(stores.channels.forget_heard, SENT_AGAIN)
            for agent_id, age in expiring:
                await repeat(partial(care.expire, agent_id), age)
        except StoreUnavailable as error:
            log.warning("what is old stays for now", extra={"why": str(error)})
        await clock.sleep(EVERY_S)
