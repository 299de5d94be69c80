"""What a generation does beside serving: it follows files, probes the store, forgets what is old."""

import logging
from datetime import timedelta
from functools import partial
from pathlib import Path

from anyio import to_thread

from gateway.app.generation import Generation, rule_set
from gateway.config.rules import RuleReader
from gateway.config.values import GatewayConfig
from gateway.control.rules import RuleSet, problems_of
from gateway.domain.errors import StoreUnavailable
from gateway.domain.ports import Clock, Stores
from gateway.host.texts import watch_folder

log = logging.getLogger(__name__)

EVERY_S = 3600.0
AT_ONCE = 500
PAUSE_S = 0.1
SENT_AGAIN = timedelta(days=8)  # no platform brings a message again after a week


class Rulebook:
    """The rules of now. A run keeps the rules that it began with."""

    def __init__(self, made: Generation, clock: Clock) -> None:
        self._config, self._clock = made.config, clock
        self._taken = {rule.id: rule for rule in made.config.rules}
        self.current = made.rules

    def now(self) -> RuleSet:
        return self.current

    async def keep_fresh(self) -> None:
        """Reads the folder now, and whenever a file there changes; without a folder it ends."""
        if self._config.rule_folder is not None:
            folder = self._config.rule_folder.path
            await watch_folder(folder, "*.toml", self._clock, partial(self._read, folder))

    async def _read(self, path: Path) -> None:
        reader = RuleReader(problems_of)
        folder = await to_thread.run_sync(reader.folder, path, self._taken)
        fresh = rule_set(self._config, folder)
        fresh.keep_faults(self.current)
        self.current = fresh
        for one in folder.refused:
            log.warning("a file of rules is refused", extra={"file": one.file, "why": one.why})
        log.info("rules are read", extra={"folder": str(folder.path), "rules": len(folder.rules)})


async def sweep(config: GatewayConfig, stores: Stores, clock: Clock) -> None:
    """Forgets what is old, a little at a time, until cancelled."""
    while True:
        try:
            await _sweep_once(config, stores, clock)
        except StoreUnavailable as error:
            log.warning("what is old stays for now", extra={"why": str(error)})
        await clock.sleep(EVERY_S)


async def _sweep_once(config: GatewayConfig, stores: Stores, clock: Clock) -> None:
    before = clock.now() - timedelta(days=config.store.journal_days)
    while await stores.care.sweep(before=before, limit=AT_ONCE):
        await clock.sleep(PAUSE_S)
    while await stores.channels.forget_heard(before=clock.now() - SENT_AGAIN, limit=AT_ONCE):
        await clock.sleep(PAUSE_S)
    for agent in config.agents:
        days = agent.context.expire_days
        if days is None:
            continue
        before = clock.now() - timedelta(days=days)
        while await stores.care.expire(agent.id, before=before, limit=AT_ONCE):
            await clock.sleep(PAUSE_S)
