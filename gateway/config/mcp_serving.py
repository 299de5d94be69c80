"""`[mcp.serve]`: what clients of MCP get at /mcp."""

from collections.abc import Mapping

from gateway.config.kinds import Section, Text, key
from gateway.config.problems import Code, Report
from gateway.domain.agents import OWN_TOOLS
from gateway.domain.mcp import McpServing
from gateway.domain.text import choose, quoted


class McpServeSection(Section):
    """What clients of MCP get at /mcp."""

    enabled: bool = key(default=False, description="Whether POST /mcp answers.")
    tools: list[Text] = key([], "Names of the plugins whose tools are served.")


def resolve_serving(
    section: McpServeSection, plugins: Mapping[str, bool], report: Report
) -> McpServing:
    """`plugins`: every name that an agent may list, and whether it is enabled."""
    names = [name for name in plugins if name not in OWN_TOOLS]
    for index, tool in enumerate(section.tools):
        where = ("mcp", "serve", "tools", index)
        if tool not in names:
            message = f"{quoted(tool)} is no plugin, and only tools of plugins are served"
            report.wrong(Code.UNKNOWN_NAME, where, message, choose(tool, names))
        elif tool in section.tools[:index]:
            report.wrong(Code.DUPLICATE, where, f"{quoted(tool)} is there twice", "keep one")
        elif not plugins[tool]:
            message = f"{quoted(tool)} is served, and not enabled"
            fix = "remove it, or write enabled = true in its [[plugins]]"
            report.note("plugin-disabled", where, message, fix)
    return McpServing(section.enabled, tuple(section.tools))
