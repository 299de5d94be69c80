"""docs/reference/rules.md names every key, event, action and function, and what it shows works."""

import re
from pathlib import Path
from typing import get_args

import pytest

from gateway.agent.turn import ROOTS as KEYS
from gateway.config.rules import OPTIONS
from gateway.config.sections import keys_of
from gateway.control.expressions import FUNCTIONS
from gateway.control.rules import ROOTS, compile_template
from gateway.domain.events import KINDS, ActionKind, RuleDef
from tests.fakes.rules import core_definitions, definitions, problems

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
SAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def rows(section: str) -> dict[str, list[str]]:
    """First cell to the others, of the first table below a heading."""
    text = PAGE.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = re.findall(r"^\| (`.*)\|$", text, re.MULTILINE)
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]
    return {first.strip("`"): rest for first, *rest in cells}


def test_every_key_is_documented_and_no_other() -> None:
    assert set(rows("Keys of a rule")) == set(keys_of(RuleDef))


def test_every_event_is_documented_with_its_names_and_severity() -> None:
    documented = {name: cells[:3] for name, cells in rows("Events").items()}

    assert documented == {
        kind.type: [f"`{kind.constant}`", f"`{kind.hook}`" if kind.hook else "", kind.severity]
        for kind in KINDS
    }


def test_every_action_is_documented_with_its_options() -> None:
    documented = rows("Actions")

    assert set(documented) == set(get_args(ActionKind))
    for name, (_, options) in documented.items():
        said = re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)|:.*", "", options))
        assert set(said) == set(OPTIONS.get(name, ())), name


def test_every_name_and_function_of_expressions_is_documented() -> None:
    listed = PAGE.split("and these functions:", 1)[1].split("There is nothing else", 1)[0]

    assert list(rows("Expressions")) == list(ROOTS)
    for name in KEYS.keys() - {"limits", "config"}:
        assert set(re.findall(r"`(\w+)`", rows("Expressions")[name][0])) == set(KEYS[name]), name
    assert re.findall(r"`(\w+)`", listed) == list(FUNCTIONS)


@pytest.mark.parametrize("text", SAMPLES)
def test_every_sample_loads(text: str) -> None:
    assert problems(text) == ()
    assert definitions(text)


def test_numbers_are_written_as_the_page_says() -> None:
    for template, (shown,) in rows("Templates").items():
        text = compile_template(template.replace("\\|", "|"))
        assert text({"payload": {"n": 12345.678}}) == shown


def test_every_core_rule_is_documented_and_no_other() -> None:
    documented = {name: cells[0] for name, cells in rows("Core rules").items()}

    assert set(documented) == {rule.id for rule in core_definitions()}
    for rule in core_definitions():
        assert documented[rule.id].startswith(f"`{rule.on[0]}`")
