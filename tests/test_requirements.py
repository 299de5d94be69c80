"""docs/requirements.md and the tests name the same requirement lines, in both directions."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "requirements.md"


def marked(path: Path) -> Iterator[str]:
    """The ids in `pytest.mark.requirement(…)` of a file."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "mark.requirement(" in text else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"{path.name}: an id has to be a literal"
                yield str(argument.value)


@cache
def in_tests() -> dict[str, str]:
    files = [path for path in TESTS.rglob("*.py") if "node_modules" not in path.parts]
    return {one: path.name for path in files for one in marked(path)}


def on_the_page() -> set[str]:
    return set(re.findall(r"^\| (S-\d{3}-\w+-\d\d) \|", PAGE.read_text("utf-8"), re.MULTILINE))


def test_every_requirement_that_a_test_decides_is_on_the_page() -> None:
    missing = {one: where for one, where in in_tests().items() if one not in on_the_page()}

    assert not missing


def test_every_requirement_on_the_page_is_decided_by_a_test() -> None:
    assert not on_the_page() - in_tests().keys()
