"""`exogate explain` and `exogate completion` as they are typed."""

import json
import subprocess

import pytest

from tests.cli.conftest import Shell


@pytest.mark.parametrize("code", ["CFG002", "budget_exceeded", "-32003", "4401", "78"])
def test_a_code_of_each_kind_is_explained_with_what_to_do(alone: Shell, code: str) -> None:
    ran = alone("explain", code)

    assert ran.code == 0
    assert ran.out.startswith(f"{code}: ")
    assert "What to do: " in ran.out


def test_an_unknown_code_is_refused_with_a_near_one(alone: Shell) -> None:
    ran = alone("explain", "budget_exceded", "--json")

    assert ran.code == 1
    assert 'did you mean "budget_exceeded"?' in json.loads(ran.out)["error"]["message"]


def test_an_explanation_needs_no_valid_configuration(alone: Shell) -> None:
    alone.config.write_text("[gateway", encoding="utf-8")

    assert alone("explain", "CFG001").code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(alone: Shell, shell: str) -> None:
    ran = alone("completion", shell)

    assert ran.code == 0
    assert f"_EXOGATE_COMPLETE={shell}_complete" in ran.out


def test_bash_takes_the_script_and_completes_a_verb(alone: Shell) -> None:
    script = alone("completion", "bash").out
    completed = alone(
        env={
            "_EXOGATE_COMPLETE": "bash_complete",
            "COMP_WORDS": "exogate config val",
            "COMP_CWORD": "2",
        }
    )

    known = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p exogate"], capture_output=True, text=True, timeout=20
    )

    assert "exogate" in known.stdout
    assert completed.out == "plain,validate\n"
