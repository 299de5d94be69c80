"""`exogate channel`: adds channels to the configuration, tries them, and says how they fare."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import click

from gateway.channels.adapters import Description
from gateway.cli.channel_needs import Wanted, complete, require_working
from gateway.cli.context import CliContext, data_dir, refuse
from gateway.cli.ending import FAILED
from gateway.cli.link import linked
from gateway.cli.platform_script import PLATFORM, read_script
from gateway.cli.plugin_checking import examine
from gateway.cli.plugin_files import BadPlugin, Given, given, given_as
from gateway.cli.plugin_granting import (
    CAPABILITY,
    agree,
    agreed,
    effect,
    installed,
    place_of,
    planned,
    save,
    tell,
)
from gateway.cli.plugin_place import Place
from gateway.cli.plugin_words import asked_lines, block, shown
from gateway.config import editing
from gateway.config.plugins import BUNDLED
from gateway.config.problems import ConfigInvalid
from gateway.domain.channels import TransportKind
from gateway.domain.plugins import Capability, HttpGrant, PluginDef
from gateway.host.logs import logging_to


@click.group()
def channel() -> None:
    """Connect chat platforms, and test and list the connections."""


class _PairType(click.ParamType[tuple[str, str]]):
    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, is_pair, text = str(value).partition("=")
        if not (is_pair and name):
            self.fail(f"{name!r} is given no value: write NAME=VALUE", param, ctx)
        return name, text


PAIR = _PairType()


TRANSPORT = click.Choice(["webhook", "poll", "socket"])


def _source(kind: str) -> Given:
    """A bundled adapter by its name, or the directory of any. Raises BadPlugin."""
    return given(kind if Path(kind).exists() else f"{BUNDLED}{kind}")


def _entry(value: str, hosts: Sequence[str]) -> object:
    """A secret as the file has it: with one host it is clear where it may go."""
    return {"value": value, "hosts": list(hosts)} if len(hosts) > 1 else value


def _wanted(
    secrets: Sequence[tuple[str, str]],
    settings: Sequence[tuple[str, str]],
    transport: TransportKind | None,
) -> Wanted:
    return Wanted(dict(secrets), dict(settings), transport)


def _hosts(granted: Iterable[Capability]) -> Sequence[str]:
    return [str(one).removeprefix("http:") for one in granted if isinstance(one, HttpGrant)]


@channel.command()
@click.argument("kind", metavar="KIND|DIR")
@click.option("--name", help="What to call the channel; if not said, as its adapter.")
@click.option("--secret", "secrets", type=PAIR, multiple=True, help="A reference: ${env:TOKEN}.")
@click.option("--set", "settings", type=PAIR, multiple=True, help="Of `config`, for the adapter.")
@click.option("--transport", type=TRANSPORT, help="If not said, the first that it offers.")
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
    **given: Any,
) -> None:
    """Add a channel and its adapter. On a terminal it asks for missing values and your consent."""
    source = _source(kind)
    plan = planned(context, source, extra, None)
    description = plan.found.adapter
    if description is None:
        raise BadPlugin(f"{source.name} is no channel adapter; see `exogate plugin install`")
    name = name or source.name
    wanted = complete(name, _wanted(**given), description, yes=yes)
    hosts = _hosts(plan.asked)
    table: dict[str, object] = {"plugin": plan.found.given.name, "transport": wanted.transport}
    table |= {"secrets": {key: _entry(one, hosts) for key, one in wanted.secrets.items()}}
    table |= {"config": wanted.config}
    table = {key: value for key, value in table.items() if value}
    plan = replace(plan, after=editing.with_named(plan.after, "channels", name, table))
    _require_working(context, plan.place, plan.after, name, description)
    tell(context, [*block("requests", list(asked_lines(plan.asked, plan.new))), plan.difference])
    agreed("Add it, with these capabilities?", yes=yes)
    installed(context, plan)
    if context.json:
        told = {"name": name, "plugin": source.name, "config": str(plan.place.path)}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        click.echo(f"channel {name} was added to {plan.place.name}. {effect(context)}")


def _require_working(
    context: CliContext, place: Place, after: str, name: str, description: Description
) -> None:
    """Refuses what a start would; ends with 78 for a configuration that is not valid."""
    try:
        config = editing.checked(after, place.path, place.around)
    except ConfigInvalid as error:
        refuse(context, error)
    require_working(name, config, description)


@channel.command("set")
@click.argument("name")
@click.option("--secret", "secrets", type=PAIR, multiple=True, help="A reference: ${env:TOKEN}.")
@click.option("--set", "settings", type=PAIR, multiple=True, help="Of `config`, for the adapter.")
@click.option("--transport", type=TRANSPORT, help="How the platform is reached.")
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
    """Change the settings of a channel."""
    if not (secrets or settings or transport):
        raise click.UsageError(
            "say what to change: --set KEY=VALUE, --secret NAME=REF, --transport"
        )
    place = place_of(context)
    keys = {"transport": transport} if transport else {}
    tables: dict[str, dict[str, object]] = {"config": dict(settings)}
    adapter = _adapter_of(context, place, name)
    hosts = _hosts(adapter.capabilities)
    tables["secrets"] = {key: _entry(value, hosts) for key, value in secrets}
    after = editing.with_channel_keys(place.text, name, keys, tables)
    found = anyio.run(examine, data_dir(context), given_as(adapter), adapter)
    if found.adapter is None:
        raise BadPlugin(f"{adapter.name} cannot be loaded: {shown('; '.join(found.problems))}")
    _require_working(context, place, after, name, found.adapter)
    _written(context, place, after, name, yes=yes)


def _adapter_of(context: CliContext, place: Place, name: str) -> PluginDef:
    """The plugin of a channel, also where the channel's own secrets do not resolve. Raises CannotEdit."""
    bare = editing.without_channel(place.text, name)
    try:
        config = editing.checked(bare, place.path, place.around)
    except ConfigInvalid as error:
        refuse(context, error)
    plugin = editing.plugin_of_channel(place.text, name)
    found = next((one for one in config.plugins if one.name == plugin), None)
    if found is None:
        raise BadPlugin(f"channel {name} names the plugin {plugin}, which the file does not have")
    return found


@channel.command()
@click.argument("name")
@agree
@click.pass_obj
def remove(context: CliContext, name: str, *, yes: bool) -> None:
    """Remove a channel and its bindings. Its adapter and its conversations stay."""
    place = place_of(context)
    after = editing.without_channel(place.text, name)
    count = editing.bindings_of(place.text, name)
    if count:
        tell(context, [f"{count} binding{'s' if count > 1 else ''} of its messages go with it."])
    tell(context, ["Its adapter stays in [[plugins]], and its conversations stay in the store."])
    _written(context, place, after, name, yes=yes)


def _written(context: CliContext, place: Place, after: str, name: str, *, yes: bool) -> None:
    is_changed = after != place.text
    if is_changed:
        tell(context, [editing.difference(place.text, after, place.name)])
        agreed("Write it?", yes=yes)
        save(context, place, after)
    if context.json:
        told = {"name": name, "config": str(place.path), "changed": is_changed}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        is_done = f"{place.name} was written. {effect(context)}"
        click.echo(
            is_done if is_changed else f"channel {name} has these settings already; nothing changed"
        )


@channel.command()
@click.argument("kind", metavar="KIND|DIR")
@click.pass_obj
def test(context: CliContext, kind: str) -> None:
    """Test an adapter with a simulated platform. Exit 1 if its conversation goes otherwise."""
    from gateway.cli.channel_testing import play  # noqa: PLC0415  # a whole gateway

    source = _source(kind)
    script = read_script(source.file.parent / PLATFORM)

    def tell_step(lines: Sequence[str]) -> None:
        if not context.json:
            click.echo("\n".join(map(shown, lines)))

    with logging_to(sys.stderr, "error", "console"):
        played = play(source, script, tell_step)
    is_fine = all(not one.problems for one in played)
    if context.json:
        steps = [one.as_json() for one in played]
        click.echo(json.dumps({"ok": is_fine, "steps": steps}, ensure_ascii=False))
    else:
        fine = sum(not one.problems for one in played)
        click.echo(f"{fine} of {len(script.steps)} steps passed")
    if not is_fine:
        sys.exit(FAILED)


@channel.command("list")
@click.pass_obj
def list_channels(context: CliContext) -> None:
    """List the channels of the running gateway with their state."""
    with linked(context) as link:
        told = link.call("channel.list")
    if context.json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for one in told["channels"]:
        counts = f"{one['receiving']['count']} in, {one['sending']['count']} out"
        waits = f"   {one['pending']} queued, {one['dead'] + one['unread']} dead letters"
        why = f"   {one['why']}" if one["why"] else ""
        click.echo(shown(f"{one['name']:16} {one['state']:10} {counts}{waits}{why}"))
    if not told["channels"]:
        click.echo("no channel is configured; `exogate channel add KIND` adds one", err=True)


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
    """List, resubmit or drop failed messages and answers."""
    if resubmit and drop:
        raise click.UsageError("give either --resubmit or --drop")
    method, params = "channel.dead_letters", {"channel": name, "limit": limit, "before": before}
    if resubmit or drop:
        method = "channel.resubmit" if resubmit else "channel.drop"
        params = {"id": resubmit or drop, "channel": name}
    with linked(context) as link:
        told = link.call(method, **params)
    if context.json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        click.echo("\n".join(_letters(told)) or "no dead letters")


def _letters(told: Mapping[str, Any]) -> Iterable[str]:
    if "letters" not in told:
        yield shown(f"{told['id']} is {told['state']}")
        return
    for one in told["letters"]:
        whither = f"{one['channel']}:{one['account']}:{one['peer']}"
        yield shown(f"{one['place']:>6}  {one['id']}  {one['at']}  {whither}  {one['state']}")
        yield shown(f"        {one['why'] or '-'}   {one['text'][:80]}")
    if told["more"]:
        yield f"more: --before {told['letters'][-1]['place']}"
    for one in told["unread"]:
        yield shown(f"    in  {one['id']}  {one['at']}  {one['channel']}:{one['account']}")
        yield shown(f"        {one['why'] or '-'}   {one['text'][:80]}")
    if told["letters"] or told["unread"]:
        counts = told["counts"]
        yield f"{counts['outgoing']} outgoing, {counts['incoming']} incoming"
