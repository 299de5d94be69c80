"""Providers that we know by name: address, wire, the variable of their key, and their quirks."""

from dataclasses import dataclass
from typing import Literal

from gateway.domain.providers import ProviderDef, Wire

ThinkingBy = Literal["nothing", "reasoning_effort", "reasoning_enabled"]


@dataclass(frozen=True, slots=True)
class Quirks:
    """Where servers of one wire differ in what they accept."""

    stream_usage: bool = True  # takes stream_options.include_usage
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    thinking_by: ThinkingBy = "nothing"
    foreign_signature: str | None = None  # for calls of another model, where each needs a signature
    unknown_model: str = ""  # what an operator can do about a {model} that is not there
    unreachable: str = ""  # and about a server that is not there


@dataclass(frozen=True, slots=True)
class Preset:
    """A provider that needs nothing but a key; `key_env` None: not even that."""

    name: str
    wire: Wire
    base_url: str
    key_env: str | None
    quirks: Quirks = Quirks()


_OPENAI = Quirks(max_tokens_key="max_completion_tokens", thinking_by="reasoning_effort")
_GEMINI = Quirks(
    thinking_by="reasoning_effort", foreign_signature="skip_thought_signature_validator"
)
_OLLAMA = Quirks(
    unknown_model="run `ollama pull {model}` where Ollama runs",
    unreachable="`ollama serve` starts Ollama",
)
_OPENROUTER = Quirks(thinking_by="reasoning_enabled")
_GOOGLE = "https://generativelanguage.googleapis.com/v1beta/openai"

_PRESETS = (
    Preset("anthropic", "anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    Preset("openai", "openai", "https://api.openai.com/v1", "OPENAI_API_KEY", _OPENAI),
    Preset("gemini", "openai", _GOOGLE, "GEMINI_API_KEY", _GEMINI),
    Preset(
        "openrouter", "openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", _OPENROUTER
    ),
    Preset("ollama", "openai", "http://127.0.0.1:11434/v1", None, _OLLAMA),
)
PRESETS = {preset.name: preset for preset in _PRESETS}

# What a start without a configuration asks; ollama has whatever was pulled.
DEFAULT_MODELS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-6.1-sol",
    "gemini": "gemini-3.8-flash",
    "openrouter": "openrouter/auto",
}


def quirks_of(definition: ProviderDef) -> Quirks:
    """A preset's quirks stay with its name, also behind an address of the operator's own."""
    preset = PRESETS.get(definition.name)
    return preset.quirks if preset and preset.wire == definition.wire else Quirks()


def missing_key(definition: ProviderDef) -> str | None:
    """The sentence to say when this provider cannot be asked without a key; None if it can."""
    preset = PRESETS.get(definition.name)
    if definition.api_key is not None or preset is None or preset.key_env is None:
        return None
    if definition.base_url.rstrip("/") != preset.base_url:
        return None
    return (
        f"no key is configured; set {preset.key_env} in the environment, "
        f"or api_key in [providers.{definition.name}]"
    )
