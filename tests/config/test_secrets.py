"""References lead to secrets, and to nothing that others could read."""

import os
from pathlib import Path

import pytest

from gateway.config.problems import Code
from gateway.config.secrets import FOLDER, SecretProblem, resolve
from tests.config.arena import Arena


def resolved(arena: Arena, text: str, **environment: str) -> str:
    return resolve(text, environment, arena.home)


def refusal(arena: Arena, text: str, **environment: str) -> SecretProblem:
    with pytest.raises(SecretProblem) as caught:
        resolved(arena, text, **environment)
    return caught.value


def test_a_reference_is_followed_once_also_inside_a_text(arena: Arena) -> None:
    path = arena.secret("key", "value\n")

    assert resolved(arena, "${env:NAME}", NAME="value") == "value"
    assert resolved(arena, "Bearer ${env:NAME}", NAME="value") == "Bearer value"
    assert resolved(arena, "${env:A}", A="${env:B}", B="b") == "${env:B}"
    assert resolved(arena, f"${{file:key}} ${{file:{path}}}") == "value value"


@pytest.mark.parametrize("environment", [{}, {"NAME": ""}])
def test_an_unset_or_empty_variable_is_a_problem(arena: Arena, environment: dict[str, str]) -> None:
    problem = refusal(arena, "${env:NAME}", **environment)

    assert (problem.code, "NAME" in problem.message) == (Code.UNSET_VARIABLE, True)


@pytest.mark.parametrize(
    "text", ["${NAME}", "${env:}", "${env:A B}", "${vault:x}", "x${", "${file:../x}", "${file:.x}"]
)
def test_a_broken_reference_is_a_problem(arena: Arena, text: str) -> None:
    assert refusal(arena, text).code == Code.MALFORMED


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_a_file_that_others_may_read_is_refused_with_the_command_that_mends_it(
    arena: Arena, mode: int
) -> None:
    path = arena.secret("key", "value", mode)

    problem = refusal(arena, "${file:key}")

    assert (problem.code, problem.fix) == (Code.BAD_SECRET_FILE, f"chmod 600 {path}")
    assert "value" not in problem.message


def test_a_link_is_refused(arena: Arena) -> None:
    path = arena.secret("key", "value")
    path.with_name("link").symlink_to(path)

    assert "is a link" in refusal(arena, "${file:link}").message


@pytest.mark.parametrize("kind", ["directory", "pipe", "missing", "empty", "binary", "huge"])
def test_what_is_no_secret_file_is_refused(arena: Arena, kind: str) -> None:
    path = arena.secret("key", "")
    match kind:
        case "directory":
            path.unlink()
            path.mkdir(0o700)
        case "pipe":
            path.unlink()
            os.mkfifo(path, 0o600)
        case "missing":
            path.unlink()
        case "binary":
            path.write_bytes(b"\xff\xfe")
        case "huge":
            path.write_bytes(b"a" * 100_000)

    assert refusal(arena, "${file:key}").code == Code.BAD_SECRET_FILE


@pytest.mark.parametrize("text", ["a\nb", "a\r\nX: y", "a\x00", "ä"])
def test_a_secret_that_no_header_can_carry_is_refused(arena: Arena, text: str) -> None:
    problem = refusal(arena, "${env:NAME}", NAME=text)

    assert problem.code == Code.MALFORMED
    assert text not in problem.message


def test_a_path_with_a_nul_is_no_traceback(arena: Arena) -> None:
    assert refusal(arena, "${file:/a\x00b}").code == Code.BAD_SECRET_FILE
    assert not Path("/a").exists()


def test_a_secret_of_the_service_manager_comes_before_the_folder_at_home(tmp_path: Path) -> None:
    given = tmp_path / "credentials"
    given.mkdir()
    (given / "gateway_token").write_text("of the manager\n", encoding="utf-8")
    (given / "gateway_token").chmod(0o444)  # as such managers make it
    home = tmp_path / FOLDER
    home.mkdir(parents=True)
    (home / "other").write_text("of home", encoding="utf-8")
    (home / "other").chmod(0o600)
    environment = {"CREDENTIALS_DIRECTORY": str(given)}

    found = [
        resolve(f"${{file:{name}}}", environment, tmp_path) for name in ("gateway_token", "other")
    ]

    assert found == ["of the manager", "of home"]
    with pytest.raises(SecretProblem) as missing:
        resolve("${file:third}", environment, tmp_path)
    assert missing.value.fix.endswith(
        f"or have the service manager put it into {given}, and restart"
    )
