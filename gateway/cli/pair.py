"""`exogate pair list|approve|deny`."""

import json
from collections.abc import Mapping
from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.link import linked
from gateway.domain.terminal import one_line

STATES = {
    "asked": "waits",
    "paired": "may talk",
    "denied": "may not talk",
    "revoked": "is a stranger again",
}


@click.group()
def pair() -> None:
    """Decide who may talk to agents in direct chats."""


@pair.command("list")
@click.option("--channel")
@click.pass_obj
def list_people(context: CliContext, channel: str | None) -> None:
    """List who waits, then who was approved or denied."""
    with linked(context) as link:
        told = link.call("pair.list", channel=channel)
    if context.json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for one in told["pairings"]:
        click.echo(_line(one))
    if not told["pairings"]:
        click.echo("nobody waits, and nobody is paired", err=True)


@pair.command()
@click.argument("code")
@click.option("--owner", is_flag=True, help="May decide about others, by /pair in the chat.")
@click.pass_obj
def approve(context: CliContext, code: str, *, owner: bool) -> None:
    """Let the person with that code talk. The first one of an account owns it."""
    with linked(context) as link:
        _tell(context, link.call("pair.approve", code=code, owner=owner))


@pair.command()
@click.argument("code", required=False)
@click.option("--channel", help="With --person: take back what was decided.")
@click.option("--account", default="default", show_default=True)
@click.option("--person", help="Their id, as `pair list` shows it.")
@click.pass_obj
def deny(
    context: CliContext, code: str | None, channel: str | None, account: str, person: str | None
) -> None:
    """Never answer the person with that CODE, or take back what was decided about a person."""
    if (code is None) == (person is None) or (person is None) != (channel is None):
        raise click.UsageError("give either CODE, or --channel and --person")
    who = {"code": code} if code else {"channel": channel, "account": account, "person": person}
    with linked(context) as link:
        _tell(context, link.call("pair.deny", **who))


def _tell(context: CliContext, one: Mapping[str, Any]) -> None:
    click.echo(json.dumps(one, ensure_ascii=False) if context.json else _line(one))


def _line(one: Mapping[str, Any]) -> str:
    name = f" ({one['name']})" if one.get("name") else ""
    state = STATES[one["state"]] + (", owner" if one.get("owner") else "")
    return one_line(f"{one['channel']}:{one['account']}  {one['person']}{name}  {state}")
