"""Who may reach the gateway: its address, its tokens and their scopes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path

from gateway.config.environment import TOKEN, value_of
from gateway.config.masking import is_reference
from gateway.config.paths import absolute
from gateway.config.problems import (
    DUPLICATE,
    MALFORMED,
    NOT_A_CHOICE,
    OPEN_DOOR,
    OUT_OF_RANGE,
    UNKNOWN_NAME,
    Finding,
    KeyPath,
    Report,
    choose,
    quoted,
)
from gateway.config.schema import GatewaySection, TokenSection
from gateway.config.secrets import SecretProblem, SecretSource
from gateway.config.values import GatewaySettings, Overrides, TokenGrant
from gateway.domain.providers import is_loopback
from gateway.domain.secrets import Secret

SCOPES = ("chat", "read", "admin", "impersonate")
RESERVED = ("local", "operator")  # principals that are not made by a token of the file
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*")
_ORIGIN = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class Access:
    """Reads `[gateway]` and `[[tokens]]`."""

    source: SecretSource
    folder: Path  # what relative paths are relative to
    report: Report

    def settings(self, section: GatewaySection, overrides: Overrides) -> GatewaySettings:
        self._check_bind(section.bind)
        return GatewaySettings(
            bind=section.bind,
            port=self._port(section, overrides),
            data_dir=self._data_dir(section, overrides),
            token=self._operator_token(section),
            allowed_origins=tuple(self._origins(section.allowed_origins)),
            trusted_proxies=tuple(self._proxies(section.trusted_proxies)),
            drain_s=section.drain_s,
            max_connections=section.max_connections,
            max_frame_bytes=section.max_frame_bytes,
            max_body_bytes=section.max_body_bytes,
        )

    def grants(
        self, sections: Iterable[TokenSection], agent_ids: tuple[str, ...], operator: Secret | None
    ) -> tuple[TokenGrant, ...]:
        names: set[str] = set()
        values: dict[str, str] = {operator.reveal(): "[gateway] token"} if operator else {}
        grants = []
        for index, section in enumerate(sections):
            path: KeyPath = ("tokens", index)
            self._check_name(section.name, names, path)
            self._check_scopes(section.scopes, agent_ids, path)
            token = self.secret((*path, "token"), section.token)
            if token is None:
                continue
            if token.reveal() in values:
                message = f"the same token as that of {values[token.reveal()]}"
                fix = "make another: openssl rand -hex 32"
                self.report.wrong(DUPLICATE, (*path, "token"), message, fix)
            values[token.reveal()] = quoted(section.name)
            grants.append(TokenGrant(section.name, token, tuple(section.scopes)))
        return tuple(grants)

    def check_door(self, settings: GatewaySettings, *, has_tokens: bool) -> None:
        is_reported = any(f.path == ("gateway", "bind") for f in self.report.findings)
        if is_loopback(settings.bind) or settings.token or has_tokens or is_reported:
            return
        message = (
            f"{quoted(settings.bind)} can be reached from other machines, and no token is set: "
            "the gateway would obey anyone"
        )
        fix = f'set {TOKEN} or [gateway] token, or write bind = "127.0.0.1"'
        self.report.wrong(OPEN_DOOR, ("gateway", "bind"), message, fix)

    def secret(self, path: KeyPath, text: str) -> Secret | None:
        """None once its problem is reported."""
        try:
            secret = Secret(self.source.resolve(text))
        except SecretProblem as problem:
            self.report.wrong(problem.code, path, problem.message, problem.fix)
            return None
        if not is_reference(text):
            note_literal(self.report, path)
        return secret

    def _operator_token(self, section: GatewaySection) -> Secret | None:
        path = ("gateway", "token")
        from_environment = value_of(self.source.environment, TOKEN)
        if from_environment is None:
            return self.secret(path, section.token) if section.token else None
        if from_environment.isprintable() and from_environment.isascii():
            return Secret(from_environment)
        message, fix = "a header cannot carry this token", "use plain characters, on one line"
        self.report.findings.append(Finding(MALFORMED, path, message, fix, variable=TOKEN))
        return None

    def _check_bind(self, bind: str) -> None:
        try:
            ip_address(bind)
        except ValueError:
            if _HOST.fullmatch(bind) and not bind.replace(".", "").isdigit():
                return
            message, fix = f"{quoted(bind)} is not an address", 'write "127.0.0.1" or "0.0.0.0"'
            self.report.wrong(MALFORMED, ("gateway", "bind"), message, fix)

    def _port(self, section: GatewaySection, overrides: Overrides) -> int:
        if overrides.port is None:
            return section.port
        if not 0 <= overrides.port <= 65_535:
            message, path = f"{overrides.port} is out of range", ("gateway", "port")
            finding = Finding(OUT_OF_RANGE, path, message, "0 to 65535", variable="--port")
            self.report.findings.append(finding)
        return overrides.port

    def _data_dir(self, section: GatewaySection, overrides: Overrides) -> Path:
        if overrides.data_dir is not None:
            return overrides.data_dir.absolute()
        path = absolute(section.data_dir, self.folder, self.source.home)
        if path is None:
            message = "this is not a path"
            self.report.wrong(MALFORMED, ("gateway", "data_dir"), message, "write a path")
        return path or self.folder

    def _origins(self, origins: Iterable[str]) -> Iterable[str]:
        for index, origin in enumerate(origins):
            plain = plain_origin(origin)
            if plain is None:
                message = f"{quoted(origin)} is not an origin"
                fix = 'write scheme://host[:port], such as "https://console.example.com"'
                self.report.wrong(MALFORMED, ("gateway", "allowed_origins", index), message, fix)
            else:
                yield plain

    def _proxies(self, proxies: Iterable[str]) -> Iterable[str]:
        for index, proxy in enumerate(proxies):
            try:
                yield str(ip_network(proxy, strict=False))
            except ValueError:
                message = f"{quoted(proxy)} is not an address or network"
                fix = 'write "10.0.0.5" or "10.0.0.0/24"'
                self.report.wrong(MALFORMED, ("gateway", "trusted_proxies", index), message, fix)

    def _check_name(self, name: str, names: set[str], path: KeyPath) -> None:
        if name in RESERVED:
            message = f"{quoted(name)} is the name of the operator at this machine"
            self.report.wrong(MALFORMED, (*path, "name"), message, "choose another name")
        if name in names:
            message, fix = f"another token is named {quoted(name)}", "choose another name"
            self.report.wrong(DUPLICATE, (*path, "name"), message, fix)
        names.add(name)

    def _check_scopes(
        self, scopes: Iterable[str], agent_ids: tuple[str, ...], path: KeyPath
    ) -> None:
        for index, scope in enumerate(scopes):
            kind, colon, agent_id = scope.partition(":")
            where = (*path, "scopes", index)
            if kind == "agent" and colon:
                if agent_id not in agent_ids:
                    message = f"no agent has id {quoted(agent_id)}"
                    self.report.wrong(UNKNOWN_NAME, where, message, choose(agent_id, agent_ids))
            elif scope not in SCOPES:
                message = f"{quoted(scope)} is not a scope"
                self.report.wrong(
                    NOT_A_CHOICE, where, message, choose(scope, (*SCOPES, "agent:ID"))
                )


def note_literal(report: Report, path: KeyPath) -> None:
    message = "a secret stands in the configuration itself"
    report.note("literal-secret", path, message, 'write "${env:NAME}" or "${file:name}" instead')


def plain_origin(text: str) -> str | None:
    """As a browser sends it; None for what no browser would."""
    found = _ORIGIN.fullmatch(text.lower())
    if found is None:
        return None
    usual = {"http": "80", "https": "443"}[found["scheme"]]
    if found["port"] and int(found["port"]) > 65_535:
        return None
    port = f":{found['port']}" if found["port"] not in {None, usual} else ""
    return f"{found['scheme']}://{found['host']}{port}"


def token_origins(environment: Mapping[str, str]) -> dict[KeyPath, str]:
    return {("gateway", "token"): TOKEN} if value_of(environment, TOKEN) else {}
