"""Where a provider's key comes from: environment, then secret file, then the configuration."""

from dataclasses import dataclass

from gateway.config.access import note_literal
from gateway.config.environment import key_variables, value_of
from gateway.config.masking import is_reference
from gateway.config.problems import MALFORMED, NO_KEY, Finding, KeyPath, Report
from gateway.config.schema import ProviderSection
from gateway.config.secrets import SecretProblem, SecretSource
from gateway.config.values import Preset
from gateway.domain.secrets import Secret


@dataclass(frozen=True, slots=True)
class Key:
    """A key and, in words, where it comes from."""

    secret: Secret
    origin: str


@dataclass(frozen=True, slots=True)
class KeySearch:
    """Looks for one provider's key. `used_at`: the place that asks for it, None if nothing does."""

    name: str
    preset: Preset | None
    base_url: str
    source: SecretSource
    report: Report
    used_at: KeyPath | None

    @property
    def path(self) -> KeyPath:
        return ("providers", self.name, "api_key")

    @property
    def own_preset(self) -> Preset | None:
        """The preset, if its own address is asked: what is at hand goes to no other one."""
        if self.preset and self.base_url.rstrip("/") == self.preset.base_url.rstrip("/"):
            return self.preset
        return None

    def find(self, section: ProviderSection) -> Key | None:
        at_hand = self._from_environment() or self._from_file()
        if at_hand:
            return at_hand
        if section.api_key:
            return self._from_configuration(section.api_key)
        self._say_what_is_missing()
        return None

    def _from_environment(self) -> Key | None:
        preset = self.own_preset
        for variable in key_variables(self.name, preset.key_variable if preset else None):
            value = value_of(self.source.environment, variable)
            if value is None:
                continue
            try:
                return Key(Secret(self.source.resolve(f"${{env:{variable}}}")), variable)
            except SecretProblem as problem:
                finding = Finding(
                    problem.code, self.path, problem.message, problem.fix, variable=variable
                )
                self.report.findings.append(finding)
                return None
        return None

    def _from_file(self) -> Key | None:
        name = f"{self.name}_api_key"
        if self.own_preset is None or not self.source.has_file(name):
            return None
        found = self._follow(f"${{file:{name}}}")
        return Key(found, f"secret file {name}") if found else None

    def _from_configuration(self, text: str) -> Key | None:
        secret = self._follow(text)
        if secret is None:
            return None
        if not is_reference(text):
            note_literal(self.report, self.path)
        return Key(secret, "config")

    def _follow(self, text: str) -> Secret | None:
        """A secret that nothing asks for may be missing; a broken reference is always wrong."""
        try:
            return Secret(self.source.resolve(text))
        except SecretProblem as problem:
            if self.used_at is None and problem.code != MALFORMED:
                self.report.note("unused-secret", self.path, problem.message, problem.fix)
            else:
                self.report.wrong(problem.code, self.path, problem.message, problem.fix)
            return None

    def _say_what_is_missing(self) -> None:
        variable = self.preset.key_variable if self.preset else None
        if variable is None or any(f.path == self.path for f in self.report.findings):
            return
        if self.own_preset is None:
            if value_of(self.source.environment, variable):
                message = f"{variable} is not sent to an address of your own"
                fix = f'write api_key = "${{env:{variable}}}" if it should be'
                self.report.note("key-kept-back", self.path, message, fix)
        elif self.used_at is not None:
            message = f'no key for provider "{self.name}": {variable} is not set'
            fix = f"set {variable}, or write the key into {self.source.folder}/{self.name}_api_key"
            self.report.wrong(NO_KEY, self.used_at, message, f"{fix} (chmod 600)")
