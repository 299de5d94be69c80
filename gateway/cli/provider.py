"""`exogate provider list|test`."""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

import anyio
import click

from gateway.api.declarations import plain
from gateway.app.shared import provider_test
from gateway.cli.context import CliContext, config_or_exit
from gateway.cli.ending import FAILED, Unreachable, failure
from gateway.cli.link import ANSWER_S, linked
from gateway.config import editing
from gateway.config.values import GatewayConfig
from gateway.domain.errors import FailureKind
from gateway.providers.prices import DEFAULT_MODELS
from gateway.web.status import WITHIN_S

if TYPE_CHECKING:
    from gateway.cli.plugin_place import Place

UNUSED = (
    "No agent asks {name} by this: `provider add {name} --use` lets the default agent do, and keeps its "
    "tools and budgets. An [agent] written by hand has only the tools and budgets that the file says."
)


@click.group()
def provider() -> None:
    """List, add and test model providers."""


@provider.command("list")
@click.pass_obj
def list_providers(context: CliContext) -> None:
    """List providers and the sources of their keys."""
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
@click.option("--use", is_flag=True, help="Let the default agent ask it from now on.")
@click.option("--model", help="With --use: which model; if not said, the preset's usual one.")
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@click.pass_obj
def add(
    context: CliContext,
    /,
    name: str,
    *,
    use: bool,
    model: str | None,
    yes: bool,
    **told: str | None,
) -> None:
    """Add a provider to the configuration. A preset whose key is in the environment needs no entry."""
    from gateway.cli import plugin_granting as writing  # noqa: PLC0415  # pydantic is slow to import

    place = writing.place_of(context)
    table = {key: value for key, value in told.items() if value is not None}
    after = editing.with_named(place.text, "providers", name, table)
    sentences = [UNUSED.format(name=name)]
    if use:
        after, sentences = _used(context, place, after, name, model)
    elif model is not None:
        raise click.UsageError("--model belongs to --use")
    writing.tell(context, [editing.difference(place.text, after, place.name), *sentences])
    writing.agreed("Write it?", yes=yes)
    writing.save(context, place, after)
    if context.json:
        click.echo(json.dumps({"name": name, "config": str(place.path)}))
    else:
        click.echo(f"provider {name} was added to {place.name}. {writing.effect(context)}")


def _used(
    context: CliContext, place: "Place", text: str, name: str, model: str | None
) -> tuple[str, list[str]]:
    """The text with the default agent asking this provider, and what becomes of its tools and budgets.

    An agent of the file has no tools and no budgets but its own: those in force are written down.
    """

    before = config_or_exit(context)
    model = model or DEFAULT_MODELS.get(name)
    if model is None:
        raise click.UsageError(f"provider {name} has no usual model; say which with --model")
    agent: dict[str, object] = {"provider": name, "model": model}
    if before.default_agent is not None and not editing.has_agents(text):
        usual = before.agents[0]
        agent = {"id": str(usual.id), **agent, "tools": list(usual.tools)}
        for plugin in before.plugins:
            if plugin.is_bundled and not editing.has_plugin(text, plugin.name):
                grants = [str(one) for one in plugin.capabilities]
                entry = {"name": plugin.name, "path": f"bundled:{plugin.name}"}
                text = editing.with_plugin(text, {**entry, "capabilities": grants})
        daily = before.budgets.daily.tokens
        if daily is not None:
            text = editing.with_budget(text, "daily", daily)
    after = editing.with_agent(text, agent)
    return after, list(_kept(before, editing.checked(after, place.path, place.around)))


def _kept(before: GatewayConfig, after: GatewayConfig) -> Iterator[str]:
    """What the default agent has from now on, and what it had and has no more."""
    old, new = before.agents[0], after.agents[0]
    yield f"Agent {new.id} asks {new.provider}/{new.model} instead of {old.provider}/{old.model}."
    yield f"It keeps these tools: {', '.join(one for one in old.tools if one in new.tools) or 'none'}."
    lost = [one for one in old.tools if one not in new.tools]
    if lost:
        yield f"It loses these tools: {', '.join(lost)}."
    if after.budgets == before.budgets:
        daily = after.budgets.daily.tokens
        limit = "there is no daily budget" if daily is None else f"daily {daily:,} tokens"
        yield f"The budgets stay as they are: {limit}; `exogate budget set daily N` sets it."
    else:
        yield "The budgets change: compare `exogate config get budgets` before and after."


@provider.command()
@click.argument("name", required=False)
@click.option("--model", help="Ask this model, instead of an agent's or the preset's.")
@click.pass_obj
def test(context: CliContext, name: str | None, model: str | None) -> None:
    """Ask a provider a tiny question and show the answer. About 30 tokens, metered."""
    try:
        with linked(context, WITHIN_S + ANSWER_S) as link:
            told = link.call("provider.test", provider=name, model=model)
    except Unreachable:  # or somebody else has the data directory, which is told then
        told = anyio.run(_ask, config_or_exit(context), name, model)
    if not told["ok"]:
        code = "provider_error" if told["kind"] in get_args(FailureKind) else told["kind"]
        told = {**failure(code, told["message"]), **told}
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
        told: Mapping[str, Any] = plain(await trial.test(name, model))
        return told
