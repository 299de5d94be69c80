"""`exogate provider list|test`."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import click

from gateway.app.models import models
from gateway.cli.context import CliContext, config_or_exit
from gateway.cli.ending import FAILED, failure
from gateway.cli.known import DEFAULT_MODELS
from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.errors import GatewayError, ModelFailed
from gateway.domain.ids import AgentId
from gateway.domain.messages import Message
from gateway.domain.model import ModelReply, ModelRequest
from gateway.domain.ports import Model
from gateway.host.clock import SystemClock

if TYPE_CHECKING:
    from gateway.cli.plugin_place import Place

QUESTION = "Answer with the single word: ready"
MOST_TOKENS = 32
WITHIN_S = 60.0
UNUSED = (
    "No agent asks {name} by this: `provider add {name} --use` lets the default agent do, and keeps its "
    "tools and budgets. An [agent] written by hand has only the tools and budgets that the file says."
)


class NothingToTest(GatewayError):
    code = "nothing_to_test"


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
    from gateway.config import editing  # noqa: PLC0415  # as above

    place = writing.place_of(context)
    table = {key: value for key, value in told.items() if value is not None}
    after = editing.with_provider(place.text, name, table)
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
        click.echo(f"provider {name} is in {place.name}. {writing.effect(context)}")


def _used(
    context: CliContext, place: "Place", text: str, name: str, model: str | None
) -> tuple[str, list[str]]:
    """The text with the default agent asking this provider, and what becomes of its tools and budgets.

    An agent of the file has no tools and no budgets but its own: those in force are written down.
    """
    from gateway.config import editing  # noqa: PLC0415  # pydantic is slow to import

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
        limit = "there is no daily one" if daily is None else f"daily {daily:,} tokens"
        yield f"The budgets stay as they are: {limit}; `exogate budget set daily N` sets it."
    else:
        yield "The budgets change: compare `exogate config get budgets` before and after."


@provider.command()
@click.argument("name", required=False)
@click.option("--model", help="Ask this model, instead of an agent's or the preset's.")
@click.pass_obj
def test(context: CliContext, name: str | None, model: str | None) -> None:
    """Ask a provider one tiny question (about 30 tokens) and show what came back."""
    config = config_or_exit(context)
    agent = _agent_of(config, name, model)
    try:
        reply = anyio.run(_ask, config, agent)
    except ModelFailed as error:
        if context.json:
            told = {"kind": error.kind, "message": str(error)}
            click.echo(json.dumps({**failure(error.code, str(error)), **told}))
        else:
            click.echo(f"exogate: {error}", err=True)
        sys.exit(FAILED)
    shown = {
        "ok": True,
        "provider": reply.provider,
        "model": reply.model,
        "text": reply.text,
        "tokens": reply.usage.total,
        "estimated": reply.usage.estimated,
    }
    about = " (estimated)" if reply.usage.estimated else ""
    text = (
        f"{reply.provider}/{reply.model} answered {reply.text!r}, {reply.usage.total} tokens{about}"
    )
    click.echo(json.dumps(shown, ensure_ascii=False) if context.json else text)


def _agent_of(config: GatewayConfig, name: str | None, model: str | None) -> AgentDef:
    """Whose model is asked: the first agent's that uses the provider, else the preset's usual one."""
    for agent in config.agents:
        link: AgentDef | None = agent
        while link is not None:
            if name is None or link.provider == name:
                return replace(link, model=model or link.model)
            link = link.fallback
    if name is None or name not in config.providers:
        raise NothingToTest(f"there is no provider {name!r}; `exogate provider list` shows them")
    model = model or DEFAULT_MODELS.get(name)
    if model is None:
        raise NothingToTest(f"no agent uses the provider {name!r}; say which --model to ask")
    return AgentDef(AgentId(name), name, model)


def _unmetered(model: Model) -> Model:
    """The operator's own test call needs no store, and says itself what it took."""
    return model


async def _ask(config: GatewayConfig, agent: AgentDef) -> ModelReply:
    request = ModelRequest(
        provider=agent.provider,
        model=agent.model,
        system="",
        messages=(Message("user", QUESTION),),
        max_tokens=MOST_TOKENS,
        stream=agent.stream,
        deadline_s=WITHIN_S,
    )
    once = {name: replace(one, max_retries=0) for name, one in config.providers.items()}
    async with models(replace(config, providers=once), SystemClock(), _unmetered) as model:
        with anyio.move_on_after(WITHIN_S):
            return await model.reply(request, lambda _delta: None)
    raise ModelFailed(agent.provider, "timeout", f"no complete reply within {WITHIN_S:g} s")
