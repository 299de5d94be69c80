"""Plugins: what a configuration says of one, and what is known of it once it is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gateway.domain.capabilities import (
    Capability,
    FunctionGrant,
    HttpGrant,
    Origin,
    StoreGrant,
)
from gateway.domain.model import ToolSpec
from gateway.domain.secrets import Secret

PluginKind = Literal["tool", "channel"]
PluginState = Literal["loaded", "compiling", "refused", "disabled"]


@dataclass(frozen=True, slots=True)
class PluginSecret:
    """Filled in by the host, for these origins only; a plugin never sees it."""

    name: str
    value: Secret
    origins: frozenset[Origin]


@dataclass(frozen=True, slots=True)
class PluginLimits:
    """Bounds of one call, and of calls at a time."""

    timeout_s: float = 10.0
    memory_mb: int = 64
    fuel: int | None = None  # None: as much as fits into the time
    output_kb: int = 1024
    concurrency: int = 8  # calls at a time; more wait


@dataclass(frozen=True, slots=True)
class PluginDef:
    """One plugin as it is configured."""

    name: str
    path: Path
    capabilities: tuple[Capability, ...] = ()
    sha256: str | None = None
    config: Mapping[str, object] = field(default_factory=dict)  # given to the plugin
    secrets: tuple[PluginSecret, ...] = ()
    limits: PluginLimits = PluginLimits()
    is_enabled: bool = True
    deny_unused: bool = False
    is_bundled: bool = False  # ships with the gateway: its tools keep their own names

    @property
    def origins(self) -> frozenset[Origin]:
        return frozenset(c.origin for c in self.capabilities if isinstance(c, HttpGrant))

    @property
    def functions(self) -> frozenset[str]:
        return frozenset(c.name for c in self.capabilities if isinstance(c, FunctionGrant))

    @property
    def stores(self) -> tuple[StoreGrant, ...]:
        return tuple(c for c in self.capabilities if isinstance(c, StoreGrant))

    def store_grant(self, namespace: str) -> StoreGrant | None:
        """What it may do with a namespace; the widest grant if several name it."""
        mine = [grant for grant in self.stores if grant.namespace == namespace]
        return min(mine, key=lambda grant: grant.is_read_only, default=None)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What is told about a plugin. `why` says why it was refused; None in any other state."""

    name: str
    state: PluginState
    kind: PluginKind | None = None
    version: str | None = None
    description: str = ""
    tools: tuple[ToolSpec, ...] = ()
    capabilities: tuple[str, ...] = ()
    sha256: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class PluginAccount:
    """What a plugin can touch, and how often it asked for what since the start."""

    info: PluginInfo
    guest: str | None = None  # how it is spoken to; None: it is not loaded
    needs: Mapping[str, str | None] = field(
        default_factory=dict
    )  # import -> capability; None: none
    lacking: frozenset[str] = frozenset()  # imports that are answered `denied`
    used: Mapping[str, int] = field(default_factory=dict)  # by capability
    denied: Mapping[str, int] = field(default_factory=dict)
