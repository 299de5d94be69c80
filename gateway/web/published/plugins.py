"""Plugins and their tools."""

from typing import NotRequired

from typing_extensions import TypedDict

from gateway.domain.plugins import PluginKind, PluginState


class Tool(TypedDict):
    """One that nobody can be offered has a `reason` instead of its `parameters`."""

    name: str
    description: str
    category: str | None
    agent_scope: list[str]
    parameters: NotRequired[object]
    reason: NotRequired[str]


class Plugin(TypedDict):
    """`reason`: why it was refused."""

    name: str
    kind: PluginKind | None
    version: str | None
    description: str
    tools: list[Tool]
    capabilities: list[str]
    sha256: str | None
    state: PluginState
    reason: NotRequired[str]


class PluginImport(TypedDict):
    """`needs`: the capability, null for none."""

    name: str
    needs: str | None
    denied: bool


class PluginAccess(TypedDict):
    """What a plugin can touch, and by capability how often it was `used` and `denied`."""

    guest: str | None
    imports: list[PluginImport]
    used: dict[str, int]
    denied: dict[str, int]


class PluginInspected(Plugin, PluginAccess):
    """A plugin, and what it can touch."""
