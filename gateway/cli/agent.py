"""`exogate agent list`."""

import json
from collections.abc import Mapping
from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.link import linked
from gateway.host.terminal import one_line


@click.group()
def agent() -> None:
    """List the agents of the running gateway."""


@agent.command("list")
@click.pass_obj
def list_agents(context: CliContext) -> None:
    """List agents with their models, souls and subagents."""
    with linked(context) as link:
        told = link.call("agent.list")
    if context.json:
        click.echo(json.dumps(told["agents"]))
        return
    for one in told["agents"]:
        chain = " -> ".join([f"{one['provider']}/{one['model']}", *one["fallbacks"]])
        tools, soul = _tools(one), _soul(one)
        click.echo(one_line(f"{one['id']}   {chain}   tools {tools}   soul {soul}"))
    for one in told["subagents"]:
        model = "/".join(part for part in (one["provider"], one["model"]) if part)
        shown = f"{model or 'as its parent'}   tools {_tools(one)}   soul {_soul(one)}"
        click.echo(one_line(f"{one['name']} (subagent)   {shown}"))


def _tools(one: Mapping[str, Any]) -> str:
    return ", ".join(one["tools"]) or "none"


def _soul(one: Mapping[str, Any]) -> str:
    soul = one["soul"]
    return f"{soul['path']} ({soul['token_count']} tokens)" if soul else "none"
