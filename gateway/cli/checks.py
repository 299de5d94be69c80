"""What `exogate doctor` looks at: each check gives its findings and changes nothing."""

import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from gateway.app.agents import soul_paths
from gateway.config.values import GatewayConfig
from gateway.domain.errors import StoreRefused, StoreUnavailable
from gateway.domain.providers import is_loopback
from gateway.domain.tokens import estimate_tokens
from gateway.store.opening import look_over, read_owner

LOW_DISK_BYTES = 500 * 1024 * 1024
LONG_SOUL_TOKENS = 1_500
SPARE_FILES = 100  # besides one a connection

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    severity: Severity
    path: str
    message: str
    fix: str


Check = Callable[[GatewayConfig], Iterable[Finding]]


def claims(_config: GatewayConfig) -> Iterator[Finding]:
    """Another distribution with a package `gateway` overwrites our files without a word."""
    owners = sorted(set(metadata.packages_distributions().get("gateway", ())))
    for other in (owner for owner in owners if owner != "exogate"):
        yield Finding(
            "install.package",
            "error",
            str(Path(sys.prefix)),
            f"the distribution {other!r} installs a package `gateway` too; files may be overwritten",
            "install exogate in a virtual environment of its own",
        )


def config_notices(config: GatewayConfig) -> Iterator[Finding]:
    for notice in config.notices:
        yield Finding(notice.code, "warning", notice.path, notice.message, notice.fix)


def data_dir(config: GatewayConfig) -> Iterator[Finding]:
    folder = config.gateway.data_dir
    if not folder.exists():
        return
    where = str(folder)
    if folder.stat().st_mode & 0o077:
        text = "other users of this machine can look into the data directory"
        yield Finding("data.mode", "warning", where, text, f"chmod 700 {where}")
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK_BYTES:
        text = f"only {free // 1024**2} MiB are free; a full disk stops the gateway from accepting"
        yield Finding("data.disk", "warning", where, text, "free some space")


def store(config: GatewayConfig) -> Iterator[Finding]:
    """A gateway that runs watches its store itself."""
    folder = config.gateway.data_dir
    if config.store.url != "embedded" or read_owner(folder) is not None:
        return
    try:
        look_over(folder)
    except (StoreRefused, StoreUnavailable) as error:
        fix = "restore a copy of the data directory, or move the file away"
        yield Finding("store.damaged", "error", str(folder), str(error), fix)


def port(config: GatewayConfig) -> Iterator[Finding]:
    settings = config.gateway
    owner = read_owner(settings.data_dir)
    if settings.port == 0 or (owner is not None and owner.url):
        return
    with socket.socket(socket.AF_INET6 if ":" in settings.bind else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.bind, settings.port))
        except OSError as error:
            where = f"{settings.bind}:{settings.port}"
            text = f"cannot listen there: {error.strerror}"
            fix = "stop what listens there, or choose another [gateway] port"
            yield Finding("network.port", "error", where, text, fix)


def exposure(config: GatewayConfig) -> Iterator[Finding]:
    settings = config.gateway
    if not is_loopback(settings.bind) and not settings.trusted_proxies:
        text = "the gateway listens beyond this machine without encryption of its own"
        fix = "put a TLS proxy in front and name it in trusted_proxies"
        yield Finding("network.tls", "warning", "gateway.bind", text, fix)


def open_files(config: GatewayConfig) -> Iterator[Finding]:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.gateway.max_connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        text = f"a process may open {hard} files here, but max_connections wants {wanted}"
        fix = f"raise the hard limit (ulimit -Hn) to {wanted}, or a smaller max_connections"
        yield Finding("limits.files", "warning", "gateway.max_connections", text, fix)


def keys(config: GatewayConfig) -> Iterator[Finding]:
    for name, one in config.providers.items():
        if one.api_key is None and not is_loopback(one.base_url.split("/")[2].split(":")[0]):
            text = "no key is configured"
            fix = f"set api_key in [providers.{name}], or its environment variable"
            yield Finding("provider.key", "warning", f"providers.{name}", text, fix)


def shadowed(config: GatewayConfig) -> Iterator[Finding]:
    """A binding with the very fields of an earlier one can never win."""
    first: dict[tuple[str | None, ...], int] = {}
    for index, one in enumerate(config.bindings):
        fields = (one.channel, one.account_id, one.peer_id, one.guild_id, one.team_id)
        earlier = first.setdefault(fields, index)
        if earlier != index:
            text = f"it can never win: binding {earlier} asks for the same and comes first"
            yield Finding("bindings.shadowed", "warning", f"bindings.{index}", text, "remove it")


def souls(config: GatewayConfig) -> Iterator[Finding]:
    for agent, path in soul_paths(config.agents).items():
        try:
            tokens = estimate_tokens(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            text = f"the soul of {agent} cannot be read: {error}"
            yield Finding("soul.unreadable", "error", path, text, "mend the file or soul_path")
            continue
        if tokens > LONG_SOUL_TOKENS:
            text = f"the soul of {agent} has about {tokens} tokens, and is sent with every call"
            yield Finding("soul.long", "warning", path, text, "shorten it")


def plugins(config: GatewayConfig) -> Iterator[Finding]:
    """Each enabled one is loaded for trial, as at a start."""
    if not any(plugin.is_enabled for plugin in config.plugins):
        return
    from gateway.cli.plugin_checking import refusals  # noqa: PLC0415  # the sandbox is slow to import

    for name, why in refusals(config.plugins):
        fix = f"exogate plugin inspect {name} shows what it needs and has"
        yield Finding("plugin.refused", "error", f"plugins.{name}", why, fix)


CHECKS: Sequence[Check] = (
    claims,
    config_notices,
    data_dir,
    store,
    port,
    exposure,
    open_files,
    keys,
    shadowed,
    souls,
    plugins,
)
