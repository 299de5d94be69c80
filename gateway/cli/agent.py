"""`exogate agent list`."""

import json

import click

from gateway.cli.context import CliContext
from gateway.cli.link import linked


@click.group()
def agent() -> None:
    """Look at the agents of the running gateway."""


@agent.command("list")
@click.pass_obj
def list_agents(context: CliContext) -> None:
    """List the agents with their models and souls."""
    with linked(context) as link:
        agents = link.call("agent.list")["agents"]
    if context.json:
        click.echo(json.dumps(agents))
        return
    for one in agents:
        chain = " -> ".join([f"{one['provider']}/{one['model']}", *one["fallbacks"]])
        soul = (
            f"{one['soul']['path']} ({one['soul']['token_count']} tokens)"
            if one["soul"]
            else "none"
        )
        click.echo(
            f"{one['id']}   {chain}   tools {', '.join(one['tools']) or 'none'}   soul {soul}"
        )
