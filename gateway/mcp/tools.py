"""The tools of an MCP server: names, bounds and pins for the gate; results as text."""

import json
import logging
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

import anyio.lowlevel
import mcp_types as types
from mcp.shared.exceptions import MCPError

from gateway.domain.errors import Denied, ToolFailed
from gateway.domain.mcp import FAMILY, McpServerDef
from gateway.domain.model import ToolSpec
from gateway.domain.ports import PluginSpace, SchemaCheck, ToolScope, ToolStore
from gateway.mcp.transports import current_trace

# -------------------------------------------------------------------------- names and descriptions
LONGEST_NAME = 64
_KEPT = 55  # characters of a longer name, before _ and 8 letters of its digest
_ODD = re.compile(r"[^A-Za-z0-9_-]")


def exposed_name(server: str, tool: str) -> str:
    """Returns the name of a server's tool in the gate; the same inputs give the same name."""
    name = _ODD.sub("_", f"{server}__{tool}")
    if not (name[0].isalpha() or name[0] == "_"):
        name = f"_{name}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = sha256(f"{server}/{tool}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:_KEPT]}_{digest[:8]}"


LONGEST_DESCRIPTION = 1_024


def describe(server: str, text: str) -> str:
    """Returns a tool's description as one short line that names its source."""
    line = " ".join(_visible(text).split())
    if len(line) > LONGEST_DESCRIPTION:
        line = f"{line[: LONGEST_DESCRIPTION - 1]}…"
    return f"(from the MCP server {server}) {line or 'It has no description.'}"


def _visible(text: str) -> str:
    """Removes invisible characters and characters that change the direction of text."""
    spaced = (" " if one.isspace() else one for one in text[: 64 * LONGEST_DESCRIPTION])
    return "".join(one for one in spaced if unicodedata.category(one)[0] != "C")


# ----------------------------------------------------------------------------------------- results
Problem = Callable[[object], str | None]


def render_result(result: types.CallToolResult, problem: Problem | None = None) -> str:
    """Returns a result as text. Raises ToolFailed if it is an error or violates the tool's output
    schema, which `problem` checks."""
    text = "\n\n".join(_part(one) for one in result.content)
    if result.is_error:
        raise ToolFailed(text or "The tool failed without a reason.")
    facts = result.structured_content
    wrong = problem(facts) if problem and facts is not None else None
    if wrong:
        raise ToolFailed(f"The tool's result does not match its output schema: {wrong}.")
    if not text and facts is not None:
        return json.dumps(facts, ensure_ascii=False)
    return text


def _part(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent() | types.AudioContent():
            return _placeholder(part.mime_type, part.data)
        case types.ResourceLink():
            return f"[resource: {part.name} {part.uri}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as inner):
            return inner.text
        case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
            return _placeholder(blob.mime_type or "unknown type", blob.blob)
    raise ToolFailed("The tool returned content of an unknown type.")


def _placeholder(kind: str, packed: str) -> str:
    """Replaces binary content by its type and size, which needs no decoding of the base64."""
    size = len(packed) * 3 // 4 - packed[-2:].count("=")
    return f"[{kind}, {size} bytes: not shown]"


# -------------------------------------------------------------------------------------------- pins
log = logging.getLogger(__name__)

MOST_NAMES = 1_024  # of one server until a restart, because some servers keep inventing names

Seen = Literal["as before", "changed before", "changed now", "one too many"]


@dataclass(slots=True)
class Pins:
    """The digests of one server's tools by their names in the gate. A changed tool is withheld until
    a restart that finds the digest that was reported before."""

    server: str
    store: ToolStore
    _now: dict[str, str] = field(default_factory=dict)
    _changed: dict[str, str] = field(default_factory=dict)  # new digests of changed tools

    async def check(self, name: str, digest: str) -> Seen:
        """Compares a tool with its pin, and pins a new tool."""
        if name not in self._now:
            if len(self._now) >= MOST_NAMES:
                return "one too many"
            kept = await self.store.get(PluginSpace(self._owner, "pins"), name)
            self._now[name] = kept or digest
            if kept is None:
                await self._keep("pins", name, digest)
            elif kept != digest:
                next_ = PluginSpace(self._owner, "changed")
                if await self.store.get(next_, name) == digest:
                    self._now[name] = digest
                    await self._keep("pins", name, digest)
                    return "changed before"
        if self._now[name] == digest:
            return "as before"
        if self._changed.get(name) != digest:
            self._changed[name] = digest
            await self._keep("changed", name, digest)
        return "changed now"

    @property
    def _owner(self) -> str:
        return f"mcp:{self.server}"

    async def _keep(self, namespace: str, name: str, digest: str) -> None:
        try:
            await self.store.set(PluginSpace(self._owner, namespace), name, digest)
        except Denied as error:
            log.warning("mcp_pin_failed", extra={"tool": name, "why": str(error)})


def digest_of(tool: types.Tool) -> str:
    parts = [tool.name, tool.description, tool.input_schema, tool.output_schema]
    text = json.dumps(parts, sort_keys=True)
    return sha256(text.encode()).hexdigest()


# ------------------------------------------------------------------------------------------- tools
LONGEST_WHY = 1_000


# Raises ToolFailed, or MCPError and ValueError for another answer of the server.
Call = Callable[["McpTool", Mapping[str, object], str], Awaitable[types.CallToolResult]]


@dataclass(frozen=True, slots=True)
class McpTool:
    server: McpServerDef
    forward: Call
    remote_name: str
    spec: ToolSpec
    digest: str
    problem: Problem | None = None

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        current_trace.set(scope.trace.header(scope.part) if scope.trace else None)
        try:
            result = await self.forward(self, arguments, scope.principal)
            return self.server.scrubbed(render_result(result, self.problem))
        except ToolFailed as error:
            raise ToolFailed(self.server.scrubbed(str(error))) from error
        except MCPError as error:
            why = self.server.scrubbed(str(error))[:LONGEST_WHY]
            raise ToolFailed(f"{self.spec.name}: {why}") from error
        except ValueError as error:
            log.info("mcp_answer_unreadable", extra={"tool": self.spec.name})
            why = "returned an unreadable answer, or made a request that is not supported"
            raise ToolFailed(f"{self.spec.name} {why}.") from error


def tool_of(server: McpServerDef, forward: Call, tool: types.Tool, schemas: SchemaCheck) -> McpTool:
    name, hints = exposed_name(server.name, tool.name), tool.annotations
    parameters = server.scrubbed(json.dumps(tool.input_schema))
    family = f"{FAMILY}{server.name}/{tool.name}"
    may_repeat = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
    text = describe(server.name, server.scrubbed(tool.description or ""))
    spec = ToolSpec(name, text, parameters, family=family, may_repeat=may_repeat)
    return McpTool(server, forward, tool.name, spec, digest_of(tool), _output_check(tool, schemas))


def _output_check(tool: types.Tool, schemas: SchemaCheck) -> Problem | None:
    """Returns the check of a tool's output schema; None without one, or if it is invalid."""
    if tool.output_schema is None:
        return None
    try:
        return schemas.compile(json.dumps(tool.output_schema))
    except ValueError:
        return None


# ----------------------------------------------------------------------------------------- listing
MOST_SCHEMAS = 512 * 1024  # characters of all tools of a server


@dataclass(slots=True)
class Listing:
    """Turns a server's list into tools; `report_change` is called for a tool that differs from its
    pin."""

    server: McpServerDef
    forward: Call
    schemas: SchemaCheck
    store: ToolStore
    report_change: Callable[[Mapping[str, object]], Awaitable[None]]
    _pins: Pins = field(init=False)
    _reported: set[tuple[str, bool]] = field(default_factory=set)  # changed tools; if withheld

    def __post_init__(self) -> None:
        self._pins = Pins(self.server.name, self.store)

    async def accept(
        self, listed: Sequence[types.Tool], before: Sequence[McpTool]
    ) -> tuple[McpTool, ...]:
        """Returns the first tool of each name, within the bound of all schemas. Unchanged tools of
        `before` are reused."""
        known = {one.digest: one for one in before}
        found: dict[str, McpTool] = {}
        size = 0
        for one in listed:
            await anyio.lowlevel.checkpoint()  # a schema may take ten milliseconds
            size += len(json.dumps([one.input_schema, one.output_schema]))
            if size > MOST_SCHEMAS:
                log.warning("mcp_tools_dropped", extra={"server": self.server.name})
                break
            tool = known.get(digest_of(one)) or tool_of(
                self.server, self.forward, one, self.schemas
            )
            found.setdefault(tool.spec.name, tool)
        return tuple([one for one in found.values() if await self._is_offered(one)])

    async def _is_offered(self, tool: McpTool) -> bool:
        seen = await self._pins.check(tool.spec.name, tool.digest)
        if seen == "one too many":
            return False
        withheld = seen == "changed now"
        if seen != "as before" and (tool.spec.name, withheld) not in self._reported:
            self._reported.add((tool.spec.name, withheld))
            facts = {"server": self.server.name, "tool": tool.spec.name, "withheld": withheld}
            await self.report_change(facts)
        return not withheld
