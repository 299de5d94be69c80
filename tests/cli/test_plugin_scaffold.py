"""Every example becomes a plugin of another name, and nothing of the example's is left in it."""

from pathlib import Path

import pytest

from gateway.app.doctor import BadPlugin
from gateway.cli.plugin import scaffolds, write_scaffold
from gateway.cli.plugin_files import read_about

PAIRS = sorted(scaffolds())


def test_every_language_that_is_promised_is_there() -> None:
    tools = {language for kind, language in PAIRS if kind == "tool"}

    assert tools >= {"js", "rust", "zig", "assemblyscript", "python"}
    assert ("channel", "js") in PAIRS


@pytest.mark.parametrize(("kind", "language"), PAIRS)
def test_a_scaffold_has_its_own_name_everywhere(kind: str, language: str, tmp_path: Path) -> None:
    example = read_about(scaffolds()[kind, language])

    write_scaffold("my-tool_2", kind, language, tmp_path)

    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    about = read_about(tmp_path)
    assert (about.name, about.kind, about.sha256) == ("my-tool_2", kind, "")
    assert about.build is not None
    assert {"plugin.toml", "cases.json"} <= {one.name for one in files}
    assert not [one for one in files if one.suffix == ".wasm"]
    assert not [one for one in files if example.name in one.read_text(encoding="utf-8")]
    has_interface = any(one.name == "exogate-plugin.wit" for one in files)
    assert has_interface != language.startswith("extism")


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")

    with pytest.raises(BadPlugin, match="exists and is not empty"):
        write_scaffold("weather", "tool", "zig", tmp_path)

    assert [one.name for one in tmp_path.iterdir()] == ["mine"]
