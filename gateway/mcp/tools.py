"""The tools of a server: named, bounded and pinned as the gate takes them; results as text."""

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
_KEPT = 55  # of a longer one, before _ and 8 letters of its digest
_ODD = re.compile(r"[^A-Za-z0-9_-]")


def exposed(server: str, tool: str) -> str:
    """Always the same for the same two."""
    name = _ODD.sub("_", f"{server}__{tool}")
    if not (name[0].isalpha() or name[0] == "_"):
        name = f"_{name}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = sha256(f"{server}/{tool}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:_KEPT]}_{digest[:8]}"


LONGEST_DESCRIPTION = 1_024


def described(server: str, text: str | None) -> str:
    """One short line that says whose words it holds."""
    line = " ".join(_plain(text or "").split())
    if len(line) > LONGEST_DESCRIPTION:
        line = f"{line[: LONGEST_DESCRIPTION - 1]}…"
    return f"(from the MCP server {server}) {line or 'It does not say what it does.'}"


def _plain(text: str) -> str:
    """Without what is not seen, or turns around what is."""
    spaced = (" " if one.isspace() else one for one in text[: 64 * LONGEST_DESCRIPTION])
    return "".join(one for one in spaced if unicodedata.category(one)[0] != "C")


# ----------------------------------------------------------------------------------------- results
Problem = Callable[[object], str | None]


def told(result: types.CallToolResult, problem: Problem | None = None) -> str:
    """Raises ToolFailed if it is an error, or not what the tool promised."""
    text = "\n\n".join(_part(one) for one in result.content)
    if result.is_error:
        raise ToolFailed(text or "The tool failed and did not say why.")
    facts = result.structured_content
    wrong = problem(facts) if problem and facts is not None else None
    if wrong:
        raise ToolFailed(f"The tool gave a result that does not fit its own schema: {wrong}.")
    if not text and facts is not None:
        return json.dumps(facts, ensure_ascii=False)
    return text


def _part(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent() | types.AudioContent():
            return _unseen(part.mime_type, part.data)
        case types.ResourceLink():
            return f"[resource: {part.name} {part.uri}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as inner):
            return inner.text
        case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
            return _unseen(blob.mime_type or "unknown type", blob.blob)
    raise ToolFailed("The tool gave a result of a kind that is not known here.")


def _unseen(kind: str, packed: str) -> str:
    """The size of what base64 holds, without unpacking it."""
    size = len(packed) * 3 // 4 - packed[-2:].count("=")
    return f"[{kind}, {size} bytes: not shown]"


# -------------------------------------------------------------------------------------------- pins
log = logging.getLogger(__name__)

MOST_NAMES = 1_024  # of one server while we run: some have new ones all the time

Seen = Literal["as before", "changed before", "changed now", "one too many"]


@dataclass(slots=True)
class Pins:
    """Of one server, by the tool's name here. One that is not what it was, whether it changed while we
    run or before, is withheld until a start that finds what the start before has told."""

    server: str
    store: ToolStore
    _now: dict[str, str] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)  # what changed tools are now

    async def check(self, name: str, digest: str) -> Seen:
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
        if self._told.get(name) != digest:
            self._told[name] = digest
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


# Raises ToolFailed, or MCPError and ValueError with what was answered instead.
Call = Callable[["McpTool", Mapping[str, object], str], Awaitable[types.CallToolResult]]


@dataclass(frozen=True, slots=True)
class McpTool:
    server: McpServerDef
    forward: Call
    its_name: str
    spec: ToolSpec
    digest: str
    problem: Problem | None = None

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        current_trace.set(scope.trace.header(scope.part) if scope.trace else None)
        try:
            result = await self.forward(self, arguments, scope.principal)
            return self.server.scrubbed(told(result, self.problem))
        except ToolFailed as error:
            raise ToolFailed(self.server.scrubbed(str(error))) from error
        except MCPError as error:
            why = self.server.scrubbed(str(error))[:LONGEST_WHY]
            raise ToolFailed(f"{self.spec.name}: {why}") from error
        except ValueError as error:
            log.info("mcp_answer_unreadable", extra={"tool": self.spec.name})
            why = "gave an answer that cannot be read; it may have asked for what is not offered"
            raise ToolFailed(f"{self.spec.name} {why}.") from error


def size_of(tool: types.Tool) -> int:
    """Characters of its schemas."""
    return len(json.dumps([tool.input_schema, tool.output_schema]))


def tool_of(server: McpServerDef, forward: Call, tool: types.Tool, schemas: SchemaCheck) -> McpTool:
    name, hints = exposed(server.name, tool.name), tool.annotations
    takes = server.scrubbed(json.dumps(tool.input_schema))
    family = f"{FAMILY}{server.name}/{tool.name}"
    # The server says that a second call changes nothing.
    may_repeat = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
    what = described(server.name, server.scrubbed(tool.description or ""))
    spec = ToolSpec(name, what, takes, family=family, may_repeat=may_repeat)
    return McpTool(server, forward, tool.name, spec, digest_of(tool), _promised(tool, schemas))


def _promised(tool: types.Tool, schemas: SchemaCheck) -> Problem | None:
    """A promise that cannot be read binds nobody."""
    if tool.output_schema is None:
        return None
    try:
        return schemas.compile(json.dumps(tool.output_schema))
    except ValueError:
        return None


# ----------------------------------------------------------------------------------------- listing
MOST_SCHEMAS = 512 * 1024  # characters, of all its tools


@dataclass(slots=True)
class Listing:
    """`report_change` is told of a tool that is not what it was."""

    server: McpServerDef
    forward: Call
    schemas: SchemaCheck
    store: ToolStore
    report_change: Callable[[Mapping[str, object]], Awaitable[None]]
    _pins: Pins = field(init=False)
    _told: set[tuple[str, bool]] = field(default_factory=set)  # tools that changed; if withheld

    def __post_init__(self) -> None:
        self._pins = Pins(self.server.name, self.store)

    async def taken(
        self, listed: Sequence[types.Tool], before: Sequence[McpTool]
    ) -> tuple[McpTool, ...]:
        """The first of each name, as long as their schemas are not too many."""
        known = {one.digest: one for one in before}
        found: dict[str, McpTool] = {}
        size = 0
        for one in listed:
            await anyio.lowlevel.checkpoint()  # a schema may take ten milliseconds
            size += size_of(one)
            if size > MOST_SCHEMAS:
                log.warning("mcp_tools_dropped", extra={"server": self.server.name})
                break
            tool = known.get(digest_of(one)) or tool_of(
                self.server, self.forward, one, self.schemas
            )
            found.setdefault(tool.spec.name, tool)
        return tuple([one for one in found.values() if await self._is_welcome(one)])

    async def _is_welcome(self, tool: McpTool) -> bool:
        seen = await self._pins.check(tool.spec.name, tool.digest)
        if seen == "one too many":
            return False
        withheld = seen == "changed now"
        if seen != "as before" and (tool.spec.name, withheld) not in self._told:
            self._told.add((tool.spec.name, withheld))
            facts = {"server": self.server.name, "tool": tool.spec.name, "withheld": withheld}
            await self.report_change(facts)
        return not withheld
