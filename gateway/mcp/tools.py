"""The tools of a server as the gate takes them."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import mcp_types as types
from mcp.shared.exceptions import MCPError

from gateway.domain.errors import ToolFailed
from gateway.domain.mcp import FAMILY, McpServerDef
from gateway.domain.model import ToolSpec
from gateway.domain.ports import SchemaCheck, ToolScope
from gateway.mcp.cleaning import described
from gateway.mcp.naming import exposed
from gateway.mcp.pinning import digest_of
from gateway.mcp.results import Problem, told

log = logging.getLogger(__name__)

LONGEST_WHY = 1_000


class Caller(Protocol):
    async def call(
        self, tool: "McpTool", arguments: Mapping[str, object], person: str
    ) -> types.CallToolResult:
        """Raises ToolFailed, or MCPError and ValueError with what was answered instead."""
        ...


@dataclass(frozen=True, slots=True)
class McpTool:
    server: McpServerDef
    caller: Caller
    its_name: str
    spec: ToolSpec
    digest: str
    problem: Problem | None = None

    async def call(self, arguments: Mapping[str, object], scope: ToolScope) -> str:
        try:
            result = await self.caller.call(self, arguments, scope.principal)
            return self.server.hushed(told(result, self.problem))
        except ToolFailed as error:
            raise ToolFailed(self.server.hushed(str(error))) from error
        except MCPError as error:
            why = self.server.hushed(str(error))[:LONGEST_WHY]
            raise ToolFailed(f"{self.spec.name}: {why}") from error
        except ValueError as error:
            log.info("an MCP answer is unreadable", extra={"tool": self.spec.name})
            why = "gave an answer that cannot be read; it may have asked for what is not offered"
            raise ToolFailed(f"{self.spec.name} {why}.") from error


def size_of(tool: types.Tool) -> int:
    """Characters of its schemas."""
    return len(json.dumps([tool.input_schema, tool.output_schema]))


def tool_of(
    server: McpServerDef, caller: Caller, tool: types.Tool, schemas: SchemaCheck
) -> McpTool:
    name, hints = exposed(server.name, tool.name), tool.annotations
    takes = server.hushed(json.dumps(tool.input_schema))
    family = f"{FAMILY}{server.name}/{tool.name}"
    # The server says that a second call changes nothing.
    may_repeat = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
    what = described(server.name, server.hushed(tool.description or ""))
    spec = ToolSpec(name, what, takes, family=family, may_repeat=may_repeat)
    return McpTool(server, caller, tool.name, spec, digest_of(tool), _promised(tool, schemas))


def _promised(tool: types.Tool, schemas: SchemaCheck) -> Problem | None:
    """A promise that cannot be read binds nobody."""
    if tool.output_schema is None:
        return None
    try:
        return schemas.compile(json.dumps(tool.output_schema))
    except ValueError:
        return None
