"""`exogate provider`: the services that models are asked of."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import anyio
import click

from gateway.api.declarations import Verb, plain
from gateway.app.shared import provider_test
from gateway.cli.command import CliContext, CommandRefused, Unreachable, failure
from gateway.cli.configuration import Edit, agree, configured
from gateway.cli.link import ANSWER_S, ask
from gateway.cli.verbs import show, table
from gateway.config import editing
from gateway.config.editing import value_at
from gateway.config.environment import key_variables, value_of
from gateway.config.secrets import FOLDER
from gateway.config.values import GatewayConfig
from gateway.domain.errors import FailureKind
from gateway.providers.prices import DEFAULT_MODELS
from gateway.web.status import WITHIN_S

UNUSED = (
    "No agent asks {name} by this: `provider add {name} --use` lets the default agent do, and keeps its "
    "tools and budgets. An [agent] written by hand has only the tools and budgets that the file says."
)
TEST = Verb("provider test", holds="ok")
DEMO = {"name": "demo", "wire": "in this process", "base_url": "scripted answers, no AI"}


@click.group()
def provider() -> None: ...


@provider.command("list")
@click.pass_obj
def list_providers(context: CliContext) -> None:
    config = configured(context)
    rows: list[dict[str, object]] = [
        {
            "name": name,
            "wire": one.wire,
            "base_url": one.base_url,
            "key": config.key_origins.get(name, "config") if one.api_key else None,
            "agents": [agent.id for agent in config.agents if agent.provider == name],
        }
        for name, one in config.providers.items()
    ]
    context.say(rows, *table([*rows, DEMO], ("name", "wire", "base_url", "key", "agents")))


@provider.command()
@click.argument("name")
@click.option("--wire", type=click.Choice(["openai", "anthropic"]), help="Unless it is a preset.")
@click.option("--url", "base_url", help="Its address; needed unless it is a preset.")
@click.option("--key", "api_key", help="A reference: ${env:NAME} or ${file:NAME}.")
@click.option("--use", is_flag=True, help="Let the default agent ask it from now on.")
@click.option("--model", help="With --use: which model; if not said, the preset's usual one.")
@agree
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
    edit, after = Edit.begin(context), ""
    table = {key: value for key, value in told.items() if value is not None}
    if use and value_at(edit.before, ("providers", name)) is not None and not table:
        after = edit.before  # it is there, and is only to be used
    else:
        edit = _with_key(edit, name, table)
        after = editing.with_named(edit.before, "providers", name, table)
    notes = [UNUSED.format(name=name)]
    if use:
        after, notes = _used(edit, after, name, model)
    elif model is not None:
        raise click.UsageError("--model belongs to --use")
    edit.written(after, *notes, nothing=f"{name} is there already", yes=yes, name=name)


def _with_key(edit: Edit, name: str, table: dict[str, str]) -> Edit:
    """Asks for the key of a preset that has none, on a terminal; it is kept in a file of its own."""
    preset, inputs = edit.inputs.known.presets.get(name), edit.inputs
    variables = key_variables(name, preset.key_variable) if preset else ()
    file = f"{name}_api_key"
    is_there = any(value_of(inputs.environment, one) for one in variables)
    is_there = is_there or (inputs.home / FOLDER / file).exists()
    if not variables or table or is_there or not sys.stdin.isatty():
        return edit
    secret = click.prompt(f"API key of {name}, or nothing", hide_input=True, default="", err=True)
    if not secret:
        return edit
    table["api_key"] = f"${{file:{file}}}"
    return edit.keeping(file, secret)


def _used(edit: Edit, text: str, name: str, model: str | None) -> tuple[str, list[str]]:
    """The text with the default agent asking this provider, and what becomes of its tools and budgets.

    An agent of the file has no tools and no budgets but its own: those in force are written down.
    """
    before = configured(edit.context)
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
    return after, list(_kept(before, edit.checked(after)))


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
    told = tried(context, name, model)
    if not told["ok"]:
        code = "provider_error" if told["kind"] in get_args(FailureKind) else told["kind"]
        if not context.json:
            raise CommandRefused(told["message"], {"type": code})
        told = {**failure(code, told["message"]), **told}
    show(context, told, TEST)


def tried(context: CliContext, name: str | None, model: str | None = None) -> Mapping[str, Any]:
    """What came of asking it, by the running gateway if there is one."""
    try:
        asked = {"provider": name, "model": model}
        told: Mapping[str, Any] = ask(context, "provider.test", asked, WITHIN_S + ANSWER_S)
    except Unreachable:  # or somebody else has the data directory, which is told then
        told = anyio.run(_ask, configured(context), name, model)
    return told


async def _ask(config: GatewayConfig, name: str | None, model: str | None) -> Mapping[str, Any]:
    async with provider_test(config) as trial:
        told: Mapping[str, Any] = plain(await trial.test(name, model))
        return told
