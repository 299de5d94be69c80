"""`exogate rule`: which rules there are, and what they would do."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from gateway.api.declarations import plain
from gateway.app.generation import rule_set
from gateway.cli.context import CliContext, config_or_exit, refuse
from gateway.cli.ending import Unreachable
from gateway.cli.link import linked
from gateway.config.problems import ConfigInvalid
from gateway.config.rules import RuleReader
from gateway.control.expressions import ExpressionFailed
from gateway.control.rules import CORE, ROOTS, Rule, load_rules, problems_of, view
from gateway.domain.events import Event, kind_named
from gateway.domain.text import meant
from gateway.host.clock import SystemClock
from gateway.host.terminal import one_line
from gateway.web.status import rules as told_rules

GIVEN_ROOTS = ROOTS[2:]  # without event and payload, which have options of their own


@click.group()
def rule() -> None:
    """List and test rules."""


@rule.command("list")
@click.pass_obj
def list_rules(context: CliContext) -> None:
    """List rules: the running gateway's, else those of the files."""
    try:
        with linked(context) as link:
            told = link.call("rule.list")
    except Unreachable:
        config = config_or_exit(context)
        told = plain(told_rules(rule_set(config, config.rule_folder)))
    if context.json:
        click.echo(json.dumps(told))
        return
    for one in told["rules"]:
        flags = [name for name in ("core", "quarantined") if one[name]]
        flags += [] if one["enabled"] else ["disabled"]
        row = "   ".join([one["id"], ", ".join(one["on"]), *flags, one["source"]])
        click.echo(one_line(row))
        if one["errors"]:
            click.echo(one_line(f"    {one['errors']} errors; the last: {one['last_error']}"))
    for one in told["refused"]:
        click.echo(f"refused: {one['file']}\n{one['why']}")


@rule.command()
@click.argument("what", metavar="FILE_OR_ID")
@click.option("--event", "event_name", required=True, help="The event, by any of its names.")
@click.option("--payload", default="{}", help="What the event holds, as JSON.")
@click.option("--scope", default="{}", help="What else rules see, as JSON: a table for each root.")
@click.pass_obj
def test(context: CliContext, what: str, event_name: str, payload: str, scope: str) -> None:
    """Show what rules would do about an event. Nothing is done."""
    kind = kind_named(event_name)
    event = Event(
        kind.type if kind else event_name,
        kind.severity if kind else "info",
        *("test", SystemClock().now(), None, None),
        _table(payload, "--payload"),
    )
    given = _table(scope, "--scope")
    if unknown := given.keys() - set(GIVEN_ROOTS):
        name = min(unknown)
        near = meant(name, GIVEN_ROOTS)
        raise click.BadParameter(f'"{name}" cannot be given{near}', param_hint="--scope")
    tried = [_tried(one, event, given) for one in _rules(context, what)]
    if context.json:
        click.echo(json.dumps({"event": event.type, "rules": tried}, default=str))
        return
    for one in tried:
        click.echo(f"{one['id']}: {one['verdict']}")
        for act in one["acts"]:
            click.echo(f"    {json.dumps(act, default=str, ensure_ascii=False)}")


def _table(text: str, option: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"this is not JSON ({error})", param_hint=option) from None
    if not isinstance(found, dict):
        raise click.BadParameter('write a table: {"key": value}', param_hint=option)
    return found


def _rules(context: CliContext, what: str) -> Sequence[Rule]:
    path = Path(what)
    if path.is_file():
        reader = RuleReader(problems_of)
        try:
            core = {one.id: one for one in reader.file(CORE, {})}
            return load_rules(reader.file(path, core)).rules
        except ConfigInvalid as error:
            refuse(context, error)
    config = config_or_exit(context)
    every = rule_set(config, config.rule_folder).rules
    found = [one for one in every if one.definition.id == what]
    if not found:
        near = meant(what, [one.definition.id for one in every])
        raise click.ClickException(f'there is no file and no rule "{what}"{near}')
    return found


def _tried(rule: Rule, event: Event, scope: Mapping[str, Any]) -> dict[str, Any]:
    seen = view(event, scope, scope.get("plugin", {}))
    told: dict[str, Any] = {"id": rule.definition.id, "hears": rule.hears(event.type)}
    told |= {"when": None, "fires": False, "acts": []}
    if not told["hears"] or not rule.is_severe_enough(event):
        why = "is not severe enough" if told["hears"] else "is not among its events"
        return told | {"verdict": f"does not fire: {event.type} {why}"}
    if not rule.definition.is_enabled:
        return told | {"verdict": "does not fire: it is disabled"}
    try:
        told["when"] = rule.when(seen) if rule.when else True
        if not told["when"]:
            return told | {"verdict": f"does not fire: when gives {told['when']!r}"}
        acts = rule.acts(event, seen)
        told["acts"] = [{"act": act.kind, **asdict(act)["values"]} for act in acts]
    except ExpressionFailed as error:
        return told | {"verdict": f"fails: {error}"}
    return told | {"fires": True, "verdict": f"fires; when gives {told['when']!r}"}
