"""`[providers.NAME]` and presets as provider definitions, each with its key.

A key comes from the environment, then a secret file, then the configuration. The first two go to
the preset's own address only.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.config.environment import DEMO, key_variables, value_of
from gateway.config.masking import looks_secret
from gateway.config.problems import Code, KeyPath, Report
from gateway.config.schema import ProviderSection
from gateway.config.secrets import SecretSource
from gateway.config.values import Known, Preset
from gateway.domain.ids import Secret
from gateway.domain.model import Price, ProviderDef, Wire
from gateway.domain.text import quoted

_AS_WRITTEN = ("connect_timeout_s", "idle_timeout_s", "max_retries", "tool_markup")


@dataclass(frozen=True, slots=True)
class Providers:
    """Reads `[providers]`. `used`: what agents ask for, with the place where they say so."""

    known: Known
    source: SecretSource
    report: Report
    used: Mapping[str, KeyPath]
    definitions: dict[str, ProviderDef] = field(default_factory=dict)
    key_origins: dict[str, str] = field(default_factory=dict)  # in words

    def resolve(self, sections: Mapping[str, ProviderSection]) -> None:
        """Fills `definitions` and `key_origins`."""
        presets = [n for n in self.used if n in self.known.presets and n not in sections]
        for name in (*sections, *presets):
            section = sections.get(name) or ProviderSection()
            if name != DEMO:
                self._define(name, section)
        for key in sections[DEMO].model_fields_set if DEMO in sections else ():
            message = "the demo answers in this process: there is nothing to configure"
            path = ("providers", DEMO, key)
            self.report.wrong(Code.MALFORMED, path, message, "remove it", at="key")

    def _define(self, name: str, section: ProviderSection) -> None:
        preset = self.known.presets.get(name)
        wire, base_url = self._wire(name, section, preset), self._base_url(name, section, preset)
        headers = self._headers(name, section)
        if wire is None or base_url is None:
            return
        # what is at hand for a preset goes to no other address
        own = preset if preset and base_url.rstrip("/") == preset.base_url.rstrip("/") else None
        key = self._key(name, section, own)
        if key is None and self.key_origins.pop(name, None) is None and preset:
            self._say_what_is_missing(name, preset.key_variable, is_own=own is not None)
        secret = Secret(key) if key else None
        others = section.model_dump(include=set(_AS_WRITTEN))
        self.definitions[name] = ProviderDef(
            name, wire, base_url, secret, headers, **others, prices=_prices(section)
        )

    def _wire(self, name: str, section: ProviderSection, preset: Preset | None) -> Wire | None:
        path = ("providers", name, "wire")
        if preset is None:
            if section.wire is None:
                self._own_needs(path, 'wire = "openai" or wire = "anthropic"')
            return section.wire
        if section.wire not in {None, preset.wire}:
            message = f"the preset {name} speaks {preset.wire}"
            fix = "remove wire, or give the provider another name"
            self.report.wrong(Code.NOT_A_CHOICE, path, message, fix)
        return preset.wire

    def _base_url(self, name: str, section: ProviderSection, preset: Preset | None) -> str | None:
        if section.base_url is None and preset is None:
            self._own_needs(("providers", name, "base_url"), 'base_url = "https://..."')
        return section.base_url or (preset.base_url if preset else None)

    def _own_needs(self, path: KeyPath, line: str) -> None:
        presets = ", ".join((*self.known.presets, DEMO))
        message = f'"{path[-1]}" is missing: {quoted(str(path[1]))} is not a preset ({presets})'
        self.report.wrong(Code.MISSING, path, message, f"add {line}", at="table")

    def _headers(self, name: str, section: ProviderSection) -> dict[str, str]:
        headers = {}
        for header, text in section.headers.items():
            path = ("providers", name, "headers", header)
            is_open = not looks_secret(header)
            value = self.source.follow(path, text, is_needed=name in self.used, is_open=is_open)
            if value is not None:
                headers[header] = value
        return headers

    def _key(self, name: str, section: ProviderSection, own: Preset | None) -> str | None:
        """None also if its problem is reported."""
        path = ("providers", name, "api_key")
        for variable in key_variables(name, own.key_variable if own else None):
            if value_of(self.source.environment, variable):
                self.key_origins[name] = variable
                return self.source.variable(path, variable)
        file = f"{name}_api_key"
        if own and os.path.lexists(self.source.folder / file):
            self.key_origins[name] = f"secret file {file}"
            return self.source.follow(path, f"${{file:{file}}}", is_needed=name in self.used)
        if section.api_key:
            self.key_origins[name] = "config"
            return self.source.follow(path, section.api_key, is_needed=name in self.used)
        return None

    def _say_what_is_missing(self, name: str, variable: str | None, *, is_own: bool) -> None:
        if variable is None:
            return
        if not is_own and value_of(self.source.environment, variable):
            message = f"{variable} is not sent to an address of your own"
            fix = f'write api_key = "${{env:{variable}}}" if it should be'
            self.report.note("key-kept-back", ("providers", name, "api_key"), message, fix)
        elif is_own and name in self.used:
            message = f'no key for provider "{name}": {variable} is not set'
            fix = f"set {variable}, or write the key into {self.source.folder}/{name}_api_key"
            self.report.wrong(Code.NO_KEY, self.used[name], message, f"{fix} (chmod 600)")


def _prices(section: ProviderSection) -> dict[str, Price]:
    return {model: Price(price.input, price.output) for model, price in section.prices.items()}
