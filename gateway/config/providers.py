"""What agents ask: model providers with their keys and prices, and MCP servers.

A provider's key comes from the environment, then a secret file, then the configuration. The first two
go to the preset's own address only.
"""

import os
from collections.abc import Mapping
from dataclasses import replace

from gateway.config.agents import note_disabled
from gateway.config.environment import key_variables, value_of
from gateway.config.problems import Code, KeyPath
from gateway.config.reading import DEMO, Reading
from gateway.config.secrets import FOLDER, looks_secret
from gateway.config.sections import blank
from gateway.config.values import GatewayConfig, ObservabilitySettings
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Budgets
from gateway.domain.ids import Secret
from gateway.domain.mcp import DEPTH_HEADER, McpNotInstalled, McpServerDef
from gateway.domain.model import ProviderDef
from gateway.domain.text import quoted

_OUR_HEADERS = {
    *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
    *("last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
    *("transfer-encoding", DEPTH_HEADER),
}


def resolve_providers(
    reading: Reading, config: GatewayConfig
) -> tuple[dict[str, ProviderDef], dict[str, str]]:
    """The providers of the file and the presets that agents ask, and where their keys come from."""
    found: dict[str, ProviderDef] = {}
    origins: dict[str, str] = {}
    asked = [name for name in reading.used if name in reading.known.presets]
    for name in dict.fromkeys((*config.providers, *asked)):
        if name == DEMO:
            for key in reading.tree["providers"][DEMO]:
                message, path = "the demo provider has no settings", ("providers", DEMO, key)
                reading.wrong(Code.MALFORMED, path, message, "remove it", at="key")
            continue
        written = config.providers.get(name) or replace(blank(ProviderDef), name=name)
        address = _address(reading, written)
        headers = _followed(reading, ("providers", name, "headers"), written.headers, name=name)
        if address is not None:
            key, origin = _key(reading, written, address.base_url)
            found[name] = replace(address, headers=headers, api_key=Secret(key) if key else None)
            if origin is not None:
                origins[name] = origin
    return found, origins


def _address(reading: Reading, written: ProviderDef) -> ProviderDef | None:
    """With its protocol and its address: a preset has them, another provider needs them."""
    path: KeyPath = ("providers", written.name)
    preset = reading.known.presets.get(written.name)
    if preset is not None:
        if written.wire not in {None, preset.wire}:
            message = f"the preset {written.name} speaks {preset.wire}"
            fix = "remove wire, or give the provider another name"
            reading.wrong(Code.NOT_A_CHOICE, (*path, "wire"), message, fix)
        return replace(written, wire=preset.wire, base_url=written.base_url or preset.base_url)
    presets = ", ".join((*reading.known.presets, DEMO))
    lines = {
        "wire": 'wire = "openai" or wire = "anthropic"',
        "base_url": 'base_url = "https://..."',
    }
    for key, line in lines.items():
        if getattr(written, key) is None:
            message = f'"{key}" is missing: {quoted(written.name)} is not a preset ({presets})'
            reading.wrong(Code.MISSING, (*path, key), message, f"add {line}", at="table")
    return written if written.wire and written.base_url else None


def _followed(
    reading: Reading, path: KeyPath, written: Mapping[str, str], *, name: str | None = None
) -> dict[str, str]:
    """Headers or variables with their references followed, without one whose reference is wrong. `name`
    is the provider that they are for: of one that no agent uses they may be missing."""
    values = {}
    for key, text in written.items():
        is_needed, is_open = name is None or name in reading.used, not looks_secret(key)
        value = reading.follow((*path, key), text, is_needed=is_needed, is_open=is_open)
        if value is not None:
            values[key] = value
    return values


def resolve_traces(reading: Reading, written: ObservabilitySettings) -> ObservabilitySettings:
    """With the headers for the collector."""
    if written.otlp_endpoint and not reading.known.has_otel:
        message, fix = "what speaks to it is not installed", "pip install 'exogate[otel]'"
        reading.wrong(Code.NOT_INSTALLED, ("observability", "otlp_endpoint"), message, fix)
    texts = {name: secret.reveal() for name, secret in written.otlp_headers.items()}
    values = _followed(reading, ("observability", "otlp_headers"), texts)
    return replace(written, otlp_headers={name: Secret(one) for name, one in values.items()})


def _key(reading: Reading, written: ProviderDef, base_url: str) -> tuple[str | None, str | None]:
    """The key, and in words where it comes from. No key also if its problem is reported."""
    name, path = written.name, ("providers", written.name, "api_key")
    preset, is_used = reading.known.presets.get(name), name in reading.used
    # what is at hand for a preset goes to no other address
    is_own = preset is not None and base_url.rstrip("/") == preset.base_url.rstrip("/")
    if preset is not None and is_own:
        for variable in key_variables(name, preset.key_variable):
            if value_of(reading.around.environment, variable):
                return reading.variable(path, variable), variable
        file = f"{name}_api_key"
        if os.path.lexists(reading.around.home / FOLDER / file):
            found = reading.follow(path, f"${{file:{file}}}", is_needed=is_used)
            return found, f"secret file {file}"
    if written.api_key:
        return reading.follow(path, written.api_key.reveal(), is_needed=is_used), "config"
    if preset is not None and preset.key_variable:
        _report_no_key(reading, name, preset.key_variable, is_own=is_own)
    return None, None


def _report_no_key(reading: Reading, name: str, variable: str, *, is_own: bool) -> None:
    """A preset at its own address needs a key; elsewhere a key at hand is only not sent."""
    if not is_own and value_of(reading.around.environment, variable):
        message = f"{variable} is not sent to an address of your own"
        fix = f'write api_key = "${{env:{variable}}}" if it should be'
        reading.note("key-kept-back", ("providers", name, "api_key"), message, fix)
    elif is_own and name in reading.used:
        message = f'no key for provider "{name}": {variable} is not set'
        fix = f"set {variable}, or run: exogate config set providers.{name}.api_key --secret"
        reading.wrong(Code.NO_KEY, reading.used[name], message, fix)


def check_budgets(reading: Reading, config: GatewayConfig) -> None:
    for name in config.budgets.agents:
        reading.refers(("budgets", "agent", name), "agent", name, at="key")


def check_prices(
    reading: Reading, config: GatewayConfig, agents: Mapping[KeyPath, AgentDef]
) -> None:
    """A limit in USD holds nothing back where no price is known: that is an error."""
    delegation = config.delegation
    reader = delegation.subagent if delegation.is_enabled else None  # for every agent
    for place, agent in agents.items():
        limit = _limit_in_money(config.budgets, agent.id)
        if limit is None:
            continue  # looking for prices is slow
        for depth, link in enumerate(agent.chain):
            path = (*place, *["fallback"] * depth)
            _check_price(reading, config, path, (link.provider, link.model), limit)
        for index, helper in enumerate(config.subagents):
            if helper.model and (helper.name == reader or helper.tool in agent.tools):
                asked = (helper.provider or agent.provider, helper.model)
                _check_price(reading, config, ("subagents", index), asked, limit)


def _limit_in_money(budgets: Budgets, agent: str) -> str | None:
    """The key of a limit in USD that holds for an agent."""
    own = budgets.agents.get(agent)
    limits = {name: getattr(budgets, name) for name in ("session", "daily", "monthly")}
    limits[f"agent.{agent}" if own else "per_agent"] = own or budgets.per_agent
    return next((name for name, one in limits.items() if one.nano_usd is not None), None)


def _check_price(
    reading: Reading, config: GatewayConfig, path: KeyPath, asked: tuple[str, str], limit: str
) -> None:
    provider, model = asked
    definition, where = config.providers.get(provider), (*path, "model")
    if definition is None or not model or reading.known.is_priced(definition, model):
        return  # demo costs nothing, and what does not exist is reported already
    if any(found.path == where for found in reading.findings):
        return
    message = f"budgets.{limit} is in USD, and {quoted(model)} of {quoted(provider)} has no price"
    fix = (
        f"in [providers.{provider}] add prices = {{ {quoted(model)} = {{ input = USD, output = "
        "USD } }, for a million tokens each; 0 if it costs nothing"
    )
    reading.wrong(Code.MISSING, where, message, fix)


def resolve_servers(reading: Reading, config: GatewayConfig) -> tuple[McpServerDef, ...]:
    """The MCP servers with their secrets; checks what is served at /mcp as well."""
    serve, servers = config.mcp.serve, config.mcp.servers
    _check_trust(reading, [one.name for one in servers if one.command is not None])
    for index, tool in enumerate(serve.tools):
        if reading.plugins.get(tool) is False:
            message = f"{quoted(tool)} is served but not enabled"
            note_disabled(reading, ("mcp", "serve", "tools", index), message)
    if not reading.known.has_mcp:
        where: list[KeyPath] = [("mcp", "servers", one.name) for one in servers]
        where += [("mcp", "serve", "enabled")] if serve.is_enabled else []
        message, _, fix = str(McpNotInstalled()).partition(": ")
        for path in where:
            reading.wrong(Code.NOT_INSTALLED, path, message, fix, at="table")
    return tuple(_server(reading, one) for one in servers)


def _check_trust(reading: Reading, programs: list[str]) -> None:
    """A file that only lies in the current folder starts no program for whoever else wrote it."""
    name = reading.document.name
    why = reading.document.why_untrusted() if programs and not reading.around.is_named else None
    if why is not None:
        message = f"{name} was found in the current folder and starts a program, but {why}"
        fix = f"read it, then chown or chmod 600 it, or name it: --config {name}"
        for program in programs:
            where = ("mcp", "servers", program, "command")
            reading.wrong(Code.UNTRUSTED_FILE, where, message, fix)


def _server(reading: Reading, written: McpServerDef) -> McpServerDef:
    path: KeyPath = ("mcp", "servers", written.name)
    _check_server(reading, path, written)
    values: dict[str, dict[str, Secret]] = {}
    hidden: list[Secret] = []
    for kind in ("env", "headers"):
        texts = {name: secret.reveal() for name, secret in getattr(written, kind).items()}
        followed = _followed(reading, (*path, kind), texts)
        values[kind] = {name: Secret(value) for name, value in followed.items()}
        hidden += [
            secret
            for name, secret in values[kind].items()
            if "${" in texts[name] or looks_secret(name)
        ]
    return replace(written, env=values["env"], headers=values["headers"], hidden=tuple(hidden))


def _check_server(reading: Reading, path: KeyPath, written: McpServerDef) -> None:
    name, own = quoted(written.name), written.user_header
    if (written.url is None) == (written.command is None):
        message = f"the MCP server {name} needs url or command, one of the two"
        reading.wrong(Code.MISSING, path, message, "write one of them", at="table")
        return
    kind, others = ("url", ("args", "env"))
    if written.url is None:
        kind, others = "command", ("headers", "user_header")
    for key in others:
        if reading.given((*path, key)) is not None:
            message = f"the MCP server {name} has a {kind}, so {key} has no effect"
            reading.wrong(Code.MALFORMED, (*path, key), message, "remove it", at="key")
    named = [((*path, "headers", header), header) for header in written.headers]
    for where, header in [*named, ((*path, "user_header"), own)]:
        if header.lower() in _OUR_HEADERS:
            message = f"{quoted(header)} is a header that the gateway itself sets"
            reading.wrong(Code.MALFORMED, where, message, "choose another name")
        elif header.lower() == own.lower() and where != (*path, "user_header"):
            message = f"{quoted(header)} names the user, so it cannot have one fixed value"
            fix = "remove it, or choose another user_header"
            reading.wrong(Code.DUPLICATE, where, message, fix)
