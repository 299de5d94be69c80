"""The README has exactly two commands, one line each, and its links lead somewhere."""

import re
from pathlib import Path

from tools.readme_command import commands

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_there_are_two_commands_of_one_line_each() -> None:
    run, test = commands()

    assert run.endswith(".venv/bin/exogate run")
    assert test.endswith(".venv/bin/pytest -n 2")
    assert "\n" not in run + test


def test_the_links_of_every_page_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").glob("*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
