"""Reads the environment, once, into a mapping. Every command imports this file, so it imports no other room."""

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

TOKEN = "EXOGATE_TOKEN"
CONFIG = "EXOGATE_CONFIG"
CREDENTIALS = "CREDENTIALS_DIRECTORY"  # the folder of a service manager's secret files
SERVICE = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
NO_COLOR = "NO_COLOR"  # if set, the command line writes no colours
GEMINI_KEY = "AGENT_GEMINI_API_KEY"
MCP_SERVER = "default"  # the server that variables configure
MCP_URL = "AGENT_MCP_SERVER_URL"
ENCODING = "AGENT_ENCODING_NAME"  # names a tokenizer; the gateway has none

# Variables that set a key of the default agent or of its MCP server, with the path and type of the key.
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
    """Returns a copy of the process's environment."""
    return MappingProxyType(dict(os.environ))


def pop_service_variables() -> Mapping[str, str]:
    """Removes the variables of the service manager, so that no child process inherits them, and returns them."""
    found = {name: os.environ.pop(name, "") for name in SERVICE}
    return MappingProxyType({name: value for name, value in found.items() if value})


def value_of(environment: Mapping[str, str], name: str) -> str | None:
    """Returns a variable; None if it is not set or empty."""
    return environment.get(name) or None


def key_variables(preset: str, key_variable: str | None) -> tuple[str, ...]:
    """Returns the variables that may hold a preset's key; the first that is set wins."""
    if key_variable is None:
        return ()
    return (GEMINI_KEY, key_variable) if preset == "gemini" else (key_variable,)
