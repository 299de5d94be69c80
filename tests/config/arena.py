"""A place to load configurations in: its own home, environment and known names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.config.load import LoadedConfig, find_file, load, read
from gateway.config.problems import ConfigInvalid, ConfigProblem
from gateway.config.values import (
    BundledPlugin,
    GatewayConfig,
    Inputs,
    Known,
    Overrides,
    Preset,
)
from gateway.control.rules import CORE, check_rule

OUTPUT_LIMITS = {"claude-test": 8_192}
WINDOWS = {"claude-test": 200_000, "small": 8_000}

BUNDLED = {
    "echo": BundledPlugin(Path("/shipped/echo/tool.wasm"), is_usual=True),
    "time": BundledPlugin(Path("/shipped/time/tool.wasm"), ("host_function:clock",), is_usual=True),
    "notes": BundledPlugin(Path("/shipped/notes/tool.wasm"), ("store:notes",)),
    "fetch": BundledPlugin(Path("/shipped/fetch/tool.wasm")),
    "webhook": BundledPlugin(
        Path("/shipped/webhook/tool.wasm"), proofs=("secrets.secret",), is_called=True
    ),
    "telegram": BundledPlugin(
        Path("/shipped/telegram/tool.wasm"), proofs=("secrets.webhook_secret",)
    ),
    "discord": BundledPlugin(Path("/shipped/discord/tool.wasm"), proofs=("config.public_key",)),
}

KNOWN = Known(
    presets={
        "anthropic": Preset(
            "anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "claude-test"
        ),
        "openai": Preset("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-test"),
        "gemini": Preset("openai", "https://gemini.example/v1", "GEMINI_API_KEY", "gemini-test"),
        "openrouter": Preset("openai", "https://router.example/v1", "OPENROUTER_API_KEY", "auto"),
        "ollama": Preset("openai", "http://127.0.0.1:11434/v1"),
    },
    bundled=BUNDLED,
    context_window=lambda model: WINDOWS.get(model, 128_000),
    output_limit=OUTPUT_LIMITS.get,
    core_rules=CORE,
    rule_problems=check_rule,
)


@dataclass(frozen=True, slots=True)
class Arena:
    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=Overrides)
    known: Known = KNOWN

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def cwd(self) -> Path:
        return self.root / "cwd"

    def write(self, text: str | bytes, name: str = "config.toml") -> Path:
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def secret(self, name: str, text: str, mode: int = 0o600) -> Path:
        path = self.home / ".config" / "exogate" / "secrets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def load(self, text: str | bytes | None = None) -> GatewayConfig:
        if text is not None:
            self.write(text)
        return load(
            None,
            environment=self.environment,
            home=self.home,
            cwd=self.cwd,
            known=self.known,
            overrides=self.overrides,
        )

    def read(self) -> LoadedConfig:
        """The thorough way, also where there is a faster one."""
        path = find_file(None, environment=self.environment, home=self.home, cwd=self.cwd)
        inputs = Inputs(self.environment, self.home, self.cwd, self.known, self.overrides)
        return read(path, inputs)

    def refusal(self, text: str | bytes | None = None) -> ConfigInvalid:
        try:
            self.load(text)
        except ConfigInvalid as error:
            return error
        raise AssertionError("the configuration was accepted")

    def problems(self, text: str | bytes | None = None) -> tuple[ConfigProblem, ...]:
        return self.refusal(text).problems
