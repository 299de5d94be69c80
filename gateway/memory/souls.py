"""Souls: read at start, used from the next turn on when they change; a bad version changes nothing."""

import logging
from collections.abc import Mapping

from gateway.domain.errors import SoulUnreadable
from gateway.domain.ids import AgentId
from gateway.domain.ports import Clock, Texts
from gateway.domain.souls import Soul
from gateway.domain.tokens import estimate_tokens

log = logging.getLogger(__name__)

LONG_SOUL_TOKENS = 1_500  # it is sent with every single call


class Souls:
    def __init__(self, texts: Texts, paths: Mapping[AgentId, str], *, clock: Clock) -> None:
        """Reads every soul; raises SoulUnreadable for the first that cannot be read."""
        self._texts = texts
        self._clock = clock
        self._paths = dict(paths)
        self._souls = {agent: self._read(agent, path) for agent, path in paths.items()}
        self._problems: dict[str, str] = {}

    def of(self, agent: AgentId) -> Soul | None:
        return self._souls.get(agent)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why a newer version of a soul is not in use."""
        return tuple(self._problems.values())

    async def keep_fresh(self) -> None:
        """Follows the files until cancelled."""
        await self._texts.watch(sorted(set(self._paths.values())), self.refresh)

    def refresh(self, path: str) -> None:
        for agent, its_path in self._paths.items():
            if its_path == path:
                self._take(agent, path)

    def _take(self, agent: AgentId, path: str) -> None:
        try:
            soul = self._read(agent, path)
        except SoulUnreadable as error:
            self._problems[path] = f"{error}; the version before stays in use"
            log.warning("soul not reloaded", extra={"agent": agent, "why": str(error)})
            return
        self._problems.pop(path, None)
        if soul.content != self._souls[agent].content:
            self._souls[agent] = soul
            log.info("soul reloaded", extra={"agent": agent, "tokens": soul.token_count})

    def _read(self, agent: AgentId, path: str) -> Soul:
        content = self._texts.read(path)
        tokens = estimate_tokens(content)
        if tokens > LONG_SOUL_TOKENS:
            log.warning("soul is long", extra={"agent": agent, "tokens": tokens})
        return Soul(agent, content, tokens, path, self._clock.now())
