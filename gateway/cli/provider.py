"""`exogate provider`: lists, adds and tests model providers."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import anyio
import click

from gateway.api.declarations import Verb, plain
from gateway.app.shared import provider_test
from gateway.cli.command import CliContext, CommandRefused, Unreachable, failure
from gateway.cli.configuration import Edit, load_config, yes_option
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
    "No agent uses {name} yet. `exogate provider add {name} --use` makes the default agent use it and keeps its tools and "
    "budgets. An [agent] that you write yourself has only the tools and budgets of the file."
)
TEST = Verb("provider test", holds="ok")
DEMO = {"name": "demo", "wire": "in this process", "base_url": "scripted answers, no AI"}


@click.group()
def provider() -> None: ...


@provider.command("list")
@click.pass_obj
def list_providers(context: CliContext) -> None:
    config = load_config(context)
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
    context.print_result(rows, *table([*rows, DEMO], ("name", "wire", "base_url", "key", "agents")))


@provider.command()
@click.argument("name")
@click.option("--wire", type=click.Choice(["openai", "anthropic"]), help="Presets need none.")
@click.option("--url", "base_url", help="The base URL; presets need none.")
@click.option("--key", "api_key", help="A reference to the API key: ${env:NAME} or ${file:NAME}.")
@click.option("--use", is_flag=True, help="Make the default agent use it.")
@click.option("--model", help="With --use: the model; by default that of the preset.")
@yes_option
@click.pass_obj
def add(
    context: CliContext,
    /,
    name: str,
    *,
    use: bool,
    model: str | None,
    yes: bool,
    **keys: str | None,
) -> None:
    edit = Edit.begin(context)
    table = {key: value for key, value in keys.items() if value is not None}
    if use and value_at(edit.before, ("providers", name)) is not None and not table:
        after = edit.before  # the entry exists
    else:
        edit = _ask_for_key(edit, name, table)
        after = editing.with_named(edit.before, "providers", name, table)
    notes = [UNUSED.format(name=name)]
    if use:
        after, notes = _use(edit, after, name, model)
    elif model is not None:
        raise click.UsageError("--model needs --use")
    edit.apply(after, *notes, nothing=f"{name} is configured already", yes=yes, name=name)


def _ask_for_key(edit: Edit, name: str, table: dict[str, str]) -> Edit:
    """Asks on a terminal for the missing key of a preset, puts a reference into `table`, and keeps the key in a file."""
    preset, inputs = edit.inputs.known.presets.get(name), edit.inputs
    variables = key_variables(name, preset.key_variable) if preset else ()
    file = f"{name}_api_key"
    has_key = any(value_of(inputs.environment, one) for one in variables)
    has_key = has_key or (inputs.home / FOLDER / file).exists()
    if not variables or table or has_key or not sys.stdin.isatty():
        return edit
    secret = click.prompt(f"API key of {name} (optional)", hide_input=True, default="", err=True)
    if not secret:
        return edit
    table["api_key"] = f"${{file:{file}}}"
    return edit.with_secret(file, secret)


def _use(edit: Edit, text: str, name: str, model: str | None) -> tuple[str, list[str]]:
    """Returns the text with the default agent on this provider, and sentences about its tools and budgets.

    An [agent] of the file replaces the built-in one with its tools and budgets, so this writes those into the file.
    """
    before = load_config(edit.context)
    model = model or DEFAULT_MODELS.get(name)
    if model is None:
        raise click.UsageError(f"provider {name} has no default model; give --model")
    agent: dict[str, object] = {"provider": name, "model": model}
    if before.default_agent is not None and not editing.has_agents(text):
        default = before.agents[0]
        agent = {"id": str(default.id), **agent, "tools": list(default.tools)}
        for plugin in before.plugins:
            if plugin.is_bundled and not editing.has_plugin(text, plugin.name):
                grants = [str(one) for one in plugin.capabilities]
                entry = {"name": plugin.name, "path": f"bundled:{plugin.name}"}
                text = editing.with_plugin(text, {**entry, "capabilities": grants})
        daily = before.budgets.daily.tokens
        if daily is not None:
            text = editing.with_budget(text, "daily", daily)
    after = editing.with_agent(text, agent)
    return after, list(_changes(before, edit.validate(after)))


def _changes(before: GatewayConfig, after: GatewayConfig) -> Iterator[str]:
    """Describes the model, tools and budgets of the default agent before and after."""
    old, new = before.agents[0], after.agents[0]
    yield f"Agent {new.id} uses {new.provider}/{new.model} instead of {old.provider}/{old.model}."
    yield f"It keeps these tools: {', '.join(one for one in old.tools if one in new.tools) or 'none'}."
    lost = [one for one in old.tools if one not in new.tools]
    if lost:
        yield f"It loses these tools: {', '.join(lost)}."
    if after.budgets == before.budgets:
        daily = after.budgets.daily.tokens
        limit = "no daily limit" if daily is None else f"daily {daily:,} tokens"
        yield f"The budgets do not change: {limit}; `exogate budget set daily N` sets it."
    else:
        yield "The budgets change: compare `exogate config get budgets` before and after."


@provider.command()
@click.argument("name", required=False)
@click.option("--model", help="Ask this model; by default that of an agent or of the preset.")
@click.pass_obj
def test(context: CliContext, name: str | None, model: str | None) -> None:
    result = try_provider(context, name, model)
    if not result["ok"]:
        code = "provider_error" if result["kind"] in get_args(FailureKind) else result["kind"]
        if not context.json:
            raise CommandRefused(result["message"], {"type": code})
        result = {**failure(code, result["message"]), **result}
    show(context, result, TEST)


def try_provider(
    context: CliContext, name: str | None, model: str | None = None
) -> Mapping[str, Any]:
    """Asks a provider through the running gateway, or directly if none runs."""
    try:
        asked = {"provider": name, "model": model}
        result: Mapping[str, Any] = ask(context, "provider.test", asked, WITHIN_S + ANSWER_S)
    except Unreachable:  # if the data directory is locked after all, `_ask` raises DataDirInUse
        result = anyio.run(_ask, load_config(context), name, model)
    return result


async def _ask(config: GatewayConfig, name: str | None, model: str | None) -> Mapping[str, Any]:
    async with provider_test(config) as trial:
        result: Mapping[str, Any] = plain(await trial.test(name, model))
        return result
