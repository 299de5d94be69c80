"""What the other rooms know and a configuration is checked against."""

from functools import cache

from gateway.config.values import Known, Preset
from gateway.providers.presets import PRESETS
from gateway.providers.windows import context_window, output_limit
from gateway.tools.clock import SPEC

# What a start without a configuration asks; ollama has whatever was pulled.
DEFAULT_MODELS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-6.1-sol",
    "gemini": "gemini-3.8-flash",
    "openrouter": "openrouter/auto",
}


@cache
def known() -> Known:
    presets = {
        name: Preset(preset.wire, preset.base_url, preset.key_env, DEFAULT_MODELS.get(name))
        for name, preset in PRESETS.items()
    }
    return Known(presets, (SPEC.name,), context_window, output_limit)
