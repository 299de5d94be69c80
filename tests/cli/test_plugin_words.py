"""What others wrote is shown as it is, and harmless; what a plugin may do is said in words."""

import pytest

from gateway.cli.plugin_files import describe_capability, tool_line
from gateway.config.sections import parse_capability
from gateway.domain.model import ToolSpec


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        ("http:wttr.in", "may send requests to https://wttr.in"),
        ("http:http://127.0.0.1:8080", "may send requests to http://127.0.0.1:8080"),
        ("store:a", "may read and write its own store a (separate for each person)"),
        ("store:a:shared:ro", "may read its own store a (shared by all people)"),
        ("host_function:clock", "may read the clock"),
        ("host_function:folder", "may call the operator's host function folder"),
    ],
)
def test_a_capability_is_said_in_words(capability: str, words: str) -> None:
    assert describe_capability(parse_capability(capability)) == words


@pytest.mark.parametrize(
    "schema", ["{}", '{"properties": 3, "required": 4}', '{"required": ["x"]}']
)
def test_a_tool_is_shown_whatever_its_schema_says(schema: str) -> None:
    assert tool_line(ToolSpec("t", "Does.", schema)) == "t()   Does."
