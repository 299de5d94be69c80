"""Agents and subagents with everything merged and checked that they name; projects and bindings."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gateway.config.environment import DEMO, default_model
from gateway.config.problems import Code, KeyPath
from gateway.config.reading import Reading
from gateway.config.values import GatewayConfig
from gateway.domain.agents import (
    AUTO,
    DELEGATE,
    OPEN_PROJECT,
    OWN_CHANNELS,
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

AUTO_SHARE = 0.8  # of the model's window
MOST_FALLBACKS = 5
Tried = tuple[object, ...]  # what tells one way to ask a model from another


def places(config: GatewayConfig) -> list[tuple[KeyPath, AgentDef]]:
    """Each agent as it is written, with where it stands in the file."""
    own: list[tuple[KeyPath, AgentDef]] = [(("agent",), config.agent)] if config.agent else []
    return own + [(("agents", index), agent) for index, agent in enumerate(config.agents)]


def resolve_agents(reading: Reading, config: GatewayConfig) -> tuple[AgentDef, ...]:
    agents: dict[str, AgentDef] = {}
    for path, written in places(config):
        reading.is_taken((*path, "id"), "agent", written.id, agents)
        agents[written.id] = _Agent(reading, config, path, written).resolved()
    return tuple(agents.values())


class _Agent:
    """One agent while it is resolved."""

    def __init__(
        self, reading: Reading, config: GatewayConfig, path: KeyPath, written: AgentDef
    ) -> None:
        self.reading, self.config, self.path, self.written = reading, config, path, written

    def resolved(self) -> AgentDef:
        path, written = self.path, self.written
        check_tools(self.reading, path, f"agent {quoted(written.id)}", written.tools)
        helpers = (DELEGATE + name for name in dict.fromkeys(written.subagents))
        asked = self._asked(path, written)
        agent = replace(
            written,
            **asked,
            tools=(*written.tools, *helpers),
            soul_path=written.soul_path and self._file("soul_path", "for the soul that is shipped"),
            prompt_template=written.prompt_template and self._template(),
            tree=self._tree(),
            context=self._context(asked["context_window"], is_noted=True),
        )
        return replace(agent, fallback=self._fallback(path, written, agent, (_tried(asked),)))

    def _fallback(
        self, above: KeyPath, section: AgentDef, agent: AgentDef, tried: tuple[Tried, ...]
    ) -> AgentDef | None:
        """The same agent with another model, which may be able to read less."""
        fallback, path = section.fallback, (*above, "fallback")
        if fallback is None:
            return None
        if path.count("fallback") > MOST_FALLBACKS:
            message = f"an agent has at most {MOST_FALLBACKS} nested fallbacks"
            self.reading.wrong(Code.OUT_OF_RANGE, path, message, "remove this one", at="table")
            return None
        asked = self._asked(path, fallback)
        context = self._context(asked["context_window"], is_noted=False)
        below = self._fallback(path, fallback, agent, (*tried, _tried(asked)))
        is_long = any(
            one.code == Code.OUT_OF_RANGE and one.path[: len(path)] == path
            for one in self.reading.findings
        )
        if _tried(asked) in tried and asked["model"] and not is_long:
            what = f"{asked['provider']}/{asked['model']}"
            message = f"this fallback repeats {what}, which has already failed at that point"
            fix = "name another provider or model, or remove it"
            self.reading.wrong(Code.NO_USE, path, message, fix, at="table")
        return replace(agent, **asked, context=context, fallback=below)

    def _asked(self, path: KeyPath, section: AgentDef) -> dict[str, Any]:
        """What an agent and each of its fallbacks has of its own."""
        known, provider = self.reading.known, section.provider or self.reading.choice.provider
        model = usual_model(self.reading, path, provider, section.model)
        max_tokens, most = section.max_tokens, known.output_limit(model)
        if most is not None and max_tokens > most:
            if self.reading.is_given((*path, "max_tokens")):
                message = f"{quoted(model)} replies with at most {most} tokens, not {max_tokens}"
                where = (*path, "max_tokens")
                self.reading.wrong(Code.OUT_OF_RANGE, where, message, f"write {most}")
            max_tokens = most
        if section.thinking and model:
            self._check_thinking(path, provider, model, max_tokens)
        return {
            "provider": provider,
            "model": model,
            "max_tokens": max_tokens,
            "context_window": section.context_window or known.context_window(model),
            "temperature": section.temperature,
            "thinking": section.thinking,
            "stream": section.stream,
        }

    def _check_thinking(self, path: KeyPath, provider: str, model: str, max_tokens: int) -> None:
        """Of a provider that is not known nothing is said: that is wrong already."""
        known, own = self.reading.known, self.config.providers.get(provider)
        preset = known.presets.get(provider)
        wire = preset.wire if preset else own.wire if own else None
        if provider not in self.reading.providers or (wire is None and provider != DEMO):
            return
        why = known.no_thinking(provider, wire, model, max_tokens)
        if why is not None:
            fix = "remove it, or choose a model that can"
            self.reading.wrong(Code.NOT_A_CHOICE, (*path, "thinking"), why, fix)

    def _context(self, window: int, *, is_noted: bool) -> ContextRules:
        """A budget that the model cannot read becomes what it can."""
        context, most = self.written.context, int(AUTO_SHARE * window)
        budget, key = context.token_budget, ("context", "token_budget")
        if budget != AUTO and budget <= window:
            return context
        is_given = self.reading.is_given
        if budget != AUTO and is_noted and (is_given(key) or is_given((*self.path, *key))):
            message = f"{budget} tokens exceed the model's window of {window}"
            fix = f"{most} is used; write that or set context_window"
            self.reading.note("context-clamped", (*self.path, *key), message, fix)
        return replace(context, token_budget=most)

    def _file(self, key: str, otherwise: str = "") -> str:
        fix = f"create it, or remove {key} {otherwise}".rstrip()
        return self.reading.file((*self.path, key), getattr(self.written, key), fix)

    def _tree(self) -> str:
        """A name of ours, or the file of the operator's own."""
        if self.written.tree.endswith(".bt"):
            return self._file("tree", "for the one that is shipped")
        where, trees = (*self.path, "tree"), self.reading.known.trees
        self.reading.refers(where, "tree", self.written.tree, trees, or_else=", or name a .bt file")
        return self.written.tree

    def _template(self) -> str:
        where, file = (*self.path, "prompt_template"), Path(self._file("prompt_template"))
        name = self.reading.around.name(file)
        try:
            compile_prompt(file.read_text("utf-8-sig"))
        except TemplateInvalid as error:
            fix = choose(error.name, PLACES) if error.name is not None else "correct the file"
            self.reading.wrong(Code.MALFORMED, where, f"{name}:{error}", fix)
        except UnicodeDecodeError as error:
            message = f"{name} is not UTF-8 (byte {error.start})"
            self.reading.wrong(Code.MALFORMED, where, message, "save it as UTF-8")
        except OSError:
            pass  # is reported already
        return str(file)


def _tried(asked: Mapping[str, Any]) -> Tried:
    return tuple(asked[name] for name in ("provider", "model", "thinking", "stream"))


def usual_model(reading: Reading, path: KeyPath, provider: str, model: str | None) -> str:
    """The model that is asked for, or the provider's usual one; the provider is used then."""
    if provider not in reading.providers:
        message = f"{quoted(provider)} is not a known provider"
        fix = choose(provider, reading.providers)
        reading.wrong(Code.NOT_A_CHOICE, (*path, "provider"), message, fix)
    reading.used.setdefault(provider, (*path, "provider"))
    model = model or default_model(provider, reading.known)
    if model is None and provider in reading.providers:
        message = f'"model" is missing: provider {quoted(provider)} has no default'
        where = (*path, "model")
        reading.wrong(Code.MISSING, where, message, 'add model = "..."', at="table")
    return model or ""


def check_tools(
    reading: Reading, path: KeyPath, who: str, tools: Sequence[str], more: Collection[str] = ()
) -> None:
    """`more`: names that are no plugins."""
    plugins = {**reading.plugins, **dict.fromkeys(more, True)}
    seen = set[str]()
    for index, tool in enumerate(tools):
        where = (*path, "tools", index)
        plugin = tool if tool in plugins else tool.partition("/")[0]
        if tool in seen:
            message = f"{who} has {quoted(tool)} twice"
            reading.wrong(Code.DUPLICATE, where, message, "keep one")
        elif tool.startswith(FAMILY) and plugin not in plugins:
            _check_mcp_tool(reading, where, tool)
        elif plugin not in plugins:
            message = f"{who}: there is no plugin {quoted(plugin)}"
            fix = _how_to_add(reading, plugin, plugins)
            reading.wrong(Code.UNKNOWN_NAME, where, message, fix)
        elif not plugins[plugin]:
            message = f"{who} lists {quoted(tool)}, which is not enabled"
            fix = "remove it, or write enabled = true in its [[plugins]]"
            reading.note("plugin-disabled", where, message, fix)
        seen.add(tool)


def _check_mcp_tool(reading: Reading, where: KeyPath, tool: str) -> None:
    """`tool` names all tools of an MCP server, or one of them."""
    server, slash, one = tool.removeprefix(FAMILY).partition("/")
    fix = "; or add [mcp.servers.NAME]"
    is_there = reading.refers(where, "MCP server", server, reading.servers, or_else=fix)
    if is_there and slash and not one:
        message, fix = f"{quoted(tool)} names no tool", "write mcp:SERVER or mcp:SERVER/TOOL"
        reading.wrong(Code.MALFORMED, where, message, fix)


def _how_to_add(reading: Reading, plugin: str, plugins: Mapping[str, bool]) -> str:
    bundled = reading.known.bundled
    if plugin not in bundled:
        return f"{choose(plugin, (*plugins, *bundled))}; or add [[plugins]] name = {quoted(plugin)}"
    needs = json.dumps(list(bundled[plugin].needs))
    capabilities = f", capabilities = {needs}" if bundled[plugin].needs else ""
    return f'add [[plugins]] name = "{plugin}", path = "bundled:{plugin}"{capabilities}'


def resolve_subagents(reading: Reading, config: GatewayConfig) -> tuple[SubagentDef, ...]:
    names, found = set(reading.agents), []
    tools = [one.tool for one in config.subagents]
    for index, one in enumerate(config.subagents):
        path: KeyPath = ("subagents", index)
        reading.is_taken((*path, "name"), "agent or subagent", one.name, names)
        names.add(one.name)
        others = [tool for tool in tools if tool != one.tool]
        check_tools(reading, path, f"subagent {quoted(one.name)}", one.tools, others)
        model = one.model
        if one.provider is not None:
            model = usual_model(reading, path, one.provider, model)
        known = reading.known
        found.append(
            replace(
                one,
                prompt_path=reading.file((*path, "prompt_path"), one.prompt_path, "create it"),
                model=model,
                context_window=known.context_window(model) if model else None,
                output_limit=known.output_limit(model) if model else None,
            )
        )
    return tuple(found)


def with_result(agent: AgentDef) -> AgentDef:
    """Whoever has tools can read what they gave, if it is not always shown whole."""
    if not agent.tools:
        return agent
    tools = agent.tools if RESULT in agent.tools else (*agent.tools, RESULT)
    below = agent.fallback
    return replace(agent, tools=tools, fallback=below and with_result(below))


def check_projects(reading: Reading, projects: Sequence[ProjectDef]) -> None:
    ids = set[str]()
    for index, project in enumerate(projects):
        if project.id == OPEN_PROJECT or project.id in ids:
            is_open = project.id == OPEN_PROJECT
            message = (
                f"project {quoted(project.id)} {'is open to all' if is_open else 'is there twice'}"
            )
            where = ("projects", index, "id")
            reading.wrong(Code.DUPLICATE, where, message, "choose another id")
        ids.add(project.id)


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
        channel = binding.channel
        if channel is not None and channel not in (*reading.channels, *OWN_CHANNELS):
            message = f"there is no channel {quoted(channel)}"
            fix = choose(channel, reading.channels)
            fix += "; only tokens with the scope impersonate can use other channels"
            reading.note("unknown-channel", (*path, "channel"), message, fix)
        earlier = first.setdefault(place, index)
        if earlier != index and any(place):
            message = f"it never applies: binding {earlier} has the same conditions and comes first"
            reading.note("bindings.shadowed", path, message, "remove it, or add a condition")
