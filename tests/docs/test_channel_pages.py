"""What the pages about channels tell an operator to write is a configuration that loads."""

import re
from pathlib import Path

import pytest

from gateway.cli.configuration import known_names
from gateway.config.load import load

PAGES = sorted((Path(__file__).parents[2] / "docs" / "how-to" / "connect").glob("*.md"))


def configurations(page: str) -> list[str]:
    """Every example; the `[[plugins]]` of the first go with those that have none."""
    examples = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    plugins = examples[0][: examples[0].index("[channels")]
    return [one if "[[plugins]]" in one else plugins + one for one in examples]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_configurations_of_a_page_load(tmp_path: Path, path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    names = re.findall(r"\$\{env:(\w+)\}", page)
    environment = dict.fromkeys(names, "hunter2-hunter2")

    granted: set[str] = set()
    for number, text in enumerate(configurations(page)):
        file = tmp_path / f"{number}.toml"
        file.write_text(f"[agent]\n{text}", encoding="utf-8")
        config = load(
            file, environment=environment, home=tmp_path, cwd=tmp_path, known=known_names()
        )

        assert config.channels[0].plugin == path.stem
        granted |= {str(one) for one in config.plugins[0].capabilities}

    assert set(known_names().bundled[path.stem].needs) <= granted
