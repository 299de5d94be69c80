"""Who may reach the gateway: its address, its tokens and their scopes."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config.environment import TOKEN
from gateway.config.problems import Code, Finding, KeyPath, Report
from gateway.config.schema import GatewaySection, TokenSection
from gateway.config.secrets import SecretSource
from gateway.config.values import GatewaySettings, Surroundings, TokenGrant
from gateway.domain.ids import Secret
from gateway.domain.model import is_loopback
from gateway.domain.text import choose, quoted

SCOPES = ("chat", "read", "admin", "impersonate", "metrics")
LEAST_TOKEN = 16  # characters of the operator's, where others can reach the gateway
RESERVED = ("local", "operator")  # principals that are not made by a token of the file


@dataclass(frozen=True, slots=True)
class Access:
    """Reads `[gateway]` and `[[tokens]]`."""

    around: Surroundings
    source: SecretSource
    folder: Path  # what relative paths are relative to
    report: Report

    def settings(self, section: GatewaySection) -> GatewaySettings:
        port, data_dir = self.around.overrides.port, self.around.overrides.data_dir
        if port is not None and not 0 <= port <= 65_535:
            message, path = f"{port} is out of range", ("gateway", "port")
            finding = Finding(Code.OUT_OF_RANGE, path, message, "0 to 65535", variable="--port")
            self.report.findings.append(finding)
        given: dict[str, Any] = {
            "port": section.port if port is None else port,
            "data_dir": (data_dir or self.around.path(section.data_dir, self.folder)).absolute(),
            "token": self._operator_token(section),
            "allowed_origins": tuple(section.allowed_origins),
            "trusted_proxies": tuple(section.trusted_proxies),
        }
        return GatewaySettings(**{**dict(section), **given})

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
            token = self.source.follow((*path, "token"), section.token)
            if token is None or self._is_blank((*path, "token"), token):
                continue
            if token in values:
                message = f"the same token as that of {values[token]}"
                fix = "make another: openssl rand -hex 32"
                self.report.wrong(Code.DUPLICATE, (*path, "token"), message, fix)
            values[token] = quoted(section.name)
            grants.append(TokenGrant(section.name, Secret(token), tuple(section.scopes)))
        return tuple(grants)

    def check_door(self, bind: str, operator: Secret | None, *, has_tokens: bool) -> None:
        if is_loopback(bind):
            return
        if not has_tokens:
            message = (
                f"{quoted(bind)} can be reached from other machines, and no token is set: "
                "the gateway would obey anyone"
            )
            fix = f'set {TOKEN} or [gateway] token, or write bind = "127.0.0.1"'
            self.report.wrong(Code.OPEN_DOOR, ("gateway", "bind"), message, fix)
        if operator is not None and len(operator.reveal().strip()) < LEAST_TOKEN:
            message = (
                f"the operator's token is shorter than {LEAST_TOKEN} characters, and {quoted(bind)} "
                "can be reached from other machines: it could be guessed"
            )
            self._wrong_token(("gateway", "token"), Code.OPEN_DOOR, message)

    def _operator_token(self, section: GatewaySection) -> Secret | None:
        path, token = ("gateway", "token"), None
        if TOKEN in self.source.environment:
            token = self.source.variable(path, TOKEN)
        elif section.token is not None:
            token = self.source.follow(path, section.token)
        return None if token is None or self._is_blank(path, token) else Secret(token)

    def _is_blank(self, path: KeyPath, token: str) -> bool:
        """Reports it: who wrote it meant a token, and without one anybody nearby is the operator."""
        if token.strip():
            return False
        self._wrong_token(path, Code.MALFORMED, "the token is blank")
        return True

    def _wrong_token(self, path: KeyPath, code: Code, message: str) -> None:
        fix = "make one: openssl rand -hex 32"
        if path == ("gateway", "token") and TOKEN in self.source.environment:
            self.report.findings.append(Finding(code, path, message, fix, variable=TOKEN))
        else:
            self.report.wrong(code, path, message, fix)

    def _check_name(self, name: str, names: set[str], path: KeyPath) -> None:
        if name in RESERVED:
            message = f"{quoted(name)} is the name of the operator at this machine"
            self.report.wrong(Code.MALFORMED, (*path, "name"), message, "choose another name")
        if name in names:
            message, fix = f"another token is named {quoted(name)}", "choose another name"
            self.report.wrong(Code.DUPLICATE, (*path, "name"), message, fix)
        names.add(name)

    def _check_scopes(
        self, scopes: Iterable[str], agent_ids: tuple[str, ...], path: KeyPath
    ) -> None:
        for index, scope in enumerate(scopes):
            kind, colon, agent_id = scope.partition(":")
            where = (*path, "scopes", index)
            if kind != "agent" or not colon:
                if scope not in SCOPES:
                    fix = choose(scope, (*SCOPES, "agent:ID"))
                    self.report.wrong(Code.NOT_A_CHOICE, where, f"{quoted(scope)} is no scope", fix)
            elif agent_id not in agent_ids:
                message, fix = f"no agent has id {quoted(agent_id)}", choose(agent_id, agent_ids)
                self.report.wrong(Code.UNKNOWN_NAME, where, message, fix)
