"""What `exogate plugin` is given, and how it is told when that is not enough."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from gateway.app.doctor import BadPlugin
from gateway.cli.plugin_files import checked_name, find_source, read_about, with_sha256


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ("", "name: Field required"),
        ('name = "Big"\nkind = "x"\nversion = 3', "kind: Input should be 'tool' or 'channel'"),
        ("name = ", "Invalid value"),
        ('name = "a"\n[build]\nneeds = []', "build.command: Field required"),
    ],
)
def test_a_plugin_toml_that_is_wrong_is_refused_with_all_that_is(
    tmp_path: Path, about: str, problem: str
) -> None:
    (tmp_path / "plugin.toml").write_text(about)

    with pytest.raises(BadPlugin, match=r"plugin.toml cannot be used") as caught:
        read_about(tmp_path)

    assert problem in str(caught.value)


def test_a_bare_file_is_called_after_itself(tmp_path: Path) -> None:
    file = tmp_path / "My Tool__1.wasm"
    file.write_bytes(b"")

    found = find_source(str(file))

    assert (found.name, found.about, found.requested) == ("my-tool-1", None, ())


@drawn(st.text(min_size=1, max_size=40))
def test_every_files_name_makes_a_plugins_name(stem: str) -> None:
    from gateway.cli.plugin_files import _slug

    assert checked_name(_slug(stem))


def test_a_directory_that_is_not_built_says_how(tmp_path: Path) -> None:
    (tmp_path / "plugin.toml").write_text('name = "a"\n[build]\ncommand = "make"\n')

    with pytest.raises(BadPlugin, match="build it with `exogate plugin build"):
        find_source(str(tmp_path))


def test_a_bundled_plugin_is_found_by_name() -> None:
    found = find_source("bundled:time")

    assert (found.bundled, [str(one) for one in found.requested]) == (
        "time",
        ["host_function:clock"],
    )
    with pytest.raises(BadPlugin, match='did you mean "time"'):
        find_source("bundled:tiem")


@pytest.mark.parametrize(
    "text",
    [
        'name = "a"\nsha256 = "old"  # pinned\n[build]\ncommand = "x"\n',
        '[build]\ncommand = "x"\n',
        "",
    ],
)
def test_a_sha256_is_noted_at_the_top_and_nothing_else_changes(text: str) -> None:
    before, after = tomllib.loads(text), tomllib.loads(with_sha256(text, "ab"))

    assert after == {**before, "sha256": "ab"}
