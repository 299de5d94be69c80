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
        self._texts = texts
        self._clock = clock
        self._paths = dict(paths)
        self._souls: dict[AgentId, Soul] = {}
        self._problems: dict[str, str] = {}

    async def load(self) -> None:
        """Reads every soul; raises SoulUnreadable for the first that cannot be read."""
        for agent, path in self._paths.items():
            self._souls[agent] = await self._read(agent, path)

    def of(self, agent: AgentId) -> Soul | None:
        return self._souls.get(agent)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why a newer version of a soul is not in use."""
        return tuple(self._problems.values())

    async def keep_fresh(self) -> None:
        """Follows the files until cancelled."""
        await self._texts.watch(sorted(set(self._paths.values())), self.refresh)

    async def refresh(self, path: str) -> None:
        """Takes the new version of a text; a bad one is told and changes nothing."""
        for agent, its_path in self._paths.items():
            if its_path == path:
                await self._take(agent, path)

    async def _take(self, agent: AgentId, path: str) -> None:
        try:
            soul = await self._read(agent, path)
        except SoulUnreadable as error:
            self._problems[path] = f"{error}; the version before stays in use"
            log.warning("soul not reloaded", extra={"agent": agent, "why": str(error)})
            return
        self._problems.pop(path, None)
        if soul.content != self._souls[agent].content:
            self._souls[agent] = soul
            log.info("soul reloaded", extra={"agent": agent, "tokens": soul.token_count})

    async def _read(self, agent: AgentId, path: str) -> Soul:
        content = await self._texts.read(path)
        tokens = estimate_tokens(content)
        if tokens > LONG_SOUL_TOKENS:
            log.warning("soul is long", extra={"agent": agent, "tokens": tokens})
        return Soul(agent, content, tokens, path, self._clock.now())
