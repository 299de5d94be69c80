"""Model providers with their keys and prices, MCP servers, and the collector of traces.

A provider's key comes from the environment, a secret file or the configuration, in this order. Keys from the first
two are only sent to the preset's own address.
"""

import os
from collections.abc import Mapping
from dataclasses import replace

from gateway.config.agents import ENABLE
from gateway.config.environment import key_variables, value_of
from gateway.config.problems import Code, KeyPath
from gateway.config.reading import DEMO, Reading
from gateway.config.secrets import FOLDER, looks_secret
from gateway.config.sections import blank
from gateway.config.values import GatewayConfig, ObservabilitySettings
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Budgets
from gateway.domain.errors import NotInstalled
from gateway.domain.ids import Secret
from gateway.domain.mcp import DEPTH_HEADER, McpServerDef
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
    """Returns the providers of the file and the presets in use, and the origins of their keys."""
    found: dict[str, ProviderDef] = {}
    origins: dict[str, str] = {}
    asked = [name for name in reading.used if name in reading.known.presets]
    for name in dict.fromkeys((*config.providers, *asked)):
        if name == DEMO:
            for key in reading.tree["providers"][DEMO]:
                path, message = ("providers", DEMO, key), "the demo provider has no settings"
                reading.wrong(Code.MALFORMED, path, message, "remove it", at="key")
            continue
        written = config.providers.get(name) or replace(blank(ProviderDef), name=name)
        address = _address(reading, written)
        headers = _resolve(reading, ("providers", name, "headers"), written.headers, name=name)
        if address is not None:
            key, origin = _key(reading, written, address.base_url)
            found[name] = replace(address, headers=headers, api_key=key)
            if origin is not None:
                origins[name] = origin
    return found, origins


def _address(reading: Reading, written: ProviderDef) -> ProviderDef | None:
    """Returns the provider with its protocol and address, which a preset has and others need; None if one is missing."""
    path: KeyPath = ("providers", written.name)
    preset = reading.known.presets.get(written.name)
    if preset is not None:
        if written.wire not in {None, preset.wire}:
            message = f"the preset {written.name} uses the wire {preset.wire}"
            fix = "remove wire, or rename the provider"
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
            reading.wrong(Code.MISSING, (*path, key), message, f"add {line}")
    return written if written.wire and written.base_url else None


def _resolve(
    reading: Reading, path: KeyPath, written: Mapping[str, str], *, name: str | None = None
) -> dict[str, str]:
    """Returns headers or variables with their references resolved; a reference with a problem is reported and
    omitted. References of a provider, `name`, may be missing if no agent uses it."""
    values = {}
    for key, text in written.items():
        is_needed, is_open = name is None or name in reading.used, not looks_secret(key)
        value = reading.resolve((*path, key), text, is_needed=is_needed, is_open=is_open)
        if value is not None:
            values[key] = value
    return values


def resolve_traces(reading: Reading, written: ObservabilitySettings) -> ObservabilitySettings:
    """Returns the settings with the headers for the collector resolved."""
    if written.otlp_endpoint and not reading.known.has_otel:
        missing = NotInstalled("otlp_endpoint", "otel")
        reading.not_installed(("observability", "otlp_endpoint"), missing)
    texts = {name: secret.reveal() for name, secret in written.otlp_headers.items()}
    values = _resolve(reading, ("observability", "otlp_headers"), texts)
    return replace(written, otlp_headers={name: Secret(one) for name, one in values.items()})


def _key(reading: Reading, written: ProviderDef, base_url: str) -> tuple[Secret | None, str | None]:
    """Returns the key and its origin; no key if there is none or its problem is reported."""
    name, path = written.name, ("providers", written.name, "api_key")
    preset, is_used = reading.known.presets.get(name), name in reading.used
    # Keys from the environment and from secret files are for the preset's own address.
    is_own = preset is not None and base_url.rstrip("/") == preset.base_url.rstrip("/")
    if preset is not None and is_own:
        for variable in key_variables(name, preset.key_variable):
            if value_of(reading.inputs.environment, variable):
                return reading.variable(path, variable), variable
        file = f"{name}_api_key"
        if os.path.lexists(reading.inputs.home / FOLDER / file):
            found = reading.secret(path, Secret(f"${{file:{file}}}"), is_needed=is_used)
            return found, f"secret file {file}"
    if written.api_key:
        return reading.secret(path, written.api_key, is_needed=is_used), "config"
    if preset is not None and preset.key_variable:
        _report_no_key(reading, name, preset.key_variable, is_own=is_own)
    return None, None


def _report_no_key(reading: Reading, name: str, variable: str, *, is_own: bool) -> None:
    """Reports a preset without a key at its own address; warns of a key that another address does not get."""
    if not is_own and value_of(reading.inputs.environment, variable):
        message = f"{variable} is only sent to the address of the preset"
        fix = f'to send it here, write api_key = "${{env:{variable}}}"'
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
    """Reports models without a price if a limit in USD applies: it could not limit them."""
    delegation = config.delegation
    reader = delegation.subagent if delegation.is_enabled else None  # a tool of every agent
    for place, agent in agents.items():
        limit = _limit_in_money(config.budgets, agent.id)
        if limit is None:
            continue  # price look-ups are slow
        for depth, link in enumerate(agent.chain):
            path = (*place, *["fallback"] * depth)
            _check_price(reading, config, path, (link.provider, link.model), limit)
        for index, helper in enumerate(config.subagents):
            if helper.model and (helper.name == reader or helper.tool in agent.tools):
                asked = (helper.provider or agent.provider, helper.model)
                _check_price(reading, config, ("subagents", index), asked, limit)


def _limit_in_money(budgets: Budgets, agent: str) -> str | None:
    """Returns the key of a limit in USD that applies to an agent; None if none does."""
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
        return  # the demo is free, and an unknown provider is already reported
    if any(found.path == where for found in reading.findings):
        return
    message = f"budgets.{limit} is in USD, and {quoted(model)} of {quoted(provider)} has no price"
    fix = (
        f"in [providers.{provider}] add prices = {{ {quoted(model)} = {{ input = USD, output = "
        "USD } }, each for a million tokens; 0 if it is free"
    )
    reading.wrong(Code.MISSING, where, message, fix)


def resolve_servers(reading: Reading, config: GatewayConfig) -> tuple[McpServerDef, ...]:
    """Returns the MCP servers with their secrets resolved; checks [mcp.serve] too."""
    serve, servers = config.mcp.serve, config.mcp.servers
    _check_trust(reading, [one.name for one in servers if one.command is not None])
    for index, tool in enumerate(serve.tools):
        if reading.plugins.get(tool) is False:
            where, message = ("mcp", "serve", "tools", index), f"{quoted(tool)} is not enabled"
            reading.note("plugin-disabled", where, message, ENABLE)
    if not reading.known.has_mcp:
        paths: list[KeyPath] = [("mcp", "servers", one.name) for one in servers]
        paths += [("mcp", "serve", "enabled")] if serve.is_enabled else []
        for path in paths:
            reading.not_installed(path, NotInstalled("[mcp]", "mcp"), at="table")
    return tuple(_server(reading, one) for one in servers)


def _check_trust(reading: Reading, programs: list[str]) -> None:
    """Reports programs in an unnamed file of the current folder that another user may have written."""
    name = reading.document.name
    why = reading.document.why_untrusted() if programs and not reading.inputs.is_named else None
    if why is not None:
        message = f"{name} in the current folder starts a program, but {why}"
        fix = f"read the file, then chown or chmod 600 it, or name it: --config {name}"
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
        resolved = _resolve(reading, (*path, kind), texts)
        values[kind] = {name: Secret(value) for name, value in resolved.items()}
        hidden += [
            secret
            for name, secret in values[kind].items()
            if "${" in texts[name] or looks_secret(name)
        ]
    return replace(written, env=values["env"], headers=values["headers"], hidden=tuple(hidden))


def _check_server(reading: Reading, path: KeyPath, written: McpServerDef) -> None:
    name = quoted(written.name)
    if (written.url is None) == (written.command is None):
        message = f"the MCP server {name} needs either url or command"
        reading.wrong(Code.MISSING, path, message, "write one of the two", at="table")
        return
    kind = "command" if written.url is None else "url"
    for key in ("headers", "user_header") if written.url is None else ("args", "env"):
        if reading.value_at((*path, key)) is not None:
            message = f"the MCP server {name} has a {kind}, so {key} has no effect"
            reading.wrong(Code.MALFORMED, (*path, key), message, "remove it", at="key")
    _check_headers(reading, path, written)


def _check_headers(reading: Reading, path: KeyPath, written: McpServerDef) -> None:
    own = written.user_header
    headers = {(*path, "headers", header): header for header in written.headers}
    for where, header in [*headers.items(), ((*path, "user_header"), own)]:
        if header.lower() in _OUR_HEADERS:
            message = f"the gateway itself sets the header {quoted(header)}"
            reading.wrong(Code.MALFORMED, where, message, "choose another name")
        elif header.lower() == own.lower() and where in headers:
            message = f"{quoted(header)} is the user_header, so it cannot have a fixed value"
            fix = "remove it, or choose another user_header"
            reading.wrong(Code.DUPLICATE, where, message, fix)
