"""`exogate`: the verbs, each loaded only when it is used."""

import sys
from importlib import import_module  # noqa: TID251  # from the fixed table below, and nowhere else
from pathlib import Path

import click

from gateway.cli.ending import ending_well
from gateway.cli.options import CliContext, parted
from gateway.cli.terminal import guard_streams

# verb -> module and name of its click command
VERBS = {
    "run": ("gateway.cli.run", "run"),
    "chat": ("gateway.cli.chat", "chat"),
    "status": ("gateway.cli.status", "status"),
    "budget": ("gateway.cli.budget", "budget"),
    "audit": ("gateway.cli.audit", "audit"),
    "agent": ("gateway.cli.agent", "agent"),
    "channel": ("gateway.cli.channel", "channel"),
    "config": ("gateway.cli.config", "config"),
    "doctor": ("gateway.cli.doctor", "doctor"),
    "memory": ("gateway.cli.memory", "memory"),
    "pair": ("gateway.cli.pair", "pair"),
    "plugin": ("gateway.cli.plugin", "plugin"),
    "provider": ("gateway.cli.provider", "provider"),
    "replay": ("gateway.cli.replay", "replay"),
    "route": ("gateway.cli.route", "route"),
    "rule": ("gateway.cli.rule", "rule"),
    "session": ("gateway.cli.session", "session"),
    "tree": ("gateway.cli.tree", "tree"),
    "version": ("gateway.cli.version", "version"),
}


class Verbs(click.Group):
    """Imports a verb when it is asked for: `exogate version` must not wait for a web server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = VERBS.get(cmd_name)
        if found is None:
            return None
        module, name = found
        command: click.Command = getattr(import_module(module), name)  # see above
        return command


# `color`: click takes nothing out of a text, which is made visible instead.
SETTINGS = {"help_option_names": ["-h", "--help"], "color": True}


@click.group(cls=Verbs, context_settings=SETTINGS)
@click.option("--config", "-c", type=click.Path(path_type=Path), help="The configuration file.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Where the gateway keeps its data."
)
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
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


def main() -> None:
    guard_streams()
    front, rest = parted(sys.argv[1:])
    with ending_well(debug="--debug" in front, as_json="--json" in front):
        # click's own way to end knows no JSON; what a verb returns is None, of --help 0
        exogate([*front, *rest], prog_name="exogate", standalone_mode=False)


if __name__ == "__main__":
    main()
