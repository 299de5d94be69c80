"""`exogate channel`: adds channels to the configuration, changes them, and tries adapters. What a channel needs is
asked for on a terminal, refused where it is missing, and never written if the gateway would refuse it at its start."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import click

from gateway.app.trial import BadPlugin
from gateway.channels.adapters import Description, Webhook
from gateway.channels.room import require_openable, secrets_of
from gateway.cli.channel_testing import PLATFORM, play, read_script
from gateway.cli.command import FAILED, CliContext, ParsedType
from gateway.cli.configuration import Edit, agree
from gateway.cli.link import ask, data_dir
from gateway.cli.plugin import CAPABILITY, plan_install
from gateway.cli.plugin_files import (
    PluginSource,
    asked_lines,
    block,
    configured_source,
    examine,
    find_source,
)
from gateway.cli.verbs import cell, rendered
from gateway.config import editing
from gateway.config.plugins import BUNDLED
from gateway.config.secrets import REFERENCE
from gateway.domain.channels import TransportKind
from gateway.domain.errors import GatewayError
from gateway.domain.plugins import Capability, HttpGrant, PluginDef
from gateway.domain.text import one_line
from gateway.host.clock import SystemClock
from gateway.host.logs import logging_to

LONGEST_TEXT = 80  # characters of a letter that are shown


class ChannelIncomplete(GatewayError):
    """Nothing was written; the text names what is missing."""

    code = "channel_incomplete"


def _pair(word: str) -> tuple[str, str]:
    """Raises ValueError."""
    name, is_pair, text = word.partition("=")
    if not (is_pair and name):
        raise ValueError(f"{name!r} is given no value: write NAME=VALUE")
    return name, text


PAIR = ParsedType("NAME=VALUE", _pair)
secrets_given = click.option(
    "--secret", "secrets", type=PAIR, multiple=True, help="A reference: ${env:TOKEN}."
)
settings_given = click.option(
    "--set", "settings", type=PAIR, multiple=True, help="Of `config`, for the adapter."
)
transport_given = click.option(
    "--transport",
    type=click.Choice(["webhook", "poll", "socket"]),
    help="How the platform is reached; if not said, the first way that the adapter offers.",
)


@click.group()
def channel() -> None: ...


def _source(kind: str) -> PluginSource:
    """A bundled adapter by its name, or the directory of any. Raises BadPlugin."""
    return find_source(kind if Path(kind).exists() else f"{BUNDLED}{kind}")


def _entries(secrets: Mapping[str, str], granted: Iterable[Capability]) -> dict[str, object]:
    """Secrets as the file has them: with one host it is clear where one may go."""
    hosts = [str(one).removeprefix("http:") for one in granted if isinstance(one, HttpGrant)]
    if len(hosts) < 2:
        return dict(secrets)
    return {name: {"value": value, "hosts": hosts} for name, value in secrets.items()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A channel as it is to be written: references of secrets, and texts of `config`."""

    secrets: Mapping[str, str]
    config: Mapping[str, object]
    transport: TransportKind | None = None

    def lacks(self, description: Description) -> tuple[Sequence[str], Sequence[str]]:
        """The names of secrets and of keys of `config` that are missing, in the order in which they are asked for."""
        offered = (one for one in description.transports if self.transport in {None, one.type})
        transport = next(offered, description.transports[0])
        # The recipes of the calls that `config` chooses; none while it chooses none.
        recipes = [
            one
            for one in description.recipes
            if isinstance(transport, Webhook)
            and all(self.config.get(name) == value for name, value in one.when.items())
        ]
        secrets = [*description.secrets, *secrets_of(transport)]
        secrets += [one.secret for one in recipes if one.secret]
        config = [*description.needs, *(one.key for one in recipes if one.key)]
        return (
            [name for name in dict.fromkeys(secrets) if not self.secrets.get(name, "").strip()],
            [name for name in dict.fromkeys(config) if self.config.get(name) in (None, "")],
        )

    def completed(self, name: str, description: Description, *, yes: bool) -> "Wanted":
        """With what is missing asked for. Raises ChannelIncomplete where nobody can be asked."""
        wanted = self
        while any(lacks := wanted.lacks(description)):
            secrets, config = lacks
            if yes or not sys.stdin.isatty():
                named = ", ".join([*secrets, *(f"config.{key}" for key in config)])
                add = [f"--secret {key}='${{env:NAME}}'" for key in secrets]
                add += [f"--set {key}=VALUE" for key in config]
                raise ChannelIncomplete(
                    f"channel {name} needs {named}; nothing was written. Add {' '.join(add)}"
                )
            wanted = wanted.asked(secrets, config, description)
        return wanted

    def asked(
        self, secrets: Sequence[str], config: Sequence[str], description: Description
    ) -> "Wanted":
        """With one value more: what a key of config says may decide what else is needed."""
        if config:
            key = config[0]
            values = {one.when[key] for one in description.recipes if key in one.when}
            hint = f" ({', '.join(sorted(values))})" if values else ""
            value = click.prompt(f"config.{key}{hint}", err=True).strip()
            return replace(self, config={**self.config, key: value})
        value = click.prompt(f"secret {secrets[0]} (${{env:NAME}} or ${{file:NAME}})", err=True)
        if REFERENCE.fullmatch(value.strip()):
            return replace(self, secrets={**self.secrets, secrets[0]: value.strip()})
        click.echo("write a reference, not the secret itself", err=True)
        return self


def _require_working(edit: Edit, after: str, name: str, description: Description) -> None:
    """Refuses what a start would. Raises ConfigInvalid, ChannelRefused."""
    channel = next(one for one in edit.validate(after).channels if one.name == name)
    require_openable(channel, description, SystemClock())


@channel.command()
@click.argument("kind", metavar="KIND|DIR")
@click.option("--name", help="What to call the channel; if not said, as its adapter.")
@secrets_given
@settings_given
@transport_given
@click.option("--grant", "extra", type=CAPABILITY, multiple=True, help="Grant the adapter this.")
@agree
@click.pass_obj
def add(
    context: CliContext,
    /,
    kind: str,
    *,
    name: str | None,
    extra: tuple[Capability, ...],
    yes: bool,
    **asked: Any,
) -> None:
    source = _source(kind)
    plan = plan_install(context, source, extra, None)
    edit, description = plan.edit, plan.found.adapter
    if description is None:
        raise BadPlugin(f"{source.name} is no channel adapter; see `exogate plugin install`")
    name = name or source.name
    wanted = Wanted(dict(asked["secrets"]), dict(asked["settings"]), asked["transport"])
    wanted = wanted.completed(name, description, yes=yes)
    table = {
        "plugin": plan.found.given.name,
        "transport": wanted.transport,
        "secrets": _entries(wanted.secrets, plan.asked),
        "config": wanted.config,
    }
    table = {key: value for key, value in table.items() if value}
    plan = replace(plan, after=editing.with_named(plan.after, "channels", name, table))
    _require_working(edit, plan.after, name, description)
    requests = block("requests", list(asked_lines(plan.asked, plan.new)))
    edit.show(*requests, edit.difference(plan.after))
    edit.confirm("Add it, with these capabilities?", yes=yes)
    effect = plan.save()
    context.print_result(
        {"name": name, "plugin": source.name, "config": str(edit.path)},
        f"channel {name} was added to {edit.name}. {effect}",
    )


@channel.command("set")
@click.argument("name")
@secrets_given
@settings_given
@transport_given
@agree
@click.pass_obj
def set_(
    context: CliContext,
    name: str,
    *,
    secrets: Sequence[tuple[str, str]],
    settings: Sequence[tuple[str, str]],
    transport: TransportKind | None,
    yes: bool,
) -> None:
    if not (secrets or settings or transport):
        raise click.UsageError(
            "say what to change: --set KEY=VALUE, --secret NAME=REF, --transport"
        )
    edit = Edit.begin(context)
    keys = {"transport": transport} if transport else {}
    adapter = _adapter_of(edit, name)
    tables: dict[str, dict[str, object]] = {
        "config": dict(settings),
        "secrets": _entries(dict(secrets), adapter.capabilities),
    }
    after = editing.with_channel_keys(edit.before, name, keys, tables)
    found = anyio.run(examine, data_dir(context), configured_source(adapter), adapter)
    if found.adapter is None:
        raise BadPlugin(f"{adapter.name} cannot be loaded: {one_line('; '.join(found.problems))}")
    _require_working(edit, after, name, found.adapter)
    edit.written(after, nothing=f"channel {name} has these settings already", yes=yes, name=name)


def _adapter_of(edit: Edit, name: str) -> PluginDef:
    """The plugin of a channel, also where the channel's own secrets do not resolve. Raises CannotEdit."""
    config = edit.validate(editing.without_channel(edit.before, name))
    plugin = editing.plugin_of_channel(edit.before, name)
    found = next((one for one in config.plugins if one.name == plugin), None)
    if found is None:
        raise BadPlugin(f"channel {name} names the plugin {plugin}, which the file does not have")
    return found


@channel.command()
@click.argument("name")
@agree
@click.pass_obj
def remove(context: CliContext, name: str, *, yes: bool) -> None:
    edit = Edit.begin(context)
    after = editing.without_channel(edit.before, name)
    notes = ["Its adapter stays in [[plugins]], and its conversations stay in the store."]
    if count := editing.bindings_of(edit.before, name):
        notes.insert(0, f"{count} binding{'s' if count > 1 else ''} of its messages go with it.")
    edit.written(after, *notes, nothing=f"channel {name} is gone", yes=yes, name=name)


@channel.command()
@click.argument("kind", metavar="KIND|DIR")
@click.pass_obj
def test(context: CliContext, kind: str) -> None:
    source = _source(kind)
    script = read_script(source.file.parent / PLATFORM)

    def tell_step(lines: Sequence[str]) -> None:
        if not context.json:
            click.echo("\n".join(map(one_line, lines)))

    with logging_to(sys.stderr, "error", "console"):
        played = play(source, script, tell_step)
    fine = sum(not one.problems for one in played)
    is_fine = fine == len(played)
    context.print_result(
        {"ok": is_fine, "steps": [one.as_json() for one in played]},
        f"{fine} of {len(script.steps)} steps passed",
    )
    if not is_fine:
        sys.exit(FAILED)


@channel.command("dead-letters")
@click.option("--channel", "name", help="Of this channel only.")
@click.option("-n", "limit", default=50, show_default=True, type=click.IntRange(1, 500))
@click.option("--before", type=click.IntRange(1), help="Go on from the last one's place.")
@click.option("--resubmit", metavar="ID", help="Send it or take it in again.")
@click.option("--drop", metavar="ID", help="Delete it.")
@click.pass_obj
def dead_letters(
    context: CliContext,
    *,
    name: str | None,
    limit: int,
    before: int | None,
    resubmit: str | None,
    drop: str | None,
) -> None:
    if resubmit and drop:
        raise click.UsageError("give either --resubmit or --drop")
    if resubmit or drop:
        method = "channel.resubmit" if resubmit else "channel.drop"
        told = ask(context, method, {"id": resubmit or drop, "channel": name})
    else:
        asked = {"channel": name, "limit": limit, "before": before}
        told = ask(context, "channel.dead_letters", asked)
    if context.json:
        context.print_json(told)
    elif "letters" not in told:
        click.echo(f"{cell(told['id'])} is {told['state']}")
    else:
        _show_letters(told)


def _show_letters(told: Mapping[str, Any]) -> None:
    for one in (*told["letters"], *told["unread"]):
        one["text"] = one["text"][:LONGEST_TEXT]
    if not (told["letters"] or told["unread"]):
        click.echo("no dead letters")
        return
    columns = "place id at channel account peer state why text | id at channel account why text"
    lists = {name: told[name] for name in ("letters", "unread")}
    click.echo("\n".join(rendered(lists, columns)))
    if told["more"]:
        click.echo(f"more: --before {told['letters'][-1]['place']}")
    counts = told["counts"]
    click.echo(f"{counts['outgoing']} outgoing, {counts['incoming']} incoming")
