"""`[delegation]`: results of tools that a subagent reads first."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from gateway.config.kinds import Section, Text, key
from gateway.config.problems import Code, Report
from gateway.config.reaching import SubagentSection
from gateway.domain.agents import RESULT, AgentDef, Delegation
from gateway.domain.text import choose, quoted

_DELEGATION = Delegation()
Count = Annotated[int, Field(ge=0)]


class DelegationSection(Section):
    """When a subagent reads a tool's result first."""

    enabled: bool = key(default=False, description="Whether it does.")
    subagent: Text = key(_DELEGATION.subagent, "Which: one of [[subagents]].")
    token_estimate: int = key(
        _DELEGATION.token_estimate, "Tokens of a result, estimated: beyond them.", ge=100
    )
    items: dict[Text, Count] = key(
        dict(_DELEGATION.items), "Entries of a result, by the tool's bare name: beyond them."
    )
    score_similarity: float = key(
        _DELEGATION.score_similarity,
        "Entries with scores that lie further apart are not too many.",
        ge=0,
    )


def resolve_delegation(
    section: DelegationSection, subagents: list[SubagentSection], report: Report
) -> Delegation:
    names = [one.name for one in subagents]
    if section.enabled and section.subagent not in names:
        message = f"there is no subagent {quoted(section.subagent)}"
        fix = f"{choose(section.subagent, names)}, or add [[subagents]] with it"
        report.wrong(Code.UNKNOWN_NAME, ("delegation", "subagent"), message, fix)
    given = section.model_dump(exclude={"enabled"})
    return Delegation(is_enabled=section.enabled, **given)


def with_results(agents: tuple[AgentDef, ...], delegation: Delegation) -> tuple[AgentDef, ...]:
    """Whoever has tools can read what they gave, if it is not always shown whole."""
    if not delegation.is_enabled:
        return agents
    return tuple(_with_result(agent) if agent.tools else agent for agent in agents)


def _with_result(agent: AgentDef) -> AgentDef:
    tools = agent.tools if RESULT in agent.tools else (*agent.tools, RESULT)
    below = agent.fallback
    return replace(agent, tools=tools, fallback=below and _with_result(below))
