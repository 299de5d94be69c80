"""The environment: read in one place, then handed down as a mapping."""

import os
from collections.abc import Mapping
from types import MappingProxyType

TOKEN = "EXOGATE_TOKEN"
CONFIG = "EXOGATE_CONFIG"
GEMINI_KEY = "AGENT_GEMINI_API_KEY"

# Variables that stand for a key of the default agent.
AGENT_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "AGENT_SYSTEM_PROMPT": ("agent", "system_prompt"),
        "AGENT_TEMPERATURE": ("agent", "temperature"),
        "AGENT_TOKEN_BUDGET": ("agent", "context", "token_budget"),
    }
)


def read_environment() -> Mapping[str, str]:
    """A copy of the process's environment; nothing else reads it."""
    return MappingProxyType(dict(os.environ))


def value_of(environment: Mapping[str, str], name: str) -> str | None:
    """An empty variable counts as one that is not set."""
    return environment.get(name) or None


def key_variables(preset: str, key_variable: str | None) -> tuple[str, ...]:
    """Where a preset's key may be, the strongest first."""
    if key_variable is None:
        return ()
    return (GEMINI_KEY, key_variable) if preset == "gemini" else (key_variable,)
