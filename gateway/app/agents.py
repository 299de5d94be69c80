"""Which agent answers usually, and the files that agents are made of: souls and trees."""

from collections.abc import Iterable, Mapping, Sequence

from gateway.agent.plans import SHIPPED
from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId
from gateway.domain.settings import Choosable
from gateway.host.shipped import shipped_folder
from gateway.providers.thinking import why_no_thinking

NO_AGENT = "agent:"  # a scope that limits to an agent that nobody can define


def tree_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """A file of the operator's own, or a tree that ships with the gateway."""
    return {
        agent.id: agent.tree if agent.tree.endswith(".bt") else str(SHIPPED / f"{agent.tree}.bt")
        for agent in agents
    }


def usual_agent(config: GatewayConfig) -> AgentDef:
    """The default agent, or else the first; a configuration may have none at all."""
    nobody = AgentDef(AgentId("main"), "", "")
    first = next(iter(config.agents), nobody)
    return next((agent for agent in config.agents if agent.id == config.default_agent), first)


def choosable(config: GatewayConfig) -> Choosable:
    """What users can set for themselves."""

    def no_thinking(agent: AgentDef) -> str | None:
        provider = config.providers.get(agent.provider)
        wire = provider.wire if provider else None
        return why_no_thinking(agent.provider, wire, agent.model, agent.max_tokens)

    return Choosable(usual_agent(config), config.agents, config.subagents, no_thinking)


def soul_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """An agent's own soul, or the one that ships with the gateway."""
    shipped = str(shipped_folder("souls") / "default.md")
    return {agent.id: agent.soul_path or shipped for agent in agents}


def template_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    return {agent.id: agent.prompt_template for agent in agents if agent.prompt_template}


def closed_agents(config: GatewayConfig) -> Mapping[AgentId, frozenset[str]]:
    """Agents of projects, and whom they answer."""
    users = {project.id: frozenset(project.users) for project in config.projects}
    return {agent.id: users[agent.project] for agent in config.agents if agent.project in users}


def reach(config: GatewayConfig, name: str, scopes: Iterable[str]) -> frozenset[str]:
    """The scopes of a token, narrowed to agents of its own projects: others do not exist for it.
    Whoever reads everything, or speaks for others, sees them nevertheless."""
    given, closed = frozenset(scopes), closed_agents(config)
    if given & {"admin", "read", "impersonate"} or all(name in users for users in closed.values()):
        return given
    mine = {agent.id for agent in config.agents if name in closed.get(agent.id, {name})}
    asked = {scope for scope in given if scope.startswith("agent:")}
    reached = {f"agent:{agent}" for agent in mine}
    return given - asked | ((asked & reached if asked else reached) or {NO_AGENT})
