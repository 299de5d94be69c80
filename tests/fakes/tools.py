"""Tools for tests, and the schema check that lets everything through."""

import json
from collections.abc import Awaitable, Callable, Mapping

from gateway.domain.messages import Spent
from gateway.domain.model import ToolSpec
from gateway.domain.ports import ToolScope

Act = Callable[[Mapping[str, object]], Awaitable[str]]
ANYTHING = '{"type":"object","properties":{}}'


async def _echo(arguments: Mapping[str, object]) -> str:
    return json.dumps(arguments)


class FakeTool:
    """A tool; `family` is the plugin that it comes from, `spends` what a model used for each call."""

    def __init__(
        self,
        name: str = "echo",
        act: Act = _echo,
        *,
        family: str = "",
        agent_scope: tuple[str, ...] = (),
        parameters: str = ANYTHING,
        category: str | None = None,
        timeout_s: float | None = None,
        spends: Spent | None = None,
        may_repeat: bool = True,
    ) -> None:
        told = f"The tool {name}."
        told_of = (name, told, parameters, family, category, agent_scope, timeout_s)
        self.spec = ToolSpec(*told_of, may_repeat=may_repeat)
        self._act, self._spends = act, spends
        self.calls: list[tuple[Mapping[str, object], ToolScope]] = []

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        self.calls.append((arguments, scope))
        if self._spends is not None:
            scope.spend(self._spends)
        return await self._act(arguments)


class NoSchemas:
    """Finds nothing wrong, unless a field named `bad` is given."""

    def compile(self, schema: str) -> Callable[[object], str | None]:
        json.loads(schema)

        def problem(value: object) -> str | None:
            return "bad: is not allowed" if isinstance(value, dict) and "bad" in value else None

        return problem
