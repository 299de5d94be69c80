"""The environment: read in one place, then handed down as a mapping. Every command reads it, so this file
imports nothing of ours."""

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

TOKEN = "EXOGATE_TOKEN"
CONFIG = "EXOGATE_CONFIG"
CREDENTIALS = "CREDENTIALS_DIRECTORY"  # where a service manager puts secret files
SERVICE = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
NO_COLOR = "NO_COLOR"  # set: the command line writes no colours
GEMINI_KEY = "AGENT_GEMINI_API_KEY"
MCP_SERVER = "default"  # the one that variables stand for
MCP_URL = "AGENT_MCP_SERVER_URL"
ENCODING = "AGENT_ENCODING_NAME"  # of a tokenizer, which nobody has here

# Variables that stand for a key of the default agent, or of the MCP server that it has by them, each
# with the type of its value.
AGENT_KEYS: Mapping[str, tuple[tuple[str, ...], Callable[[str], object]]] = MappingProxyType(
    {
        "AGENT_SYSTEM_PROMPT": (("agent", "system_prompt"), str),
        "AGENT_TEMPERATURE": (("agent", "temperature"), float),
        "AGENT_TOKEN_BUDGET": (("agent", "context", "token_budget"), int),
        MCP_URL: (("mcp", "servers", MCP_SERVER, "url"), str),
        "AGENT_MCP_TIMEOUT": (("mcp", "servers", MCP_SERVER, "timeout_s"), float),
        "AGENT_MCP_RETRY_ATTEMPTS": (("mcp", "servers", MCP_SERVER, "retry_attempts"), int),
    }
)


def read_environment() -> Mapping[str, str]:
    """A copy of the process's environment; nothing else reads it."""
    return MappingProxyType(dict(os.environ))


def take_service_variables() -> Mapping[str, str]:
    """What a service manager told this process, and nobody else: no program that it starts inherits it."""
    found = {name: os.environ.pop(name, "") for name in SERVICE}
    return MappingProxyType({name: value for name, value in found.items() if value})


def value_of(environment: Mapping[str, str], name: str) -> str | None:
    """An empty variable counts as one that is not set."""
    return environment.get(name) or None


def key_variables(preset: str, key_variable: str | None) -> tuple[str, ...]:
    """Where a preset's key may be, the strongest first."""
    if key_variable is None:
        return ()
    return (GEMINI_KEY, key_variable) if preset == "gemini" else (key_variable,)
