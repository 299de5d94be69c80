"""Plugins: configuration, grants, and the state of a loaded plugin."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Literal, Protocol

from gateway.domain.ids import PluginKind, Secret
from gateway.domain.model import ToolSpec
from gateway.domain.settings import Setting, setting

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
USUAL_PORT = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """The target of a request; `host` is in lower case, an IPv6 address without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def is_usual(self) -> bool:
        return self.scheme == "https" and self.port == 443

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if USUAL_PORT[self.scheme] == self.port else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


@dataclass(frozen=True, slots=True)
class HttpGrant:
    """Requests to exactly this origin."""

    origin: Origin

    def __str__(self) -> str:
        origin = self.origin
        if not origin.is_usual:
            return f"http:{origin}"
        return f"http:{f'[{origin.host}]' if ':' in origin.host else origin.host}"


@dataclass(frozen=True, slots=True)
class StoreGrant:
    """One namespace of the plugin; each person has a separate one unless it is `shared`."""

    namespace: str
    is_shared: bool = False
    is_read_only: bool = False

    def __str__(self) -> str:
        shared, read_only = ":shared" * self.is_shared, ":ro" * self.is_read_only
        return f"store:{self.namespace}{shared}{read_only}"


@dataclass(frozen=True, slots=True)
class FunctionGrant:
    """A host function by name: `clock`, `random`, or one that the operator registered."""

    name: str

    def __str__(self) -> str:
        return f"host_function:{self.name}"


Capability = HttpGrant | StoreGrant | FunctionGrant


def canonical_host(text: str) -> str | None:
    """Returns the form in which hosts are compared: lower case, addresses in canonical form; None
    for an invalid host.

    Spellings that only a resolver understands (`127.1`, `0x7f.1`, `2130706433`) are invalid.
    """
    host = text.lower() if text.isascii() else ""
    if host.startswith("[") and host.endswith("]"):
        return _address(host[1:-1], IPv6Address)
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return _address(host, IPv4Address)
    return host if _HOST_NAME.fullmatch(host) else None


def _address(text: str, kind: type[IPv4Address | IPv6Address]) -> str | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return str(address) if isinstance(address, kind) and "%" not in text else None


class AdapterDescription(Protocol):
    """The parts of a channel adapter's description that the sandbox needs."""

    @property
    def version(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def largest_call(self) -> int: ...


PluginState = Literal["loaded", "compiling", "refused", "disabled"]


@dataclass(frozen=True, slots=True)
class PluginSecret:
    """A secret that the host fills in for these origins only; a plugin never sees it."""

    name: str
    value: Secret
    origins: frozenset[Origin]


@dataclass(frozen=True, slots=True)
class PluginLimits:
    """Bounds of one call, and the number of concurrent calls."""

    timeout_s: float = setting(10.0, "Seconds of one call.", above=0, most=60)
    memory_mb: int = setting(64, "MiB of memory.", 1, 512)
    fuel: int | None = setting(None, "Most instructions. Absent: as the time allows.", 1, 2**62)
    output_kb: int = setting(1024, "KiB of its result.", 1, 8_192)
    concurrency: int = setting(8, "Concurrent calls; further calls are queued.", 1, 1_024)


@dataclass(frozen=True, slots=True)
class PluginDef:
    """One configured plugin."""

    name: Annotated[
        str,
        Setting("Its name: lower-case letters, digits, - and single _, 32 at most.", form="plugin"),
    ]
    path: Annotated[
        Path, Setting("Its file, or bundled:NAME for one that is shipped.", form="path")
    ]
    capabilities: tuple[Capability, ...] = setting(
        (), "What it may do: http:HOST, store:NAME, host_function:NAME.", unique=""
    )
    sha256: str | None = setting(None, "SHA-256 of its file; others are refused.", form="sha256")
    config: Mapping[str, object] = setting({}, "Passed to the plugin unchanged.", names="any")
    secrets: tuple[PluginSecret, ...] = setting(
        (),
        "Secrets that the host inserts; the plugin never sees them.",
        names="secret",
        by_name=True,
    )
    limits: PluginLimits = setting(PluginLimits(), "Limits of one call.")
    is_enabled: bool = setting(True, "Whether it is loaded.", key="enabled")
    deny_unused: bool = setting(False, "Load it although it imports functions without a grant.")
    is_bundled: bool = False  # shipped with the gateway; its tools keep their own names

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
        """Returns the grant for a namespace, the widest if there are several."""
        mine = [grant for grant in self.stores if grant.namespace == namespace]
        return min(mine, key=lambda grant: grant.is_read_only, default=None)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The public state of a plugin. `why` is the reason of a refusal, else None."""

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
    """A plugin's access to the host, and its use of it since the start."""

    info: PluginInfo
    guest: str | None = None  # the interface of its guest; None: not loaded
    needs: Mapping[str, str | None] = field(
        default_factory=dict
    )  # import -> capability; None: none
    lacking: frozenset[str] = frozenset()  # imports that are denied
    used: Mapping[str, int] = field(default_factory=dict)  # by capability
    denied: Mapping[str, int] = field(default_factory=dict)
