"""A config.toml that only lies in the current folder starts no program for whoever else wrote it."""

import os
from pathlib import Path

import pytest

from tests.fakes.commands import commands

PROGRAM = """
[agent]
id = "main"
provider = "demo"

[mcp.servers.notes]
command = "touch"
args = ["started"]
"""


def run(folder: Path, *words: str, **env: str) -> tuple[int, str]:
    variables = {"HOME": str(folder), "PATH": "/usr/bin:/bin", **env}
    done = commands().run(words, env=variables, cwd=folder)
    return done.code, done.out + done.err


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(PROGRAM, encoding="utf-8")
    file.chmod(0o644)
    return file


VERBS = [("run", "--port", "0"), ("config", "validate"), ("doctor",)]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("mode", [0o666, 0o646, 0o602])
def test_a_file_that_others_can_write_is_refused(
    config: Path, mode: int, verb: tuple[str, ...]
) -> None:
    config.chmod(mode)

    code, said = run(config.parent, *verb)

    assert code == 78
    for part in ("config.toml:7:11: ", "[CFG015]", "mcp.servers.notes.command"):
        assert part in said
    assert "every user of this machine can write it" in said
    assert "--config config.toml" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("verb", VERBS)
def test_a_file_of_another_user_is_refused(config: Path, verb: tuple[str, ...]) -> None:
    os.chown(config, 65_534, -1)

    code, said = run(config.parent, *verb)

    assert (code, "belongs to another user" in said) == (78, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_of_another_user_is_refused(config: Path) -> None:
    config.rename(config.with_name("mine.toml"))
    config.symlink_to("mine.toml")
    os.chown(config, 65_534, -1, follow_symlinks=False)

    assert run(config.parent, "config", "validate")[0] == 78


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_that_a_shared_group_can_write_is_refused(config: Path) -> None:
    os.chown(config, -1, 59_999)  # nobody knows who is in it
    config.chmod(0o664)

    code, said = run(config.parent, "config", "validate")

    assert (code, "the group 59999 can write it" in said) == (78, True)


def test_a_file_that_is_named_or_ones_own_or_starts_nothing_is_taken(config: Path) -> None:
    own = run(config.parent, "config", "validate")
    config.chmod(0o666)
    named = run(config.parent, "-c", "config.toml", "config", "validate")
    by_variable = run(config.parent, "config", "validate", EXOGATE_CONFIG="config.toml")
    config.write_text('[agent]\nid = "main"\nprovider = "demo"\n', encoding="utf-8")
    harmless = run(config.parent, "config", "validate")

    assert [code for code, _ in (own, named, by_variable, harmless)] == [0, 0, 0, 0]
