"""`exogate`: the commands, each imported only when it is used."""

import gc
import sys
from importlib import import_module  # noqa: TID251  # from the fixed table below, and nowhere else
from pathlib import Path

import click

from gateway.cli.ending import ending_well
from gateway.cli.options import CliContext, parted
from gateway.cli.terminal import guard_streams
from gateway.cli.version import show_version

# The CLI's one table: a command, the module that holds it under the same name, and its one-line help.
# `exogate --help` prints the help from here, so it imports no command; a test holds it to the command's own.
COMMANDS = {
    "run": ("gateway.cli.run", "Run the gateway until Ctrl+C or SIGTERM."),
    "chat": ("gateway.cli.chat", "Talk to an agent in the terminal."),
    "status": (
        "gateway.cli.status",
        "Show the status of the gateway; exit 1 if it is not ready.",
    ),
    "budget": ("gateway.cli.budget", "Show and set token budgets."),
    "audit": ("gateway.cli.audit", "Show changes to permissions and budgets."),
    "agent": ("gateway.cli.agent", "List the agents of the running gateway."),
    "channel": (
        "gateway.cli.channel",
        "Connect chat platforms, and test and list the connections.",
    ),
    "config": ("gateway.cli.config", "Check and show the configuration."),
    "doctor": (
        "gateway.cli.doctor",
        "Check the installation and the configuration; change nothing.",
    ),
    "memory": ("gateway.cli.memory", "Search, export and erase facts about people."),
    "pair": ("gateway.cli.pair", "Approve or block people in direct chats."),
    "plugin": (
        "gateway.cli.plugin",
        "Create, test and install plugins, and grant them permissions.",
    ),
    "provider": ("gateway.cli.provider", "List, add and test model providers."),
    "replay": ("gateway.cli.replay", "Replay a recorded run; exit 1 if it diverges."),
    "route": ("gateway.cli.route", "Explain routing."),
    "rule": ("gateway.cli.rule", "List and test rules."),
    "session": ("gateway.cli.session", "List, show, export, import and branch conversations."),
    "tree": ("gateway.cli.tree", "Check, show, format and trace behaviour trees."),
    "version": ("gateway.cli.version", "Show the version."),
}


class LazyGroup(click.Group):
    """Imports a command only when it is asked for: `exogate --help` must not wait for a web server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _show_version(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:  # noqa: FBT001  # click calls it
    if is_asked:  # `main` puts --json first, so it is known here
        show_version(as_json=ctx.params.get("as_json", False))
        ctx.exit()


# `color`: click takes nothing out of a text, which is made visible instead.
SETTINGS = {"help_option_names": ["-h", "--help"], "color": True}


@click.group(cls=LazyGroup, context_settings=SETTINGS)
@click.option("--config", "-c", type=click.Path(path_type=Path), help="The configuration file.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Where the gateway keeps its data."
)
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def exogate(
    ctx: click.Context, config: Path | None, data_dir: Path | None, *, as_json: bool, debug: bool
) -> None:
    """A multi-channel gateway for AI agents."""
    key, is_pair, _ = str(config or "").partition("=")
    if config is not None and is_pair and not config.exists():
        raise click.UsageError(
            f"--config names the configuration file, and no file is called {key}=...; "
            f"to set a key of a channel, write --set {key}=..."
        )
    ctx.obj = CliContext(config, data_dir, as_json, debug)


# New objects before Python looks for garbage. What is imported stays: with Python's own 700 it would be
# looked at again and again, which takes a tenth of the start of a gateway.
YOUNG = 200_000


def main() -> None:
    gc.set_threshold(YOUNG)
    guard_streams()
    front, rest = parted(sys.argv[1:])
    with ending_well(debug="--debug" in front, as_json="--json" in front):
        # click's own way to end knows no JSON; what a verb returns is None, of --help 0
        exogate([*front, *rest], prog_name="exogate", standalone_mode=False)


if __name__ == "__main__":
    main()
