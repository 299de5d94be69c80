"""Agents and subagents with their models, files and tools checked; projects and bindings."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gateway.config.problems import Code, KeyPath
from gateway.config.reading import DEMO, Reading, default_model
from gateway.config.values import GatewayConfig
from gateway.domain.agents import (
    AUTO,
    DELEGATE,
    OPEN_PROJECT,
    OWN_CHANNELS,
    OWN_TOOLS,
    PLACES,
    RESULT,
    AgentDef,
    Binding,
    ContextRules,
    ProjectDef,
    SubagentDef,
    TemplateInvalid,
    compile_prompt,
)
from gateway.domain.mcp import FAMILY
from gateway.domain.text import choose, quoted

AUTO_SHARE = 0.8  # share of the model's window that "auto" stands for
MOST_FALLBACKS = 5
ENABLE = "remove it, or write enabled = true in its [[plugins]]"


def places(config: GatewayConfig) -> list[tuple[KeyPath, AgentDef]]:
    """Returns the written agents with their paths in the file, the default agent first."""
    own: list[tuple[KeyPath, AgentDef]] = [(("agent",), config.agent)] if config.agent else []
    return own + [(("agents", index), agent) for index, agent in enumerate(config.agents)]


def resolve_agents(reading: Reading, config: GatewayConfig) -> tuple[AgentDef, ...]:
    agents: dict[str, AgentDef] = {}
    for path, written in places(config):
        reading.check_name((*path, "id"), written.id, agents, "another agent")
        agents[written.id] = _agent(reading, config, path, written)
    return tuple(agents.values())


def _agent(reading: Reading, config: GatewayConfig, path: KeyPath, written: AgentDef) -> AgentDef:
    check_tools(reading, path, f"agent {quoted(written.id)}", written.tools)
    for index, name in enumerate(written.rules if "rule" in reading.names else ()):
        reading.refers((*path, "rules", index), "rule", name)

    def file(key: str, otherwise: str) -> str:
        fix = f"create the file, or remove {key} to use {otherwise}"
        return reading.file((*path, key), getattr(written, key), fix)

    tree, soul, template = written.tree, written.soul_path, written.prompt_template
    if tree.endswith(".bt"):
        tree = file("tree", "the shipped tree")
    else:
        reading.refers((*path, "tree"), "tree", tree, or_else=", or name a .bt file")
    if template:
        template = file("prompt_template", "the built-in one")
        _check_template(reading, (*path, "prompt_template"), Path(template))
    agent = replace(
        written,
        tools=(*written.tools, *(DELEGATE + name for name in dict.fromkeys(written.subagents))),
        soul_path=soul and file("soul_path", "the shipped soul"),
        prompt_template=template,
        tree=tree,
    )
    first, *others = _models(reading, config, path, written)
    fallback: AgentDef | None = None
    for model in reversed(others):
        fallback = replace(agent, **model, fallback=fallback)
    return replace(agent, **first, fallback=fallback)


def _models(
    reading: Reading, config: GatewayConfig, path: KeyPath, written: AgentDef
) -> list[dict[str, Any]]:
    """Returns the fields of the agent and of each fallback that depend on its model."""
    links, models, tried = written.chain, list[dict[str, Any]](), set[object]()
    for depth, link in enumerate(links[: MOST_FALLBACKS + 1]):
        where = (*path, *["fallback"] * depth)
        model = _model(reading, config, where, link)
        request = tuple(model[name] for name in ("provider", "model", "thinking", "stream"))
        if request in tried and model["model"] and len(links) <= MOST_FALLBACKS + 1:
            what = f"{model['provider']}/{model['model']}"
            message = f"this fallback repeats {what}, which has already failed by then"
            fix = "name another provider or model, or remove it"
            reading.wrong(Code.NO_USE, where, message, fix, at="table")
        tried.add(request)
        context = _context(reading, where, written.context, model["context_window"])
        models.append({**model, "context": context})
    if len(links) > MOST_FALLBACKS + 1:
        where = (*path, *["fallback"] * (MOST_FALLBACKS + 1))
        message = f"an agent has at most {MOST_FALLBACKS} nested fallbacks"
        reading.wrong(Code.OUT_OF_RANGE, where, message, "remove this fallback", at="table")
    return models


def _model(
    reading: Reading, config: GatewayConfig, path: KeyPath, section: AgentDef
) -> dict[str, Any]:
    known, provider = reading.known, section.provider or reading.choice.provider
    model = usual_model(reading, path, provider, section.model)
    max_tokens, most = section.max_tokens, known.output_limit(model)
    if most is not None and max_tokens > most:
        where = (*path, "max_tokens")
        if reading.value_at(where) is not None:
            message = f"{quoted(model)} replies with at most {most} tokens, not {max_tokens}"
            reading.wrong(Code.OUT_OF_RANGE, where, message, f"write {most}")
        max_tokens = most
    found = {
        "provider": provider,
        "model": model,
        "max_tokens": max_tokens,
        "context_window": section.context_window or known.context_window(model),
        "temperature": section.temperature,
        "thinking": section.thinking,
        "stream": section.stream,
    }
    if section.thinking and model:
        _check_thinking(reading, config, path, found)
    return found


def _check_thinking(
    reading: Reading, config: GatewayConfig, path: KeyPath, model: Mapping[str, Any]
) -> None:
    """Reports a model that cannot think. An unknown provider or a missing wire is already reported."""
    provider = model["provider"]
    own = reading.known.presets.get(provider) or config.providers.get(provider)
    wire = own.wire if own else None
    if wire is None and provider != DEMO:
        return
    why = reading.known.no_thinking(provider, wire, model["model"], model["max_tokens"])
    if why is not None:
        fix = "remove thinking, or choose a model that supports it"
        reading.wrong(Code.NOT_A_CHOICE, (*path, "thinking"), why, fix)


def _context(reading: Reading, path: KeyPath, context: ContextRules, window: int) -> ContextRules:
    """Returns the context with a token budget that fits the model's window."""
    budget, most, key = context.token_budget, int(AUTO_SHARE * window), ("context", "token_budget")
    if budget != AUTO and budget <= window:
        return context
    is_given = reading.value_at(key) is not None or reading.value_at((*path, *key)) is not None
    if budget != AUTO and "fallback" not in path and is_given:
        message = f"{budget} tokens exceed the model's window of {window}"
        fix = (
            f"{most} is used; write it, or set context_window"  # `exogate doctor` reads the number
        )
        reading.note("context-clamped", (*path, *key), message, fix)
    return replace(context, token_budget=most)


def _check_template(reading: Reading, where: KeyPath, file: Path) -> None:
    name = reading.inputs.name(file)
    try:
        compile_prompt(file.read_text("utf-8-sig"))
    except TemplateInvalid as error:
        fix = choose(error.name, PLACES) if error.name is not None else "correct the file"
        reading.wrong(Code.MALFORMED, where, f"{name}:{error}", fix)
    except UnicodeDecodeError as error:
        message = f"{name} is not UTF-8 (byte {error.start})"
        reading.wrong(Code.MALFORMED, where, message, "save it as UTF-8")
    except OSError:
        pass  # already reported


def usual_model(reading: Reading, path: KeyPath, provider: str, model: str | None) -> str:
    """Returns the model, or the default of the provider; empty after a problem is reported. Marks the provider as used."""
    is_known = provider in reading.names["provider"]
    if not is_known:
        message = f"{quoted(provider)} is not a known provider"
        fix = choose(provider, reading.names["provider"])
        reading.wrong(Code.NOT_A_CHOICE, (*path, "provider"), message, fix)
    reading.used.setdefault(provider, (*path, "provider"))
    model = model or default_model(provider, reading.known)
    if model is None and is_known:
        message = f'"model" is missing: provider {quoted(provider)} has no default'
        reading.wrong(Code.MISSING, (*path, "model"), message, 'add model = "..."')
    return model or ""


def check_tools(
    reading: Reading, path: KeyPath, who: str, tools: Sequence[str], more: Collection[str] = ()
) -> None:
    """Reports unknown and disabled tools. `more` are valid names that are not plugins."""
    plugins = {**reading.plugins, **dict.fromkeys((*OWN_TOOLS, *more), True)}
    for index, tool in enumerate(tools):
        where = (*path, "tools", index)
        plugin = tool if tool in plugins else tool.partition("/")[0]
        if tool.startswith(FAMILY) and plugin not in plugins:
            server, slash, one = tool.removeprefix(FAMILY).partition("/")
            or_else = "; or add [mcp.servers.NAME]"
            is_known = reading.refers(where, "MCP server", server, or_else=or_else)
            if is_known and slash and not one:
                message, fix = (
                    f"{quoted(tool)} names no tool",
                    "write mcp:SERVER or mcp:SERVER/TOOL",
                )
                reading.wrong(Code.MALFORMED, where, message, fix)
        elif plugin not in plugins:
            message = f"{who}: there is no plugin {quoted(plugin)}"
            fix = _how_to_add(reading, plugin, plugins)
            reading.wrong(Code.UNKNOWN_NAME, where, message, fix)
        elif not plugins[plugin]:
            message = f"{who} lists {quoted(tool)}, which is not enabled"
            reading.note("plugin-disabled", where, message, ENABLE)


def _how_to_add(reading: Reading, plugin: str, plugins: Mapping[str, bool]) -> str:
    bundled = reading.known.bundled
    if plugin not in bundled:
        names = dict.fromkeys((*plugins, *bundled))
        return f"{choose(plugin, names)}; or add [[plugins]] name = {quoted(plugin)}"
    needs = json.dumps(list(bundled[plugin].needs))
    capabilities = f", capabilities = {needs}" if bundled[plugin].needs else ""
    return f'add [[plugins]] name = "{plugin}", path = "bundled:{plugin}"{capabilities}'


def resolve_subagents(reading: Reading, config: GatewayConfig) -> tuple[SubagentDef, ...]:
    names, found = set(reading.names["agent"]), []
    for index, one in enumerate(config.subagents):
        path: KeyPath = ("subagents", index)
        reading.check_name((*path, "name"), one.name, names, "another agent or subagent")
        names.add(one.name)
        prompt = reading.file((*path, "prompt_path"), one.prompt_path, "create the file")
        others = [other.tool for other in config.subagents if other.tool != one.tool]
        check_tools(reading, path, f"subagent {quoted(one.name)}", one.tools, others)
        model, known = one.model, reading.known
        if one.provider is not None:
            model = usual_model(reading, path, one.provider, model)
        found.append(
            replace(
                one,
                prompt_path=prompt,
                model=model,
                context_window=known.context_window(model) if model else None,
                output_limit=known.output_limit(model) if model else None,
            )
        )
    return tuple(found)


def with_result(agent: AgentDef) -> AgentDef:
    """Returns the agent with the tool that reads whole results, if the agent has tools."""
    if not agent.tools:
        return agent
    tools = agent.tools if RESULT in agent.tools else (*agent.tools, RESULT)
    below = agent.fallback
    return replace(agent, tools=tools, fallback=below and with_result(below))


def check_projects(reading: Reading, projects: Sequence[ProjectDef]) -> None:
    for index, project in enumerate(projects):
        if project.id == OPEN_PROJECT:
            where, message = (
                ("projects", index, "id"),
                f"project {quoted(project.id)} is open to all",
            )
            reading.wrong(Code.DUPLICATE, where, message, "choose another id")


def check_bindings(reading: Reading, bindings: Sequence[Binding]) -> None:
    names = [one.name for one in fields(Binding) if one.name != "agent_id"]
    first: dict[tuple[str | None, ...], int] = {}
    for index, binding in enumerate(bindings):
        path: KeyPath = ("bindings", index)
        place = tuple(getattr(binding, name) for name in names)
        if not any(place):
            message = f"binding {index} has no condition and matches nothing"
            fix = f"add at least one of {', '.join(names)}"
            reading.wrong(Code.MISSING, path, message, fix, at="table")
            continue
        channels, channel = reading.names["channel"], binding.channel
        if channel is not None and channel not in (*channels, *OWN_CHANNELS):
            message = f"there is no channel {quoted(channel)}"
            fix = f"{choose(channel, (*channels, *sorted(OWN_CHANNELS)))}; other channels need a token"
            fix += " with the scope impersonate"
            reading.note("unknown-channel", (*path, "channel"), message, fix)
        earlier = first.setdefault(place, index)
        if earlier != index:
            message = f"binding {index} never applies: binding {earlier} has the same conditions"
            reading.note("bindings.shadowed", path, message, "remove it, or add a condition")
