"""What the page about the MCP server tells an operator to write is a configuration that loads."""

import re
from pathlib import Path

from gateway.cli.configuration import known_names
from gateway.config.load import load
from gateway.domain.mcp import McpServing

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "mcp-server.md"


def test_the_configuration_of_the_page_serves_what_it_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    file = tmp_path / "config.toml"
    file.write_text(example, encoding="utf-8")

    config = load(file, environment={}, home=tmp_path, cwd=tmp_path, known=known_names())

    assert config.mcp.serve == McpServing(is_enabled=True, tools=("calc", "notes"))
