"""`exogate provider list|test`."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import anyio
import click

from gateway.app.provider_test import WITHIN_S, provider_test
from gateway.cli.context import CliContext, config_or_exit
from gateway.cli.ending import FAILED, Unreachable
from gateway.cli.link import ANSWER_S, linked
from gateway.config.values import GatewayConfig


@click.group()
def provider() -> None:
    """Look at the model providers of the configuration."""


@provider.command("list")
@click.pass_obj
def list_providers(context: CliContext) -> None:
    """List the configured providers and where their keys come from."""
    config = config_or_exit(context)
    rows = [
        {
            "name": name,
            "wire": one.wire,
            "base_url": one.base_url,
            "key": config.key_origins.get(name, "config") if one.api_key else None,
            "agents": [agent.id for agent in config.agents if agent.provider == name],
        }
        for name, one in config.providers.items()
    ]
    if context.json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        key = f"key from {row['key']}" if row["key"] else "no key"
        click.echo(f"{row['name']}   {row['wire']} wire   {row['base_url']}   {key}")
    click.echo("demo   in this process   scripted answers, no AI, no key")


@provider.command()
@click.argument("name")
@click.option("--wire", type=click.Choice(["openai", "anthropic"]), help="Unless it is a preset.")
@click.option("--url", "base_url", help="Its address; needed unless it is a preset.")
@click.option("--key", "api_key", help="A reference: ${env:NAME} or ${file:NAME}.")
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@click.pass_obj
def add(context: CliContext, /, name: str, *, yes: bool, **told: str | None) -> None:
    """Add a provider to the configuration. A preset whose key is in the environment needs no entry."""
    from gateway.cli import plugin_granting as writing  # noqa: PLC0415  # pydantic is slow to import
    from gateway.config import editing  # noqa: PLC0415  # as above

    place = writing.place_of(context)
    table = {key: value for key, value in told.items() if value is not None}
    after = editing.with_provider(place.text, name, table)
    writing.tell(context, [editing.difference(place.text, after, place.name)])
    writing.agreed("Write it?", yes=yes)
    writing.save(context, place, after)
    if context.json:
        click.echo(json.dumps({"name": name, "config": str(place.path)}))
    else:
        click.echo(f"provider {name} is in {place.name}. {writing.effect(context)}")


@provider.command()
@click.argument("name", required=False)
@click.option("--model", help="Ask this model, instead of an agent's or the preset's.")
@click.pass_obj
def test(context: CliContext, name: str | None, model: str | None) -> None:
    """Ask a provider one tiny question (about 30 tokens, metered) and show what came back."""
    try:
        with linked(context, WITHIN_S + ANSWER_S) as link:
            told = link.call("provider.test", provider=name, model=model)
    except Unreachable:  # or somebody else has the data directory, which is told then
        told = anyio.run(_ask, config_or_exit(context), name, model)
    if context.json:
        click.echo(json.dumps(told, ensure_ascii=False))
    elif told["ok"]:
        about = " (estimated)" if told["estimated"] else ""
        who = f"{told['provider']}/{told['model']}"
        click.echo(f"{who} answered {told['text']!r}, {told['tokens']} tokens{about}")
    else:
        click.echo(f"exogate: {told['message']}", err=True)
    if not told["ok"]:
        sys.exit(FAILED)


async def _ask(config: GatewayConfig, name: str | None, model: str | None) -> Mapping[str, Any]:
    async with provider_test(config) as trial:
        return await trial.test(name, model)
