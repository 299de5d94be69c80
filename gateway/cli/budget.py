"""`exogate budget status|resync|set`."""

import json
from collections.abc import Mapping
from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.link import linked
from gateway.config import editing


@click.group()
def budget() -> None:
    """Show and set token budgets."""


@budget.command()
@click.option("--session", "session_key", metavar="KEY", help="This session as well.")
@click.pass_obj
def status(context: CliContext, session_key: str | None) -> None:
    """Show what each budget has used and has left."""
    with linked(context) as link:
        told = link.call("budget.status", session_key=session_key)
    if context.json:
        click.echo(json.dumps(told))
        return
    for row in told["budgets"]:
        click.echo(_line(row))
        if "why" in row:
            click.echo(f"{'':24} {row['why']}")


def _line(row: Mapping[str, Any]) -> str:
    limit = "no limit" if row["limit"] is None else f"limit {row['limit']:,}"
    resets = f"; resets {row['resets_at']}" if row["resets_at"] else ""
    held = f", {row['reserved']:,} reserved" if row["reserved"] else ""
    return f"{row['scope']:24} {row['used']:>12,} {row['unit']} used, {limit}{held}{resets}"


@budget.command()
@click.pass_obj
def resync(context: CliContext) -> None:
    """Count spending by the clock again, after the clock was far ahead."""
    with linked(context) as link:
        told = link.call("budget.resync")
    if context.json:
        click.echo(json.dumps(told))
    elif told["changed"]:
        moved = f"; {told['records']:,} calls made since then were moved to {told['day']}"
        click.echo(f"the budget day is {told['day']} again, not {told['was']}{moved}")
    else:
        click.echo(f"the budget day is {told['day']} already; nothing changed")


@budget.command("set")
@click.argument("scope", metavar="SCOPE")
@click.argument("tokens", type=click.IntRange(0, 2**53))
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@click.pass_obj
def set_(context: CliContext, scope: str, tokens: int, *, yes: bool) -> None:
    """Write a token limit to the configuration. SCOPE: session, daily, monthly, per_agent, agent:ID."""
    from gateway.cli import plugin_granting as writing  # noqa: PLC0415  # pydantic is slow to import

    place = writing.place_of(context)
    after = editing.with_budget(place.text, scope, tokens)
    is_changed = after != place.text
    if is_changed:
        writing.tell(context, [editing.difference(place.text, after, place.name)])
        writing.agreed("Write it?", yes=yes)
        writing.save(context, place, after)
        writing.tell(context, [f"{place.name} was written. {writing.effect(context)}"])
    else:
        writing.tell(context, [f"{scope} has that limit already; nothing changed"])
    if context.json:
        told = {"scope": scope, "tokens": tokens, "config": str(place.path)}
        click.echo(json.dumps({**told, "changed": is_changed}))
