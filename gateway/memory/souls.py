"""Souls and prompt templates: read at start, used from the next turn on when they change; a bad version
changes nothing."""

import logging
from collections.abc import Mapping

from gateway.domain.agents import Soul, Template, TemplateInvalid, compile_prompt
from gateway.domain.errors import SoulUnreadable
from gateway.domain.ids import AgentId
from gateway.domain.messages import estimate_tokens
from gateway.domain.ports import Clock, Texts

log = logging.getLogger(__name__)

LONG_SOUL_TOKENS = 1_500  # it is sent with every single call


class Souls:
    """`paths` and `templates`: the files of each agent; only some have a template."""

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
        self._souls: dict[AgentId, Soul] = {}
        self._templates: dict[str, Template] = {}
        self._problems: dict[str, str] = {}

    async def load(self) -> None:
        """Reads every file; raises SoulUnreadable for the first that cannot be used."""
        for agent, path in self._paths.items():
            self._souls[agent] = await self._read(agent, path)
        for path in set(self._template_paths.values()):
            self._templates[path] = await self._read_template(path)

    def of(self, agent: AgentId) -> Soul | None:
        return self._souls.get(agent)

    def template_of(self, agent: AgentId) -> Template | None:
        path = self._template_paths.get(agent)
        return None if path is None else self._templates[path]

    @property
    def problems(self) -> tuple[str, ...]:
        """Why a newer version of a file is not in use."""
        return tuple(self._problems.values())

    async def keep_fresh(self) -> None:
        """Follows the files until cancelled."""
        files = {*self._paths.values(), *self._template_paths.values()}
        await self._texts.watch(sorted(files), self.refresh)

    async def refresh(self, path: str) -> None:
        """Takes the new version of a text; a bad one is told and changes nothing."""
        for agent, its_path in self._paths.items():
            if its_path == path:
                await self._take(agent, path)
        if path in self._templates:
            await self._take_template(path)

    async def _take_template(self, path: str) -> None:
        try:
            self._templates[path] = await self._read_template(path)
        except SoulUnreadable as error:
            self._refuse(path, error)
            return
        self._problems.pop(path, None)
        log.info("prompt template reloaded", extra={"path": path})

    def _refuse(self, path: str, error: SoulUnreadable) -> None:
        self._problems[path] = f"{error}; the version before stays in use"
        log.warning("text not reloaded", extra={"path": path, "why": str(error)})

    async def _take(self, agent: AgentId, path: str) -> None:
        try:
            soul = await self._read(agent, path)
        except SoulUnreadable as error:
            self._refuse(path, error)
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

    async def _read_template(self, path: str) -> Template:
        try:
            return compile_prompt(await self._texts.read(path))
        except TemplateInvalid as error:
            raise SoulUnreadable(f"{path}:{error}") from error
