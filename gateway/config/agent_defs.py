"""`[agent]`, `[[agents]]` and `[[bindings]]` as the domain's values, with everything merged."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gateway.config.choice import Choice, default_model
from gateway.config.paths import absolute
from gateway.config.problems import (
    DUPLICATE,
    MALFORMED,
    MISSING,
    MISSING_FILE,
    NOT_A_CHOICE,
    OUT_OF_RANGE,
    UNKNOWN_NAME,
    KeyPath,
    Report,
    choose,
    quoted,
)
from gateway.config.schema import (
    AgentSection,
    BindingSection,
    ContextSection,
    FallbackSection,
    LimitsSection,
    ModelSection,
)
from gateway.config.values import Known
from gateway.domain.agents import AgentDef, ContextRules, Limits
from gateway.domain.bindings import Binding
from gateway.domain.ids import AgentId

UNKNOWN_WINDOW = 128_000
AUTO_SHARE = 0.8  # of the model's window
MOST_FALLBACKS = 5
BINDING_FIELDS = ("channel", "account_id", "peer_id", "guild_id", "team_id")


@dataclass(frozen=True, slots=True)
class _Model:
    """What an agent and each of its fallbacks has of its own."""

    provider: str
    name: str
    max_tokens: int
    window: int


@dataclass(frozen=True, slots=True)
class Agents:
    """Reads agents. `used` gathers the providers that they ask for, each with its first place."""

    known: Known
    choice: Choice
    providers: tuple[str, ...]  # every name that an agent may give
    limits: LimitsSection
    context: ContextSection
    folder: Path
    home: Path
    report: Report
    used: dict[str, KeyPath] = field(default_factory=dict)

    def resolve(self, entries: Sequence[tuple[KeyPath, AgentSection]]) -> tuple[AgentDef, ...]:
        seen: set[str] = set()
        agents = []
        for path, section in entries:
            if section.id in seen:
                message, fix = f"another agent has id {quoted(section.id)}", "choose another id"
                self.report.wrong(DUPLICATE, (*path, "id"), message, fix)
            seen.add(section.id)
            agents.append(self._agent(path, section))
        return tuple(agents)

    def _agent(self, path: KeyPath, section: AgentSection) -> AgentDef:
        self._check_tools(path, section)
        model = self._model(path, section)
        limits = {**_given(self.limits), **_given(section.limits)}
        agent = AgentDef(
            id=AgentId(section.id),
            provider=model.provider,
            model=model.name,
            max_tokens=model.max_tokens,
            temperature=section.temperature,
            context_window=model.window,
            thinking=section.thinking,
            stream=section.stream,
            system_prompt=section.system_prompt,
            soul_path=self._soul(path, section),
            tools=tuple(section.tools),
            limits=replace(Limits(), **limits),
            context=self._context(path, section.context, model.window),
        )
        return replace(agent, fallback=self._fallback(path, section.fallback, section, agent))

    def _fallback(
        self,
        above: KeyPath,
        section: FallbackSection | None,
        owner: AgentSection,
        agent: AgentDef,
    ) -> AgentDef | None:
        """The same agent with another model, which may be able to read less."""
        if section is None:
            return None
        path = (*above, "fallback")
        if path.count("fallback") > MOST_FALLBACKS:
            message = f"an agent has at most {MOST_FALLBACKS} fallbacks, one in the other"
            self.report.wrong(OUT_OF_RANGE, path, message, "remove this one", at="table")
            return None
        model = self._model(path, section)
        fallback = replace(
            agent,
            provider=model.provider,
            model=model.name,
            max_tokens=model.max_tokens,
            temperature=section.temperature,
            context_window=model.window,
            thinking=section.thinking,
            stream=section.stream,
            context=self._context(None, owner.context, model.window),
        )
        return replace(fallback, fallback=self._fallback(path, section.fallback, owner, agent))

    def _model(self, path: KeyPath, section: ModelSection) -> _Model:
        provider = section.provider or self.choice.provider
        if provider not in self.providers:
            message = f"{quoted(provider)} is not a known provider"
            fix = choose(provider, self.providers)
            self.report.wrong(NOT_A_CHOICE, (*path, "provider"), message, fix)
        self.used.setdefault(provider, (*path, "provider"))
        name = section.model or default_model(provider, self.known)
        if name is None and provider in self.providers:
            message = f'"model" is missing: {quoted(provider)} has none that is usual'
            fix = 'add model = "..."'
            self.report.wrong(MISSING, (*path, "model"), message, fix, at="table")
        name = name or ""
        window = section.context_window or self.known.context_window(name) or UNKNOWN_WINDOW
        return _Model(provider, name, self._max_tokens(path, section, name), window)

    def _max_tokens(self, path: KeyPath, section: ModelSection, model: str) -> int:
        most = self.known.output_limit(model)
        if most is None or section.max_tokens <= most:
            return section.max_tokens
        if "max_tokens" in section.model_fields_set:
            message = f"{quoted(model)} gives at most {most} tokens, not {section.max_tokens}"
            self.report.wrong(OUT_OF_RANGE, (*path, "max_tokens"), message, f"write {most}")
        return most

    def _context(self, path: KeyPath | None, own: ContextSection, window: int) -> ContextRules:
        """A budget that the model cannot read becomes what it can."""
        given = {**_given(self.context), **_given(own)}
        budget = given.pop("token_budget", ContextRules().token_budget)
        most = int(AUTO_SHARE * window)
        if budget == "auto":
            budget = most
        elif isinstance(budget, int) and budget > window:
            if path and (own.model_fields_set | self.context.model_fields_set) & {"token_budget"}:
                message = f"{budget} tokens are more than the model's window of {window}"
                fix = f"{most} is used; write that or set context_window"
                self.report.note(
                    "context-clamped", (*path, "context", "token_budget"), message, fix
                )
            budget = most
        return replace(ContextRules(), token_budget=budget, **given)

    def _check_tools(self, path: KeyPath, section: AgentSection) -> None:
        for index, tool in enumerate(section.tools):
            where = (*path, "tools", index)
            if tool not in self.known.tools:
                message = f"agent {quoted(section.id)}: there is no tool {quoted(tool)}"
                self.report.wrong(UNKNOWN_NAME, where, message, choose(tool, self.known.tools))
            elif tool in section.tools[:index]:
                message = f"agent {quoted(section.id)} has {quoted(tool)} twice"
                self.report.wrong(DUPLICATE, where, message, "keep one")

    def _soul(self, path: KeyPath, section: AgentSection) -> str | None:
        if section.soul_path is None:
            return None
        where = (*path, "soul_path")
        soul = absolute(section.soul_path, self.folder, self.home)
        if soul is None:
            self.report.wrong(MALFORMED, where, "this is not a path", "write a path")
        elif not soul.is_file():
            message = f"there is no file {quoted(str(soul))}"
            fix = "create it, or remove soul_path for the soul that is shipped"
            self.report.wrong(MISSING_FILE, where, message, fix)
        elif not os.access(soul, os.R_OK):
            message = f"{quoted(str(soul))} cannot be read"
            self.report.wrong(MISSING_FILE, where, message, "check its permissions")
        return str(soul)


def _given(section: BaseModel) -> dict[str, Any]:
    """What was written, without the defaults."""
    return {name: getattr(section, name) for name in section.model_fields_set}


def resolve_bindings(
    sections: Iterable[BindingSection], agent_ids: tuple[str, ...], report: Report
) -> tuple[Binding, ...]:
    bindings = []
    for index, section in enumerate(sections):
        path: KeyPath = ("bindings", index)
        if section.agent_id not in agent_ids:
            message = f"no agent has id {quoted(section.agent_id)}"
            fix = choose(section.agent_id, agent_ids)
            report.wrong(UNKNOWN_NAME, (*path, "agent_id"), message, fix)
        if all(getattr(section, name) is None for name in BINDING_FIELDS):
            message = f"binding {index} says not where: it matches nothing"
            fix = f"add at least one of {', '.join(BINDING_FIELDS)}"
            report.wrong(MISSING, path, message, fix, at="table")
        bindings.append(
            Binding(
                AgentId(section.agent_id),
                section.channel,
                section.account_id,
                section.peer_id,
                section.guild_id,
                section.team_id,
            )
        )
    return tuple(bindings)
