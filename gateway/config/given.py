"""What plugins and channels are given: secrets for the host to fill in, and `config` as it is."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time

from gateway.config.capabilities import FORMS, BadCapability, parse_capability
from gateway.config.kinds import PluginSecretSection
from gateway.config.masking import looks_secret
from gateway.config.problems import Code, KeyPath, Report
from gateway.config.secrets import REFERENCE, SecretSource
from gateway.domain.ids import Secret
from gateway.domain.model import is_loopback
from gateway.domain.plugins import HttpGrant, Origin, PluginDef, PluginSecret
from gateway.domain.text import quoted

LARGEST_CONFIG = 65_536  # bytes: it travels with every call
DEEPEST_CONFIG = 16
LARGEST_INTEGER_BITS = 63


@dataclass(frozen=True, slots=True)
class Given:
    """Reads `secrets` and checks `config`."""

    source: SecretSource
    report: Report

    def secrets(
        self,
        above: KeyPath,
        sections: Mapping[str, PluginSecretSection],
        plugin: PluginDef,
        *,
        is_sure: bool = True,
        must_reach: bool = True,
    ) -> tuple[PluginSecret, ...]:
        """`is_sure`: what the plugin is granted was read whole; else what follows from a capability
        that is reported already is no news. `must_reach`: each has to be for some host."""
        secrets = []
        for name, secret in sections.items():
            path = (*above, name)
            where = (*path, "value") if secret.hosts else path
            origins: frozenset[Origin] = frozenset()
            if is_sure:
                origins = self._origins(path, secret, plugin, must_reach=must_reach)
            value = self.source.follow(where, secret.value, is_needed=plugin.is_enabled)
            if value is not None:
                secrets.append(PluginSecret(name, Secret(value), origins))
        return tuple(secrets)

    def _origins(
        self, path: KeyPath, secret: PluginSecretSection, plugin: PluginDef, *, must_reach: bool
    ) -> frozenset[Origin]:
        """Where a secret may go: hosts that are granted, and that nobody can listen to."""
        named = [((*path, "hosts", index), host) for index, host in enumerate(secret.hosts)]
        origins = [(where, self._named(where, host, plugin)) for where, host in named]
        origins = origins or [(path, self._only(path, plugin, must_reach=must_reach))]
        for where, origin in origins:
            if origin and origin.scheme == "http" and not is_loopback(origin.host):
                message = f"a secret is not sent to {origin}: others could read it on the way"
                self.report.wrong(Code.MALFORMED, where, message, "grant and name it with https")
        return frozenset(origin for _, origin in origins if origin)

    def _named(self, path: KeyPath, host: str, plugin: PluginDef) -> Origin | None:
        granted = {str(HttpGrant(origin)): origin for origin in plugin.origins}
        try:
            wanted = str(parse_capability(f"http:{host}"))
        except BadCapability as error:
            message, fix = f"{quoted(host)} {said(error)[0]}", "write HOST or SCHEME://HOST:PORT"
            self.report.wrong(Code.MALFORMED, path, message, fix)
            return None
        if wanted not in granted:
            message = f"plugin {quoted(plugin.name)} is not granted {wanted}"
            fix = f'add "{wanted}" to its capabilities, or name a host that is granted'
            self.report.wrong(Code.UNKNOWN_NAME, path, message, fix)
        return granted.get(wanted)

    def _only(self, path: KeyPath, plugin: PluginDef, *, must_reach: bool) -> Origin | None:
        """The one host of a plugin that has no other."""
        if len(plugin.origins) == 1:
            return next(iter(plugin.origins))
        if not must_reach:
            return None
        hosts = ", ".join(sorted(as_host(origin) for origin in plugin.origins))
        message = (
            f"plugin {quoted(plugin.name)} may reach {'several hosts' if hosts else 'no host'}"
        )
        fix = f'write {{ value = "...", hosts = [...] }} with some of: {hosts}'
        if not hosts:
            fix = 'add "http:HOST" to its capabilities, the host that the secret is for'
        self.report.wrong(Code.MISSING, path, message, fix)
        return None

    def check_config(self, path: KeyPath, config: Mapping[str, object]) -> None:
        """What a plugin is given has to become JSON, and must hold no secret."""
        known = len(self.report.findings)
        self._check_value(path, config)
        if len(self.report.findings) > known:
            return
        size = len(json.dumps(config))
        if size > LARGEST_CONFIG:
            message, fix = f"{size} bytes are too much", f"keep it below {LARGEST_CONFIG} bytes"
            self.report.wrong(Code.OUT_OF_RANGE, path, message, fix)

    def _check_value(self, path: KeyPath, value: object) -> None:
        items: Iterable[tuple[str | int, object]] = ()
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
        if len(path) > DEEPEST_CONFIG:
            self.report.wrong(Code.OUT_OF_RANGE, path, "this is nested too deeply", "flatten it")
            return
        for key, item in items:
            self._check_value((*path, key), item)
        problem = _problem(value)
        if problem:
            self.report.wrong(Code.MALFORMED, path, *problem)
        elif isinstance(value, str) and looks_secret(str(path[-1])):
            message = "this is given to the plugin, and looks like a secret"
            fix = "put it into secrets: the host fills it in, and the plugin never has it"
            self.report.note("secret-in-config", path, message, fix)


def as_host(origin: Origin) -> str:
    """As `hosts` has it."""
    return str(HttpGrant(origin)).removeprefix("http:")


def _problem(value: object) -> tuple[str, str] | None:
    """Why a value cannot be given to a plugin, and what to do."""
    if isinstance(value, str) and REFERENCE.search(value):
        return (
            "references are not followed here: a plugin is given no secret",
            "put it into secrets",
        )
    if isinstance(value, date | time):
        return "JSON has no dates and times", "put it into quotes"
    if isinstance(value, float) and not math.isfinite(value):
        return "JSON has no such number", "choose another, or leave it out"
    if isinstance(value, int) and value.bit_length() > LARGEST_INTEGER_BITS:
        return "this number is too large", "put it into quotes"
    return None


def said(error: BadCapability) -> tuple[str, str]:
    """What is wrong and what to write."""
    problem, _, fix = re.sub("[;:] write ", "\n", error.problem, count=1).partition("\n")
    return problem, f"write {fix[:200] or FORMS}"
