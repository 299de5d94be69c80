"""docs/cli.md names every command with every option, and none that is not there."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from gateway.cli.main import exogate

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def commands(group: click.Group, above: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{above} {name}")
        else:
            yield f"{above} {name}", command


def test_every_command_and_option_is_documented_and_no_other() -> None:
    real = dict(commands(exogate, "exogate"))
    documented = {
        " ".join(word for word in cell.split() if re.fullmatch(r"[a-z]+(?:-[a-z]+)*", word)): (
            cell,
            rest,
        )
        for cell, rest in re.findall(r"^\| `(exogate [^`]+)` \|(.*)$", TEXT, re.MULTILINE)
    }

    assert set(documented) == set(real)
    for name, command in real.items():
        said = "".join(documented[name])
        for option in (one for one in command.params if isinstance(one, click.Option)):
            assert any(opt in said for opt in option.opts), (
                f"{name} does not document {option.opts}"
            )


def test_every_option_before_the_verb_is_documented() -> None:
    for option in exogate.params:
        assert option.opts[0] in TEXT


def test_every_command_explains_itself() -> None:
    for name, command in commands(exogate, "exogate"):
        words = name.split()[1:]
        result = CliRunner().invoke(exogate, [*words, "--help"])

        assert result.exit_code == 0, name
        assert (command.help or "") in " ".join(result.output.split()), name
