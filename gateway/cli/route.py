"""`exogate route explain`."""

import json

import click

from gateway.cli.context import CliContext
from gateway.cli.link import linked
from gateway.host.terminal import one_line


@click.group()
def route() -> None:
    """Explain routing."""


@route.command()
@click.option("--channel", required=True)
@click.option("--account", help="If not said, as `exogate chat`: local; of a platform: default.")
@click.option("--peer", default="main", show_default=True, help="A room: room:ID.")
@click.option("--guild")
@click.option("--team")
@click.pass_obj
def explain(context: CliContext, /, **address: str | None) -> None:
    """Explain which agent answers, and why no other does."""
    with linked(context) as link:
        shown = link.call("route.explain", **address)
    if context.json:
        click.echo(json.dumps(shown, ensure_ascii=False))
        return
    index = shown["binding_index"]
    which = "no binding matched" if index is None else f"binding {index}"
    click.echo(f"{shown['agent_id']}   matched by {shown['matched_by']} ({which})")
    click.echo(f"session {shown['session_key']}")
    for one in shown["rejected"]:
        click.echo(one_line(f"  not binding {one['index']}: {one['why']}"))
