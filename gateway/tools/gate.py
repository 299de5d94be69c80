"""The one gate in front of every tool: listed for the agent, known, valid, within its time."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from gateway.domain.agents import AgentDef
from gateway.domain.errors import ToolFailed
from gateway.domain.messages import ToolCall, ToolResult
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Clock, Decode, SchemaCheck, Tool, ToolScope

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Checked:
    tool: Tool
    problem: Callable[[object], str | None]


class ToolGate:
    """Whatever goes wrong behind it comes back as a result that tells the model what to do."""

    def __init__(
        self, tools: Sequence[Tool], *, schemas: SchemaCheck, decode: Decode, clock: Clock
    ) -> None:
        self._tools = {
            tool.spec.name: _Checked(tool, schemas.compile(tool.spec.parameters)) for tool in tools
        }
        self._decode = decode
        self._clock = clock

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]:
        """What the model of this agent is told of, in the order of its list."""
        return tuple(self._tools[name].tool.spec for name in agent.tools if name in self._tools)

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        began = self._clock.monotonic()
        try:
            with anyio.fail_after(agent.limits.tool_timeout_s):
                content, is_error = await self._attempt(agent, call, scope), False
        except ToolFailed as error:
            content, is_error = str(error), True
        except TimeoutError:
            limit = agent.limits.tool_timeout_s
            content, is_error = f"{call.name} did not answer within {limit:g} s.", True
        took_ms = (self._clock.monotonic() - began) * 1000
        if is_error:
            log.info("tool failed", extra={"tool": call.name, "why": content})
        return ToolResult(call.id, call.name, content, is_error, round(took_ms, 3))

    async def _attempt(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> str:
        known = self._tools.get(call.name) if call.name in agent.tools else None
        if known is None:
            names = ", ".join(spec.name for spec in self.offered(agent)) or "none"
            raise ToolFailed(f"There is no tool {call.name[:64]!r}. Available tools: {names}.")
        return await known.tool.call(self._arguments(call, known), scope)

    def _arguments(self, call: ToolCall, known: _Checked) -> Mapping[str, object]:
        try:
            arguments = self._decode(call.arguments or "{}")
        except ValueError as error:
            raise ToolFailed(
                f"The arguments of {call.name} are not valid JSON ({error}). Call it again."
            ) from error
        if not isinstance(arguments, dict):
            raise ToolFailed(f"The arguments of {call.name} have to be a JSON object.")
        problem = known.problem(arguments)
        if problem is not None:
            raise ToolFailed(f"The arguments of {call.name} are not valid: {problem}")
        return arguments
