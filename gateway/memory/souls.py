"""Souls and prompt templates: read at start, reloaded when their files change; a bad version is not
used."""

import logging
from collections.abc import Mapping, Sequence

from gateway.domain.agents import Soul, Template, TemplateInvalid, compile_prompt
from gateway.domain.errors import SoulUnreadable
from gateway.domain.ids import AgentId
from gateway.domain.messages import estimate_tokens
from gateway.domain.ports import Clock, Texts

log = logging.getLogger(__name__)

LONG_SOUL_TOKENS = 1_500  # it is sent with every single call


class Souls:
    """`paths` and `templates` name the files of each agent; templates are optional."""

    def __init__(
        self,
        texts: Texts,
        paths: Mapping[AgentId, str],
        *,
        clock: Clock,
        templates: Mapping[AgentId, str] | None = None,
    ) -> None:
        self._texts = texts
        self._clock = clock
        self._paths = dict(paths)
        self._template_paths = dict(templates or {})
        self.by_agent: dict[AgentId, Soul] = {}
        self.templates: dict[AgentId, Template] = {}
        self._problems: dict[str, str] = {}

    async def load(self) -> None:
        """Reads every file; raises SoulUnreadable for the first that cannot be used."""
        for path in self._files():
            await self._read(path)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why newer versions of files are not in use."""
        return tuple(self._problems.values())

    async def keep_fresh(self) -> None:
        """Watches the files until cancelled."""
        await self._texts.watch(sorted(self._files()), self.refresh)

    def _files(self) -> Sequence[str]:
        return [*dict.fromkeys((*self._paths.values(), *self._template_paths.values()))]

    async def refresh(self, path: str) -> None:
        """Loads the new version of a file. A bad one is logged and changes nothing."""
        before = {agent: soul.content for agent, soul in self.by_agent.items()}
        try:
            await self._read(path)
        except SoulUnreadable as error:
            self._problems[path] = f"{error}; the version before stays in use"
            log.warning("text not reloaded", extra={"path": path, "why": str(error)})
            return
        self._problems.pop(path, None)
        for agent, soul in self.by_agent.items():
            if soul.content != before[agent]:
                log.info("soul reloaded", extra={"agent": agent, "tokens": soul.token_count})
        if path in self._template_paths.values():
            log.info("prompt template reloaded", extra={"path": path})

    async def _read(self, path: str) -> None:
        """Loads a file for each agent that uses it as soul or template. Raises SoulUnreadable."""
        content, now = await self._texts.read(path), self._clock.now()
        for agent in [agent for agent, its in self._template_paths.items() if its == path]:
            try:
                self.templates[agent] = compile_prompt(content)
            except TemplateInvalid as error:
                raise SoulUnreadable(f"{path}:{error}") from error
        tokens = estimate_tokens(content)
        for agent in [agent for agent, its_path in self._paths.items() if its_path == path]:
            if tokens > LONG_SOUL_TOKENS:
                log.warning("soul is long", extra={"agent": agent, "tokens": tokens})
            known = self.by_agent.get(agent)
            if known is None or known.content != content:
                self.by_agent[agent] = Soul(agent, content, tokens, path, now)
