"""The README has exactly two commands, one line each, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

from tools.readme_command import commands

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_there_are_two_commands_of_one_line_each() -> None:
    run, test = commands()

    assert run.endswith(".venv/bin/exogate run")
    assert test.endswith(".venv/bin/pytest -n 6")
    assert "\n" not in run + test


def anchors(page: Path) -> set[str]:
    """What headings and marks of a page can be linked to, as GitHub names them."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\]\([^)]*\)|[^\w\- ]", "", one.lower()) for one in headings)
    return {one.strip().replace(" ", "-") for one in plain} | set(
        re.findall(r'<a id="(.*?)"', text)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_every_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"
