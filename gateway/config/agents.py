"""`[agent]`, `[[agents]]` and `[[bindings]]` as the domain's values, with everything merged."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gateway.config.environment import DEMO, Choice, default_model
from gateway.config.problems import Code, KeyPath, Report
from gateway.config.reaching import BindingSection, ProjectSection, SubagentSection
from gateway.config.schema import (
    AgentSection,
    ConfigFile,
    ContextSection,
    ModelSection,
)
from gateway.config.values import Surroundings
from gateway.domain.agents import (
    DELEGATE,
    OPEN_PROJECT,
    OWN_CHANNELS,
    PLACES,
    AgentDef,
    Binding,
    ContextRules,
    Limits,
    ProjectDef,
    TemplateInvalid,
    compile_prompt,
)
from gateway.domain.ids import AgentId
from gateway.domain.mcp import FAMILY
from gateway.domain.text import choose, quoted

AUTO_SHARE = 0.8  # of the model's window
MOST_FALLBACKS = 5
Tried = tuple[object, ...]  # what tells one way to ask a model from another
BINDING_FIELDS = ("channel", "account_id", "peer_id", "guild_id", "team_id")


@dataclass(frozen=True, slots=True)
class Agents:
    """Reads agents. `used` gathers the providers that they ask for, each with its first place."""

    around: Surroundings
    choice: Choice
    providers: tuple[str, ...]  # every name that an agent may give
    plugins: Mapping[str, bool]  # every name, and whether it is enabled
    sections: ConfigFile
    folder: Path
    report: Report
    used: dict[str, KeyPath] = field(default_factory=dict)

    def resolve(self) -> tuple[AgentDef, ...]:
        agents: dict[str, AgentDef] = {}
        own = [self.sections.agent] if self.sections.agent else []
        for path, section in zip(self.places(), (*own, *self.sections.agents), strict=True):
            if section.id in agents:
                message, fix = f"another agent has id {quoted(section.id)}", "choose another id"
                self.report.wrong(Code.DUPLICATE, (*path, "id"), message, fix)
            agents[section.id] = self._agent(path, section)
        return tuple(agents.values())

    def places(self) -> list[KeyPath]:
        """Where each agent stands in the file."""
        own: list[KeyPath] = [("agent",)] if self.sections.agent else []
        return own + [("agents", index) for index in range(len(self.sections.agents))]

    def _agent(self, path: KeyPath, section: AgentSection) -> AgentDef:
        who = f"agent {quoted(section.id)}"
        self.check_tools(path, who, section.tools)
        helpers = _helpers(path, section, self.sections.subagents, self.report)
        asked = self._asked(path, section)
        agent = AgentDef(
            id=AgentId(section.id),
            system_prompt=section.system_prompt,
            soul_path=self._soul(path, section),
            prompt_template=self._template(path, section),
            tools=(*section.tools, *helpers),
            project=self._project(path, section),
            tree=self._tree(path, section),
            decision=self._decision(path, section),
            rules=tuple(section.rules),
            limits=replace(Limits(), **{**_given(self.sections.limits), **_given(section.limits)}),
            context=self._context(path, section.context, asked["context_window"]),
            **asked,
        )
        below = self._fallback(path, section, section, agent, tried=(_tried(asked),))
        return replace(agent, fallback=below)

    def _fallback(
        self,
        above: KeyPath,
        owner: AgentSection,
        section: ModelSection,
        agent: AgentDef,
        *,
        tried: tuple[Tried, ...],
    ) -> AgentDef | None:
        """The same agent with another model, which may be able to read less."""
        fallback, path = section.fallback, (*above, "fallback")
        if fallback is None:
            return None
        if path.count("fallback") > MOST_FALLBACKS:
            message = f"an agent has at most {MOST_FALLBACKS} fallbacks, one in the other"
            self.report.wrong(Code.OUT_OF_RANGE, path, message, "remove this one", at="table")
            return None
        asked = self._asked(path, fallback)
        context = self._context(None, owner.context, asked["context_window"])
        below = self._fallback(path, owner, fallback, agent, tried=(*tried, _tried(asked)))
        self._check_other(path, asked, tried)
        return replace(agent, **asked, context=context, fallback=below)

    def _check_other(
        self, path: KeyPath, asked: Mapping[str, Any], tried: tuple[Tried, ...]
    ) -> None:
        """A fallback that asks what has just failed is none. A chain that is too long is reported
        already."""
        is_long = any(
            one.code == Code.OUT_OF_RANGE and one.path[: len(path)] == path
            for one in self.report.findings
        )
        if _tried(asked) in tried and asked["model"] and not is_long:
            what = f"{asked['provider']}/{asked['model']}"
            message = f"this fallback asks {what}, which has failed when it is needed"
            fix = "name another provider or model, or remove it"
            self.report.wrong(Code.NO_USE, path, message, fix, at="table")

    def _asked(self, path: KeyPath, section: ModelSection) -> dict[str, Any]:
        """What an agent and each of its fallbacks has of its own."""
        known, provider = self.around.known, section.provider or self.choice.provider
        model = self.model(path, provider, section.model)
        max_tokens = self._max_tokens(path, section, model)
        if section.thinking:
            self._check_thinking(path, provider, model, max_tokens)
        return {
            "provider": provider,
            "model": model,
            "max_tokens": max_tokens,
            "context_window": section.context_window or known.context_window(model),
            **section.model_dump(include={"temperature", "thinking", "stream"}),
        }

    def model(self, path: KeyPath, provider: str, model: str | None) -> str:
        """The one that is asked for, or the provider's usual one."""
        if provider not in self.providers:
            message = f"{quoted(provider)} is not a known provider"
            fix = choose(provider, self.providers)
            self.report.wrong(Code.NOT_A_CHOICE, (*path, "provider"), message, fix)
        self.used.setdefault(provider, (*path, "provider"))
        model = model or default_model(provider, self.around.known)
        if model is None and provider in self.providers:
            message = f'"model" is missing: {quoted(provider)} has none that is usual'
            fix = 'add model = "..."'
            self.report.wrong(Code.MISSING, (*path, "model"), message, fix, at="table")
        return model or ""

    def _check_thinking(self, path: KeyPath, provider: str, model: str, max_tokens: int) -> None:
        """Of a provider that is not known nothing is said: that is wrong already."""
        known, own = self.around.known, self.sections.providers.get(provider)
        preset = known.presets.get(provider)
        wire = preset.wire if preset else own.wire if own else None
        if provider not in self.providers or (wire is None and provider != DEMO) or not model:
            return
        why = known.no_thinking(provider, wire, model, max_tokens)
        if why is not None:
            fix = "remove it, or choose a model that can"
            self.report.wrong(Code.NOT_A_CHOICE, (*path, "thinking"), why, fix)

    def _max_tokens(self, path: KeyPath, section: ModelSection, model: str) -> int:
        most = self.around.known.output_limit(model)
        if most is None or section.max_tokens <= most:
            return section.max_tokens
        if "max_tokens" in section.model_fields_set:
            message = f"{quoted(model)} gives at most {most} tokens, not {section.max_tokens}"
            self.report.wrong(Code.OUT_OF_RANGE, (*path, "max_tokens"), message, f"write {most}")
        return most

    def _context(self, path: KeyPath | None, own: ContextSection, window: int) -> ContextRules:
        """A budget that the model cannot read becomes what it can; a `path` has that noted."""
        given = {**_given(self.sections.context), **_given(own)}
        budget, most = given.get("token_budget", ContextRules().token_budget), AUTO_SHARE * window
        if budget != "auto" and budget <= window:
            return replace(ContextRules(), **given)
        if budget != "auto" and path and "token_budget" in given:
            where = (*path, "context", "token_budget")
            message = f"{budget} tokens are more than the model's window of {window}"
            fix = f"{int(most)} is used; write that or set context_window"
            self.report.note("context-clamped", where, message, fix)
        return replace(ContextRules(), **{**given, "token_budget": int(most)})

    def check_tools(self, path: KeyPath, who: str, tools: Sequence[str]) -> None:
        seen = set[str]()
        for index, tool in enumerate(tools):
            where = (*path, "tools", index)
            plugin = tool if tool in self.plugins else tool.partition("/")[0]
            if tool in seen:
                message = f"{who} has {quoted(tool)} twice"
                self.report.wrong(Code.DUPLICATE, where, message, "keep one")
            elif tool.startswith(FAMILY) and plugin not in self.plugins:
                _check_server(where, tool, tuple(self.sections.mcp.servers), self.report)
            elif plugin not in self.plugins:
                message = f"{who}: there is no plugin {quoted(plugin)}"
                self.report.wrong(Code.UNKNOWN_NAME, where, message, self._remedy(plugin))
            elif not self.plugins[plugin]:
                message = f"{who} lists {quoted(tool)}, which is not enabled"
                fix = "remove it, or write enabled = true in its [[plugins]]"
                self.report.note("plugin-disabled", where, message, fix)
            seen.add(tool)

    def _project(self, path: KeyPath, section: AgentSection) -> str:
        projects = (OPEN_PROJECT, *(project.id for project in self.sections.projects))
        if section.project not in projects:
            message = f"there is no project {quoted(section.project)}"
            fix = f"{choose(section.project, projects)}, or add [[projects]] with it"
            self.report.wrong(Code.UNKNOWN_NAME, (*path, "project"), message, fix)
        return section.project

    def _tree(self, path: KeyPath, section: AgentSection) -> str:
        """A name of ours, or the file of the operator's own."""
        if section.tree.endswith(".bt"):
            fix = "create it, or remove tree for the one that is shipped"
            return self.file((*path, "tree"), section.tree, fix)
        trees = self.around.known.trees
        if section.tree not in trees:
            message = f"there is no tree {quoted(section.tree)}"
            fix = f"{choose(section.tree, trees)}, or name a .bt file"
            self.report.wrong(Code.UNKNOWN_NAME, (*path, "tree"), message, fix)
        return section.tree

    def _decision(self, path: KeyPath, section: AgentSection) -> str:
        decisions = self.around.known.decisions
        if section.decision not in decisions:
            message = f"there is no decision tree {quoted(section.decision)}"
            fix = choose(section.decision, decisions)
            self.report.wrong(Code.UNKNOWN_NAME, (*path, "decision"), message, fix)
        return section.decision

    def _remedy(self, tool: str) -> str:
        """How to come by a plugin that an agent names."""
        bundled = self.around.known.bundled.get(tool)
        if bundled is None:
            names = (*self.plugins, *self.around.known.bundled)
            return f"{choose(tool, names)}; or add [[plugins]] name = {quoted(tool)}"
        needs = f", capabilities = {json.dumps(list(bundled.needs))}" if bundled.needs else ""
        return f'add [[plugins]] name = "{tool}", path = "bundled:{tool}"{needs}'

    def _soul(self, path: KeyPath, section: AgentSection) -> str | None:
        fix = "create it, or remove soul_path for the soul that is shipped"
        return section.soul_path and self.file((*path, "soul_path"), section.soul_path, fix)

    def _template(self, path: KeyPath, section: AgentSection) -> str | None:
        if section.prompt_template is None:
            return None
        where = (*path, "prompt_template")
        fix = "create it, or remove prompt_template"
        file = Path(self.file(where, section.prompt_template, fix))
        try:
            compile_prompt(file.read_text("utf-8-sig"))
        except TemplateInvalid as error:
            fix = choose(error.name, PLACES) if error.name is not None else "mend the file"
            message = f"{self.around.name(file)}:{error}"
            self.report.wrong(Code.MALFORMED, where, message, fix)
        except UnicodeDecodeError as error:
            message = f"{self.around.name(file)} is not UTF-8 (byte {error.start})"
            self.report.wrong(Code.MALFORMED, where, message, "save it as UTF-8")
        except OSError:
            pass  # is told already
        return str(file)

    def file(self, where: KeyPath, written: str, fix: str) -> str:
        found = self.around.path(written, self.folder)
        if not found.is_file() or not os.access(found, os.R_OK):
            message = f"there is no file {quoted(str(found))} that can be read"
            self.report.wrong(Code.MISSING_FILE, where, message, fix)
        return str(found)


def _tried(asked: Mapping[str, Any]) -> Tried:
    return tuple(asked[name] for name in ("provider", "model", "thinking", "stream"))


def _check_server(where: KeyPath, tool: str, servers: Sequence[str], report: Report) -> None:
    name, slash, one = tool.removeprefix(FAMILY).partition("/")
    if name not in servers:
        message = f"there is no MCP server {quoted(name)}"
        fix = f"{choose(name, servers)}; or add [mcp.servers.NAME]"
        report.wrong(Code.UNKNOWN_NAME, where, message, fix)
    elif slash and not one:
        message = f"{quoted(tool)} names no tool"
        report.wrong(Code.MALFORMED, where, message, "write mcp:SERVER or mcp:SERVER/TOOL")


def _helpers(
    path: KeyPath, section: AgentSection, known: Sequence[SubagentSection], report: Report
) -> Sequence[str]:
    """The tools that an agent's subagents are."""
    names = [one.name for one in known]
    for index, name in enumerate(section.subagents):
        if name not in names:
            message, where = f"there is no subagent {quoted(name)}", (*path, "subagents", index)
            fix = f"{choose(name, names)}, or add [[subagents]] with it"
            report.wrong(Code.UNKNOWN_NAME, where, message, fix)
    return tuple(DELEGATE + name for name in dict.fromkeys(section.subagents))


def _given(section: BaseModel) -> dict[str, Any]:
    """What was written, without the defaults."""
    return {name: getattr(section, name) for name in section.model_fields_set}


def resolve_projects(sections: Iterable[ProjectSection], report: Report) -> tuple[ProjectDef, ...]:
    projects: dict[str, ProjectDef] = {}
    for index, section in enumerate(sections):
        if section.id == OPEN_PROJECT or section.id in projects:
            is_open = section.id == OPEN_PROJECT
            message = (
                f"project {quoted(section.id)} {'is open to all' if is_open else 'is there twice'}"
            )
            report.wrong(Code.DUPLICATE, ("projects", index, "id"), message, "choose another id")
        projects[section.id] = ProjectDef(section.id, tuple(section.users))
    return tuple(projects.values())


def resolve_bindings(
    sections: Iterable[BindingSection],
    agent_ids: tuple[str, ...],
    channels: tuple[str, ...],
    report: Report,
) -> tuple[Binding, ...]:
    bindings = []
    first: dict[tuple[str | None, ...], int] = {}
    for index, section in enumerate(sections):
        path: KeyPath = ("bindings", index)
        if section.agent_id not in agent_ids:
            message = f"no agent has id {quoted(section.agent_id)}"
            fix = choose(section.agent_id, agent_ids)
            report.wrong(Code.UNKNOWN_NAME, (*path, "agent_id"), message, fix)
        places = section.model_dump(include=set(BINDING_FIELDS))
        if not any(places.values()):
            message = f"binding {index} says not where: it matches nothing"
            fix = f"add at least one of {', '.join(BINDING_FIELDS)}"
            report.wrong(Code.MISSING, path, message, fix, at="table")
        if section.channel is not None and section.channel not in (*channels, *OWN_CHANNELS):
            message = f"there is no channel {quoted(section.channel)}"
            fix = f"{choose(section.channel, channels)}; only who may impersonate can speak as another"
            report.note("unknown-channel", (*path, "channel"), message, fix)
        fields = tuple(places[name] for name in BINDING_FIELDS)
        earlier = first.setdefault(fields, index)
        if earlier != index and any(fields):
            message = f"it can never win: binding {earlier} asks for the same and comes first"
            report.note("bindings.shadowed", path, message, "remove it, or make it say more")
        bindings.append(Binding(AgentId(section.agent_id), **places))
    return tuple(bindings)
