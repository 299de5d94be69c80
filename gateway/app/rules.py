"""The rules in force, kept as the files of `rules_dir` have them."""

import logging
from pathlib import Path

from anyio import to_thread

from gateway.config.rules import RuleReader
from gateway.config.values import GatewayConfig, RuleFolder
from gateway.control.rules.compiling import problems_of
from gateway.control.rules.engine import RuleSet, load_rules
from gateway.domain.ports import Clock

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


def rule_set(config: GatewayConfig, folder: RuleFolder | None) -> RuleSet:
    if folder is None:
        return load_rules(config.rules)
    return load_rules((*config.rules, *folder.rules), folder.refused)


class Rulebook:
    """A run keeps the rules that it began with."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._taken = {rule.id: rule for rule in config.rules}
        self.current = rule_set(config, config.rule_folder)

    async def keep_fresh(self) -> None:
        """Reads the folder now, and whenever a file there is another; runs until cancelled."""
        folder = self._config.rule_folder
        before: object = None
        while folder:
            now = await to_thread.run_sync(_stamps, folder.path)
            if now != before:
                self._take(await to_thread.run_sync(self._read, folder.path))
            before = now
            await self._clock.sleep(LOOK_EVERY_S)

    def _read(self, path: Path) -> RuleFolder:
        return RuleReader(problems_of).folder(path, self._taken)

    def _take(self, folder: RuleFolder) -> None:
        fresh = rule_set(self._config, folder)
        fresh.follow(self.current)
        self.current = fresh
        for one in folder.refused:
            log.warning("a file of rules is refused", extra={"file": one.file, "why": one.why})
        log.info("rules are read", extra={"folder": str(folder.path), "rules": len(folder.rules)})


def _stamps(folder: Path) -> dict[Path, tuple[int, int, int]]:
    found = {}
    for path in folder.glob("*.toml"):
        try:
            stat = path.stat()
        except OSError:
            continue  # it went away just now
        found[path] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    return found
