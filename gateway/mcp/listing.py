"""What a server says that it offers, as far as it is taken."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio.lowlevel
import mcp_types as types

from gateway.domain.mcp import McpServerDef
from gateway.domain.ports import SchemaCheck, ToolStore
from gateway.mcp.pinning import Pins, digest_of
from gateway.mcp.tools import Caller, McpTool, size_of, tool_of

log = logging.getLogger(__name__)

MOST_SCHEMAS = 512 * 1024  # characters, of all its tools


@dataclass(slots=True)
class Listing:
    """`told_changed` is told of a tool that is not what it was."""

    server: McpServerDef
    caller: Caller
    schemas: SchemaCheck
    store: ToolStore
    told_changed: Callable[[Mapping[str, object]], Awaitable[None]]
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
                log.warning("an MCP server has too many tools", extra={"server": self.server.name})
                break
            tool = known.get(digest_of(one)) or tool_of(self.server, self.caller, one, self.schemas)
            found.setdefault(tool.spec.name, tool)
        return tuple([one for one in found.values() if await self._is_welcome(one)])

    async def _is_welcome(self, tool: McpTool) -> bool:
        seen = await self._pins.seen(tool.spec.name, tool.digest)
        if seen == "one too many":
            return False
        withheld = seen == "changed now"
        if seen != "as before" and (tool.spec.name, withheld) not in self._told:
            self._told.add((tool.spec.name, withheld))
            facts = {"server": self.server.name, "tool": tool.spec.name, "withheld": withheld}
            await self.told_changed(facts)
        return not withheld
