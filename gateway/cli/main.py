"""`exogate`: every command, each imported only when it is used."""

import gc
import platform
import sys
from collections.abc import Mapping
from importlib import import_module  # noqa: TID251  # from the fixed table below, and nowhere else
from pathlib import Path

import click

from gateway.cli.command import CliContext, ending_well, guard_streams, parted
from gateway.domain.version import VERSION

# Each command with its help and the module that holds it under the same name; no module: it is a row of the API's table.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("Run the gateway until Ctrl+C or SIGTERM.", "run"),
    "chat": ("Talk to an agent in the terminal.", "chat"),
    "status": ("Show the status of the gateway; exit 1 if it is not ready.", ""),
    "budget": ("Show and set token budgets.", "config"),
    "audit": ("Show changes to permissions and budgets.", ""),
    "agent": ("List the agents of the running gateway.", ""),
    "channel": ("Connect chat platforms, and test and list the connections.", "channel"),
    "config": ("Check and show the configuration.", "config"),
    "doctor": ("Check the installation and the configuration; change nothing.", "doctor"),
    "memory": ("Search, export and erase facts about people.", "conversations"),
    "pair": ("Approve or block people in direct chats.", "pair"),
    "plugin": ("Create, test and install plugins, and grant them permissions.", "plugin"),
    "provider": ("List, add and test model providers.", "provider"),
    "replay": ("Replay a recorded run; exit 1 if it diverges.", ""),
    "route": ("Explain routing.", ""),
    "rule": ("List and test rules.", "control"),
    "session": ("List, show, export, import and branch conversations.", "conversations"),
    "tree": ("Check, show, format and trace behaviour trees.", "control"),
    "version": ("Show the version.", ""),
}
# The verbs of each family that are no rows of the API's table.
VERBS: Mapping[str, Mapping[str, str]] = {
    "agent": {},
    "audit": {},
    "budget": {
        "set": "Write a token limit. SCOPE: session, daily, monthly, per_agent, agent:ID.",
    },
    "channel": {
        "add": "Add a channel and its adapter. On a terminal it asks for missing values and consent.",
        "dead-letters": "List, resubmit or drop failed messages and answers.",
        "remove": "Remove a channel and its bindings. Its adapter and its conversations stay.",
        "set": "Change the settings of a channel.",
        "test": "Test an adapter with a simulated platform. Exit 1 if its conversation goes otherwise.",
    },
    "config": {
        "get": "Show the value of KEY, or of all keys below it.",
        "path": "Print the path of the file in use, or where it would be.",
        "schema": "Print the JSON Schema of config.toml for editors.",
        "show": "Show every value in force and its source.",
        "validate": "Check the configuration; list every error.",
    },
    "memory": {
        "export": "Print all facts with their sources as JSON lines. Superseded facts are included.",
        "forget": "Erase a fact, a person or a session for good.",
    },
    "pair": {
        "approve": "Approve the person with that code. The first person of an account owns it.",
        "block": "Block a person, known or not. ID is CHANNEL:ACCOUNT:PERSON.",
        "deny": "Deny a person, by CODE or by --channel and --person. "
        "An approved person is a stranger again.",
        "list": "List people who wait, then people approved or denied.",
        "revoke": "Revoke the approval of a person. ID is CHANNEL:ACCOUNT:PERSON.",
        "unblock": "Let a blocked or denied person ask again. ID is CHANNEL:ACCOUNT:PERSON.",
    },
    "plugin": {
        "build": "Build the plugin in DIR. Its plugin.toml names the command and keeps the sha256.",
        "check": "Check a plugin and list every problem. FILE may be a directory. Exit 1 if there is a problem.",
        "grant": "Grant a capability to a plugin.",
        "inspect": "Show the tools, imports and permissions of a plugin. "
        "By NAME, also what it used and was denied.",
        "install": "Add a plugin to the configuration. You see what it asks for before you agree.",
        "new": "Write the source of a new plugin.",
        "revoke": "Revoke a capability of a plugin.",
        "test": "Run the recorded cases of a plugin in the sandbox. FILE may be a directory. Exit 1 if one fails.",
    },
    "provider": {
        "add": "Add a provider to the configuration. A preset whose key is in the environment needs no entry.",
        "list": "List providers and the sources of their keys.",
        "test": "Ask a provider a tiny question and show the answer. About 30 tokens, metered.",
    },
    "route": {},
    "rule": {
        "list": "List rules: the running gateway's, else those of the files.",
        "test": "Show what rules would do about an event. Nothing is done.",
    },
    "session": {
        "export": "Print a conversation as JSON, the oldest message first.",
        "import": "Import what `export` wrote into a session of yours. Messages already there stay.",
        "show": "Show the end of a conversation.",
    },
    "tree": {
        "check": "List errors and warnings of a tree; exit 1 for an error.",
        "fmt": "Format a tree. Comments stay; formatting it again changes nothing.",
        "show": "Print the text of a tree that ships with the gateway.",
        "trace": "Tick a tree with scripted leaves; print what ran and halted.",
    },
}


def _loaded(module: str, name: str) -> click.Command:
    found: click.Command = getattr(import_module(f"gateway.cli.{module}"), name)
    return found


class Lazy(click.Group):
    """Lists its commands without importing them: `--help` must not wait for a web server."""

    def texts(self) -> Mapping[str, str]:
        """The help of each command."""
        return {name: text for name, (text, _) in COMMANDS.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.texts())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS:
            return Family(cmd_name, help=COMMANDS[cmd_name][0])
        if cmd_name not in COMMANDS:
            return None
        text, module = COMMANDS[cmd_name]
        if cmd_name == "version":
            return click.Command("version", callback=show_version, help=text)
        return _helped(_loaded(module, cmd_name), text) if module else _row(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        texts = self.texts()
        room = formatter.width - 6 - max(map(len, texts))
        stubs = (click.Command(name, help=text) for name, text in texts.items())
        with formatter.section("Commands"):
            formatter.write_dl([(str(one.name), one.get_short_help_str(room)) for one in stubs])


class Family(Lazy):
    """The verbs of one subject."""

    def texts(self) -> Mapping[str, str]:
        return dict(sorted({**_rows(f"{self.name} "), **VERBS[str(self.name)]}.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        family = str(self.name)
        if text := VERBS[family].get(cmd_name):
            group = _loaded(COMMANDS[family][1], family)
            assert isinstance(group, click.Group)
            return _helped(group.commands[cmd_name], text)
        return _row(f"{family} {cmd_name}") if cmd_name in _rows(f"{family} ") else None


def _helped(command: click.Command, text: str) -> click.Command:
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
    """What `exogate version` and `exogate --version` print."""
    python = platform.python_version()
    if click.get_current_context().find_root().params.get("as_json"):
        CliContext().tell({"version": VERSION, "python": python})
    else:
        click.echo(f"exogate {VERSION} (Python {python})")


def _version_asked(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:  # noqa: FBT001  # click calls it
    if is_asked:  # `main` puts --json first, so it is known here
        show_version()
        ctx.exit()


# `color`: click takes nothing out of a text, which is made visible instead.
SETTINGS = {"help_option_names": ["-h", "--help"], "color": True}


@click.group(cls=Lazy, context_settings=SETTINGS)
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
    callback=_version_asked,
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
