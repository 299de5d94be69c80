"""Writes the table of commands in docs/reference/cli.md from the command line itself."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from gateway.cli.main import exogate

FILE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
HEAD = "| command | what it does | options |\n|---|---|---|\n"
_TABLE = re.compile(r"(<!-- commands -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """Returns the text with the table of commands regenerated."""
    rows = "".join(_row(name, command) for name, command in commands(exogate, "exogate"))
    return _TABLE.sub(lambda found: f"{found[1]}{HEAD}{rows}{found[2]}", text)


def commands(group: click.Group, above: str) -> Iterator[tuple[str, click.Command]]:
    """Yields every command with its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{above} {name}")
        else:
            yield f"{above} {name}", command


def _row(name: str, command: click.Command) -> str:
    context = click.Context(command)
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    words = " ".join([name, *(one.make_metavar(context) for one in arguments)])
    help_text = " ".join((command.help or "").replace("\b", "").split())
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    told = "<br>".join(_option(one, context) for one in options)
    return f"| `{_cell(words)}` | {_cell(help_text)} | {told} |\n"


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    if record is None:
        return f"`{option.opts[0]}`"
    names, help_text = record
    return f"`{_cell(names)}` {_cell(help_text)}".rstrip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(page(FILE.read_text(encoding="utf-8")), encoding="utf-8")
