"""`[[plugins]]` as the domain's definitions: files found, grants parsed, secrets followed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.config.capabilities import BadCapability, parse_capability
from gateway.config.given import Given, said
from gateway.config.problems import Code, KeyPath, Report
from gateway.config.schema import PluginSection
from gateway.config.values import Surroundings
from gateway.domain.agents import OWN_TOOLS
from gateway.domain.plugins import Capability, PluginDef, PluginLimits
from gateway.domain.text import choose, quoted

BUNDLED = "bundled:"


@dataclass(frozen=True, slots=True)
class Plugins:
    """Reads `[[plugins]]`."""

    around: Surroundings
    given: Given
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
        self.given.check_config((*path, "config"), section.config)
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
        is_sure = len(plugin.capabilities) == len(section.capabilities)
        where = (*path, "secrets")
        return replace(
            plugin, secrets=self.given.secrets(where, section.secrets, plugin, is_sure=is_sure)
        )

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
            problem, fix = said(error)
            self.report.wrong(Code.MALFORMED, path, f"capability {quoted(text)} {problem}", fix)
            return None
