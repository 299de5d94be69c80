"""`exogate status`."""

import json
import sys
from collections.abc import Mapping

import click

from gateway.cli.context import CliContext
from gateway.cli.ending import FAILED
from gateway.cli.link import linked


@click.command()
@click.pass_obj
def status(context: CliContext) -> None:
    """Say how the running gateway is; exit 1 if it is not ready."""
    with linked(context) as link:
        shown = link.call("status")
    if context.json:
        click.echo(json.dumps(shown))
    else:
        click.echo(f"exogate {shown['version']}   {'ready' if shown['ready'] else 'NOT READY'}")
        for reason in (*shown["reasons"], *shown["problems"]):
            click.echo(f"  !          {reason}")
        click.echo(f"  Process    {shown['pid']}, up {shown['uptime_s']:.0f} s")
        click.echo(f"  Config     {shown['config']}")
        click.echo(f"  Store      {shown['store']['url']}")
        click.echo(f"  Agents     {', '.join(shown['agents'])}")
        click.echo(f"  Plugins    {', '.join(map(_plugin, shown['plugins'])) or 'none'}")
        click.echo(f"  Channels   {', '.join(map(_channel, shown['channels'])) or 'none'}")
        if shown["mcp"]:
            click.echo(f"  MCP        {', '.join(map(server, shown['mcp']))}")
        click.echo(f"  Sessions   {shown['sessions']}")
        click.echo(f"  Messages   {shown['running']} at work, {shown['pending']} not ended")
        click.echo(f"  Memory     {shown['memory']['backlog']} sessions to look at for facts")
    if not shown["ready"]:
        sys.exit(FAILED)


def _channel(one: Mapping[str, str]) -> str:
    return one["name"] if one["state"] == "connected" else f"{one['name']} ({one['state']})"


def _plugin(one: Mapping[str, str]) -> str:
    return one["name"] if one["state"] == "loaded" else f"{one['name']} ({one['state']})"


def server(one: Mapping[str, object]) -> str:
    """How an MCP server fares."""
    more = f"{one['tools']} tools" if one["state"] == "connected" else one["why"]
    return f"{one['name']} ({one['state']}{f', {more}' if more else ''})"
