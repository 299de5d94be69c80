"""What a configuration says about authority and money: whom agents answer, what a token reaches, and what
a start changed of it, for the audit."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from gateway.config.values import GatewayConfig
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import NANO, Budgets, Limit
from gateway.domain.channels import ChannelDef
from gateway.domain.events import Deed, DeedKind
from gateway.domain.ids import AgentId
from gateway.domain.plugins import PluginDef, PluginInfo
from gateway.domain.ports import Audit

NO_AGENT = "agent:"  # a scope that limits to an agent that nobody can define

Authority = Mapping[str, object]  # plain data by place in the configuration, without any secret

KINDS: Mapping[str, DeedKind] = {
    "budgets": "budget.changed",
    "tokens": "token.changed",
    "plugins": "grant.changed",
}


async def note_start(
    audit: Audit, config: GatewayConfig, plugins: Sequence[PluginInfo], version: str, at: datetime
) -> None:
    """What this start changes, what it refuses, and all that is in force now."""
    now = authority(config)
    for entry in await audit.newest(kind="config.applied"):
        before = json.loads(entry.detail)["authority"]
        for name in sorted({*before, *now}):
            if (was := before.get(name)) != (is_ := now.get(name)):
                kind = KINDS.get(name.partition(".")[0], "config.changed")
                detail = {"what": name, "before": was, "after": is_}
                await audit.append(Deed(at, kind, "config", detail))
    for plugin in plugins:
        if plugin.state == "refused":
            told = {"plugin": plugin.name, "why": plugin.why}
            await audit.append(Deed(at, "plugin.refused", "config", told))
    applied = {"version": version, "file": str(config.origin or ""), "authority": now}
    await audit.append(Deed(at, "config.applied", "config", applied))


def authority(config: GatewayConfig) -> Authority:
    """As JSON gives it back."""
    found: Authority = json.loads(json.dumps(dict(_authority(config))))
    return found


def _authority(config: GatewayConfig) -> Iterator[tuple[str, object]]:
    settings = config.gateway
    yield "gateway.bind", settings.bind
    yield "gateway.has_token", settings.token is not None
    yield "gateway.allowed_origins", sorted(settings.allowed_origins)
    yield "gateway.trusted_proxies", sorted(map(str, settings.trusted_proxies))
    for token in config.tokens:
        yield f"tokens.{token.name}", sorted(token.scopes)
    for plugin in config.plugins:
        yield f"plugins.{plugin.name}", _grants(plugin)
    for channel in config.channels:
        yield f"channels.{channel.name}", _door(channel)
    for server in config.mcp.servers:
        yield f"mcp.{server.name}", {"url": server.url, "command": server.command}
    yield from _workers(config)
    for project in config.projects:
        agents = sorted(agent.id for agent in config.agents if agent.project == project.id)
        yield f"projects.{project.id}", {"users": sorted(project.users), "agents": agents}
    for name, provider in config.providers.items():
        prices = {model: asdict(price) for model, price in provider.prices.items()}
        yield f"providers.{name}", {"base_url": provider.base_url, "prices": prices}
    yield from _limits(config.budgets)


def _workers(config: GatewayConfig) -> Iterator[tuple[str, object]]:
    for agent in config.agents:
        yield f"agents.{agent.id}", {"models": list(_models(agent)), "tools": list(agent.tools)}
    for one in config.subagents:
        model = {"provider": one.provider, "model": one.model}
        yield f"subagents.{one.name}", {**model, "tools": list(one.tools)}


def _limits(budgets: Budgets) -> Iterator[tuple[str, object]]:
    limits = {name: getattr(budgets, name) for name in ("session", "daily", "monthly", "per_agent")}
    limits |= {f"agent:{name}": limit for name, limit in budgets.agents.items()}
    for name, limit in limits.items():
        if limit != Limit():
            usd = None if limit.nano_usd is None else limit.nano_usd / NANO
            yield f"budgets.{name}", {"tokens": limit.tokens, "usd": usd}


def _grants(plugin: PluginDef) -> Mapping[str, object]:
    return {
        "enabled": plugin.is_enabled,
        "capabilities": sorted(map(str, plugin.capabilities)),
        "sha256": plugin.sha256,
        "secrets": {one.name: sorted(map(str, one.origins)) for one in plugin.secrets},
    }


def _door(channel: ChannelDef) -> Mapping[str, object]:
    """By whom it is spoken for, and who may talk there."""
    return {
        "plugin": channel.plugin,
        "account": channel.account,
        "dm_policy": channel.dm_policy,
        "allow_from": sorted(channel.allow_from),
        "groups": {name: sorted(rule.allow_from) for name, rule in channel.groups.items()},
        "secrets": {one.name: sorted(map(str, one.origins)) for one in channel.secrets},
    }


def _models(agent: AgentDef | None) -> Iterator[str]:
    while agent is not None:
        yield f"{agent.provider}/{agent.model}"
        agent = agent.fallback


def closed_agents(config: GatewayConfig) -> Mapping[AgentId, frozenset[str]]:
    """Agents of projects, and the users whom they answer."""
    users = {project.id: frozenset(project.users) for project in config.projects}
    return {agent.id: users[agent.project] for agent in config.agents if agent.project in users}


def reach(config: GatewayConfig, name: str, scopes: Iterable[str]) -> frozenset[str]:
    """The scopes of a token, narrowed to agents of its own projects: others do not exist for it.
    A token that reads everything, or speaks for others, sees them nevertheless."""
    given, closed = frozenset(scopes), closed_agents(config)
    if given & {"admin", "read", "impersonate"} or all(name in users for users in closed.values()):
        return given
    mine = {agent.id for agent in config.agents if name in closed.get(agent.id, {name})}
    asked = {scope for scope in given if scope.startswith("agent:")}
    reached = {f"agent:{agent}" for agent in mine}
    return given - asked | ((asked & reached if asked else reached) or {NO_AGENT})
