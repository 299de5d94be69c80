"""What gateway and worker both know of a guest: how it is spoken to, what it imports, its bounds."""

from dataclasses import dataclass
from typing import Literal

from gateway.domain.plugins import PluginKind

# exogate: our WIT worlds. extism: core modules of any Extism PDK. near: components that export
# near:agent/tool. functions: components whose plain functions are tools.
Guest = Literal["exogate", "extism", "near", "functions"]

# How a call ended. `ok` and `err` are the guest's own answers; all others are ours.
Status = Literal[
    "ok",
    "err",
    "timeout",
    "cancelled",
    "fuel",
    "memory",
    "stack",
    "trap",
    "host_calls",
    "denied",
    "output_too_large",
    "invalid",
    "load",
]


# What a guest may hand to the gateway at once, and in one call: the gateway serves others as well.
ASKED_BYTES, REQUEST_BYTES, ALL_ASKED_BYTES = 192 * 1024, 1536 * 1024, 16 * 1024 * 1024
ESCAPED = 3  # a request of HTTP is passed on as ASCII, which makes it so many times larger at most


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a file is, seen without running it. `imports` are written interface#function."""

    guest: Guest
    kind: PluginKind
    imports: tuple[str, ...]
    exports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one call, as the worker enforces them, and the gateway once more for a worker that does not."""

    memory_bytes: int
    fuel: int
    output_bytes: int
    host_calls: int = 1000
    http_calls: int = 20
    log_lines: int = 200
    log_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled guest, as a worker loads it."""

    path: str
    guest: Guest
    bounds: Bounds
    config: tuple[tuple[str, str], ...] = ()  # texts that Extism guests may ask for
    concurrency: int = 8  # calls at a time
