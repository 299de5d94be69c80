"""The subagents of the configuration: over the same gate, model and rules as the agents."""

from collections.abc import Awaitable, Callable

from pydantic_core import from_json, to_json

from gateway.agent.delegation import Delegating
from gateway.agent.job import Gate
from gateway.agent.story import Json
from gateway.agent.subagents import Subagents
from gateway.app.parts import Parts
from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.ids import AgentId, SessionKey
from gateway.sessions.settings import SettingsBook


def with_subagents(config: GatewayConfig) -> tuple[AgentDef, ...]:
    """All that have a prompt and a tree. The subagents are nobody's answer: what they do not say
    they get from whoever asks them."""
    helpers = (
        AgentDef(AgentId(one.name), "", "", soul_path=one.prompt_path) for one in config.subagents
    )
    return (*config.agents, *helpers)


def subagents_of(config: GatewayConfig, parts: Parts, settings: SettingsBook) -> Subagents:
    """From now on agents have them as tools."""
    known = {one.name: one for one in config.subagents}
    json, journal = Json(to_json, from_json), parts.stores.journal
    agents = {agent.id: agent for agent in config.agents}
    subagents = Subagents(known, parts.aside(), parts.souls, settings.of, journal, json, agents)
    parts.gate.renew("", subagents.tools)
    return subagents


def gate_of(
    config: GatewayConfig, parts: Parts, subagents: Subagents
) -> tuple[Gate, Callable[[SessionKey], Awaitable[None]]]:
    """What agents have that people talk to, and how to forget what it keeps of a session."""
    if not config.delegation.is_enabled:
        return parts.gate, parts.gate.excerpts.forget
    kept = parts.stores.originals
    gate = Delegating(parts.gate, subagents, config.delegation, kept, subagents.json)
    return gate, kept.forget
