"""The gate in front of every tool. It checks that a tool is listed, known and called with valid arguments,
limits its time, and shortens its result for the model."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex

import anyio

from gateway.codec import decode_strictly
from gateway.domain.agents import RESULT, AgentDef, Original
from gateway.domain.errors import StoreUnavailable, ToolFailed
from gateway.domain.ids import SessionKey
from gateway.domain.mcp import McpServers, NoServers, UnreachableServer
from gateway.domain.messages import (
    BYTES_A_TOKEN,
    Excerpt,
    Spent,
    ToolCall,
    ToolResult,
    estimate_tokens,
)
from gateway.domain.model import ToolSpec
from gateway.domain.ports import Clock, SchemaCheck, Tool, ToolScope, ToolStore
from gateway.tools import results
from gateway.tools.results import MOST_KEPT, MOST_RESULT, NOTHING, Listed, reference_of

log = logging.getLogger(__name__)

LOGGED_WHY = 300
MARKER_TOKENS = 100  # for the marker and the boundary of a large result
MOST_LISTS = 1_000  # cached lists of offered tools
ASK_LESS = "Ask it for less, or go on without it."
MAY_BE_DONE = "It may have been carried out all the same: look before you call it again."
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # every provider accepts these


new_boundary = partial(token_hex, 8)


@dataclass(frozen=True, slots=True)
class RefusedTool:
    """A tool that is offered to no agent, and the reason."""

    name: str
    family: str
    why: str


@dataclass(frozen=True, slots=True)
class _Checked:
    tool: Tool
    spec: ToolSpec
    problem: Callable[[object], str | None]


class ToolGate:
    """Turns every failure of a tool into a result that tells the model what to do.

    Without `originals` no large result is kept whole, and its marker names no reference.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        schemas: SchemaCheck,
        clock: Clock,
        originals: ToolStore | None = None,
        boundary: Callable[[], str] = new_boundary,
    ) -> None:
        self.boundary, self._originals = boundary, originals
        self._schemas, self._clock = schemas, clock
        self._tools: dict[str, _Checked] = {}
        self._families: dict[str, list[str]] = {}
        self.refused: Sequence[RefusedTool] = ()  # the tools that are offered to no agent
        self._to_forget: set[SessionKey] = set()  # sessions of runs that are not kept
        self._offered: dict[object, tuple[ToolSpec, ...]] = {}  # by agent and list
        self.foreign: McpServers = NoServers()
        for tool in tools:
            self.register(tool)

    def offered(self, agent: AgentDef) -> tuple[ToolSpec, ...]:
        """Returns the tools of the agent in the order of its list; a family's tools in their own order."""
        wanted = (agent.id, agent.tools)
        found = self._offered.get(wanted)
        if found is None:
            if len(self._offered) >= MOST_LISTS:
                self._offered.clear()
            found = self._offered[wanted] = tuple(one.spec for one in self._of(agent).values())
        return found

    async def call(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        return await self.shorten(agent, await self.call_whole(agent, call, scope), scope)

    async def call_whole(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> ToolResult:
        """Returns the whole result of a call."""
        began, spent, report = self._clock.monotonic(), list[Spent](), scope.spend
        known = self._tools.get(call.name)
        own = known.spec.timeout_s if known else None
        limit = agent.limits.tool_timeout_s if own is None else own

        def spend(one: Spent) -> None:
            spent.append(one)
            report(one)  # at once: the run may no longer wait for the result

        scope = replace(scope, call_id=call.id, spend=spend)
        try:
            with anyio.fail_after(limit):
                content, is_error = await self._attempt(agent, call, scope), False
        except ToolFailed as error:
            content, is_error = str(error), True
        except TimeoutError:
            hint = ASK_LESS if known is None or known.spec.may_repeat else MAY_BE_DONE
            content, is_error = f"{call.name} did not answer within {limit:g} s. {hint}", True
        took_ms = (self._clock.monotonic() - began) * 1000
        if is_error:
            log.info("tool_failed", extra={"tool": call.name, "why": content[:LOGGED_WHY]})
        outcome = (content, is_error, round(took_ms, 3), tuple(spent))
        return ToolResult(call.id, call.name, *outcome, boundary=self.boundary())

    async def shorten(self, agent: AgentDef, result: ToolResult, scope: ToolScope) -> ToolResult:
        """Returns the result in the form for the model. The conversation keeps up to MOST_RESULT
        characters."""
        most = agent.context.token_budget // results.RESULT_SHARE
        if result.name == RESULT or estimate_tokens(result.content) <= most:
            return results.cut_end(result, MOST_RESULT)
        content, size = result.content[:MOST_KEPT], len(result.content)
        reference = await self._keep(replace(result, content=content), scope)
        quarter = int((most - MARKER_TOKENS) * BYTES_A_TOKEN) // 4
        head, tail = results.ends_within(content, 3 * quarter, quarter)
        excerpt = Excerpt(head, tail, size, reference)
        if size > MOST_RESULT:
            content = replace(excerpt, head=MOST_RESULT // 2, tail=MOST_RESULT // 2).of(content)
        return replace(result, content=content, excerpt=excerpt)

    async def _keep(self, result: ToolResult, scope: ToolScope) -> str:
        """Keeps the whole result. Returns its reference; an empty text if it is not kept."""
        if self._originals is None:
            return ""
        key, now = scope.session_key, self._clock.now()
        reference = reference_of(scope.run_id, result.call_id)
        one = Original(reference, key, scope.run_id, result.name, result.content, now)
        try:
            await self._originals.keep_original(one)
        except StoreUnavailable as error:
            log.warning("tool_result_not_saved", extra={"tool": result.name, "why": str(error)})
            return ""
        if not scope.is_kept:
            self._to_forget.add(key)
        return reference

    async def forget(self, key: SessionKey) -> None:
        """Deletes the results of a run that is not kept. Raises StoreUnavailable."""
        if self._originals is not None and key in self._to_forget:
            self._to_forget.discard(key)
            await self._originals.forget_originals(key)

    async def prepare(self, agent: AgentDef) -> Sequence[UnreachableServer]:
        """Connects the agent's tool servers for a turn. Returns the missing ones."""
        return await self.foreign.prepare(agent)

    def renew(self, family: str, tools: Sequence[Tool]) -> None:
        """Replaces the tools of a family. Calls in progress end with the old tool."""
        self._offered.clear()
        for name in self._families.pop(family, ()):
            self._families.pop(self._tools.pop(name).spec.family, None)
        self.refused = [one for one in self.refused if family not in _families(one.family)]
        for tool in tools:
            self.register(tool)

    def listed(self, result: ToolResult) -> Listed:
        """Returns the sources of a result, and the number of its entries."""
        return NOTHING if result.is_error else results.listed(result.content)

    def register(self, tool: Tool) -> None:
        """Registers a tool. An invalid one is refused with the reason."""
        self._offered.clear()
        spec = tool.spec
        try:
            self._tools[spec.name] = _Checked(tool, spec, self._compiled(spec))
        except ValueError as error:
            self.refused = [*self.refused, RefusedTool(spec.name, spec.family, str(error))]
            log.warning("tool_refused", extra={"tool": spec.name[:64], "why": str(error)})
            return
        for family in _families(spec.family):
            self._families.setdefault(family, []).append(spec.name)

    def _compiled(self, spec: ToolSpec) -> Callable[[object], str | None]:
        """Compiles the check of the arguments. Raises ValueError if the tool is invalid."""
        if not _NAME.fullmatch(spec.name):
            raise ValueError("its name must be 1 to 64 letters, digits, - and _")
        if spec.name in self._tools:
            other = self._tools[spec.name].spec.family
            raise ValueError("the name is taken" + (f" by the plugin {other}" if other else ""))
        problem = self._schemas.compile(spec.parameters)
        schema = decode_strictly(spec.parameters)
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise ValueError('its parameters must be a schema with "type": "object"')
        return problem

    def _of(self, agent: AgentDef) -> Mapping[str, _Checked]:
        """Returns the agent's tools by name."""
        names = (name for entry in agent.tools for name in self._named(entry))
        found = {name: self._tools[name] for name in names if name in self._tools}
        scopes = {name: one.spec.agent_scope for name, one in found.items()}
        return {name: found[name] for name, ids in scopes.items() if not ids or agent.id in ids}

    def _named(self, entry: str) -> Sequence[str]:
        """Returns the tools that an entry of the list names: a family, else a tool. FAMILY/TOOL names one
        tool of a family."""
        family, _, own = entry.partition("/")
        if entry in self._families or not own:
            return self._families.get(entry, (entry,))
        return [
            name for name in self._families.get(family, ()) if name in {own, f"{family}__{own}"}
        ]

    async def _attempt(self, agent: AgentDef, call: ToolCall, scope: ToolScope) -> str:
        tools = self._of(agent)
        # `result` is offered while something is shown in part.
        known = (self._tools if call.name == RESULT else tools).get(call.name)
        if known is None:
            names = ", ".join(tools) or "none"
            raise ToolFailed(f"There is no tool {call.name[:64]!r}. Available tools: {names}.")
        what = f"The arguments of {call.name}"
        try:
            arguments = decode_strictly(call.arguments or "{}")
        except ValueError as error:
            raise ToolFailed(f"{what} are not valid JSON ({error}). Call it again.") from error
        if not isinstance(arguments, dict):
            raise ToolFailed(f"{what} have to be a JSON object.")
        if (problem := known.problem(arguments)) is not None:
            raise ToolFailed(f"{what} are not valid: {problem}. Correct them and call it again.")
        return await known.tool.call(arguments, scope)


def _families(name: str) -> Sequence[str]:
    """Returns the families of a tool. A tool of a server belongs to the server's family and its own."""
    whole = name.partition("/")[0]
    return (whole, name) if whole != name else (name,) if name else ()
