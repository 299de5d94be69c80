"""`exogate audit tail|verify`."""

import json
import sys

import click

from gateway.cli.context import CliContext
from gateway.cli.ending import FAILED
from gateway.cli.link import linked
from gateway.host.terminal import one_line


@click.group()
def audit() -> None:
    """Show changes to permissions and budgets."""


@audit.command()
@click.option("-n", "limit", default=20, show_default=True, type=click.IntRange(1, 500))
@click.pass_obj
def tail(context: CliContext, limit: int) -> None:
    """Show the newest entries, the latest last."""
    with linked(context) as link:
        told = link.call("audit.tail", limit=limit)
    if context.json:
        click.echo(json.dumps(told))
        return
    for one in reversed(told["entries"]):
        detail = one["detail"]
        shown = {name: detail[name] for name in detail if name != "authority"}
        row = f"{one['seq']:>6}  {one['at']}  {one['kind']:16} {one['actor']}  {json.dumps(shown)}"
        click.echo(one_line(row))


@audit.command()
@click.option("--head", metavar="HASH", help="A hash told earlier, which has to be there still.")
@click.pass_obj
def verify(context: CliContext, head: str | None) -> None:
    """Check that no entry was changed or removed. Exit 1 if one was."""
    with linked(context) as link:
        told = link.call("audit.verify", head=head)
    if context.json:
        click.echo(json.dumps(told))
    else:
        click.echo(f"{told['entries']:,} entries are unchanged; the last hash is {told['head']}")
    if not told["ok"]:
        click.echo(told["why"], err=True)
        sys.exit(FAILED)
