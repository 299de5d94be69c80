"""What a token reaches of agents that answer only some."""

from pathlib import Path

import pytest

from gateway.config.access import NO_AGENT, reachable_scopes
from gateway.config.values import GatewayConfig, GatewaySettings
from gateway.domain.agents import AgentDef, ProjectDef
from gateway.domain.ids import AgentId
from gateway.web.identity import can_use, principal


def config(*agents: tuple[str, str]) -> GatewayConfig:
    return GatewayConfig(
        gateway=GatewaySettings(data_dir=Path()),
        agents=tuple(AgentDef(AgentId(name), "demo", "demo", project=at) for name, at in agents),
        projects=(ProjectDef("garden", ("ann",)),),
    )


BOTH = config(("a", "default"), ("g", "garden"))


@pytest.mark.requirement("S-000-Context-10")
@pytest.mark.parametrize(
    ("name", "scopes", "reached"),
    [
        ("ann", {"chat"}, "ag"),
        ("bob", {"chat"}, "a"),
        ("bob", {"chat", "agent:g"}, ""),
        ("bob", {"chat", "agent:a", "agent:g"}, "a"),
        ("ann", {"chat", "agent:g"}, "g"),
        ("bob", {"chat", "read"}, "ag"),
        ("bob", {"admin"}, "ag"),
        ("bob", {"impersonate"}, "ag"),
    ],
)
def test_a_token_reaches_the_agents_of_its_projects_and_those_of_none(
    name: str, scopes: set[str], reached: str
) -> None:
    who = principal(name, reachable_scopes(BOTH, name, scopes))

    assert "".join(agent for agent in "ag" if can_use(who, agent)) == reached


def test_a_token_that_reaches_no_agent_is_not_one_that_reaches_all() -> None:
    assert reachable_scopes(config(("g", "garden")), "bob", {"chat"}) == {"chat", NO_AGENT}
