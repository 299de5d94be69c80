"""Where a path in a configuration leads."""

from pathlib import Path

import pytest

from gateway.config.values import Surroundings
from tests.config.arena import KNOWN

AROUND = Surroundings({}, Path("/home/me"), Path("/cwd"), KNOWN)


@pytest.mark.parametrize(
    ("text", "path"),
    [("~", "/home/me"), ("~/x", "/home/me/x"), ("/abs", "/abs"), ("soul.md", "/etc/exo/soul.md")],
)
def test_home_and_the_files_folder_are_where_a_path_starts(text: str, path: str) -> None:
    assert AROUND.path(text, Path("/etc/exo")) == Path(path)


@pytest.mark.parametrize(
    ("path", "name"),
    [("/cwd/sub/c.toml", "sub/c.toml"), ("/home/me/c.toml", "~/c.toml"), ("/etc/c", "/etc/c")],
)
def test_a_file_is_called_by_its_shortest_clear_name(path: str, name: str) -> None:
    assert AROUND.name(Path(path)) == name
