"""`exogate channel`: adds channels to the configuration, tries them, and says how they fare."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.ending import FAILED
from gateway.cli.link import linked
from gateway.cli.platform_script import PLATFORM, read_script
from gateway.cli.plugin_files import BadPlugin, Given, given
from gateway.cli.plugin_granting import (
    CAPABILITY,
    Plan,
    agree,
    agreed,
    effect,
    installed,
    planned,
    tell,
)
from gateway.cli.plugin_words import asked_lines, block, shown
from gateway.config import editing
from gateway.config.plugins import BUNDLED
from gateway.domain.capabilities import Capability, HttpGrant
from gateway.host.logs import logging_to


@click.group()
def channel() -> None:
    """Talk to people on chat platforms, through adapters."""


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


@dataclass(frozen=True, slots=True)
class _Wish:
    name: str | None
    secrets: Sequence[tuple[str, str]]
    settings: Sequence[tuple[str, str]]
    extra: tuple[Capability, ...]
    yes: bool

    def table(self, plan: Plan) -> Mapping[str, object]:
        origins = [one for one in plan.asked if isinstance(one, HttpGrant)]
        hosts = [str(one).removeprefix("http:") for one in origins]
        # With one host it is clear where a secret may go.
        secrets = {
            name: {"value": value, "hosts": hosts} if len(hosts) > 1 else value
            for name, value in self.secrets
        }
        given = {"plugin": plan.found.given.name, "secrets": secrets, "config": dict(self.settings)}
        return {key: value for key, value in given.items() if value}


def _source(kind: str) -> Given:
    """A bundled adapter by its name, or the directory of any. Raises BadPlugin."""
    return given(kind if Path(kind).exists() else f"{BUNDLED}{kind}")


@channel.command()
@click.argument("kind", metavar="KIND|DIR")
@click.option("--name", help="What to call the channel; if not said, as its adapter.")
@click.option("--secret", "secrets", type=PAIR, multiple=True, help="A reference: ${env:TOKEN}.")
@click.option("--set", "settings", type=PAIR, multiple=True, help="Of `config`, for the adapter.")
@click.option("--grant", "extra", type=CAPABILITY, multiple=True, help="Grant the adapter this.")
@agree
@click.pass_obj
def add(context: CliContext, /, kind: str, **wish: Any) -> None:
    """Show what a channel needs, and add it and its adapter to the configuration if you agree."""
    source = _source(kind)
    wanted = _Wish(**wish)
    plan = planned(context, source, wanted.extra, None)
    if plan.found.told.info.kind != "channel":
        raise BadPlugin(f"{source.name} is no channel adapter; see `exogate plugin install`")
    name = wanted.name or source.name
    plan = replace(plan, after=editing.with_channel(plan.after, name, wanted.table(plan)))
    tell(context, [*block("asks for", list(asked_lines(plan.asked, plan.new))), plan.difference])
    agreed("Add it, with these capabilities?", yes=wanted.yes)
    installed(context, plan)
    if context.json:
        told = {"name": name, "plugin": source.name, "config": str(plan.place.path)}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        click.echo(f"channel {name} is in {plan.place.name}. {effect(context)}")


@channel.command()
@click.argument("kind", metavar="KIND|DIR")
@click.pass_obj
def test(context: CliContext, kind: str) -> None:
    """Play the conversation that an adapter ships, with a simulated platform; exit 1 if it differs."""
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
        click.echo(f"{fine} of {len(script.steps)} steps went as described")
    if not is_fine:
        sys.exit(FAILED)


@channel.command("list")
@click.pass_obj
def list_channels(context: CliContext) -> None:
    """List the channels of the running gateway, and how they fare."""
    with linked(context) as link:
        told = link.call("channel.list")
    if context.json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for one in told["channels"]:
        counts = f"{one['receiving']['count']} in, {one['sending']['count']} out"
        waits = f"   {one['pending']} waiting, {one['dead'] + one['unread']} dead letters"
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
    """List answers that did not arrive and messages that were not taken in; retry or drop one."""
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
