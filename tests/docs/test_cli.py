"""docs/reference/cli.md has every command with every option; `python tools/publish_cli.py` writes its table."""

from click.testing import CliRunner

from gateway.cli.main import exogate
from tools.publish_cli import FILE, commands, page

TEXT = FILE.read_text(encoding="utf-8")


def test_the_table_of_commands_is_published_as_it_is() -> None:
    assert page(TEXT) == TEXT


def test_every_option_before_the_verb_is_documented() -> None:
    for option in exogate.params:
        assert option.opts[0] in TEXT


def test_every_command_explains_itself() -> None:
    for name, command in commands(exogate, "exogate"):
        words = name.split()[1:]
        result = CliRunner().invoke(exogate, [*words, "--help"])

        assert result.exit_code == 0, name
        assert (command.help or "") in " ".join(result.output.split()), name
