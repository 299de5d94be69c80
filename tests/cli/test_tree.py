"""`exogate tree` checks, lays out and traces trees without a gateway that runs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import exogate

GOOD = '(tree "t"\n  (reactive-sequence (action l0) (action l1)))\n'
KNOWN = '(tree "t" (action go-on :fn "decision.alive"))'
WARNED = '(tree "t" (timeout 3 (action go-on :fn "decision.alive")))'
UNKNOWN = '(tree "t" (action a :fn "decision.alife"))'
BAD = '(tree "t"\n  (sequnce (action l0))\n  (x)'


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(exogate, [str(word) for word in words])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "t.bt"
    path.write_text(GOOD, encoding="utf-8")
    return path


def scripted(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_tree_is_said_to_be_valid(tree: Path) -> None:
    tree.write_text(KNOWN, encoding="utf-8")

    said = called("tree", "check", tree)
    shown = json.loads(called("--json", "tree", "check", tree).output)

    assert (said.exit_code, said.output) == (0, f'{tree}: tree "t" is valid\n')
    assert shown == {"ok": True, "file": str(tree), "tree": "t", "problems": []}


def test_a_function_that_no_agent_has_is_an_error(tree: Path) -> None:
    tree.write_text(UNKNOWN, encoding="utf-8")

    said = called("tree", "check", tree)

    assert said.exit_code == 1
    assert 'unknown function "decision.alife"; did you mean "decision.alive"?' in said.output


def test_warnings_are_shown_and_do_not_fail(tree: Path) -> None:
    tree.write_text(WARNED, encoding="utf-8")

    said = called("tree", "check", tree)

    assert said.exit_code == 0
    assert "t.bt:1:20: warning BT034: a time without a unit means seconds" in said.output
    assert said.output.endswith('tree "t" is valid, with 1 warning\n')


@pytest.mark.requirement("S-002-BT-12")
def test_every_error_of_a_bad_tree_is_said_and_it_fails(tree: Path) -> None:
    tree.write_text(BAD, encoding="utf-8")

    said = called("tree", "check", tree)
    shown = called("--json", "tree", "check", tree)

    assert (said.exit_code, shown.exit_code) == (1, 1)
    assert 't.bt:2:3: error BT011: unknown node "sequnce"; did you mean "sequence"?' in said.output
    assert said.output.endswith(f"{tree}: 4 problems\n")
    problems = json.loads(shown.output)["problems"]
    assert [one["code"] for one in problems] == ["BT005", "BT011", "BT011", "BT012"]
    assert problems[0] == {
        "code": "BT005",
        "severity": "error",
        "line": 1,
        "column": 1,
        "message": "this bracket is never closed",
    }


def test_bytes_that_are_no_text_are_a_problem_with_a_place(tree: Path) -> None:
    tree.write_bytes(b'(tree "t"\n  \xff)')

    for verb in ("check", "fmt"):
        said = called("tree", verb, tree)

        assert said.exit_code == 1
        assert "t.bt:2:3: error BT007" in said.output


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    assert called("tree", "check", tmp_path / "none.bt").exit_code == 2
    assert called("tree", "trace", tmp_path / "none.bt").exit_code == 2


def test_a_tree_is_laid_out_on_stdout_or_in_its_file(tree: Path) -> None:
    tree.write_text('(tree "t" (action a) ) ; end', encoding="utf-8")
    laid_out = '(tree "t"\n  (action a))  ; end\n'

    assert called("tree", "fmt", tree).output == laid_out
    assert called("tree", "fmt", tree, "--check").exit_code == 1
    assert json.loads(called("--json", "tree", "fmt", tree, "--write").output)["changed"] is True
    assert tree.read_text(encoding="utf-8") == laid_out
    assert called("tree", "fmt", tree, "--check").exit_code == 0


def test_a_trace_is_what_programs_expect(tree: Path, tmp_path: Path) -> None:
    script = scripted(tmp_path, '{"leaves": {"l0": "SF", "l1": "R"}, "ticks": 3}')

    shown = called("--json", "tree", "trace", tree, "--script", script)
    said = called("tree", "trace", tree, "--script", script)

    assert json.loads(shown.output) == {
        "ticks": [
            {"status": "R", "ticked": [["l0", "S"], ["l1", "R"]], "halted": []},
            {"status": "F", "ticked": [["l0", "F"]], "halted": ["l1"]},
            {"status": "R", "ticked": [["l0", "S"], ["l1", "R"]], "halted": []},
        ],
        "final_halt": ["l1"],
    }
    assert said.output.splitlines()[2] == "   2 F  l0=F   halted: l1"
    assert said.output.endswith("halted at the end: l1\n")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"leaves": {"l0": "S"}, "ticks": 1}'])
def test_a_script_that_does_not_fit_fails(tree: Path, tmp_path: Path, text: str) -> None:
    said = called("tree", "trace", tree, "--script", scripted(tmp_path, text))

    assert said.exit_code == 1
    assert type(said.exception).__name__ == "BadScript"


def test_a_tree_that_is_not_shipped_is_not_shown() -> None:
    said = called("tree", "show", "../../../etc/passwd")

    assert said.exit_code == 1
    assert "is shipped" in said.output
