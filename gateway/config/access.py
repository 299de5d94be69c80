"""Access to the gateway: its address, its tokens with their scopes, the agents of projects; and the audit of changes
to permissions and budgets at a start."""

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
from gateway.domain.budgets import NANO, Limit, TokenBudget
from gateway.domain.errors import NotInstalled
from gateway.domain.events import AuditEvent, AuditKind
from gateway.domain.ids import AgentId, Secret
from gateway.domain.model import is_loopback
from gateway.domain.plugins import PluginInfo, PluginSecret
from gateway.domain.ports import Audit
from gateway.domain.text import choose, quoted

SCOPES = ("chat", "read", "admin", "impersonate", "metrics")
LEAST_TOKEN = 16  # characters of the operator's token if other machines can reach the gateway
RESERVED = ("local", "operator")  # principals that the gateway itself defines
NEW_TOKEN = "generate one: openssl rand -hex 32"
OPERATOR: KeyPath = ("gateway", "token")
NO_AGENT = "agent:"  # a scope that allows no agent: ids are never empty

Authority = Mapping[str, object]  # JSON values by key of the configuration, without secrets

KINDS: Mapping[str, AuditKind] = {
    "budgets": "budget.changed",
    "tokens": "token.changed",
    "plugins": "grant.changed",
}


def resolve_gateway(reading: Reading, config: GatewayConfig) -> GatewaySettings:
    written, overrides = config.gateway, reading.inputs.overrides
    port, path = written.port, ("gateway", "port")
    if overrides.port is not None:
        port, reading.variables[path] = overrides.port, "--port"
    if not 0 <= port <= 65_535:
        message = f"{port} is out of range"
        reading.wrong(Code.OUT_OF_RANGE, path, message, "write 0 to 65535")
    data_dir = overrides.data_dir or reading.inputs.path(str(written.data_dir), reading.folder)
    if TOKEN in reading.inputs.environment:
        token = reading.variable(OPERATOR, TOKEN)
    else:
        token = reading.secret(OPERATOR, written.token)
    token = _unless_blank(reading, OPERATOR, token)
    if not is_loopback(written.bind):
        is_meant = written.token is not None or TOKEN in reading.inputs.environment
        has_tokens = is_meant or bool(config.tokens)
        _check_door(reading, written.bind, token, has_tokens=has_tokens)
    return replace(written, port=port, data_dir=data_dir.absolute(), token=token)


def resolve_tokens(
    reading: Reading, tokens: Iterable[TokenGrant], operator: Secret | None
) -> tuple[TokenGrant, ...]:
    """Returns the tokens with their references resolved; a token with a problem is reported and omitted."""
    names = {operator: "[gateway] token"} if operator else {}
    grants = []
    for index, written in enumerate(tokens):
        path: KeyPath = ("tokens", index)
        where, name = (*path, "token"), quoted(written.name)
        if written.name in RESERVED:
            message = f"{name} is reserved for the local operator"
            reading.wrong(Code.MALFORMED, (*path, "name"), message, "choose another name")
        for at, scope in enumerate(written.scopes):
            _check_scope(reading, (*path, "scopes", at), scope)
        token = _unless_blank(reading, where, reading.secret(where, written.token))
        if token is None:
            continue
        if token in names:
            message = f"{names[token]} has the same token"
            reading.wrong(Code.DUPLICATE, where, message, NEW_TOKEN)
        names[token] = name
        grants.append(replace(written, token=token))
    return tuple(grants)


def resolve_store(reading: Reading, written: StoreSettings) -> StoreSettings:
    """Returns the settings with the server's password resolved."""
    if written.is_shared and not reading.known.has_surrealdb:
        reading.not_installed(("store", "url"), NotInstalled("[store] url", "surrealdb"))
    if (written.username is None) != (written.password is None):
        missing, present = ("username", "password")[:: 1 if written.username is None else -1]
        message = f'"{missing}" is missing: "{present}" needs it'
        reading.wrong(Code.MISSING, ("store", present), message, f"add {missing} = ...")
    password: Secret | None = None
    if written.is_shared:
        password = reading.secret(("store", "password"), written.password)
    elif written.password is not None:
        with suppress(SecretProblem):  # only `store copy` uses it
            text, inputs = written.password.reveal(), reading.inputs
            password = Secret(resolve(text, inputs.environment, inputs.home))
    return replace(written, password=password)


def token_budgets(config: GatewayConfig) -> Mapping[str, TokenBudget]:
    """Returns the budgets of the tokens in the file, by name; tokens without a budget are absent."""
    return {one.name: one.budget for one in config.tokens if one.budget is not None}


def resolve_cluster(reading: Reading, written: GatewayConfig) -> Clustering | None:
    """Returns the settings with the credentials of NATS resolved."""
    found = written.cluster
    if found is None:
        return None
    if not written.store.is_shared:
        message = f"[cluster] needs a shared store, but [store] url is {written.store.url!r}"
        reading.wrong(Code.MISSING, ("cluster",), message, 'write [store] url = "ws://HOST:PORT"')
    if found.url is not None and not _HINTS.fullmatch(found.url):
        message = "this is not nats://HOST:PORT or tls://HOST:PORT"
        fix = "write the address alone; user and password belong in credentials"
        reading.wrong(Code.MALFORMED, ("cluster", "url"), message, fix)
    elif found.url is not None and not reading.known.has_nats:
        reading.not_installed(("cluster", "url"), NotInstalled("[cluster] url", "cluster"))
    credentials = reading.secret(("cluster", "credentials"), found.credentials)
    return replace(found, credentials=credentials)


_ONE = r"(nats|tls|ws|wss)://([^/?#@:,\s]+|\[[^\]]*\])(:[0-9]{1,5})?/?"
_HINTS = re.compile(f"{_ONE}(,{_ONE})*")


def _check_scope(reading: Reading, where: KeyPath, scope: str) -> None:
    kind, colon, agent_id = scope.partition(":")
    if kind == "agent" and colon:
        reading.refers(where, "agent", agent_id)
    elif scope not in SCOPES:
        fix = choose(scope, (*SCOPES, "agent:ID"))
        reading.wrong(Code.NOT_A_CHOICE, where, f"{quoted(scope)} is not a scope", fix)


def _check_door(reading: Reading, bind: str, operator: Secret | None, *, has_tokens: bool) -> None:
    """Checks the tokens of a gateway that other machines can reach."""
    reached = f"other machines can reach {quoted(bind)}"
    if not has_tokens:
        message = f"{reached}, and no token is set: anyone could control the gateway"
        fix = f'set {TOKEN} or [gateway] token, or write bind = "127.0.0.1"'
        reading.wrong(Code.OPEN_DOOR, ("gateway", "bind"), message, fix)
    if operator is not None and len(operator.reveal().strip()) < LEAST_TOKEN:
        message = f"{reached}, and the operator's token has fewer than {LEAST_TOKEN} characters"
        reading.wrong(Code.OPEN_DOOR, OPERATOR, message, NEW_TOKEN)


def _unless_blank(reading: Reading, path: KeyPath, token: Secret | None) -> Secret | None:
    """Reports a blank token and returns None for it: without a token every local program is the operator."""
    if token is None or token.reveal().strip():
        return token
    reading.wrong(Code.MALFORMED, path, "the token is blank", NEW_TOKEN)
    return None


# -- the audit


async def note_start(
    audit: Audit, config: GatewayConfig, plugins: Sequence[PluginInfo], version: str, at: datetime
) -> None:
    """Records the changes since the previous start, the refused plugins, and the authority now in force."""
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
            detail = {"plugin": plugin.name, "why": plugin.why}
            await audit.append(AuditEvent(at, "plugin.refused", "config", detail))
    applied = {"version": version, "file": str(config.origin or ""), "authority": now}
    await audit.append(AuditEvent(at, "config.applied", "config", applied))


def authority(config: GatewayConfig) -> Authority:
    """Returns the permissions and limits of a configuration, as JSON decodes them."""
    settings = config.gateway
    shown: dict[str, object] = {
        "gateway.bind": settings.bind,
        "gateway.has_token": settings.token is not None,
        "gateway.allowed_origins": frozenset(settings.allowed_origins),
        "gateway.trusted_proxies": frozenset(settings.trusted_proxies),
    }
    shown |= {f"tokens.{one.name}": _rights(one) for one in config.tokens}
    for plugin in config.plugins:
        shown[f"plugins.{plugin.name}"] = {
            "enabled": plugin.is_enabled,
            "capabilities": frozenset(map(str, plugin.capabilities)),
            "sha256": plugin.sha256,
            "secrets": _origins(plugin.secrets),
        }
    for channel in config.channels:
        shown[f"channels.{channel.name}"] = {
            **_attributes(channel, "plugin", "account", "dm_policy", "allow_from"),
            "groups": {name: rule.allow_from for name, rule in channel.groups.items()},
            "secrets": _origins(channel.secrets),
        }
    shown |= {f"mcp.{one.name}": _attributes(one, "url", "command") for one in config.mcp.servers}
    shown |= _agents(config)
    for name, provider in config.providers.items():
        prices = {model: asdict(price) for model, price in provider.prices.items()}
        shown[f"providers.{name}"] = {"base_url": provider.base_url, "prices": prices}
    agents = {f"agent:{name}": limit for name, limit in config.budgets.agents.items()}
    limits = _set_limits(config.budgets, "session", "daily", "monthly", "per_agent", **agents)
    shown |= {f"budgets.{name}": limit for name, limit in limits.items()}
    decoded: Authority = json.loads(json.dumps(shown, default=sorted))
    return decoded


def _rights(token: TokenGrant) -> object:
    """Returns the scopes of a token, with its expiry and budget if it has one of them."""
    if token.expires is None and token.budget is None:
        return frozenset(token.scopes)
    expires = token.expires and token.expires.isoformat()
    budget = token.budget and _set_limits(token.budget, "session", "daily", "monthly")
    return {"scopes": frozenset(token.scopes), "expires": expires, "budget": budget}


def _agents(config: GatewayConfig) -> dict[str, object]:
    shown: dict[str, object] = {}
    for agent in config.agents:
        models = [f"{link.provider}/{link.model}" for link in agent.chain]
        shown[f"agents.{agent.id}"] = {"models": models, "tools": agent.tools}
    for one in config.subagents:
        shown[f"subagents.{one.name}"] = _attributes(one, "provider", "model", "tools")
    for project in config.projects:
        agents = frozenset(agent.id for agent in config.agents if agent.project == project.id)
        shown[f"projects.{project.id}"] = {"users": frozenset(project.users), "agents": agents}
    return shown


def _set_limits(budgets: object, *names: str, **more: Limit) -> dict[str, object]:
    """Returns the limits of these names as JSON data; a limit that limits nothing is omitted."""
    limits: dict[str, Limit] = _attributes(budgets, *names) | more
    return {
        name: {"tokens": one.tokens, "usd": one.nano_usd and one.nano_usd / NANO}
        for name, one in limits.items()
        if one != Limit()
    }


def _attributes(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _origins(secrets: Iterable[PluginSecret]) -> Mapping[str, object]:
    """Returns the origins that may receive each secret."""
    return {one.name: frozenset(map(str, one.origins)) for one in secrets}


def closed_agents(config: GatewayConfig) -> Mapping[AgentId, frozenset[str]]:
    """Returns the users of each agent that belongs to a project."""
    users = {project.id: frozenset(project.users) for project in config.projects}
    return {agent.id: users[agent.project] for agent in config.agents if agent.project in users}


def reachable_scopes(config: GatewayConfig, name: str, scopes: Iterable[str]) -> frozenset[str]:
    """Returns the scopes of a token without agents of other projects, which the token must not see. The scopes
    admin, read and impersonate see all agents."""
    given, closed = frozenset(scopes), closed_agents(config)
    if given & {"admin", "read", "impersonate"} or all(name in users for users in closed.values()):
        return given
    mine = {agent.id for agent in config.agents if name in closed.get(agent.id, {name})}
    asked = {scope for scope in given if scope.startswith("agent:")}
    reached = {f"agent:{agent}" for agent in mine}
    return given - asked | ((asked & reached if asked else reached) or {NO_AGENT})
