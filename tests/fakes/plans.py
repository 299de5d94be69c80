"""The trees that ship, for agents of tests."""

from collections.abc import Iterable

from gateway.agent.leaves import REGISTRY, SHIPPED, Plans
from gateway.control.trees.engine import TreePlan
from gateway.control.trees.loading import load
from gateway.domain.agents import AgentDef
from tests.fakes.texts import FakeTexts

TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in SHIPPED.glob("*.bt")}


def shipped(name: str = "default") -> TreePlan:
    return load(TEXTS[name], f"{name}.bt", REGISTRY)


async def shipped_plans(agents: Iterable[AgentDef]) -> Plans:
    """Loaded; each agent has the tree that it names."""
    named = {agent.id: agent.tree for agent in agents}
    plans = Plans(FakeTexts(**TEXTS), named)
    await plans.load()
    return plans
