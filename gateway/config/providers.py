"""What agents ask: model providers with their keys and prices, and MCP servers.

A provider's key comes from the environment, then a secret file, then the configuration. The first two
go to the preset's own address only.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from gateway.config.environment import DEMO, key_variables, value_of
from gateway.config.problems import Code, KeyPath
from gateway.config.reading import Reading
from gateway.config.secrets import looks_secret
from gateway.config.sections import blank
from gateway.config.values import GatewayConfig, Preset
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Budgets
from gateway.domain.ids import Secret
from gateway.domain.mcp import DEPTH_HEADER, McpNotInstalled, McpServerDef
from gateway.domain.model import ProviderDef
from gateway.domain.text import choose, quoted

_OUR_HEADERS = {
    *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
    *("last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
    *("transfer-encoding", DEPTH_HEADER),
}


def resolve_providers(
    reading: Reading, config: GatewayConfig
) -> tuple[dict[str, ProviderDef], dict[str, str]]:
    """The providers of the file and the presets that agents ask, and where their keys come from."""
    known, written = reading.known, config.providers
    presets = [name for name in reading.used if name in known.presets and name not in written]
    found: dict[str, ProviderDef] = {}
    origins: dict[str, str] = {}
    for name in (*written, *presets):
        if name == DEMO:
            for key in reading.tree["providers"][DEMO]:
                message = "the demo provider has no settings"
                path = ("providers", DEMO, key)
                reading.wrong(Code.MALFORMED, path, message, "remove it", at="key")
            continue
        one = written.get(name) or replace(blank(ProviderDef), name=name)
        provider = _Provider(reading, one)
        if (resolved := provider.resolved()) is not None:
            found[name] = resolved
            if provider.origin:
                origins[name] = provider.origin
    return found, origins


class _Provider:
    """One provider while it is resolved."""

    def __init__(self, reading: Reading, written: ProviderDef) -> None:
        self.reading, self.written, self.name = reading, written, written.name
        self.path: KeyPath = ("providers", written.name)
        self.preset: Preset | None = reading.known.presets.get(written.name)
        self.origin: str | None = None  # of its key, in words

    def resolved(self) -> ProviderDef | None:
        written, preset = self.written, self.preset
        if preset is None:
            self._check_own()
        elif written.wire not in {None, preset.wire}:
            message = f"the preset {self.name} speaks {preset.wire}"
            fix = "remove wire, or give the provider another name"
            self.reading.wrong(Code.NOT_A_CHOICE, (*self.path, "wire"), message, fix)
        headers = self._headers()
        wire = preset.wire if preset else written.wire
        base_url = written.base_url or (preset.base_url if preset else None)
        if wire is None or base_url is None:
            return None
        key = self._key(base_url)
        return replace(
            written,
            wire=wire,
            base_url=base_url,
            headers=headers,
            api_key=Secret(key) if key else None,
        )

    @property
    def is_used(self) -> bool:
        return self.name in self.reading.used

    def _check_own(self) -> None:
        """A provider that is no preset needs its protocol and its address."""
        presets = ", ".join((*self.reading.known.presets, DEMO))
        lines = {
            "wire": 'wire = "openai" or wire = "anthropic"',
            "base_url": 'base_url = "https://..."',
        }
        for key, line in lines.items():
            if getattr(self.written, key) is None:
                message = f'"{key}" is missing: {quoted(self.name)} is not a preset ({presets})'
                where = (*self.path, key)
                self.reading.wrong(Code.MISSING, where, message, f"add {line}", at="table")

    def _headers(self) -> dict[str, str]:
        """The headers with their references resolved; one whose reference is wrong is left out."""
        headers = {}
        for header, text in self.written.headers.items():
            where, is_open = (*self.path, "headers", header), not looks_secret(header)
            value = self.reading.source.follow(where, text, is_needed=self.is_used, is_open=is_open)
            if value is not None:
                headers[header] = value
        return headers

    def _key(self, base_url: str) -> str | None:
        """None also if its problem is reported."""
        source, path, preset = self.reading.source, (*self.path, "api_key"), self.preset
        # what is at hand for a preset goes to no other address
        is_own = preset is not None and base_url.rstrip("/") == preset.base_url.rstrip("/")
        variable = preset.key_variable if preset else None
        for name in key_variables(self.name, variable if is_own else None):
            if value_of(source.environment, name):
                self.origin = name
                return source.variable(path, name)
        file = f"{self.name}_api_key"
        if is_own and os.path.lexists(source.folder / file):
            self.origin = f"secret file {file}"
            return source.follow(path, f"${{file:{file}}}", is_needed=self.is_used)
        if self.written.api_key:
            self.origin = "config"
            return source.follow(path, self.written.api_key.reveal(), is_needed=self.is_used)
        if variable:
            self._report_no_key(variable, file, is_own=is_own)
        return None

    def _report_no_key(self, variable: str, file: str, *, is_own: bool) -> None:
        """A preset at its own address needs a key; elsewhere a key at hand is only not sent."""
        source = self.reading.source
        if not is_own and value_of(source.environment, variable):
            message = f"{variable} is not sent to an address of your own"
            fix = f'write api_key = "${{env:{variable}}}" if it should be'
            self.reading.note("key-kept-back", (*self.path, "api_key"), message, fix)
        elif is_own and self.is_used:
            message = f'no key for provider "{self.name}": {variable} is not set'
            fix = f"set {variable}, or write the key into {source.folder}/{file} (chmod 600)"
            self.reading.wrong(Code.NO_KEY, self.reading.used[self.name], message, fix)


def check_budgets(reading: Reading, config: GatewayConfig) -> None:
    """Each limit holds something back: an agent is there, and a limit in USD needs prices."""
    for name in config.budgets.agents:
        if name not in reading.agents:
            where, fix = ("budgets", "agent", name), choose(name, reading.agents)
            message = f"there is no agent {quoted(name)}"
            reading.wrong(Code.UNKNOWN_NAME, where, message, fix, at="key")


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
        path, link = place, cast("AgentDef | None", agent)
        while link is not None:
            _check_price(reading, config, path, (link.provider, link.model), limit)
            path, link = (*path, "fallback"), link.fallback
        for index, helper in enumerate(config.subagents):
            if helper.model and (helper.name == reader or helper.tool in agent.tools):
                asked = (helper.provider or agent.provider, helper.model)
                _check_price(reading, config, ("subagents", index), asked, limit)


def _limit_in_money(budgets: Budgets, agent: str) -> str | None:
    """The key of a limit in USD that holds for an agent."""
    own = budgets.agents.get(agent)
    limits = {
        "session": budgets.session,
        "daily": budgets.daily,
        "monthly": budgets.monthly,
        f"agent.{agent}" if own else "per_agent": own or budgets.per_agent,
    }
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
    _check_trust(reading, config)
    _check_served(reading, config)
    if not reading.known.has_mcp:
        where: list[KeyPath] = [("mcp", "servers", one.name) for one in config.mcp.servers]
        where += [("mcp", "serve", "enabled")] if config.mcp.serve.is_enabled else []
        message, _, fix = str(McpNotInstalled()).partition(": ")
        for path in where:
            reading.wrong(Code.NOT_INSTALLED, path, message, fix, at="table")
    return tuple(_server(reading, one) for one in config.mcp.servers)


def _check_trust(reading: Reading, config: GatewayConfig) -> None:
    """A file that only lies in the current folder starts no program for whoever else wrote it."""
    programs = [one.name for one in config.mcp.servers if one.command is not None]
    name = reading.document.name
    why = reading.document.why_untrusted() if programs and not reading.around.is_named else None
    if why is not None:
        message = f"{name} was found in the current folder and starts a program, but {why}"
        fix = f"read it, then chown or chmod 600 it, or name it: --config {name}"
        for program in programs:
            where = ("mcp", "servers", program, "command")
            reading.wrong(Code.UNTRUSTED_FILE, where, message, fix)


def _check_served(reading: Reading, config: GatewayConfig) -> None:
    served, plugins = config.mcp.serve.tools, reading.plugins_alone
    for index, tool in enumerate(served):
        where = ("mcp", "serve", "tools", index)
        if tool not in plugins:
            message = f"{quoted(tool)} is no plugin, and only tools of plugins are served"
            reading.wrong(Code.UNKNOWN_NAME, where, message, choose(tool, plugins))
        elif tool in served[:index]:
            message = f"{quoted(tool)} is there twice"
            reading.wrong(Code.DUPLICATE, where, message, "keep one")
        elif not plugins[tool]:
            message = f"{quoted(tool)} is served but not enabled"
            fix = "remove it, or write enabled = true in its [[plugins]]"
            reading.note("plugin-disabled", where, message, fix)


def _server(reading: Reading, written: McpServerDef) -> McpServerDef:
    path: KeyPath = ("mcp", "servers", written.name)
    _check_server(reading, path, written)
    values: dict[str, dict[str, Secret]] = {"env": {}, "headers": {}}
    hidden = []
    for kind, found in values.items():
        for name, secret in getattr(written, kind).items():
            text, is_open = secret.reveal(), not looks_secret(name)
            value = reading.source.follow((*path, kind, name), text, is_open=is_open)
            if value is not None:
                found[name] = Secret(value)
                hidden += [Secret(value)] if "${" in text or not is_open else []
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
        if reading.is_given((*path, key)):
            message = f"the MCP server {name} has a {kind}, so {key} has no effect"
            reading.wrong(Code.MALFORMED, (*path, key), message, "remove it", at="key")
    named = [((*path, "headers", header), header) for header in written.headers]
    for where, header in [*named, ((*path, "user_header"), own)]:
        if header.lower() in _OUR_HEADERS:
            message = f"{quoted(header)} is a header that the gateway itself sets"
            reading.wrong(Code.MALFORMED, where, message, "choose another name")
    for where, header in named:
        if header.lower() == own.lower():
            message = f"{quoted(header)} names the user, so it cannot have one fixed value"
            fix = "remove it, or choose another user_header"
            reading.wrong(Code.DUPLICATE, where, message, fix)
