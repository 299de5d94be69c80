"""What may be served: tools of plugins that are there, each once."""

import pytest

from gateway.domain.mcp import McpServing
from tests.config.arena import Arena

PLUGINS = """
[agent]

[[plugins]]
name = "echo"
path = "bundled:echo"

[[plugins]]
name = "off"
path = "bundled:fetch"
enabled = false
"""


def test_nothing_is_served_unless_it_is_enabled(arena: Arena) -> None:
    assert arena.load("[agent]").mcp.serve == McpServing()


def test_tools_of_plugins_are_served_in_their_order(arena: Arena) -> None:
    config = arena.load(f'{PLUGINS}[mcp.serve]\nenabled = true\ntools = ["off", "echo"]')

    assert config.mcp.serve == McpServing(is_enabled=True, tools=("off", "echo"))
    (notice,) = config.notices
    assert (notice.code, notice.path) == ("plugin-disabled", "mcp.serve.tools.0")


@pytest.mark.parametrize(
    "tool", ["memory", "result", "delegate_librarian", "mcp:files", "mcp:files/read", "ehco"]
)
def test_what_is_no_plugin_is_not_served(arena: Arena, tool: str) -> None:
    (problem,) = arena.problems(f'{PLUGINS}[mcp.serve]\ntools = ["echo", "{tool}"]')

    assert (problem.key, problem.line) == ("mcp.serve.tools.1", 13)
    assert f'"{tool}" is no plugin' in problem.message
    assert "choose one of: echo, off" in problem.fix


def test_no_plugin_is_served_twice(arena: Arena) -> None:
    (problem,) = arena.problems(f'{PLUGINS}[mcp.serve]\ntools = ["echo", "echo"]')

    assert "twice" in problem.message
