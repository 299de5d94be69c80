"""`[[subagents]]` as the domain's values."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from gateway.config.agents import Agents
from gateway.config.problems import Code, KeyPath
from gateway.config.reaching import SubagentSection
from gateway.domain.agents import DELEGATE, SubagentDef
from gateway.domain.text import quoted


def resolve_subagents(
    sections: Sequence[SubagentSection], agents: Agents, taken: Collection[str]
) -> tuple[SubagentDef, ...]:
    """`taken`: the ids of agents, which are names as well."""
    names, found = set(taken), []
    tools = {DELEGATE + section.name: True for section in sections}
    for index, section in enumerate(sections):
        path: KeyPath = ("subagents", index)
        if section.name in names:
            message = f"another agent or subagent has the name {quoted(section.name)}"
            agents.report.wrong(Code.DUPLICATE, (*path, "name"), message, "choose another name")
        names.add(section.name)
        own = {name: True for name in tools if name != DELEGATE + section.name}
        reader = replace(agents, plugins={**agents.plugins, **own})
        reader.check_tools(path, f"subagent {quoted(section.name)}", section.tools)
        found.append(_subagent(path, section, agents))
    return tuple(found)


def _subagent(path: KeyPath, section: SubagentSection, agents: Agents) -> SubagentDef:
    known, model = agents.around.known, section.model
    if section.provider is not None:
        model = agents.model(path, section.provider, model)
    return SubagentDef(
        name=section.name,
        prompt_path=agents.file((*path, "prompt_path"), section.prompt_path, "create it"),
        description=section.description,
        tools=tuple(section.tools),
        max_turns=section.max_turns,
        timeout_seconds=section.timeout_seconds,
        provider=section.provider,
        model=model,
        context_window=known.context_window(model) if model else None,
        output_limit=known.output_limit(model) if model else None,
    )
