"""Which behaviour trees and decision trees there are."""

from collections.abc import Sequence
from importlib.metadata import entry_points

from gateway.agent.plans import SHIPPED
from gateway.control.policy import DECISION_TREES, DecisionTrees
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId


def decision_trees() -> DecisionTrees:
    """Ours, and those of packages that were installed beside the gateway."""
    found = entry_points(group=DECISION_TREES)
    return DecisionTrees({point.name: point.load() for point in found})


def tree_paths(agents: Sequence[AgentDef]) -> dict[AgentId, str]:
    """A file of the operator's own, or a tree that ships with the gateway."""
    return {
        agent.id: agent.tree if agent.tree.endswith(".bt") else str(SHIPPED / f"{agent.tree}.bt")
        for agent in agents
    }
