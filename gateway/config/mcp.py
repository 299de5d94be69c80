"""`[mcp.servers.NAME]`: its keys, and the domain's definitions with the secrets followed."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.kinds import (
    Header,
    HeaderName,
    PluginName,
    SecretName,
    Section,
    Text,
    Url,
    key,
)
from gateway.config.masking import looks_secret
from gateway.config.mcp_serving import McpServeSection
from gateway.config.problems import Code, KeyPath, Report
from gateway.config.secrets import SecretSource
from gateway.domain.ids import Secret
from gateway.domain.mcp import DEPTH_HEADER, McpServerDef
from gateway.domain.text import quoted

_SERVER = McpServerDef("")
_OURS = {
    *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
    *("last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
    *("transfer-encoding", DEPTH_HEADER),
}


class McpServerSection(Section):
    """A server whose tools agents may have: `url`, or `command`."""

    url: Url | None = key(None, "Where it is: https, or this machine.")
    command: Text | None = key(None, "Or the program that is one; it is started without a shell.")
    args: list[str] = key([], "What the program is given.")
    env: dict[SecretName, Header] = key({}, "Its environment; values may hold references.")
    headers: dict[HeaderName, Header] = key({}, "Sent along; their values may hold references.")
    timeout_s: float = key(
        _SERVER.timeout_s, "Seconds until it is connected and has told its tools.", ge=0.1, le=600
    )
    retry_attempts: int = key(
        _SERVER.retry_attempts, "Tries again: to connect, and calls that may be.", ge=0, le=10
    )
    user_header: HeaderName = key(_SERVER.user_header, "Header that says on whose behalf.")


class McpSection(Section):
    """Tools of other programs, and ours for them, over the Model Context Protocol."""

    servers: dict[PluginName, McpServerSection] = key({}, "Servers by name.")
    serve: McpServeSection = key(McpServeSection, "What clients get at /mcp.")


@dataclass(frozen=True, slots=True)
class McpServers:
    """Reads `[mcp.servers]`."""

    source: SecretSource
    report: Report

    def resolve(self, sections: Mapping[str, McpServerSection]) -> tuple[McpServerDef, ...]:
        return tuple(self._server(name, section) for name, section in sections.items())

    def _server(self, name: str, section: McpServerSection) -> McpServerDef:
        path: KeyPath = ("mcp", "servers", name)
        self._check(path, section)
        as_written = section.model_dump(
            include={"url", "command", "timeout_s", "retry_attempts", "user_header"}
        )
        env = self._secrets((*path, "env"), section.env)
        headers = self._secrets((*path, "headers"), section.headers)
        texts, values = {**section.env, **section.headers}, {**env, **headers}
        hidden = [one for name, one in values.items() if "${" in texts[name] or looks_secret(name)]
        return McpServerDef(
            name,
            args=tuple(section.args),
            env=env,
            headers=headers,
            hidden=tuple(hidden),
            **as_written,
        )

    def _check(self, path: KeyPath, section: McpServerSection) -> None:
        name = quoted(str(path[-1]))
        if (section.url is None) == (section.command is None):
            message = f"the MCP server {name} needs url or command, one of the two"
            self.report.wrong(Code.MISSING, path, message, "write the one that it is", at="table")
            return
        kind, alien = ("url", ("args", "env"))
        if section.url is None:
            kind, alien = "command", ("headers", "user_header")
        for key_ in section.model_fields_set.intersection(alien):
            message = f"the MCP server {name} has a {kind}: {key_} says nothing to it"
            self.report.wrong(Code.MALFORMED, (*path, key_), message, "remove it", at="key")
        self._check_headers(path, section)

    def _check_headers(self, path: KeyPath, section: McpServerSection) -> None:
        named = [((*path, "headers", name), name) for name in section.headers]
        for at, header in [*named, ((*path, "user_header"), section.user_header)]:
            if header.lower() in _OURS:
                message = f"{quoted(header)} is a header that the gateway itself sets"
                self.report.wrong(Code.MALFORMED, at, message, "take another name")
        for header in section.headers:
            if header.lower() == section.user_header.lower():
                message = f"{quoted(header)} says who the user is: it cannot be the same for all"
                fix = "remove it, or choose another user_header"
                self.report.wrong(Code.DUPLICATE, (*path, "headers", header), message, fix)

    def _secrets(self, path: KeyPath, texts: Mapping[str, str]) -> dict[str, Secret]:
        found = {}
        for name, text in texts.items():
            value = self.source.follow((*path, name), text, is_open=not looks_secret(name))
            if value is not None:
                found[name] = Secret(value)
        return found
