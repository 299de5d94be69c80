"""The `exogate` command: finds each subcommand and imports it only when it runs."""

import gc
import platform
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module  # noqa: TID251  # from the fixed table below, and nowhere else
from pathlib import Path

import click

from gateway.cli.command import CliContext, guard_streams, report_errors, split_options
from gateway.domain.text import meant
from gateway.domain.version import VERSION


@dataclass(frozen=True, slots=True)
class ListedCommand:
    """A command of commands.toml; `verbs` is None for a command without subcommands."""

    help: str
    module: str = ""
    verbs: Mapping[str, str] | None = None


_TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
COMMANDS: Mapping[str, ListedCommand] = {
    name: ListedCommand(**about) for name, about in _TABLE.items()
}


def _load(module: str, name: str) -> click.Command:
    found: click.Command = getattr(import_module(f"gateway.cli.{module}"), name)
    return found


class LazyGroup(click.Group):
    """A group that lists its commands without importing them, so that `--help` stays fast."""

    def texts(self) -> Mapping[str, str]:
        """Returns the help of each command."""
        return {name: one.help for name, one in COMMANDS.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.texts())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        one = COMMANDS.get(cmd_name)
        if one is None:
            return None
        if one.verbs is not None:
            return Family(cmd_name, help=one.help)
        if cmd_name == "version":
            return click.Command("version", callback=show_version, help=one.help)
        return _with_help(_load(one.module, cmd_name), one.help) if one.module else _row(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            text = error.message.removesuffix(".") + (meant(args[0], self.texts()) or ".")
            raise click.UsageError(text, error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        texts = self.texts()
        room = formatter.width - 6 - max(map(len, texts))
        stubs = (click.Command(name, help=text) for name, text in texts.items())
        with formatter.section("Commands"):
            formatter.write_dl([(str(one.name), one.get_short_help_str(room)) for one in stubs])


class Family(LazyGroup):
    """The verbs of one subject, such as `exogate backup`."""

    @property
    def entry(self) -> ListedCommand:
        return COMMANDS[str(self.name)]

    def texts(self) -> Mapping[str, str]:
        return dict(sorted({**_rows(f"{self.name} "), **(self.entry.verbs or {})}.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if text := (self.entry.verbs or {}).get(cmd_name):
            group = _load(self.entry.module, str(self.name))
            assert isinstance(group, click.Group)
            return _with_help(group.commands[cmd_name], text)
        prefix = f"{self.name} "
        return _row(f"{prefix}{cmd_name}") if cmd_name in _rows(prefix) else None


def _with_help(command: click.Command, text: str) -> click.Command:
    command.help = text
    return command


def _rows(prefix: str) -> Mapping[str, str]:
    rows = import_module("gateway.cli.verbs").ROWS.items()
    return {
        name.removeprefix(prefix): method.help
        for name, (method, _) in rows
        if name.startswith(prefix)
    }


def _row(name: str) -> click.Command:
    command: click.Command = import_module("gateway.cli.verbs").command_of(name)
    return command


def show_version() -> None:
    """Prints the version, for `exogate version` and `exogate --version`."""
    python = platform.python_version()
    if click.get_current_context().find_root().params.get("as_json"):
        CliContext().print_json({"version": VERSION, "python": python})
    else:
        click.echo(f"exogate {VERSION} (Python {python})")


def _on_version(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:  # noqa: FBT001  # click calls it
    if is_given:  # `main` puts --json first, so it is parsed already
        show_version()
        ctx.exit()


# `color`: click strips no escape sequence; Terminal makes it visible instead.
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
    callback=_on_version,
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
            f"--config takes the path of the configuration file, and there is no file {key}=...; "
            f"to set a key of a channel, write --set {key}=..."
        )
    ctx.obj = CliContext(config, data_dir, as_json, debug)


# New objects before the garbage collector runs. Python's default of 700 scans the imported modules again and again, which
# takes a tenth of the start of a gateway.
GC_THRESHOLD = 200_000


def main() -> None:
    gc.set_threshold(GC_THRESHOLD)
    guard_streams()
    front, rest = split_options(sys.argv[1:])
    with report_errors(debug="--debug" in front, as_json="--json" in front):
        for word in rest:
            if word.encode(errors="ignore").decode() != word:
                raise click.UsageError(f"{word!r} is not UTF-8 text")
        # `report_errors` exits instead of click, which knows no --json.
        exogate([*front, *rest], prog_name="exogate", standalone_mode=False)


if __name__ == "__main__":
    main()
