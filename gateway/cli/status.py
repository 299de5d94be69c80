"""`exogate status`."""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.ending import FAILED
from gateway.cli.link import linked
from gateway.host.terminal import one_line


@click.command()
@click.pass_obj
def status(context: CliContext) -> None:
    """Show the status of the gateway; exit 1 if it is not ready."""
    with linked(context) as link:
        shown = link.call("status")
    if context.json:
        click.echo(json.dumps(shown))
    else:
        click.echo("\n".join(map(one_line, _lines(shown))))
    if not shown["ready"]:
        sys.exit(FAILED)


def _lines(shown: Mapping[str, Any]) -> Iterator[str]:
    yield f"exogate {shown['version']}   {'ready' if shown['ready'] else 'NOT READY'}"
    for reason in (*shown["reasons"], *shown["problems"]):
        yield f"  !          {reason}"
    yield f"  Process    {shown['pid']}, up {shown['uptime_s']:.0f} s"
    yield f"  Config     {shown['config']}"
    yield f"  Store      {shown['store']['url']}"
    yield f"  Agents     {', '.join(shown['agents'])}"
    yield f"  Plugins    {', '.join(map(_plugin, shown['plugins'])) or 'none'}"
    yield f"  Channels   {', '.join(map(_channel, shown['channels'])) or 'none'}"
    if shown["mcp"]:
        yield f"  MCP        {', '.join(map(server, shown['mcp']))}"
    yield f"  Sessions   {shown['sessions']}"
    yield f"  Messages   {shown['running']} running, {_queued(shown)} queued"
    backlog = shown["memory"]["backlog"]
    memory = f"facts of {backlog} sessions not extracted yet" if backlog else "up to date"
    yield f"  Memory     {memory}"


def _queued(shown: Mapping[str, int]) -> int:
    """`pending` counts the messages of running turns as well."""
    return max(0, shown["pending"] - shown["running"])


def _channel(one: Mapping[str, str]) -> str:
    return one["name"] if one["state"] == "connected" else f"{one['name']} ({one['state']})"


def _plugin(one: Mapping[str, str]) -> str:
    return one["name"] if one["state"] == "loaded" else f"{one['name']} ({one['state']})"


def server(one: Mapping[str, object]) -> str:
    """An MCP server: its name, its state, and its tools or what is wrong."""
    more = f"{one['tools']} tools" if one["state"] == "connected" else one["why"]
    return f"{one['name']} ({one['state']}{f', {more}' if more else ''})"
