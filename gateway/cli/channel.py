"""`exogate channel`: adds channels to the configuration, changes them, and tests adapters. On a terminal it asks for
missing values, elsewhere it refuses them. It writes nothing that the gateway would refuse at its start."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import click

from gateway.app.doctor import BadPlugin
from gateway.channels.adapters import Description, Webhook
from gateway.channels.room import require_openable, secrets_of
from gateway.cli.channel_testing import PLATFORM, play, read_script
from gateway.cli.command import FAILED, CliContext, ParsedType
from gateway.cli.configuration import Edit, yes_option
from gateway.cli.link import ask, data_dir
from gateway.cli.plugin import CAPABILITY, plan_install
from gateway.cli.plugin_files import (
    PluginSource,
    block,
    capability_lines,
    configured_source,
    examine,
    find_source,
)
from gateway.cli.verbs import cell, render
from gateway.config import editing
from gateway.config.plugins import BUNDLED
from gateway.config.secrets import REFERENCE
from gateway.domain.channels import TransportKind
from gateway.domain.errors import GatewayError
from gateway.domain.plugins import Capability, HttpGrant, PluginDef
from gateway.domain.text import one_line
from gateway.host.clock import SystemClock
from gateway.host.logs import logging_to

LONGEST_TEXT = 80  # characters of a dead letter that are shown


class ChannelIncomplete(GatewayError):
    """The channel lacks values; nothing was written."""

    code = "channel_incomplete"


def _parse_pair(word: str) -> tuple[str, str]:
    """Raises ValueError."""
    name, is_pair, text = word.partition("=")
    if not (is_pair and name):
        raise ValueError(f"{name!r} has no value: write NAME=VALUE")
    return name, text


PAIR = ParsedType("NAME=VALUE", _parse_pair)
secrets_option = click.option(
    "--secret", "secrets", type=PAIR, multiple=True, help="A reference to a secret: ${env:TOKEN}."
)
settings_option = click.option(
    "--set", "settings", type=PAIR, multiple=True, help="A key of `config`, for the adapter."
)
transport_option = click.option(
    "--transport",
    type=click.Choice(["webhook", "poll", "socket"]),
    help="How the gateway reaches the platform; by default the first way that the adapter offers.",
)


@click.group()
def channel() -> None: ...


def _find_adapter(kind: str) -> PluginSource:
    """Finds a bundled adapter by its name, or any adapter by its directory. Raises BadPlugin."""
    return find_source(kind if Path(kind).exists() else f"{BUNDLED}{kind}")


def _secret_entries(secrets: Mapping[str, str], granted: Iterable[Capability]) -> dict[str, object]:
    """Returns secrets as the file has them. With several granted hosts each entry lists them; one host needs no list."""
    hosts = [str(one).removeprefix("http:") for one in granted if isinstance(one, HttpGrant)]
    if len(hosts) < 2:
        return dict(secrets)
    return {name: {"value": value, "hosts": hosts} for name, value in secrets.items()}


@dataclass(frozen=True, slots=True)
class ChannelDraft:
    """The values of a channel to be written: references to secrets, and texts of `config`."""

    secrets: Mapping[str, str]
    config: Mapping[str, object]
    transport: TransportKind | None = None

    def missing(self, description: Description) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the missing secrets and keys of `config`, in the order in which to ask for them."""
        offered = (one for one in description.transports if self.transport in {None, one.type})
        transport = next(offered, description.transports[0])
        # `config` chooses the recipes that verify calls.
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

    def complete(self, name: str, description: Description, *, yes: bool) -> "ChannelDraft":
        """Asks for the missing values. Raises ChannelIncomplete with --yes, or without a terminal."""
        draft = self
        while any(missing := draft.missing(description)):
            secrets, config = missing
            if yes or not sys.stdin.isatty():
                names = ", ".join([*secrets, *(f"config.{key}" for key in config)])
                add = [f"--secret {key}='${{env:NAME}}'" for key in secrets]
                add += [f"--set {key}=VALUE" for key in config]
                raise ChannelIncomplete(
                    f"channel {name} needs {names}; nothing was written. Add {' '.join(add)}"
                )
            draft = draft.ask_one(secrets, config, description)
        return draft

    def ask_one(
        self, secrets: Sequence[str], config: Sequence[str], description: Description
    ) -> "ChannelDraft":
        """Asks for one value alone, because a value of `config` may decide which others are needed."""
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


def _require_openable(edit: Edit, after: str, name: str, description: Description) -> None:
    """Raises ConfigInvalid or ChannelRefused if a start would refuse the channel."""
    channel = next(one for one in edit.validate(after).channels if one.name == name)
    require_openable(channel, description, SystemClock())


@channel.command()
@click.argument("kind", metavar="KIND|DIR")
@click.option("--name", help="The name of the channel; by default that of its adapter.")
@secrets_option
@settings_option
@transport_option
@click.option(
    "--grant", "extra", type=CAPABILITY, multiple=True, help="One more capability for the adapter."
)
@yes_option
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
    source = _find_adapter(kind)
    plan = plan_install(context, source, extra, None)
    edit, description = plan.edit, plan.found.adapter
    if description is None:
        raise BadPlugin(f"{source.name} is not a channel adapter; use `exogate plugin install`")
    name = name or source.name
    draft = ChannelDraft(dict(asked["secrets"]), dict(asked["settings"]), asked["transport"])
    draft = draft.complete(name, description, yes=yes)
    table = {
        "plugin": plan.found.source.name,
        "transport": draft.transport,
        "secrets": _secret_entries(draft.secrets, plan.requested),
        "config": draft.config,
    }
    table = {key: value for key, value in table.items() if value}
    plan = replace(plan, after=editing.with_named(plan.after, "channels", name, table))
    _require_openable(edit, plan.after, name, description)
    requests = block("requests", list(capability_lines(plan.requested, plan.new)))
    edit.show(*requests, edit.difference(plan.after))
    edit.confirm("Add it, with these capabilities?", yes=yes)
    effect = plan.save()
    context.print_result(
        {"name": name, "plugin": source.name, "config": str(edit.path)},
        f"channel {name} was added to {edit.name}. {effect}",
    )


@channel.command("set")
@click.argument("name")
@secrets_option
@settings_option
@transport_option
@yes_option
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
        raise click.UsageError("give --set KEY=VALUE, --secret NAME=REF or --transport")
    edit = Edit.begin(context)
    keys = {"transport": transport} if transport else {}
    adapter = _adapter_of(edit, name)
    tables: dict[str, dict[str, object]] = {
        "config": dict(settings),
        "secrets": _secret_entries(dict(secrets), adapter.capabilities),
    }
    after = editing.with_channel_keys(edit.before, name, keys, tables)
    found = anyio.run(examine, data_dir(context), configured_source(adapter), adapter)
    if found.adapter is None:
        raise BadPlugin(f"{adapter.name} cannot be loaded: {one_line('; '.join(found.problems))}")
    _require_openable(edit, after, name, found.adapter)
    edit.apply(after, nothing=f"channel {name} has these settings already", yes=yes, name=name)


def _adapter_of(edit: Edit, name: str) -> PluginDef:
    """Returns the plugin of a channel. Raises CannotEdit."""
    # Without the channel the file is valid even if the channel's own secrets do not resolve.
    config = edit.validate(editing.without_channel(edit.before, name))
    plugin = editing.plugin_of_channel(edit.before, name)
    found = next((one for one in config.plugins if one.name == plugin), None)
    if found is None:
        raise BadPlugin(f"channel {name} names the plugin {plugin}, which is not in the file")
    return found


@channel.command()
@click.argument("name")
@yes_option
@click.pass_obj
def remove(context: CliContext, name: str, *, yes: bool) -> None:
    edit = Edit.begin(context)
    after = editing.without_channel(edit.before, name)
    notes = ["Its adapter stays in [[plugins]], and its conversations stay in the store."]
    if count := editing.bindings_of(edit.before, name):
        notes.insert(
            0, f"{count} binding{'s' if count > 1 else ''} of the channel will be removed."
        )
    edit.apply(after, *notes, nothing=f"channel {name} is removed", yes=yes, name=name)


@channel.command()
@click.argument("kind", metavar="KIND|DIR")
@click.pass_obj
def test(context: CliContext, kind: str) -> None:
    source = _find_adapter(kind)
    script = read_script(source.file.parent / PLATFORM)

    def report_step(lines: Sequence[str]) -> None:
        if not context.json:
            click.echo("\n".join(map(one_line, lines)))

    with logging_to(sys.stderr, "error", "console"):
        steps = play(source, script, report_step, data_dir=data_dir(context))
    passed = sum(not one.problems for one in steps)
    context.print_result(
        {"ok": passed == len(steps), "steps": [one.as_json() for one in steps]},
        f"{passed} of {len(script.steps)} steps passed",
    )
    if passed < len(steps):
        sys.exit(FAILED)


@channel.command("dead-letters")
@click.option("--channel", "name", help="Only this channel.")
@click.option("-n", "limit", default=50, show_default=True, type=click.IntRange(1, 500))
@click.option("--before", type=click.IntRange(1), help="Only those before this PLACE of the list.")
@click.option(
    "--resubmit", metavar="ID", help="Send this answer again, or accept this message again."
)
@click.option("--drop", metavar="ID", help="Delete this one.")
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
        result = ask(context, method, {"id": resubmit or drop, "channel": name})
    else:
        asked = {"channel": name, "limit": limit, "before": before}
        result = ask(context, "channel.dead_letters", asked)
    if context.json:
        context.print_json(result)
    elif "letters" not in result:
        click.echo(f"{cell(result['id'])} is {result['state']}")
    else:
        _show_letters(result)


def _show_letters(result: Mapping[str, Any]) -> None:
    for one in (*result["letters"], *result["unread"]):
        one["text"] = one["text"][:LONGEST_TEXT]
    if not (result["letters"] or result["unread"]):
        click.echo("no dead letters")
        return
    columns = "place id at channel account peer state why text | id at channel account why text"
    lists = {name: result[name] for name in ("letters", "unread")}
    click.echo("\n".join(render(lists, columns)))
    if result["more"]:
        click.echo(f"more: --before {result['letters'][-1]['place']}")
    counts = result["counts"]
    click.echo(f"{counts['outgoing']} outgoing, {counts['incoming']} incoming")
