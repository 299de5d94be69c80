"""`[providers.NAME]` and presets as provider definitions with their keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.access import note_literal
from gateway.config.choice import DEMO
from gateway.config.masking import looks_secret
from gateway.config.problems import (
    MALFORMED,
    MISSING,
    NOT_A_CHOICE,
    KeyPath,
    Report,
    quoted,
)
from gateway.config.provider_keys import KeySearch
from gateway.config.schema import ProviderSection
from gateway.config.secrets import SecretProblem, SecretSource
from gateway.config.values import Known, Preset
from gateway.domain.providers import ProviderDef, Wire, base_url_problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class Resolved:
    definitions: Mapping[str, ProviderDef]
    key_origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Providers:
    """Reads `[providers]`. `used`: what agents ask for, with the place where they say so."""

    known: Known
    source: SecretSource
    report: Report
    used: Mapping[str, KeyPath]

    def resolve(self, sections: Mapping[str, ProviderSection]) -> Resolved:
        presets = [n for n in self.used if n in self.known.presets and n not in sections]
        definitions: dict[str, ProviderDef] = {}
        origins: dict[str, str] = {}
        for name in (*sections, *presets):
            self._define(name, sections.get(name) or ProviderSection(), definitions, origins)
        return Resolved(definitions, origins)

    def _define(
        self,
        name: str,
        section: ProviderSection,
        definitions: dict[str, ProviderDef],
        origins: dict[str, str],
    ) -> None:
        preset = self.known.presets.get(name)
        if not self._may_be_defined(name, section):
            return
        wire, base_url = self._wire(name, section, preset), self._base_url(name, section, preset)
        headers = self._headers(name, section)
        if wire is None or base_url is None:
            return
        used_at = self.used.get(name)
        search = KeySearch(name, preset, base_url, self.source, self.report, used_at)
        key = search.find(section)
        if key:
            origins[name] = key.origin
        definitions[name] = ProviderDef(
            name,
            wire,
            base_url,
            key.secret if key else None,
            headers,
            section.connect_timeout_s,
            section.idle_timeout_s,
            section.max_retries,
        )

    def _may_be_defined(self, name: str, section: ProviderSection) -> bool:
        path = ("providers", name)
        if name == DEMO:
            for key in section.model_fields_set:
                message = "the demo answers in this process: there is nothing to configure"
                self.report.wrong(MALFORMED, (*path, key), message, "remove it", at="key")
            return False
        if not _NAME.fullmatch(name):
            message = f"{quoted(name)} is not a provider's name"
            fix = "use letters, digits, hyphen and underscore"
            self.report.wrong(MALFORMED, path, message, fix, at="key")
            return False
        return True

    def _wire(self, name: str, section: ProviderSection, preset: Preset | None) -> Wire | None:
        path = ("providers", name, "wire")
        if preset is None:
            if section.wire is None:
                self._own_needs(path, 'wire = "openai" or wire = "anthropic"')
            return section.wire
        if section.wire not in {None, preset.wire}:
            message = f"the preset {name} speaks {preset.wire}"
            fix = "remove wire, or give the provider another name"
            self.report.wrong(NOT_A_CHOICE, path, message, fix)
        return preset.wire

    def _base_url(self, name: str, section: ProviderSection, preset: Preset | None) -> str | None:
        path = ("providers", name, "base_url")
        if section.base_url is None:
            if preset is None:
                self._own_needs(path, 'base_url = "https://..."')
            return preset.base_url if preset else None
        problem = base_url_problem(section.base_url)
        if problem or not section.base_url.isprintable():
            message = f"this address {problem or 'holds a control character'}"
            fix = 'write base_url = "https://..."'
            self.report.wrong(MALFORMED, path, message, fix)
            return None
        return section.base_url.rstrip("/")

    def _own_needs(self, path: KeyPath, line: str) -> None:
        presets = ", ".join((*self.known.presets, DEMO))
        message = f'"{path[-1]}" is missing: {quoted(str(path[1]))} is not a preset ({presets})'
        self.report.wrong(MISSING, path, message, f"add {line}", at="table")

    def _headers(self, name: str, section: ProviderSection) -> dict[str, str]:
        headers = {}
        for header, text in section.headers.items():
            path = ("providers", name, "headers", header)
            if not _HEADER.fullmatch(header):
                message = f"{quoted(header)} is not a header's name"
                self.report.wrong(MALFORMED, path, message, "correct the name", at="key")
                continue
            try:
                headers[header] = self.source.resolve(text)
            except SecretProblem as problem:
                self._header_problem(name, path, problem)
            if looks_secret(header) and "${" not in text:
                note_literal(self.report, path)
        return headers

    def _header_problem(self, name: str, path: KeyPath, problem: SecretProblem) -> None:
        if name in self.used or problem.code == MALFORMED:
            self.report.wrong(problem.code, path, problem.message, problem.fix)
        else:
            self.report.note("unused-secret", path, problem.message, problem.fix)
