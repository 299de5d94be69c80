"""`[[plugins]]` as the domain's definitions: files found, grants parsed, secrets followed."""

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, time
from pathlib import Path

from gateway.config.masking import looks_secret
from gateway.config.problems import Code, KeyPath, Report, choose, quoted
from gateway.config.schema import PluginSecretSection, PluginSection
from gateway.config.secrets import REFERENCE, SecretSource
from gateway.config.values import Surroundings
from gateway.domain.agents import OWN_TOOLS
from gateway.domain.capabilities import (
    FORMS,
    Capability,
    HttpGrant,
    Origin,
    parse_capability,
)
from gateway.domain.errors import BadCapability
from gateway.domain.plugins import PluginDef, PluginLimits, PluginSecret
from gateway.domain.providers import is_loopback
from gateway.domain.secrets import Secret

BUNDLED = "bundled:"
LARGEST_CONFIG = 65_536  # bytes: it travels with every call
DEEPEST_CONFIG = 16
LARGEST_INTEGER_BITS = 63


@dataclass(frozen=True, slots=True)
class Plugins:
    """Reads `[[plugins]]`."""

    around: Surroundings
    source: SecretSource
    folder: Path  # what relative paths are relative to
    report: Report

    def resolve(self, sections: Iterable[PluginSection]) -> tuple[PluginDef, ...]:
        plugins: dict[str, PluginDef] = {}
        for index, section in enumerate(sections):
            path: KeyPath = ("plugins", index)
            if section.name in OWN_TOOLS:
                message = f"{quoted(section.name)} is a tool of the gateway itself"
                self.report.wrong(Code.DUPLICATE, (*path, "name"), message, "choose another name")
            if section.name in plugins:
                message = f"another plugin is named {quoted(section.name)}"
                self.report.wrong(Code.DUPLICATE, (*path, "name"), message, "choose another name")
            plugins[section.name] = self._plugin(path, section)
        return tuple(plugins.values())

    def _plugin(self, path: KeyPath, section: PluginSection) -> PluginDef:
        self._check_config((*path, "config"), section)
        plugin = PluginDef(
            name=section.name,
            path=self._file((*path, "path"), section),
            capabilities=self._capabilities((*path, "capabilities"), section),
            sha256=section.sha256.lower() if section.sha256 else None,
            config=section.config,
            limits=PluginLimits(**dict(section.limits)),
            is_enabled=section.enabled,
            deny_unused=section.deny_unused,
            is_bundled=section.path.startswith(BUNDLED),
        )
        return replace(plugin, secrets=self._secrets((*path, "secrets"), section, plugin))

    def _file(self, path: KeyPath, section: PluginSection) -> Path:
        if section.path.startswith(BUNDLED):
            return self._bundled(path, section.path.removeprefix(BUNDLED))
        file = self.around.path(section.path, self.folder).absolute()
        if section.enabled and not (file.is_file() and os.access(file, os.R_OK)):
            message = f"there is no file {quoted(str(file))} that can be read"
            fix = "correct the path, build the plugin, or write enabled = false"
            self.report.wrong(Code.MISSING_FILE, path, message, fix)
        return file

    def _bundled(self, path: KeyPath, name: str) -> Path:
        """Whether a file that is shipped is really there is seen when it is loaded."""
        bundled = self.around.known.bundled
        if name in bundled:
            return bundled[name].file
        message, fix = f"no plugin {quoted(name)} is bundled", choose(name, bundled)
        self.report.wrong(Code.UNKNOWN_NAME, path, message, fix)
        return Path(name)

    def _capabilities(self, path: KeyPath, section: PluginSection) -> tuple[Capability, ...]:
        found: dict[Capability, None] = {}
        for index, text in enumerate(section.capabilities):
            capability = self._parsed((*path, index), text)
            if capability in found:
                message = f"plugin {quoted(section.name)} is granted {capability} twice"
                self.report.wrong(Code.DUPLICATE, (*path, index), message, "keep one")
            if capability is not None:
                found[capability] = None
        return tuple(found)

    def _parsed(self, path: KeyPath, text: str) -> Capability | None:
        try:
            return parse_capability(text)
        except BadCapability as error:
            problem, fix = _said(error)
            self.report.wrong(Code.MALFORMED, path, f"capability {quoted(text)} {problem}", fix)
            return None

    def _secrets(
        self, above: KeyPath, section: PluginSection, plugin: PluginDef
    ) -> tuple[PluginSecret, ...]:
        # what follows from a capability that is reported already is no news
        is_sure = len(plugin.capabilities) == len(section.capabilities)
        secrets = []
        for name, secret in section.secrets.items():
            path = (*above, name)
            origins = self._origins(path, secret, plugin) if is_sure else frozenset()
            where = (*path, "value") if secret.hosts else path
            value = self.source.follow(where, secret.value, is_needed=section.enabled)
            if value is not None:
                secrets.append(PluginSecret(name, Secret(value), origins))
        return tuple(secrets)

    def _origins(
        self, path: KeyPath, secret: PluginSecretSection, plugin: PluginDef
    ) -> frozenset[Origin]:
        """Where a secret may go: hosts that are granted, and that nobody can listen to."""
        named = [((*path, "hosts", index), host) for index, host in enumerate(secret.hosts)]
        origins = [(where, self._named(where, host, plugin)) for where, host in named]
        origins = origins or [(path, self._only(path, plugin))]
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
            message, fix = f"{quoted(host)} {_said(error)[0]}", "write HOST or SCHEME://HOST:PORT"
            self.report.wrong(Code.MALFORMED, path, message, fix)
            return None
        if wanted not in granted:
            message = f"plugin {quoted(plugin.name)} is not granted {wanted}"
            fix = f'add "{wanted}" to its capabilities, or name a host that is granted'
            self.report.wrong(Code.UNKNOWN_NAME, path, message, fix)
        return granted.get(wanted)

    def _only(self, path: KeyPath, plugin: PluginDef) -> Origin | None:
        """The one host of a plugin that has no other."""
        if len(plugin.origins) == 1:
            return next(iter(plugin.origins))
        hosts = ", ".join(sorted(as_host(origin) for origin in plugin.origins))
        message = (
            f"plugin {quoted(plugin.name)} may reach {'several hosts' if hosts else 'no host'}"
        )
        fix = f'write {{ value = "...", hosts = [...] }} with some of: {hosts}'
        if not hosts:
            fix = 'add "http:HOST" to its capabilities, the host that the secret is for'
        self.report.wrong(Code.MISSING, path, message, fix)
        return None

    def _check_config(self, path: KeyPath, section: PluginSection) -> None:
        """What a plugin is given has to become JSON, and must hold no secret."""
        known = len(self.report.findings)
        self._check_value(path, section.config)
        if len(self.report.findings) > known:
            return
        size = len(json.dumps(section.config))
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


def _said(error: BadCapability) -> tuple[str, str]:
    """What is wrong and what to write."""
    problem, _, fix = re.sub("[;:] write ", "\n", error.problem, count=1).partition("\n")
    return problem, f"write {fix[:200] or FORMS}"
