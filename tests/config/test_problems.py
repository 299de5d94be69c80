"""How problems are written: one place, one line, one fix, and never more than anyone reads."""

import pytest

from gateway.config.problems import Code, ConfigInvalid, ConfigProblem, dotted
from gateway.domain.text import choose, nearest, quoted


def problem(line: int = 3, text: str = "prot = 1") -> ConfigProblem:
    return ConfigProblem(
        Code.UNKNOWN_KEY, "c.toml", line, 1, "gateway.prot", "unknown", "port?", text
    )


def test_a_problem_has_place_code_line_caret_and_fix() -> None:
    assert problem().render().splitlines() == [
        "c.toml:3:1: error[CFG002] gateway.prot: unknown",
        "    3 | prot = 1",
        "      | ^",
        "      = fix: port?",
    ]


def test_without_a_file_there_is_no_line() -> None:
    assert problem(0, "").render().splitlines()[0] == "c.toml: error[CFG002] gateway.prot: unknown"


def test_the_end_counts_what_was_left_out() -> None:
    assert ConfigInvalid((problem(),)).render().endswith("\n1 error. Nothing was changed.")
    many = ConfigInvalid((problem(),), left_out=4)
    assert many.render().endswith("\n5 errors (4 of them not shown). Nothing was changed.")
    assert str(many) == "5 errors in the configuration"
    assert str(ConfigInvalid((problem(),))) == "1 error in the configuration"


@pytest.mark.parametrize(
    ("word", "meant"), [("prot", "port"), ("PORT", "port"), ("zebra", None), ("x" * 500, None)]
)
def test_the_nearest_choice_is_what_was_meant(word: str, meant: str | None) -> None:
    assert nearest(word, ["port", "bind"]) == meant


def test_a_fix_names_every_choice() -> None:
    assert choose("prot", ["port", "bind"]) == 'did you mean "port"? choose one of: port, bind'
    assert choose("x", []) == "none is defined"


def test_odd_keys_and_values_stay_on_one_line() -> None:
    assert dotted(("a", 0, "b c", "d\ne")) == 'a.0."b c"."d e"'
    assert quoted("x" * 100) == f'"{"x" * 57}..."'
