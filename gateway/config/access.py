"""Who may reach the gateway and what they reach: its address, its tokens and their scopes, the agents of
projects; and what a start changes about authority and money, for the audit."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from gateway.config.environment import TOKEN
from gateway.config.problems import Code, KeyPath
from gateway.config.reading import Reading
from gateway.config.secrets import SecretProblem, resolve
from gateway.config.values import (
    Clustering,
    GatewayConfig,
    GatewaySettings,
    StoreSettings,
    TokenGrant,
)
from gateway.domain.budgets import NANO, Budgets, Limit, TokenBudget
from gateway.domain.errors import ClusterNotInstalled, StoreNotInstalled
from gateway.domain.events import AuditEvent, AuditKind
from gateway.domain.ids import AgentId, Secret
from gateway.domain.model import is_loopback
from gateway.domain.plugins import PluginInfo, PluginSecret
from gateway.domain.ports import Audit
from gateway.domain.text import choose, quoted

SCOPES = ("chat", "read", "admin", "impersonate", "metrics")
LEAST_TOKEN = 16  # characters of the operator's, where others can reach the gateway
RESERVED = ("local", "operator")  # principals that are not made by a token of the file
NEW_TOKEN = "make one: openssl rand -hex 32"
OPERATOR: KeyPath = ("gateway", "token")
NO_AGENT = "agent:"  # a scope that limits to an agent that nobody can define

Authority = Mapping[str, object]  # plain data by place in the configuration, without any secret

KINDS: Mapping[str, AuditKind] = {
    "budgets": "budget.changed",
    "tokens": "token.changed",
    "plugins": "grant.changed",
}


def resolve_gateway(reading: Reading, config: GatewayConfig) -> GatewaySettings:
    written, overrides = config.gateway, reading.around.overrides
    port = written.port if overrides.port is None else overrides.port
    if not 0 <= port <= 65_535:
        message, path = f"{port} is out of range", ("gateway", "port")
        reading.wrong(Code.OUT_OF_RANGE, path, message, "0 to 65535", variable="--port")
    data_dir = overrides.data_dir or reading.around.path(str(written.data_dir), reading.folder)
    token = _operator_token(reading, written)
    if not is_loopback(written.bind):
        is_meant = written.token is not None or TOKEN in reading.around.environment
        has_tokens = is_meant or bool(config.tokens)
        _check_door(reading, written.bind, token, has_tokens=has_tokens)
    return replace(written, port=port, data_dir=data_dir.absolute(), token=token)


def _operator_token(reading: Reading, written: GatewaySettings) -> Secret | None:
    token = None
    if TOKEN in reading.around.environment:
        token = reading.variable(OPERATOR, TOKEN)
    elif written.token is not None:
        token = reading.follow(OPERATOR, written.token.reveal())
    return None if token is None or _is_blank(reading, OPERATOR, token) else Secret(token)


def resolve_tokens(
    reading: Reading, tokens: Iterable[TokenGrant], operator: Secret | None
) -> tuple[TokenGrant, ...]:
    values: dict[str, str] = {operator.reveal(): "[gateway] token"} if operator else {}
    grants = []
    for index, written in enumerate(tokens):
        path: KeyPath = ("tokens", index)
        where: KeyPath = (*path, "token")
        if written.name in RESERVED:
            message = f"{quoted(written.name)} is reserved for the local operator"
            reading.wrong(Code.MALFORMED, (*path, "name"), message, "choose another name")
        for at, scope in enumerate(written.scopes):
            _check_scope(reading, (*path, "scopes", at), scope)
        token = reading.follow(where, written.token.reveal())
        if token is None or _is_blank(reading, where, token):
            continue
        if token in values:
            message = f"the same token as that of {values[token]}"
            reading.wrong(Code.DUPLICATE, where, message, "make another: openssl rand -hex 32")
        values[token] = quoted(written.name)
        grants.append(replace(written, token=Secret(token)))
    return tuple(grants)


def resolve_store(reading: Reading, written: StoreSettings) -> StoreSettings:
    """With the password of the server. `store copy` may name one although none is configured."""
    where: KeyPath = ("store", "password")
    if written.is_shared and not reading.known.has_surrealdb:
        message, _, fix = str(StoreNotInstalled()).partition(": ")
        reading.wrong(Code.NOT_INSTALLED, ("store", "url"), message, fix)
    if (written.username is None) != (written.password is None):
        missing, there = ("username", "password")[:: 1 if written.username is None else -1]
        message = f'"{there}" is there, and "{missing}" is missing'
        reading.wrong(Code.MISSING, ("store", there), message, f"add {missing} = ...")
    if written.password is None:
        return written
    text, around = written.password.reveal(), reading.around
    password: str | None = None
    if written.is_shared:
        password = reading.follow(where, text)
    else:
        with suppress(SecretProblem):
            password = resolve(text, around.environment, around.home)
    return replace(written, password=None if password is None else Secret(password))


def token_budgets(config: GatewayConfig) -> Mapping[str, TokenBudget]:
    """Of the tokens of the file that have one."""
    return {one.name: one.budget for one in config.tokens if one.budget is not None}


def resolve_cluster(reading: Reading, written: GatewayConfig) -> Clustering | None:
    """With the credentials of NATS."""
    found = written.cluster
    if found is None:
        return None
    if not written.store.is_shared:
        message = f"[cluster] needs a store that gateways can share, and [store] url is {written.store.url!r}"
        reading.wrong(Code.MISSING, ("cluster",), message, 'write [store] url = "ws://HOST:PORT"')
    if found.url is not None and not _HINTS.fullmatch(found.url):
        message = "this is not nats://HOST:PORT or tls://HOST:PORT, without a user or password"
        reading.wrong(Code.MALFORMED, ("cluster", "url"), message, "write credentials beside it")
    elif found.url is not None and not reading.known.has_nats:
        message, _, fix = str(ClusterNotInstalled()).partition(": ")
        reading.wrong(Code.NOT_INSTALLED, ("cluster", "url"), message, fix)
    if found.credentials is None:
        return found
    told = reading.follow(("cluster", "credentials"), found.credentials.reveal())
    return replace(found, credentials=None if told is None else Secret(told))


_ONE = r"(nats|tls|ws|wss)://([^/?#@:,\s]+|\[[^\]]*\])(:[0-9]{1,5})?/?"
_HINTS = re.compile(f"{_ONE}(,{_ONE})*")


def _check_scope(reading: Reading, where: KeyPath, scope: str) -> None:
    kind, colon, agent_id = scope.partition(":")
    if kind == "agent" and colon:
        reading.refers(where, "agent", agent_id)
    elif scope not in SCOPES:
        fix = choose(scope, (*SCOPES, "agent:ID"))
        reading.wrong(Code.NOT_A_CHOICE, where, f"{quoted(scope)} is no scope", fix)


def _check_door(reading: Reading, bind: str, operator: Secret | None, *, has_tokens: bool) -> None:
    """Of an address that other machines reach."""
    reached = f"{quoted(bind)} can be reached from other machines"
    if not has_tokens:
        message = f"{reached}, and no token is set: anyone could control the gateway"
        fix = f'set {TOKEN} or [gateway] token, or write bind = "127.0.0.1"'
        reading.wrong(Code.OPEN_DOOR, ("gateway", "bind"), message, fix)
    if operator is not None and len(operator.reveal().strip()) < LEAST_TOKEN:
        message = f"the operator's token is shorter than {LEAST_TOKEN} characters, and {reached}"
        _wrong_token(reading, OPERATOR, Code.OPEN_DOOR, f"{message}: it could be guessed")


def _is_blank(reading: Reading, path: KeyPath, token: str) -> bool:
    """Reports it: who wrote it meant a token, and without one anybody nearby is the operator."""
    if not token.strip():
        _wrong_token(reading, path, Code.MALFORMED, "the token is blank")
    return not token.strip()


def _wrong_token(reading: Reading, path: KeyPath, code: Code, message: str) -> None:
    is_variable = path == OPERATOR and TOKEN in reading.around.environment
    reading.wrong(code, path, message, NEW_TOKEN, variable=TOKEN if is_variable else None)


# ------------------------------------------------------------------------------------- the audit


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
                await audit.append(AuditEvent(at, kind, "config", detail))
    for plugin in plugins:
        if plugin.state == "refused":
            told = {"plugin": plugin.name, "why": plugin.why}
            await audit.append(AuditEvent(at, "plugin.refused", "config", told))
    applied = {"version": version, "file": str(config.origin or ""), "authority": now}
    await audit.append(AuditEvent(at, "config.applied", "config", applied))


def authority(config: GatewayConfig) -> Authority:
    """As JSON gives it back."""
    settings = config.gateway
    told: dict[str, object] = {
        "gateway.bind": settings.bind,
        "gateway.has_token": settings.token is not None,
        "gateway.allowed_origins": frozenset(settings.allowed_origins),
        "gateway.trusted_proxies": frozenset(settings.trusted_proxies),
    }
    told |= {f"tokens.{one.name}": _rights(one) for one in config.tokens}
    for plugin in config.plugins:
        told[f"plugins.{plugin.name}"] = {
            "enabled": plugin.is_enabled,
            "capabilities": frozenset(map(str, plugin.capabilities)),
            "sha256": plugin.sha256,
            "secrets": _origins(plugin.secrets),
        }
    for channel in config.channels:  # by whom it is spoken for, and who may talk there
        told[f"channels.{channel.name}"] = {
            **_attributes(channel, "plugin", "account", "dm_policy", "allow_from"),
            "groups": {name: rule.allow_from for name, rule in channel.groups.items()},
            "secrets": _origins(channel.secrets),
        }
    told |= {f"mcp.{one.name}": _attributes(one, "url", "command") for one in config.mcp.servers}
    told |= _agents(config)
    for name, provider in config.providers.items():
        prices = {model: asdict(price) for model, price in provider.prices.items()}
        told[f"providers.{name}"] = {"base_url": provider.base_url, "prices": prices}
    told |= _limits(config.budgets)
    found: Authority = json.loads(json.dumps(told, default=sorted))
    return found


def _rights(token: TokenGrant) -> object:
    """Its scopes; with the other limits, if it has any."""
    if token.expires is None and token.budget is None:
        return frozenset(token.scopes)
    expires = token.expires and token.expires.isoformat()
    budget = token.budget and {
        name: _told(limit)
        for name, limit in _attributes(token.budget, "session", "daily", "monthly").items()
        if limit != Limit()
    }
    return {"scopes": frozenset(token.scopes), "expires": expires, "budget": budget}


def _agents(config: GatewayConfig) -> dict[str, object]:
    told: dict[str, object] = {}
    for agent in config.agents:
        models = [f"{link.provider}/{link.model}" for link in agent.chain]
        told[f"agents.{agent.id}"] = {"models": models, "tools": agent.tools}
    for one in config.subagents:
        told[f"subagents.{one.name}"] = _attributes(one, "provider", "model", "tools")
    for project in config.projects:
        agents = frozenset(agent.id for agent in config.agents if agent.project == project.id)
        told[f"projects.{project.id}"] = {"users": frozenset(project.users), "agents": agents}
    return told


def _limits(budgets: Budgets) -> dict[str, object]:
    limits = _attributes(budgets, "session", "daily", "monthly", "per_agent")
    limits |= {f"agent:{name}": limit for name, limit in budgets.agents.items()}
    return {f"budgets.{name}": _told(limit) for name, limit in limits.items() if limit != Limit()}


def _told(limit: Limit) -> dict[str, object]:
    return {
        "tokens": limit.tokens,
        "usd": None if limit.nano_usd is None else limit.nano_usd / NANO,
    }


def _attributes(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _origins(secrets: Iterable[PluginSecret]) -> Mapping[str, object]:
    """Where each secret may go."""
    return {one.name: frozenset(map(str, one.origins)) for one in secrets}


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
