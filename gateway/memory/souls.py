"""The souls and prompt templates of one generation's agents."""

import logging
from collections.abc import Mapping, Sequence

from gateway.domain.agents import Soul, Template, TemplateInvalid, compile_prompt
from gateway.domain.errors import SoulUnreadable
from gateway.domain.ids import AgentId
from gateway.domain.messages import estimate_tokens
from gateway.domain.ports import Clock, Texts

log = logging.getLogger(__name__)

LONG_SOUL_TOKENS = 1_500  # every call sends it


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

    @property
    def files(self) -> Sequence[str]:
        return [*dict.fromkeys((*self._paths.values(), *self._template_paths.values()))]

    async def load(self) -> None:
        """Reads every file; raises SoulUnreadable for the first that cannot be used."""
        for path in self.files:
            await self.read(path)

    async def read(self, path: str) -> None:
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
                log.warning("soul_long", extra={"agent": agent, "tokens": tokens})
            self.by_agent[agent] = Soul(agent, content, tokens, path, now)
