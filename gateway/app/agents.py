"""Which agent answers usually, and the files that agents are made of: souls and trees."""

from collections.abc import Sequence

from gateway.agent.plans import SHIPPED
from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId
from gateway.host.shipped import shipped_folder


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


def soul_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """An agent's own soul, or the one that ships with the gateway."""
    shipped = str(shipped_folder("souls") / "default.md")
    return {agent.id: agent.soul_path or shipped for agent in agents}
