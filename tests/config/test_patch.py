"""A value is set or removed at a path, and everything else in the file stays as it was."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.editing import parse_path, read_value, with_patch, with_value
from gateway.config.toml import CannotEdit

FILE = """# mine
[gateway]
port = 7300  # not the usual one

[agent]
id = "main"
tools = ["time", "calc"]  # what it has

[[agents]]
id = "second"
model = "demo"  # small

[[bindings]]
agent_id = "second"
"""


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("gateway.port", 7400, "port = 7400  # not the usual one"),
        ("agents.second.model", "other", 'model = "other"  # small'),
        ("agents.0.model", "other", 'model = "other"  # small'),
        ("agent.tools.calc", None, 'tools = ["time"]  # what it has'),
        ("bindings.0.channel", "telegram", 'channel = "telegram"'),
        ("budgets.agent.second", 500, "second = 500"),
        ("limits.max_iterations", 3, "max_iterations = 3"),
    ],
)
def test_one_line_changes_and_comments_stay(path: str, value: object, line: str) -> None:
    after = with_value(FILE, parse_path(path), value)

    assert line in after.splitlines()
    assert "# mine" in after
    assert "# what it has" in after
    assert len(set(FILE.splitlines()) - set(after.splitlines())) <= 1


def test_an_item_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(CannotEdit, match='did you mean "second"'):
        with_value(FILE, parse_path("agents.secnd.model"), "x")
    with pytest.raises(CannotEdit, match="counted from 0"):
        with_value(FILE, parse_path("bindings.7.channel"), "x")
    with pytest.raises(CannotEdit, match="the file has none"):
        with_value("channels = []", parse_path("channels.7.plugin"), "x")


def test_a_whole_table_makes_a_new_item_that_has_its_name() -> None:
    after = with_value(FILE, parse_path("agents.third"), {"model": "demo"})
    assert tomllib.loads(after)["agents"][1] == {"id": "third", "model": "demo"}

    after = with_value("", parse_path("plugins.time"), {"path": "bundled:time"})
    assert after == '[[plugins]]\nname = "time"\npath = "bundled:time"\n'


def test_what_is_not_there_is_removed_without_a_change() -> None:
    for path in ("gateway.bind", "queue", "agents.other", "agents.second.limits.error_limit"):
        assert with_value(FILE, parse_path(path), None) == FILE


@pytest.mark.parametrize("path", ["", "a b", "a..b", "a = 1\nb", "a]", "x" * 2_000, "a #"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(CannotEdit, match="is not a path"):
        parse_path(path)


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("gateway.port", "7400", 7400),
        ("gateway.bind", "127.0.0.1", "127.0.0.1"),
        ("agent.model", "4", "4"),
        ("agent.model", '"4"', "4"),
        ("gateway.token", "12345", "12345"),
        ("agent.tools", '["time"]', ["time"]),
        ("observability.metrics", "false", False),
        ("agent.system_prompt", "a = 1\nb = 2", "a = 1\nb = 2"),
    ],
)
def test_a_value_is_toml_or_plain_text(path: str, text: str, value: object) -> None:
    assert read_value(parse_path(path), text) == value


def test_a_patch_merges_tables_and_null_removes() -> None:
    patch = {
        "gateway": {"port": None, "drain_s": 5},
        "agents": {"second": {"model": "x"}, "third": {"model": "demo", "soul_path": None}},
        "agent.limits": {"max_iterations": 4},
    }

    found = tomllib.loads(with_patch(FILE, patch))

    assert found["gateway"] == {"drain_s": 5}
    assert found["agents"] == [{"id": "second", "model": "x"}, {"id": "third", "model": "demo"}]
    assert found["agent"]["limits"] == {"max_iterations": 4}


@given(st.text(max_size=40), st.integers() | st.text(max_size=40) | st.booleans())
def test_any_name_can_be_a_key_and_any_text_a_value(name: str, value: object) -> None:
    path = ("providers", name or "x", "headers", "X-One")

    after = with_value(FILE, path, value)

    assert tomllib.loads(after)["providers"][path[1]]["headers"]["X-One"] == value
